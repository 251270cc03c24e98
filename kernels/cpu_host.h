/* What the CPU backend asks of the operating system: large memory, how much of it there is, and the
 * processor's name. Knows no tensors. Any thread. */
#ifndef KV_KERNELS_CPU_HOST_H
#define KV_KERNELS_CPU_HOST_H

#include "protocol/error.h"

/* Zero-filled anonymous memory, on huge pages where the system has them. Zero-initialise; unmap accepts that.
 */
struct kv_region {
    unsigned char *base; /* aligned to 64 bytes at least */
    size_t bytes;        /* usable */
    size_t mapped_bytes;
};

/* One array of a region: a * b * c elements, aligned to 64 bytes. */
struct kv_slice {
    int64_t a, b, c;
    size_t element_bytes;
    void *at; /* set by carve; NULL where there are no elements */
};

/* device_out_of_memory, with `what`, needed and free bytes, when that much memory is not there. `bytes` may
 * be 0. */
bool kv_region_map(struct kv_region *region, uint64_t bytes, const char *what,
                   struct kv_error *err) KV_MUST_CHECK;
/* Maps as much as the slices need, and tells each where it begins. */
bool kv_region_carve(struct kv_region *region, struct kv_slice *slices, int32_t count, const char *what,
                     struct kv_error *err) KV_MUST_CHECK;
/* Makes all pages present, so that later use takes no page faults. */
void kv_region_touch(struct kv_region *region);
void kv_region_unmap(struct kv_region *region);

/* Memory that can be had without swapping, by the system's own estimate; UINT64_MAX when it does not say. */
uint64_t kv_host_free_bytes(void);
/* CPUs that this process may run on, at least 1. */
int32_t kv_host_cpus(void);
/* The processor's model, or what else the system calls it. Writes to `to` and returns it. */
const char *kv_host_name(char *to, size_t to_bytes);

#endif
