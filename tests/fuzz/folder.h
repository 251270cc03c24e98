/* The folder of a checkpoint under test: its files are written anew from an input's bytes. Where TMPDIR is in
 * memory, that is quick. Knows no more of a weight file than what it is told to put there. */
#ifndef KV_TESTS_FUZZ_FOLDER_H
#define KV_TESTS_FUZZ_FOLDER_H

#include "protocol/safetensors.h"
#include "tests/fuzz/promise.h"

#include <fcntl.h>

enum { FUZZ_ENTRIES_MAX = 64, FUZZ_DATA_BYTES_MAX = 1 << 20 };

/* What a weight file is to hold: its data is `values`, then zeros. */
struct fuzz_weights {
    int32_t count;
    struct kv_entry entry[FUZZ_ENTRIES_MAX];
    char name[FUZZ_ENTRIES_MAX][128];
    const void *values;
    size_t values_bytes;
};

static char fuzz_folder_path[256];
static int fuzz_folder = -1;
static const char *const fuzz_files[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                         "a.safetensors", "b.safetensors"};

static inline void fuzz_folder_clear(void)
{
    for (size_t i = 0; i < sizeof fuzz_files / sizeof fuzz_files[0]; i++)
        unlinkat(fuzz_folder, fuzz_files[i], 0);
}

static inline void fuzz_folder_remove(void)
{
    fuzz_folder_clear();
    rmdir(fuzz_folder_path);
}

/* Makes it, the first time. */
static inline void fuzz_folder_open(void)
{
    const char *in = getenv("TMPDIR");
    if (fuzz_folder >= 0) return;
    snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%.200s/kvmat-fuzz-XXXXXX",
             in && in[0] ? in : "/tmp");
    FUZZ_CHECK(mkdtemp(fuzz_folder_path) != NULL);
    fuzz_folder = open(fuzz_folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(fuzz_folder >= 0);
    FUZZ_CHECK(atexit(fuzz_folder_remove) == 0);
}

/* Writes both pieces one after the other, and zeros up to bytes_least. */
static inline void fuzz_file_write(const char *file, const void *head, size_t head_bytes, const void *rest,
                                   size_t rest_bytes, uint64_t bytes_least)
{
    int fd = openat(fuzz_folder, file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(head_bytes == 0 || write(fd, head, head_bytes) == (ssize_t)head_bytes);
    FUZZ_CHECK(rest_bytes == 0 || write(fd, rest, rest_bytes) == (ssize_t)rest_bytes);
    if (bytes_least > head_bytes + rest_bytes) FUZZ_CHECK(ftruncate(fd, (off_t)bytes_least) == 0);
    close(fd);
}

static inline void fuzz_weights_add(struct fuzz_weights *weights, const char *name, enum kv_dtype dtype,
                                    int32_t rank, const int64_t *dims)
{
    if (weights->count == FUZZ_ENTRIES_MAX) return;
    struct kv_entry *entry = &weights->entry[weights->count];
    snprintf(weights->name[weights->count], sizeof weights->name[0], "%s", name);
    *entry = (struct kv_entry){.name = weights->name[weights->count++], .dtype = dtype, .rank = rank};
    for (int32_t i = 0; i < rank; i++) entry->dims[i] = dims[i];
}

/* A sound safetensors file of these tensors. False where there is no such file, or it is too large. */
static inline bool fuzz_weights_write(const char *file, const struct fuzz_weights *weights)
{
    static unsigned char header[64 * 1024];
    size_t written = 0, values_bytes = weights->values_bytes;
    uint64_t data_bytes = 0;
    if (!kv_document_encode(header, sizeof header, weights->entry, weights->count, NULL, 0, &written,
                            &data_bytes, NULL))
        return false;
    if (data_bytes > FUZZ_DATA_BYTES_MAX) return false;
    if (values_bytes > data_bytes) values_bytes = (size_t)data_bytes;
    fuzz_file_write(file, header, written, weights->values, values_bytes, written + data_bytes);
    return true;
}

#endif
