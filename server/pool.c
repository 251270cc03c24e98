/* First fit over a sorted array of free ranges: requests are few (hundreds) and large (KiB to hundreds of
 * MiB). */
#include "server/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t kv_pool_round(uint64_t bytes)
{
    if (bytes > UINT64_MAX - KV_POOL_ALIGNMENT) return UINT64_MAX;
    return (bytes + KV_POOL_ALIGNMENT - 1) / KV_POOL_ALIGNMENT * KV_POOL_ALIGNMENT;
}

bool kv_pool_open(struct kv_pool *pool, uint64_t bytes, int32_t ranges_max)
{
    /* Between n ranges in use there are at most n + 1 free ones. */
    int32_t room = ranges_max + 1;
    *pool = (struct kv_pool){.bytes = bytes / KV_POOL_ALIGNMENT * KV_POOL_ALIGNMENT, .room = room};
    pool->free_range = calloc((size_t)room, sizeof *pool->free_range);
    if (!pool->free_range) return false;
    if (pool->bytes > 0) pool->free_range[pool->count++] = (struct kv_range){0, pool->bytes};
    return true;
}

void kv_pool_close(struct kv_pool *pool)
{
    free(pool->free_range);
    *pool = (struct kv_pool){0};
}

static void remove_at(struct kv_pool *pool, int32_t at)
{
    pool->count--;
    memmove(&pool->free_range[at], &pool->free_range[at + 1],
            (size_t)(pool->count - at) * sizeof *pool->free_range);
}

bool kv_pool_take(struct kv_pool *pool, uint64_t bytes, struct kv_range *out)
{
    *out = (struct kv_range){0};
    uint64_t needed = kv_pool_round(bytes);
    if (needed == 0) return true;
    for (int32_t i = 0; i < pool->count; i++) {
        struct kv_range *candidate = &pool->free_range[i];
        if (candidate->bytes < needed) continue;
        *out = (struct kv_range){candidate->offset, needed};
        candidate->offset += needed;
        candidate->bytes -= needed;
        if (candidate->bytes == 0) remove_at(pool, i);
        pool->used += needed;
        if (pool->used > pool->used_max) pool->used_max = pool->used;
        return true;
    }
    return false;
}

void kv_pool_give(struct kv_pool *pool, struct kv_range *range)
{
    struct kv_range back = *range;
    *range = (struct kv_range){0};
    if (back.bytes == 0) return;
    assert(back.bytes <= pool->used);
    pool->used -= back.bytes;

    int32_t at = 0;
    while (at < pool->count && pool->free_range[at].offset < back.offset) at++;
    bool joins_previous =
        at > 0 && pool->free_range[at - 1].offset + pool->free_range[at - 1].bytes == back.offset;
    bool joins_next = at < pool->count && back.offset + back.bytes == pool->free_range[at].offset;
    if (joins_previous) {
        pool->free_range[at - 1].bytes += back.bytes;
        if (!joins_next) return;
        pool->free_range[at - 1].bytes += pool->free_range[at].bytes;
        remove_at(pool, at);
    } else if (joins_next) {
        pool->free_range[at].offset = back.offset;
        pool->free_range[at].bytes += back.bytes;
    } else {
        assert(pool->count < pool->room);
        memmove(&pool->free_range[at + 1], &pool->free_range[at],
                (size_t)(pool->count - at) * sizeof *pool->free_range);
        pool->free_range[at] = back;
        pool->count++;
    }
}

void kv_pool_shrink(struct kv_pool *pool, struct kv_range *range, uint64_t bytes)
{
    uint64_t kept = kv_pool_round(bytes);
    assert(kept <= range->bytes);
    struct kv_range tail = {range->offset + kept, range->bytes - kept};
    range->bytes = kept;
    kv_pool_give(pool, &tail);
}
