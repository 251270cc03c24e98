/* Reads a safetensors header: every rule of the container is checked here, once, for messages and for files.
 * Knows no tensor's meaning. What is refused in a message with which fault is settled at the top of this
 * file. */
#include "protocol/safetensors.h"

#include "protocol/json_value.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <jansson.h>

/* A header that keeps to the rules is {name: {key: [..]}}: three deep, three containers and some ten values a
 * tensor. The JSON library makes up to seventy bytes of tree from one byte of text, so both are bounded
 * before it looks. */
enum { DEPTH_MAX = 8, CONTAINERS_PER_TENSOR = 4, VALUES_PER_TENSOR = 16, SPARE = 16 };

static const char metadata_name[] = "__metadata__";

/* How one kind of document is read, and which faults its errors are. */
struct rules {
    enum kv_fault malformed, mismatch, dtype;
    uint64_t header_bytes_max;
    int32_t tensors_max;
    bool strict; /* unknown members of an entry are refused */
};

static const struct rules *rules_of(enum kv_document_kind kind)
{
    static const struct rules request = {KV_BODY_MALFORMED,      KV_SIZE_MISMATCH,
                                         KV_DTYPE_UNSUPPORTED,   KV_HEADER_BYTES_MAX_REQUEST,
                                         KV_TENSORS_MAX_REQUEST, true};
    static const struct rules file = {KV_SAFETENSORS_MALFORMED, KV_SAFETENSORS_MALFORMED,
                                      KV_SAFETENSORS_MALFORMED, KV_HEADER_BYTES_MAX_FILE,
                                      KV_TENSORS_MAX_FILE,      false};
    return kind == KV_DOCUMENT_REQUEST ? &request : &file;
}

bool kv_document_prefix(const void *prefix, uint64_t bytes, enum kv_document_kind kind,
                        uint64_t *header_bytes, struct kv_error *err)
{
    const struct rules *rules = rules_of(kind);
    if (bytes < KV_DOCUMENT_PREFIX_BYTES) {
        kv_fail(err, rules->malformed,
                "a safetensors document starts with 8 bytes of header length, and this is %" PRIu64
                " bytes in all",
                bytes);
        if (kind == KV_DOCUMENT_REQUEST && bytes == 0)
            kv_error_hint(err, "The body is empty: send the safetensors document as the request's body.");
        return false;
    }
    uint64_t length;
    memcpy(&length, prefix, sizeof length);
    bool fits = length <= bytes - KV_DOCUMENT_PREFIX_BYTES;
    if (fits && length <= rules->header_bytes_max) {
        *header_bytes = length;
        return true;
    }
    if (length > rules->header_bytes_max)
        kv_fail(err, rules->malformed,
                "the header says it is %" PRIu64 " bytes long, more than the limit of %" PRIu64, length,
                rules->header_bytes_max);
    else
        kv_fail(err, rules->malformed,
                "the header says it is %" PRIu64 " bytes long, and only %" PRIu64 " bytes follow the length",
                length, bytes - KV_DOCUMENT_PREFIX_BYTES);
    const unsigned char *first = prefix;
    if (first[0] == '{' || first[0] == '[')
        kv_error_hint(
            err,
            "This looks like plain JSON: a safetensors document has 8 bytes of header length before it.");
    return false;
}

/* Counts what the parser would build, without building it. Strings are skipped the way JSON ends them, so
 * that up to the first error of the text, where the parser stops, this sees what it sees. */
static bool guard(const char *text, uint64_t bytes, const struct rules *rules, struct kv_error *err)
{
    uint64_t containers = 0, values = 1;
    uint64_t containers_max = (uint64_t)rules->tensors_max * CONTAINERS_PER_TENSOR + SPARE;
    uint64_t values_max = (uint64_t)rules->tensors_max * VALUES_PER_TENSOR + SPARE;
    int32_t depth = 0;
    bool quoted = false;
    for (uint64_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == '"') {
            quoted = !quoted;
        } else if (quoted) {
            if (c == '\\') i++;
        } else if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX)
                return kv_fail(err, rules->malformed,
                               "the header is nested deeper than %d levels at byte %" PRIu64, DEPTH_MAX, i);
            if (++containers > containers_max)
                return kv_fail(err, rules->malformed,
                               "the header holds over %" PRIu64 " objects and arrays, more than %" PRId32
                               " tensors need",
                               containers_max, rules->tensors_max);
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',' && ++values > values_max) {
            return kv_fail(err, rules->malformed,
                           "the header holds over %" PRIu64 " values, more than %" PRId32 " tensors need",
                           values_max, rules->tensors_max);
        }
    }
    return true;
}

static bool read_json(const char *text, uint64_t bytes, const struct rules *rules, json_t **out,
                      struct kv_error *err)
{
    if (!guard(text, bytes, rules, err)) return false;
    json_error_t problem;
    json_t *root = kv_json_load(text, (size_t)bytes, &problem);
    if (!root) {
        if (problem.text[0] == '\0')
            return kv_fail(err, KV_INTERNAL, "out of memory for a header of %" PRIu64 " bytes", bytes);
        return kv_fail(err, rules->malformed, "the header is not valid JSON: %s (line %d, column %d)",
                       problem.text, problem.line, problem.column);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return kv_fail(err, rules->malformed, "the header is JSON but not an object");
    }
    *out = root;
    return true;
}

static bool check_metadata(const json_t *metadata, const struct rules *rules, struct kv_error *err)
{
    if (!json_is_object(metadata))
        return kv_fail_param(err, rules->malformed, metadata_name, "%s is not an object of strings",
                             metadata_name);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return kv_fail_param(err, rules->malformed, metadata_name, "\"%.64s\" in %s is not a string", key,
                                 metadata_name);
    }
    return true;
}

/* A number written as a real (1.0, 1e3) is not an integer: other readers of the format refuse it too. */
static bool read_integers(const json_t *array, int64_t *to, size_t room, size_t *count)
{
    if (!json_is_array(array) || json_array_size(array) > room) return false;
    *count = json_array_size(array);
    for (size_t i = 0; i < *count; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0) return false;
        to[i] = json_integer_value(item);
    }
    return true;
}

static bool check_members(const char *name, const json_t *entry, const struct rules *rules,
                          struct kv_error *err)
{
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(entry))
        return kv_fail_param(err, rules->malformed, name, "the entry of tensor \"%.64s\" is not an object",
                             name);
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(entry, known[i]))
            return kv_fail_param(err, rules->malformed, name, "tensor \"%.64s\" has no %s", name, known[i]);
    if (!rules->strict || json_object_size(entry) == 3) return true;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strcmp(key, known[0]) && strcmp(key, known[1]) && strcmp(key, known[2]))
            return kv_fail_param(err, rules->malformed, name,
                                 "tensor \"%.64s\" has an unknown member \"%.64s\"", name, key);
    }
    return true;
}

/* One tensor by itself: its members, its dtype and shape, and that its bytes fit them. */
static bool read_tensor(struct kv_tensor *tensor, const char *name, const json_t *entry,
                        const struct rules *rules, struct kv_error *err)
{
    if (!check_members(name, entry, rules, err)) return false;
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    tensor->name = name;
    if (!json_is_string(dtype))
        return kv_fail_param(err, rules->malformed, name, "the dtype of tensor \"%.64s\" is not a string",
                             name);
    if (!kv_dtype_find(json_string_value(dtype), &tensor->dtype))
        return kv_fail_values(err, rules->dtype, name, kv_none(), kv_text(json_string_value(dtype)),
                              "the dtype of tensor \"%.64s\" is none that safetensors knows", name);
    size_t count = 0;
    if (json_array_size(shape) > KV_RANK_MAX)
        return kv_fail_param(err, rules->malformed, name, "tensor \"%.64s\" has %zu dimensions, more than %d",
                             name, json_array_size(shape), KV_RANK_MAX);
    if (!read_integers(shape, tensor->dims, KV_RANK_MAX, &count))
        return kv_fail_param(err, rules->malformed, name,
                             "the shape of tensor \"%.64s\" is not an array of integers of at least 0", name);
    tensor->rank = (int32_t)count;
    int64_t offsets[2];
    if (!read_integers(json_object_get(entry, "data_offsets"), offsets, 2, &count) || count != 2 ||
        offsets[0] > offsets[1])
        return kv_fail_param(
            err, rules->malformed, name,
            "the data_offsets of tensor \"%.64s\" are not [begin, end] with 0 <= begin <= end", name);
    tensor->begin = (uint64_t)offsets[0];
    tensor->end = (uint64_t)offsets[1];
    uint64_t needed;
    if (!kv_tensor_bytes(tensor->dtype, tensor->rank, tensor->dims, &needed))
        return kv_fail_values(err, rules->mismatch, name, kv_none(), kv_shape(tensor->rank, tensor->dims),
                              "the shape of tensor \"%.64s\" in %s is no whole number of bytes under 2^61",
                              name, kv_dtype_name(tensor->dtype));
    if (tensor->end - tensor->begin != needed)
        return kv_fail_values(
            err, rules->mismatch, name, kv_integer((int64_t)needed), kv_integer(offsets[1] - offsets[0]),
            "the bytes of tensor \"%.64s\" do not fit its shape in %s", name, kv_dtype_name(tensor->dtype));
    return true;
}

/* By place; tensors without bytes come before the one that begins where they do. */
static int compare_places(const void *left, const void *right)
{
    const struct kv_tensor *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* All tensors together: they cover the data exactly once, and the document ends where the last one does. */
static bool check_layout(struct kv_document *document, uint64_t document_bytes, const struct rules *rules,
                         struct kv_error *err)
{
    if (document->count > 1)
        qsort(document->tensors, (size_t)document->count, sizeof *document->tensors, compare_places);
    uint64_t end = 0;
    for (int32_t i = 0; i < document->count; i++) {
        const struct kv_tensor *tensor = &document->tensors[i];
        if (tensor->begin != end)
            return kv_fail_values(err, rules->malformed, tensor->name, kv_integer((int64_t)end),
                                  kv_integer((int64_t)tensor->begin),
                                  "tensor \"%.64s\" %s: its data begins elsewhere", tensor->name,
                                  tensor->begin < end ? "overlaps another" : "leaves a hole before it");
        end = tensor->end;
    }
    document->data_bytes = end;
    uint64_t total = KV_DOCUMENT_PREFIX_BYTES + document->header_bytes + end;
    if (total != document_bytes)
        return kv_fail_values(err, rules->mismatch, NULL, kv_integer((int64_t)total),
                              kv_integer(document_bytes > INT64_MAX ? INT64_MAX : (int64_t)document_bytes),
                              "the header announces %s bytes than the document has",
                              total > document_bytes ? "more" : "fewer");
    return true;
}

static bool read_tensors(struct kv_document *document, json_t *root, const struct rules *rules,
                         struct kv_error *err)
{
    const json_t *metadata = json_object_get(root, metadata_name);
    size_t count = json_object_size(root) - (metadata ? 1 : 0);
    if (count > (size_t)rules->tensors_max)
        return kv_fail(err, rules->malformed, "the header names %zu tensors, more than the limit of %" PRId32,
                       count, rules->tensors_max);
    if (metadata && !check_metadata(metadata, rules, err)) return false;
    if (count == 0) return true;
    document->tensors = calloc(count, sizeof *document->tensors);
    if (!document->tensors)
        return kv_fail(err, KV_INTERNAL, "out of memory for the list of %zu tensors", count);
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (entry == metadata) continue;
        if (!read_tensor(&document->tensors[document->count], name, entry, rules, err)) return false;
        document->count++;
    }
    return true;
}

bool kv_document_parse(struct kv_document *document, const void *header, uint64_t header_bytes,
                       uint64_t document_bytes, enum kv_document_kind kind, struct kv_error *err)
{
    const struct rules *rules = rules_of(kind);
    assert(header_bytes <= rules->header_bytes_max);
    json_t *root = NULL;
    *document = (struct kv_document){.header_bytes = header_bytes};
    if (!read_json(header, header_bytes, rules, &root, err)) return false;
    document->json = root;
    if (!read_tensors(document, root, rules, err) || !check_layout(document, document_bytes, rules, err)) {
        kv_document_close(document);
        return false;
    }
    return true;
}
