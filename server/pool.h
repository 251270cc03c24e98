/* A bounded pool of request memory: byte ranges of one slab, handed out and taken back. It keeps book only:
 * knows no requests, does not touch the memory, takes no lock (the engine holds its own). */
#ifndef KV_SERVER_POOL_H
#define KV_SERVER_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum { KV_POOL_ALIGNMENT = 64 };

/* A range of the slab. bytes 0: none. */
struct kv_range {
    uint64_t offset, bytes; /* multiples of KV_POOL_ALIGNMENT */
};

/* The free ranges, in order of their offsets, never adjacent. */
struct kv_pool {
    uint64_t bytes, used, used_max;
    int32_t count, room;
    struct kv_range *free_range; /* [room] */
};

/* Book-keeping for a slab of `bytes` and at most `ranges_max` ranges handed out at once. False: no memory. */
bool kv_pool_open(struct kv_pool *pool, uint64_t bytes, int32_t ranges_max)
    __attribute__((warn_unused_result));
void kv_pool_close(struct kv_pool *pool);

/* The lowest free range that fits, or false. Zero bytes give an empty range, always. */
bool kv_pool_take(struct kv_pool *pool, uint64_t bytes, struct kv_range *out)
    __attribute__((warn_unused_result));
/* Gives a range back and empties it; an empty one is fine. */
void kv_pool_give(struct kv_pool *pool, struct kv_range *range);
/* Gives back what lies behind the first `bytes` of a range. */
void kv_pool_shrink(struct kv_pool *pool, struct kv_range *range, uint64_t bytes);

/* `bytes` rounded up to KV_POOL_ALIGNMENT; UINT64_MAX when that overflows. */
uint64_t kv_pool_round(uint64_t bytes);

#endif
