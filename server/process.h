/* What the kernel says of this process. Knows nothing of what it does. */
#ifndef KV_SERVER_PROCESS_H
#define KV_SERVER_PROCESS_H

#include <stdint.h>

struct kv_process {
    uint64_t resident_bytes, virtual_bytes;
    uint64_t open_fds, max_fds;
    double cpu_seconds; /* of all threads, user and system */
};

/* What cannot be read is 0. Any thread. */
void kv_process_read(struct kv_process *out);

#endif
