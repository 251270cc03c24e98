/* Drives a daemon from several connections at once, each with one request in flight, and measures. Knows no
 * command line and no output. */
#ifndef KV_CLIENT_BENCH_H
#define KV_CLIENT_BENCH_H

#include "client/client.h"
#include "client/latency.h"
#include "client/schedule.h"

enum { KV_BENCH_CONNECTIONS_MAX = 1024 };

struct kv_bench_result;

struct kv_bench_options {
    const char *url, *api_key;           /* the key may be NULL */
    const struct kv_client_model *model; /* what replies must be of */
    int32_t connections;
    /* 0, the closed loop: a connection sends as soon as its last reply is in. Else the open loop: requests a
     * second over all connections, whatever becomes of those before; one that finds no connection free waits,
     * and its latency counts from when it was due. */
    double rate;
    bool poisson;     /* in the open loop: random gaps with this mean, as of many independent callers */
    int64_t requests; /* over all connections; 0: until the time is over */
    double seconds;   /* 0: until the requests are done */
    int32_t warmup;   /* requests of each connection that are not counted */
    int32_t call_ms;  /* for one request, sending it again included */
    bool retry;       /* sends a refused request again after its Retry-After */
    bool verify;      /* compares K and V with those of the first reply to the same request */
    uint64_t seed;    /* of sizes and gaps */
    struct kv_mix mix;
    const struct iovec *document; /* [mix.count]: the request of each size, shared by all connections */
    /* Called once a second by the thread that called kv_bench_run, with what is there so far. May be NULL. */
    void (*progress)(void *context, const struct kv_bench_result *so_far);
    void *context;
};

struct kv_bench_answer {
    uint64_t count;
    int32_t status; /* 0: no complete reply */
};

/* About a megabyte: for the heap. */
struct kv_bench_result {
    double seconds;                                 /* from the beginning to the end of the last request */
    uint64_t requests, failed;                      /* answered with K and V, and not */
    uint64_t not_begun;                             /* due in the open loop, and not sent before the end */
    uint64_t retried;                               /* refusals after which a request was sent again */
    uint64_t reconnects;                            /* connections opened after the first of each */
    uint64_t tokens, request_bytes, reply_bytes;    /* of the answered */
    struct kv_bench_answer refused[KV_FAULT_COUNT]; /* by fault; those of `retried` are among them */
    struct kv_error first; /* of the failures; a reply that changed goes before others */
    uint64_t begun;
    double late_ms, late_ms_max; /* from when the begun were due to when they were sent: sum and longest */
    double queue_ms, device_ms;  /* sums over the replies that say it */
    uint64_t timed;              /* those replies */
    struct kv_latencies latency, by_size[KV_MIX_MAX]; /* of the answered, all and by index into the mix */
};

/* False: nothing could be measured (no memory, no threads, a bad address). Failed requests are in the result,
 * and do not end the run. */
bool kv_bench_run(const struct kv_bench_options *options, struct kv_bench_result *result,
                  struct kv_error *err) KV_MUST_CHECK;

#endif
