/* A file mapped for reading. Knows no content. */
#ifndef KV_CLIENT_INPUT_H
#define KV_CLIENT_INPUT_H

#include "protocol/error.h"

/* Zero-initialised: none. */
struct kv_input_file {
    const void *bytes; /* NULL where the file is empty */
    uint64_t size;
};

bool kv_input_file_open(struct kv_input_file *file, const char *path, struct kv_error *err) KV_MUST_CHECK;
void kv_input_file_close(struct kv_input_file *file);

#endif
