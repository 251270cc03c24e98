/* Counters and latency histograms, and their Prometheus text. Counting is lock-free, from any thread. */
#ifndef KV_SERVER_METRICS_H
#define KV_SERVER_METRICS_H

#include "server/engine.h"
#include "server/http_links.h"
#include "server/process.h"

#include <stdatomic.h>
#include <time.h>

enum { KV_LATENCY_BUCKETS = 18, KV_ROUTES_MAX = 16 };

/* Counts of durations up to each bound of kv_latency_bounds_us, and over the last. */
struct kv_histogram {
    _Atomic uint64_t bucket[KV_LATENCY_BUCKETS + 1];
    _Atomic uint64_t sum_us;
};

/* Zero-initialise. */
struct kv_metrics {
    _Atomic uint64_t requests[KV_ROUTES_MAX][KV_FAULT_COUNT]; /* by route and fault; KV_OK: answered */
    _Atomic uint64_t tokens, body_bytes, reply_bytes;
    struct kv_histogram total, queue, device; /* of answered materialize requests; queue of those that waited
                                                 too long, too */
    _Atomic int64_t connections;
    time_t started; /* set before anything is counted */
};

void kv_histogram_count(struct kv_histogram *histogram, int64_t us);

/* What the text is made from. */
struct kv_metrics_view {
    const struct kv_metrics *metrics;
    const char *const *routes; /* [route_count]: the label of each route */
    int32_t route_count;
    const struct kv_engine_stats *engine;
    const struct kv_limits *limits;
    const struct kv_device_info *device;      /* NULL: none yet */
    const struct kv_description *description; /* of the model; NULL: none yet */
    const struct kv_process *process;
    const uint64_t *cuts; /* [KV_CUT_COUNT] */
    const char *version;
    bool ready;
};

/* The Prometheus text (format 0.0.4); free() it. NULL when memory is out. */
char *kv_metrics_print(const struct kv_metrics_view *view);

#endif
