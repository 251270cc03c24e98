/* Checks of an item that every backend makes alike, and the start that every backend's memory has in common.
 * Knows no device. */
#ifndef KV_KERNELS_ITEM_CHECK_H
#define KV_KERNELS_ITEM_CHECK_H

#include "kernels/backend.h"

#include <string.h>

/* The first member of every backend's struct kv_mem whose bytes the host can read. */
struct kv_mem_extent {
    void *host;
    uint64_t bytes;
};

static inline const struct kv_mem_extent *kv_mem_at(const struct kv_mem *mem)
{
    return (const struct kv_mem_extent *)(const void *)mem;
}

static inline unsigned char *kv_ref_host(const struct kv_ref *ref)
{
    return (unsigned char *)kv_mem_at(ref->mem)->host + ref->offset;
}

/* Position of row t, of either width. */
static inline int64_t kv_input_position(const struct kv_input *in, int64_t t)
{
    const unsigned char *from = kv_ref_host(&in->positions);
    int64_t wide;
    int32_t narrow;
    if (in->positions_dtype == KV_I64) {
        memcpy(&wide, from + t * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, from + t * 4, sizeof narrow);
    return narrow;
}

/* KV_OK, or why this item cannot be computed in a batch of this kind. Looks at every position (unless they
 * were checked) and slot. Faults: parameter_invalid (ranges, strides, memory that an array would leave),
 * unsupported (dtypes, scales, another kind than the batch's), position_out_of_range. */
enum kv_fault kv_item_check(const struct kv_geometry *geometry, enum kv_input_kind kind,
                            const struct kv_item *item);

#endif
