/* Checks of an item that every backend makes alike, and the start that every backend's memory has in common.
 * Knows no device. */
#ifndef KV_KERNELS_ITEM_CHECK_H
#define KV_KERNELS_ITEM_CHECK_H

#include "kernels/backend.h"

/* The first member of every backend's struct kv_mem whose bytes the host can read. */
struct kv_mem_extent {
    void *host;
    uint64_t bytes;
};

static inline const struct kv_mem_extent *kv_mem_at(const struct kv_mem *mem)
{
    return (const struct kv_mem_extent *)(const void *)mem;
}

/* KV_OK, or why this item cannot be computed in a batch of this kind. Looks at every position (unless they
 * were checked) and slot. Faults: parameter_invalid (ranges, strides, memory that an array would leave),
 * unsupported (dtypes, scales, another kind than the batch's), position_out_of_range. */
enum kv_fault kv_item_check(const struct kv_geometry *geometry, enum kv_input_kind kind,
                            const struct kv_item *item);

#endif
