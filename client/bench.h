/* Drives a daemon from several connections at once, each with one request in flight, and measures. Knows no
 * command line. */
#ifndef KV_CLIENT_BENCH_H
#define KV_CLIENT_BENCH_H

#include "client/client.h"

enum { KV_BENCH_CONNECTIONS_MAX = 1024, KV_LATENCY_BUCKETS = 58 * 128 };

struct kv_bench_options {
    const char *url;
    int32_t connections;
    int64_t requests; /* over all connections; 0: until the time is over */
    double seconds;   /* 0: until the requests are done */
    int32_t warmup;   /* requests of each connection that are not counted */
    int32_t call_ms;
    const void *document; /* the request, shared by all */
    uint64_t bytes;
    int64_t tokens; /* in it */
};

/* Latencies in nanoseconds, to within a hundredth. */
struct kv_latencies {
    uint64_t bucket[KV_LATENCY_BUCKETS], count, max;
    double sum;
};

struct kv_bench_result {
    double seconds;                         /* from the first counted request to the end of the last */
    uint64_t requests, failed, reply_bytes; /* answered, and not */
    uint64_t faults[KV_FAULT_COUNT];
    struct kv_error first; /* of the failures */
    struct kv_latencies latency;
    double queue_ms, device_ms; /* sums over the replies that say it */
    uint64_t timed;             /* those replies */
};

void kv_latencies_add(struct kv_latencies *latencies, uint64_t ns);
/* The latency that this part (0 to 1) of all does not exceed; 0 where there are none. */
uint64_t kv_latencies_at(const struct kv_latencies *latencies, double part);

/* False: nothing could be measured (no memory, no threads, a bad address). Failed requests are in the result.
 */
bool kv_bench_run(const struct kv_bench_options *options, struct kv_bench_result *result,
                  struct kv_error *err) KV_MUST_CHECK;

#endif
