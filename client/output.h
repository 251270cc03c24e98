/* Files that appear whole or not at all: written beside their place under another name, then renamed.
 * And a progress bar for what takes long. Knows no content. */
#ifndef KV_CLIENT_OUTPUT_H
#define KV_CLIENT_OUTPUT_H

#include "protocol/error.h"

enum { KV_OUTPUT_PATH_BYTES = 4096, KV_OUTPUT_BUFFER_BYTES = 1 << 20 };

/* A file that is being written. Zero-initialised: none. Not thread-safe. */
struct kv_output {
    int fd;
    bool open;
    bool direct; /* a device or a pipe: written in place, never renamed over */
    char path[KV_OUTPUT_PATH_BYTES], temporary[KV_OUTPUT_PATH_BYTES];
    uint64_t written;
    size_t buffered;
    unsigned char *buffer; /* [KV_OUTPUT_BUFFER_BYTES] */
};

/* Creates the temporary file and reserves `bytes` of disk for it, so that a full disk is found at once; 0:
 * unknown. */
bool kv_output_open(struct kv_output *output, const char *path, uint64_t bytes,
                    struct kv_error *err) KV_MUST_CHECK;
bool kv_output_write(struct kv_output *output, const void *from, size_t bytes,
                     struct kv_error *err) KV_MUST_CHECK;
/* Room for `bytes` (at most the buffer) to be filled in by the caller, who then tells with kv_output_filled.
 */
bool kv_output_room(struct kv_output *output, size_t bytes, void **to, struct kv_error *err) KV_MUST_CHECK;
void kv_output_filled(struct kv_output *output, size_t bytes);
/* Writes what is buffered to disk, keeping the temporary name. Then `place` renames. */
bool kv_output_finish(struct kv_output *output, struct kv_error *err) KV_MUST_CHECK;
bool kv_output_place(struct kv_output *output, struct kv_error *err) KV_MUST_CHECK;
/* Removes the temporary file, if it is still there, and frees. */
void kv_output_close(struct kv_output *output);

/* From now on SIGINT and SIGTERM make kv_output_write fail, so that the caller cleans up; for programs, not
 * libraries. */
void kv_output_catch_signals(void);

/* A bar on standard error: only where that is a terminal, only after a second, gone at the end. */
struct kv_progress {
    const char *what;
    uint64_t total;
    int64_t begin_ms, shown_ms;
    bool on, drawn;
};
void kv_progress_begin(struct kv_progress *progress, const char *what, uint64_t total);
void kv_progress_show(struct kv_progress *progress, uint64_t done);
void kv_progress_end(struct kv_progress *progress);

#endif
