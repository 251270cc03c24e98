/* Safetensors documents in memory: opening one, finding what is in it, writing the header of a new one.
 * The rules of reading are in safetensors_parse.c. Knows no tensor's meaning. */
#include "protocol/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <jansson.h>

static const char metadata_name[] = "__metadata__";

bool kv_document_open(struct kv_document *document, const void *body, uint64_t bytes,
                      enum kv_document_kind kind, struct kv_error *err)
{
    uint64_t header_bytes = 0;
    *document = (struct kv_document){0};
    return kv_document_prefix(body, bytes, kind, &header_bytes, err) &&
           kv_document_parse(document, (const char *)body + KV_DOCUMENT_PREFIX_BYTES, header_bytes, bytes,
                             kind, err);
}

const struct kv_tensor *kv_document_find(const struct kv_document *document, const char *name)
{
    for (int32_t i = 0; i < document->count; i++)
        if (strcmp(document->tensors[i].name, name) == 0) return &document->tensors[i];
    return NULL;
}

const char *kv_document_metadata(const struct kv_document *document, const char *key)
{
    return json_string_value(json_object_get(json_object_get(document->json, metadata_name), key));
}

struct kv_view kv_document_view(const struct kv_document *document, const struct kv_tensor *tensor,
                                const void *body)
{
    struct kv_view view = {.dtype = tensor->dtype, .rank = tensor->rank};
    memcpy(view.dims, tensor->dims, sizeof view.dims);
    view.data = (const char *)body + KV_DOCUMENT_PREFIX_BYTES + document->header_bytes + tensor->begin;
    view.bytes = tensor->end - tensor->begin;
    return view;
}

void kv_document_close(struct kv_document *document)
{
    if (!document) return;
    free(document->tensors);
    json_decref(document->json);
    *document = (struct kv_document){0};
}

/* Takes `value`, also when it fails: a key that is there twice, broken UTF-8, or no memory. */
static bool put(json_t *object, const char *key, json_t *value, struct kv_error *err)
{
    if (json_object_get(object, key)) {
        json_decref(value);
        return kv_fail_param(err, KV_INTERNAL, key, "the header to write names \"%.64s\" twice", key);
    }
    if (json_object_set_new(object, key, value) == 0) return true;
    return kv_fail_param(err, KV_INTERNAL, key, "\"%.64s\" cannot be written: not UTF-8, or out of memory",
                         key);
}

static bool put_metadata(json_t *root, const struct kv_pair *metadata, int32_t pairs, struct kv_error *err)
{
    json_t *object = json_object();
    for (int32_t i = 0; i < pairs; i++) {
        if (!metadata[i].value) continue;
        if (put(object, metadata[i].key, json_string(metadata[i].value), err)) continue;
        json_decref(object);
        return false;
    }
    if (json_object_size(object) > 0) return put(root, metadata_name, object, err);
    json_decref(object);
    return true;
}

static bool put_entry(json_t *root, const struct kv_entry *entry, uint64_t *offset, struct kv_error *err)
{
    uint64_t bytes = 0, begin = *offset;
    if (entry->name[0] == '\0' || strcmp(entry->name, metadata_name) == 0)
        return kv_fail_param(err, KV_INTERNAL, entry->name, "no tensor can be named \"%s\"", entry->name);
    if (!kv_tensor_bytes(entry->dtype, entry->rank, entry->dims, &bytes) ||
        bytes > (uint64_t)INT64_MAX - begin)
        return kv_fail_param(err, KV_INTERNAL, entry->name,
                             "tensor \"%.64s\" has no size that can be written", entry->name);
    json_t *shape = json_array();
    for (int32_t i = 0; i < entry->rank; i++) json_array_append_new(shape, json_integer(entry->dims[i]));
    if (json_array_size(shape) != (size_t)entry->rank) {
        json_decref(shape);
        return kv_fail(err, KV_INTERNAL, "out of memory for a header");
    }
    *offset = begin + bytes;
    json_t *object = json_pack("{s:s, s:o, s:[I, I]}", "dtype", kv_dtype_name(entry->dtype), "shape", shape,
                               "data_offsets", (json_int_t)begin, (json_int_t)*offset);
    return put(root, entry->name, object, err);
}

/* Spaces after the JSON are the format's own way to place the data. */
static bool dump(const json_t *root, char *to, size_t capacity, size_t *written, struct kv_error *err)
{
    size_t room = capacity > KV_DOCUMENT_PREFIX_BYTES ? capacity - KV_DOCUMENT_PREFIX_BYTES : 0;
    size_t length = json_dumpb(root, room ? to + KV_DOCUMENT_PREFIX_BYTES : NULL, room, JSON_COMPACT);
    if (length == 0) return kv_fail(err, KV_INTERNAL, "out of memory for a header");
    size_t total =
        (KV_DOCUMENT_PREFIX_BYTES + length + KV_DATA_ALIGNMENT - 1) / KV_DATA_ALIGNMENT * KV_DATA_ALIGNMENT;
    if (total > capacity)
        return kv_fail(err, KV_INTERNAL, "a header of %zu bytes does not fit the %zu bytes kept for it",
                       total, capacity);
    memset(to + KV_DOCUMENT_PREFIX_BYTES + length, ' ', total - KV_DOCUMENT_PREFIX_BYTES - length);
    uint64_t header_bytes = total - KV_DOCUMENT_PREFIX_BYTES;
    memcpy(to, &header_bytes, sizeof header_bytes);
    *written = total;
    return true;
}

bool kv_document_encode(void *to, size_t capacity, const struct kv_entry *entries, int32_t count,
                        const struct kv_pair *metadata, int32_t pairs, size_t *written, uint64_t *data_bytes,
                        struct kv_error *err)
{
    uint64_t offset = 0;
    json_t *root = json_object();
    if (!root) return kv_fail(err, KV_INTERNAL, "out of memory for a header");
    bool done = put_metadata(root, metadata, pairs, err);
    for (int32_t i = 0; done && i < count; i++) done = put_entry(root, &entries[i], &offset, err);
    done = done && dump(root, to, capacity, written, err);
    if (done && data_bytes) *data_bytes = offset;
    json_decref(root);
    return done;
}
