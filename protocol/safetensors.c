/* Safetensors documents in memory: opening one, finding what is in it, writing the header of a new one.
 * The rules of reading are in safetensors_parse.c. Knows no tensor's meaning. */
#include "protocol/safetensors.h"

#include <assert.h>
#include <stdio.h>
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

/* A header in the making. Its text is put together here because a reply is written for every request, and the
 * JSON library takes as long for its header as the kernel takes for a small reply; reading is the library's.
 */
struct writer {
    char *to;
    size_t room, length; /* length goes on counting past the room */
};

static void put_bytes(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->length + bytes <= writer->room) memcpy(writer->to + writer->length, text, bytes);
    writer->length += bytes;
}

static void put_text(struct writer *writer, const char *text)
{
    put_bytes(writer, text, strlen(text));
}

static void put_number(struct writer *writer, uint64_t number)
{
    char digits[24];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    put_bytes(writer, digits + at, sizeof digits - at);
}

/* Between quotes; what JSON asks to be escaped is. False: not UTF-8. */
static bool put_string(struct writer *writer, const char *text)
{
    char print[8];
    put_bytes(writer, "\"", 1);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            put_bytes(writer, "\\", 1);
            put_bytes(writer, c, 1);
        } else if ((unsigned char)*c < 0x20) {
            snprintf(print, sizeof print, "\\u%04x", (unsigned int)(unsigned char)*c);
            put_text(writer, print);
        } else {
            put_bytes(writer, c, 1);
        }
    }
    put_bytes(writer, "\"", 1);
    return kv_text_is_utf8(text);
}

static bool put_metadata(struct writer *writer, const struct kv_pair *metadata, int32_t pairs,
                         struct kv_error *err)
{
    bool first = true;
    for (int32_t i = 0; i < pairs; i++) {
        if (!metadata[i].value) continue;
        for (int32_t j = 0; j < i; j++)
            if (metadata[j].value && strcmp(metadata[i].key, metadata[j].key) == 0)
                return kv_fail_param(err, KV_INTERNAL, metadata[i].key,
                                     "the metadata to write has \"%.64s\" twice", metadata[i].key);
        put_text(writer, first ? "\"__metadata__\":{" : ",");
        first = false;
        bool utf8 = put_string(writer, metadata[i].key);
        put_text(writer, ":");
        if (!put_string(writer, metadata[i].value) || !utf8)
            return kv_fail_param(err, KV_INTERNAL, metadata[i].key, "the metadata \"%.64s\" is not UTF-8",
                                 metadata[i].key);
    }
    if (!first) put_text(writer, "}");
    return true;
}

static bool put_entry(struct writer *writer, const struct kv_entry *entry, uint64_t *offset,
                      struct kv_error *err)
{
    uint64_t bytes = 0, begin = *offset;
    if (entry->name[0] == '\0' || strcmp(entry->name, metadata_name) == 0)
        return kv_fail_param(err, KV_INTERNAL, entry->name, "no tensor can be named \"%s\"", entry->name);
    if (!kv_tensor_bytes(entry->dtype, entry->rank, entry->dims, &bytes) ||
        bytes > (uint64_t)INT64_MAX - begin)
        return kv_fail_param(err, KV_INTERNAL, entry->name,
                             "tensor \"%.64s\" has no size that can be written", entry->name);
    *offset = begin + bytes;
    if (!put_string(writer, entry->name))
        return kv_fail_param(err, KV_INTERNAL, entry->name, "the name \"%.64s\" is not UTF-8", entry->name);
    put_text(writer, ":{\"dtype\":\"");
    put_text(writer, kv_dtype_name(entry->dtype));
    put_text(writer, "\",\"shape\":[");
    for (int32_t i = 0; i < entry->rank; i++) {
        if (i > 0) put_text(writer, ",");
        put_number(writer, (uint64_t)entry->dims[i]);
    }
    put_text(writer, "],\"data_offsets\":[");
    put_number(writer, begin);
    put_text(writer, ",");
    put_number(writer, *offset);
    put_text(writer, "]}");
    return true;
}

/* Are two entries of one name? Headers of files have many: sorted, that is seen in neighbours. */
static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct kv_entry *const *)a)->name, (*(const struct kv_entry *const *)b)->name);
}

static bool check_names(const struct kv_entry *entries, int32_t count, struct kv_error *err)
{
    enum { FEW = 8 };
    const struct kv_entry *few[FEW], **sorted = count <= FEW ? few : calloc((size_t)count, sizeof *sorted);
    bool ok = true;
    if (!sorted) return kv_fail(err, KV_INTERNAL, "out of memory for a header");
    for (int32_t i = 0; i < count; i++) sorted[i] = &entries[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_name);
    for (int32_t i = 1; ok && i < count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            ok = kv_fail_param(err, KV_INTERNAL, sorted[i]->name, "the header to write names \"%.64s\" twice",
                               sorted[i]->name);
    if (sorted != few) free(sorted);
    return ok;
}

/* Spaces after the JSON are the format's own way to place the data. */
static bool pad(char *to, size_t capacity, size_t length, size_t *written, struct kv_error *err)
{
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
    struct writer writer = {.to = (char *)to + KV_DOCUMENT_PREFIX_BYTES};
    uint64_t offset = 0;
    if (capacity > KV_DOCUMENT_PREFIX_BYTES) writer.room = capacity - KV_DOCUMENT_PREFIX_BYTES;
    put_text(&writer, "{");
    bool done = check_names(entries, count, err) && put_metadata(&writer, metadata, pairs, err);
    for (int32_t i = 0; done && i < count; i++) {
        if (writer.length > 1) put_text(&writer, ",");
        done = put_entry(&writer, &entries[i], &offset, err);
    }
    put_text(&writer, "}");
    done = done && pad(to, capacity, writer.length, written, err);
    if (done && data_bytes) *data_bytes = offset;
    return done;
}
