/* The buckets of latencies. */
#include "client/latency.h"

enum { MANTISSA = 128 };

static uint64_t last_of(uint64_t bucket)
{
    if (bucket < MANTISSA) return bucket;
    return ((MANTISSA + bucket % MANTISSA + 1) << (bucket / MANTISSA - 1)) - 1;
}

void kv_latencies_add(struct kv_latencies *latencies, uint64_t ns)
{
    int shift = ns < MANTISSA ? -1 : 56 - __builtin_clzll(ns);
    uint64_t bucket = shift < 0 ? ns : (uint64_t)(shift + 1) * MANTISSA + ((ns >> shift) & (MANTISSA - 1));
    latencies->bucket[bucket]++;
    latencies->sum += (double)ns;
    if (ns > latencies->max) latencies->max = ns;
    if (latencies->count == 0 || ns < latencies->min) latencies->min = ns;
    latencies->count++;
}

void kv_latencies_merge(struct kv_latencies *to, const struct kv_latencies *from)
{
    if (from->count == 0) return;
    for (int i = 0; i < KV_LATENCY_BUCKETS; i++) to->bucket[i] += from->bucket[i];
    if (from->max > to->max) to->max = from->max;
    if (to->count == 0 || from->min < to->min) to->min = from->min;
    to->count += from->count;
    to->sum += from->sum;
}

uint64_t kv_latencies_at(const struct kv_latencies *latencies, double part)
{
    uint64_t seen = 0;
    /* 0.999 of 1000 is 999, though the product of the doubles may be a little more. */
    double want = part * (double)latencies->count * (1 - 1e-12);
    for (uint64_t bucket = 0; bucket < KV_LATENCY_BUCKETS; bucket++) {
        seen += latencies->bucket[bucket];
        if (seen == 0 || (double)seen < want) continue;
        return last_of(bucket) < latencies->max ? last_of(bucket) : latencies->max;
    }
    return latencies->max;
}

double kv_latencies_mean(const struct kv_latencies *latencies)
{
    return latencies->count > 0 ? latencies->sum / (double)latencies->count : 0;
}

bool kv_latencies_next(const struct kv_latencies *latencies, struct kv_latency_bucket *bucket)
{
    for (int32_t i = bucket->next; i < KV_LATENCY_BUCKETS; i++) {
        if (latencies->bucket[i] == 0) continue;
        *bucket = (struct kv_latency_bucket){.next = i + 1,
                                             .first_ns = i == 0 ? 0 : last_of((uint64_t)i - 1) + 1,
                                             .last_ns = last_of((uint64_t)i),
                                             .count = latencies->bucket[i]};
        return true;
    }
    return false;
}
