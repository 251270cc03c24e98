/* The files of a random checkpoint: written under temporary names, renamed together when all of them are
 * whole. */
#include "client/model_files.h"

#include "client/noise.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRY_BYTES = 192, HEAD_BYTES_MIN = 1024, CHUNK_ELEMENTS = 64 * 1024 };

struct shard {
    struct kv_output output;
    int32_t first, count; /* of the tensors */
    char *head;
    size_t head_bytes;
};

struct writing {
    const struct kv_model_shape *shape;
    const char *folder;
    struct shard shard[KV_SHARDS_MAX];
    struct kv_output index, config;
    struct kv_progress progress;
    uint64_t total, done;
    bool made_folder;
};

static bool path_of(const char *folder, const char *name, char *to, struct kv_error *err)
{
    int bytes = snprintf(to, KV_OUTPUT_PATH_BYTES, "%s/%s", folder, name);
    if (bytes > 0 && bytes < KV_OUTPUT_PATH_BYTES) return true;
    return kv_fail_param(err, KV_FILE_UNUSABLE, "DIR", "The path of the folder is too long");
}

static void name_shard(const struct kv_model_shape *shape, int64_t number, char *to, size_t to_bytes)
{
    if (shape->shards == 1) {
        snprintf(to, to_bytes, "model.safetensors");
    } else {
        snprintf(to, to_bytes, "model-%05d-of-%05d.safetensors", (int)number + 1, (int)shape->shards);
    }
}

static bool open_folder(struct writing *writing, bool force, struct kv_error *err)
{
    const char *folder = writing->folder;
    if (mkdir(folder, 0777) == 0) {
        writing->made_folder = true;
        return true;
    }
    int cause = errno;
    DIR *listing = cause == EEXIST ? opendir(folder) : NULL;
    if (!listing) {
        if (cause == EEXIST) cause = errno;
        return kv_fail_param(err, KV_FILE_UNUSABLE, folder, "Cannot make the folder %s: %s", folder,
                             strerror(cause));
    }
    bool empty = true;
    for (const struct dirent *entry = readdir(listing); entry && empty; entry = readdir(listing)) {
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    }
    closedir(listing);
    if (empty || force) return true;
    kv_fail_param(err, KV_FILE_UNUSABLE, folder, "The folder %s has files in it", folder);
    kv_error_hint(err, "Name a new folder, or replace the checkpoint in this one with --force.");
    return false;
}

/* Makes the header of a shard and opens its file, with the space for it. */
static bool open_shard(struct writing *writing, int64_t number, struct kv_error *err)
{
    struct shard *shard = &writing->shard[number];
    char name[KV_TEXT_BYTES], path[KV_OUTPUT_PATH_BYTES];
    const struct kv_pair format = {"format", "pt"};
    uint64_t data = 0;
    size_t room = HEAD_BYTES_MIN + (size_t)shard->count * ENTRY_BYTES;
    struct kv_entry *entries = calloc((size_t)shard->count, sizeof *entries);
    struct kv_model_tensor *tensors = calloc((size_t)shard->count, sizeof *tensors);
    shard->head = malloc(room);
    bool opened = entries && tensors && shard->head;
    if (!opened) kv_fail(err, KV_INTERNAL, "There is no memory for a header of %d tensors", shard->count);
    for (int32_t i = 0; opened && i < shard->count; i++) {
        kv_model_shape_tensor(writing->shape, shard->first + i, &tensors[i]);
        entries[i] = (struct kv_entry){tensors[i].name,
                                       writing->shape->dtype,
                                       tensors[i].rank,
                                       {tensors[i].dims[0], tensors[i].dims[1]}};
    }
    name_shard(writing->shape, number, name, sizeof name);
    opened = opened && path_of(writing->folder, name, path, err) &&
             kv_document_encode(shard->head, room, entries, shard->count, &format, 1, &shard->head_bytes,
                                &data, err) &&
             kv_output_open(&shard->output, path, shard->head_bytes + data, err);
    writing->total += data;
    free(entries);
    free(tensors);
    return opened;
}

static bool write_tensor(struct writing *writing, struct kv_output *output,
                         const struct kv_model_tensor *tensor, struct kv_error *err)
{
    const struct kv_model_shape *shape = writing->shape;
    struct kv_noise noise = kv_noise_open((uint64_t)shape->seed, tensor->name);
    for (int64_t left = tensor->elements; left > 0;) {
        int64_t count = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
        size_t bytes = (size_t)count * kv_dtype_bytes(shape->dtype);
        void *to = NULL;
        if (!kv_output_room(output, bytes, &to, err)) return false;
        kv_noise_fill(&noise, shape->dtype, tensor->mean, tensor->deviation, count, to);
        kv_output_filled(output, bytes);
        left -= count;
        writing->done += bytes;
        kv_progress_show(&writing->progress, writing->done);
    }
    return true;
}

static bool write_shard(struct writing *writing, struct shard *shard, struct kv_error *err)
{
    if (!kv_output_write(&shard->output, shard->head, shard->head_bytes, err)) return false;
    for (int32_t i = 0; i < shard->count; i++) {
        struct kv_model_tensor tensor;
        kv_model_shape_tensor(writing->shape, shard->first + i, &tensor);
        if (!write_tensor(writing, &shard->output, &tensor, err)) return false;
    }
    return kv_output_finish(&shard->output, err);
}

static bool write_text(struct kv_output *output, const char *folder, const char *name, const char *text,
                       size_t bytes, struct kv_error *err)
{
    char path[KV_OUTPUT_PATH_BYTES];
    return path_of(folder, name, path, err) && kv_output_open(output, path, 0, err) &&
           kv_output_write(output, text, bytes, err) && kv_output_finish(output, err);
}

static bool write_index(struct writing *writing, struct kv_error *err)
{
    const struct kv_model_shape *shape = writing->shape;
    size_t room = HEAD_BYTES_MIN + (size_t)kv_model_shape_count(shape) * ENTRY_BYTES, bytes;
    char *text = malloc(room), name[KV_TEXT_BYTES];
    if (!text) return kv_fail(err, KV_INTERNAL, "There is no memory for the index of the shards");
    bytes = (size_t)snprintf(text, room, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
                             (unsigned long long)writing->total);
    for (int64_t number = 0; number < shape->shards; number++) {
        name_shard(shape, number, name, sizeof name);
        const struct shard *shard = &writing->shard[number];
        for (int32_t i = shard->first; i < shard->first + shard->count; i++) {
            struct kv_model_tensor tensor;
            kv_model_shape_tensor(shape, i, &tensor);
            bytes += (size_t)snprintf(text + bytes, room - bytes, "%s\n    \"%s\": \"%s\"", i ? "," : "",
                                      tensor.name, name);
        }
    }
    bytes += (size_t)snprintf(text + bytes, room - bytes, "\n  }\n}\n");
    bool written =
        write_text(&writing->index, writing->folder, "model.safetensors.index.json", text, bytes, err);
    free(text);
    return written;
}

/* Files of an older checkpoint would be read in place of the new ones, or beside them. */
static void remove_older(const char *folder)
{
    static const char *const patterns[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                           "model-*-of-*.safetensors"};
    DIR *listing = opendir(folder);
    if (!listing) return;
    for (const struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        bool older = false;
        for (int i = 0; i < 4; i++) older = older || fnmatch(patterns[i], entry->d_name, 0) == 0;
        if (older) unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

/* config.json comes last: a folder with one has all of it. */
static bool place(struct writing *writing, struct kv_error *err)
{
    remove_older(writing->folder);
    for (int64_t i = 0; i < writing->shape->shards; i++) {
        if (!kv_output_place(&writing->shard[i].output, err)) return false;
    }
    if (writing->shape->shards > 1 && !kv_output_place(&writing->index, err)) return false;
    return kv_output_place(&writing->config, err);
}

static bool write_all(struct writing *writing, bool force, struct kv_error *err)
{
    const struct kv_model_shape *shape = writing->shape;
    char config[KV_CONFIG_BYTES];
    int64_t count = kv_model_shape_count(shape);
    if (!open_folder(writing, force, err)) return false;
    for (int64_t i = 0; i < shape->shards; i++) {
        writing->shard[i].first = (int32_t)(count * i / shape->shards);
        writing->shard[i].count = (int32_t)(count * (i + 1) / shape->shards) - writing->shard[i].first;
        if (!open_shard(writing, i, err)) return false;
    }
    kv_progress_begin(&writing->progress, "writing", writing->total);
    for (int64_t i = 0; i < shape->shards; i++) {
        if (!write_shard(writing, &writing->shard[i], err)) return false;
    }
    if (shape->shards > 1 && !write_index(writing, err)) return false;
    size_t bytes = kv_model_shape_config(shape, config, sizeof config);
    return write_text(&writing->config, writing->folder, "config.json", config, bytes, err) &&
           place(writing, err);
}

bool kv_model_files_write(const struct kv_model_shape *shape, const char *folder, bool force, uint64_t *bytes,
                          struct kv_error *err)
{
    struct writing *writing = calloc(1, sizeof *writing);
    if (!writing) return kv_fail(err, KV_INTERNAL, "There is no memory for the list of files");
    writing->shape = shape;
    writing->folder = folder;
    bool written = write_all(writing, force, err);
    kv_progress_end(&writing->progress);
    *bytes = writing->total;
    for (int32_t i = 0; i < KV_SHARDS_MAX; i++) {
        kv_output_close(&writing->shard[i].output);
        free(writing->shard[i].head);
    }
    kv_output_close(&writing->index);
    kv_output_close(&writing->config);
    if (!written && writing->made_folder) rmdir(folder);
    free(writing);
    return written;
}
