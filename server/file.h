/* One regular file of the model's folder: opened once, read at places, never mapped (a file cut short while
 * it is read must be an error, not a signal). Knows nothing of what is in it. */
#ifndef KV_SERVER_FILE_H
#define KV_SERVER_FILE_H

#include "protocol/error.h"

/* Zero-initialise; closing a file that is not open is fine. */
struct kv_file {
    char *name; /* as the folder or the index has it; NULL: not open */
    int fd;
    uint64_t bytes;      /* when it was opened */
    enum kv_fault fault; /* what it is when it cannot be read */
};

/* Opens folder/name for reading, following links. `absent`: the fault when it cannot be opened. `broken`:
 * when it is no regular file or, later, cannot be read. */
bool kv_file_open(struct kv_file *file, int folder, const char *name, enum kv_fault absent,
                  enum kv_fault broken, struct kv_error *err) KV_MUST_CHECK;

/* Reads exactly `bytes` at `offset`. From any thread. */
bool kv_file_read(const struct kv_file *file, uint64_t offset, void *to, size_t bytes,
                  struct kv_error *err) KV_MUST_CHECK;

/* Is there an entry of this name, be it a link to nothing? */
bool kv_file_exists(int folder, const char *name);

void kv_file_close(struct kv_file *file);

#endif
