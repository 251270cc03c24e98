/* One safetensors file, or those of an index. Every header is read, also of shards without a needed tensor: a
 * tensor that is there twice would else pass unseen. */
#include "server/shards.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

/* The document code does not know the file's name; the operator must. */
static bool name_fault(const struct kv_file *file, const struct kv_error *error, struct kv_findings *findings)
{
    struct kv_error named = {0};
    kv_fail_param(&named, error->fault, file->name, "%.96s: %s", file->name, error->message);
    named.expected = error->expected;
    named.got = error->got;
    memcpy(named.hint, error->hint, sizeof named.hint);
    return kv_findings_add(findings, -1, &named);
}

static bool read_header(struct kv_shard *shard, struct kv_error *err)
{
    unsigned char prefix[KV_DOCUMENT_PREFIX_BYTES] = {0};
    uint64_t bytes = shard->file.bytes, header_bytes = 0;
    if (bytes >= sizeof prefix && !kv_file_read(&shard->file, 0, prefix, sizeof prefix, err)) return false;
    if (!kv_document_prefix(prefix, bytes, KV_DOCUMENT_FILE, &header_bytes, err)) {
        if (memcmp(prefix, "version ", sizeof prefix) == 0) {
            err->hint[0] = '\0';
            kv_error_hint(
                err, "This is a Git LFS pointer, not the file it points to: fetch it with `git lfs pull`.");
        }
        return false;
    }
    char *header = malloc((size_t)header_bytes + 1);
    if (!header)
        return kv_fail(err, KV_INTERNAL, "out of memory for a header of %" PRIu64 " bytes", header_bytes);
    shard->data_begin = KV_DOCUMENT_PREFIX_BYTES + header_bytes;
    bool done = kv_file_read(&shard->file, sizeof prefix, header, (size_t)header_bytes, err) &&
                kv_document_parse(&shard->document, header, header_bytes, bytes, KV_DOCUMENT_FILE, err);
    free(header);
    return done;
}

static bool open_shard(struct kv_shard *shard, int folder, const char *name, enum kv_fault absent,
                       struct kv_findings *findings)
{
    struct kv_error error = {0};
    if (!kv_file_open(&shard->file, folder, name, absent, KV_SAFETENSORS_MALFORMED, &error)) {
        if (absent == KV_WEIGHTS_MISSING_TENSOR)
            kv_error_hint(&error, "The index names this file: download the missing shard.");
        return kv_findings_add(findings, -1, &error);
    }
    if (read_header(shard, &error)) return true;
    name_fault(&shard->file, &error, findings);
    kv_file_close(&shard->file);
    return false;
}

static bool read_index(struct kv_shards *shards, int folder, struct kv_findings *findings)
{
    struct kv_file file = {0};
    struct kv_error error = {0};
    shards->sharded = true;
    if (!kv_file_open(&file, folder, index_name, KV_MODEL_NOT_FOUND, KV_CONFIG_INVALID, &error))
        return kv_findings_add(findings, -1, &error);
    bool done = kv_index_read(&shards->index, &file, findings);
    kv_file_close(&file);
    return done;
}

/* By key, then in the order of files and places, so that the report does not depend on the sort. */
static int compare_stored(const void *left, const void *right)
{
    const struct kv_stored *a = left, *b = right;
    int order = strcmp(a->key, b->key);
    if (order != 0) return order;
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    return strcmp(a->name, b->name);
}

static bool make_table(struct kv_shards *shards, struct kv_findings *findings)
{
    int64_t total = 0;
    for (int32_t i = 0; i < shards->count; i++) total += shards->shard[i].document.count;
    if (total > KV_TENSORS_MAX_FILE)
        return kv_findings_fail(findings, -1, KV_SAFETENSORS_MALFORMED, index_name,
                                kv_integer(KV_TENSORS_MAX_FILE), kv_integer(total),
                                "the shards hold too many tensors");
    shards->stored = calloc((size_t)total + 1, sizeof *shards->stored);
    if (!shards->stored)
        return kv_findings_fail(findings, -1, KV_INTERNAL, NULL, kv_none(), kv_none(),
                                "out of memory for the table of %" PRId64 " tensors", total);
    for (int32_t i = 0; i < shards->count; i++) {
        const struct kv_shard *shard = &shards->shard[i];
        for (int32_t k = 0; k < shard->document.count; k++) {
            const struct kv_tensor *tensor = &shard->document.tensors[k];
            const char *key = strncmp(tensor->name, "model.", 6) == 0 ? tensor->name + 6 : tensor->name;
            shards->stored[shards->tensors++] =
                (struct kv_stored){.key = key, .name = tensor->name, .shard = shard, .tensor = tensor};
        }
    }
    qsort(shards->stored, (size_t)shards->tensors, sizeof *shards->stored, compare_stored);
    return true;
}

bool kv_shards_open(struct kv_shards *shards, int folder, struct kv_findings *findings)
{
    const char *single = single_name, *const *names = &single;
    enum kv_fault absent = KV_MODEL_NOT_FOUND;
    shards->count = 1;
    if (!kv_file_exists(folder, single_name)) {
        shards->count = 0;
        if (!kv_file_exists(folder, index_name))
            return kv_findings_fail(findings, -1, KV_MODEL_NOT_FOUND, single_name, kv_none(), kv_none(),
                                    "the folder holds neither %s nor %s", single_name, index_name);
        if (!read_index(shards, folder, findings)) return false;
        names = shards->index.shard;
        shards->count = shards->index.count;
        absent = KV_WEIGHTS_MISSING_TENSOR;
    }
    shards->shard = calloc((size_t)shards->count + 1, sizeof *shards->shard);
    if (!shards->shard) {
        shards->count = 0;
        return kv_findings_fail(findings, -1, KV_INTERNAL, NULL, kv_none(), kv_none(),
                                "out of memory for shards");
    }
    int32_t opened = 0;
    for (int32_t i = 0; i < shards->count; i++)
        if (open_shard(&shards->shard[i], folder, names[i], absent, findings)) opened++;
    if (opened == 0 && (shards->count > 0 || !shards->sharded)) return false;
    return make_table(shards, findings);
}

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const struct kv_stored *)item)->key);
}

const struct kv_stored *kv_shards_find(const struct kv_shards *shards, const char *key, int32_t *copies)
{
    *copies = 0;
    if (shards->tensors == 0) return NULL;
    const struct kv_stored *found =
        bsearch(key, shards->stored, (size_t)shards->tensors, sizeof *shards->stored, compare_key);
    if (!found) return NULL;
    while (found > shards->stored && strcmp(found[-1].key, key) == 0) found--;
    const struct kv_stored *end = shards->stored + shards->tensors;
    for (const struct kv_stored *at = found; at < end && strcmp(at->key, key) == 0; at++) ++*copies;
    return found;
}

const char *kv_shards_promised(const struct kv_shards *shards, const char *key, bool *readable)
{
    char prefixed[2 * KV_PARAM_BYTES];
    *readable = true;
    if (!shards->sharded) return NULL;
    snprintf(prefixed, sizeof prefixed, "model.%s", key);
    const char *file = kv_index_find(&shards->index, key);
    if (!file) file = kv_index_find(&shards->index, prefixed);
    if (!file) return NULL;
    *readable = false;
    for (int32_t i = 0; i < shards->count; i++)
        if (shards->shard[i].file.name && strcmp(shards->shard[i].file.name, file) == 0) *readable = true;
    return file;
}

void kv_shards_close(struct kv_shards *shards)
{
    for (int32_t i = 0; i < shards->count; i++) {
        kv_document_close(&shards->shard[i].document);
        kv_file_close(&shards->shard[i].file);
    }
    free(shards->shard);
    free(shards->stored);
    kv_index_close(&shards->index);
    *shards = (struct kv_shards){0};
}
