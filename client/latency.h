/* Latencies in buckets whose width grows with their value: bounded memory, and every latency to within a
 * hundredth. Knows no clock and no request. */
#ifndef KV_CLIENT_LATENCY_H
#define KV_CLIENT_LATENCY_H

#include <stdbool.h>
#include <stdint.h>

/* Every value up to UINT64_MAX has a bucket: 128 of one nanosecond, then 128 for each power of two. */
enum { KV_LATENCY_BUCKETS = 58 * 128 };

/* Nanoseconds. Zero-initialised: none. Not thread-safe: one for each thread, merged at the end. */
struct kv_latencies {
    uint64_t bucket[KV_LATENCY_BUCKETS], count, min, max;
    double sum;
};

void kv_latencies_add(struct kv_latencies *latencies, uint64_t ns);
void kv_latencies_merge(struct kv_latencies *to, const struct kv_latencies *from);

/* The latency that this part (0 to 1) of all does not exceed, at most a hundredth too long; 0 where there are
 * none. The whole (1) is the longest, exactly. */
uint64_t kv_latencies_at(const struct kv_latencies *latencies, double part);
double kv_latencies_mean(const struct kv_latencies *latencies);

struct kv_latency_bucket {
    int32_t next;               /* where the search goes on; 0 at first */
    uint64_t first_ns, last_ns; /* that it holds */
    uint64_t count;
};
/* The next bucket that is not empty, from short to long. False: there is none. */
bool kv_latencies_next(const struct kv_latencies *latencies, struct kv_latency_bucket *bucket);

#endif
