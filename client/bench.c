/* The threads and the sums of a measurement. */
#include "client/bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MANTISSA = 128, PAUSE_NS = 10 * 1000 * 1000 };

struct bench {
    const struct kv_bench_options *options;
    atomic_llong left; /* requests that nobody has taken yet */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t warm; /* threads that wait at the gate; under the lock, as all below */
    bool open, cancelled;
    int64_t end_ns; /* 0: no end; unchanged once the gate is open */
};

struct worker {
    struct bench *bench;
    pthread_t thread;
    struct kv_client *client;
    int64_t begin_ns, end_ns;
    struct kv_bench_result result;
};

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void kv_latencies_add(struct kv_latencies *latencies, uint64_t ns)
{
    int shift = ns < MANTISSA ? -1 : 56 - __builtin_clzll(ns);
    uint64_t bucket = shift < 0 ? ns : (uint64_t)(shift + 1) * MANTISSA + ((ns >> shift) & (MANTISSA - 1));
    latencies->bucket[bucket]++;
    latencies->count++;
    latencies->sum += (double)ns;
    if (ns > latencies->max) latencies->max = ns;
}

uint64_t kv_latencies_at(const struct kv_latencies *latencies, double part)
{
    uint64_t seen = 0;
    double want = part * (double)latencies->count;
    for (uint64_t bucket = 0; bucket < KV_LATENCY_BUCKETS; bucket++) {
        seen += latencies->bucket[bucket];
        if (seen == 0 || (double)seen < want) continue;
        if (bucket < MANTISSA) return bucket;
        uint64_t shift = bucket / MANTISSA - 1, last = ((MANTISSA + bucket % MANTISSA + 1) << shift) - 1;
        return last < latencies->max ? last : latencies->max;
    }
    return latencies->max;
}

static void count_failure(struct kv_bench_result *result, const struct kv_error *err)
{
    result->failed++;
    result->faults[err->fault]++;
    if (result->first.fault == KV_OK) result->first = *err;
    if (err->fault != KV_SERVICE_UNREACHABLE) return;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    nanosleep(&pause, NULL);
}

static void send_one(struct worker *worker)
{
    const struct kv_bench_options *options = worker->bench->options;
    struct kv_bench_result *result = &worker->result;
    struct kv_reply_view reply;
    struct kv_error err = {0};
    int64_t begin = clock_ns();
    bool answered =
        kv_client_materialize_document(worker->client, options->document, options->bytes, NULL, &reply, &err);
    int64_t end = clock_ns();
    if (answered && reply.tokens != options->tokens) {
        answered = kv_fail_values(&err, KV_REPLY_MALFORMED, "k", kv_integer(options->tokens),
                                  kv_integer(reply.tokens), "The reply is for another number of tokens");
    }
    if (!answered) {
        count_failure(result, &err);
        return;
    }
    result->requests++;
    result->reply_bytes += reply.bytes;
    kv_latencies_add(&result->latency, (uint64_t)(end - begin));
    if (reply.queue_ms < 0 || reply.device_ms < 0) return;
    result->queue_ms += reply.queue_ms;
    result->device_ms += reply.device_ms;
    result->timed++;
}

/* Waits until all threads are warm. True: there is nothing to be measured. */
static bool pass_gate(struct bench *bench)
{
    pthread_mutex_lock(&bench->lock);
    bench->warm++;
    pthread_cond_broadcast(&bench->changed);
    while (!bench->open) pthread_cond_wait(&bench->changed, &bench->lock);
    bool cancelled = bench->cancelled;
    pthread_mutex_unlock(&bench->lock);
    return cancelled;
}

static void open_gate(struct bench *bench, int32_t threads, bool cancelled)
{
    pthread_mutex_lock(&bench->lock);
    while (!cancelled && bench->warm < threads) pthread_cond_wait(&bench->changed, &bench->lock);
    if (bench->options->seconds > 0) bench->end_ns = clock_ns() + (int64_t)(bench->options->seconds * 1e9);
    bench->cancelled = cancelled;
    bench->open = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->lock);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct bench *bench = worker->bench;
    for (int32_t i = 0; i < bench->options->warmup; i++) send_one(worker);
    worker->result = (struct kv_bench_result){0};
    bool cancelled = pass_gate(bench);
    worker->begin_ns = clock_ns();
    while (!cancelled) {
        if (bench->end_ns > 0 && clock_ns() >= bench->end_ns) break;
        if (bench->options->requests > 0 && atomic_fetch_sub(&bench->left, 1) <= 0) break;
        send_one(worker);
    }
    worker->end_ns = clock_ns();
    return NULL;
}

static void add_result(struct kv_bench_result *to, const struct kv_bench_result *from)
{
    to->requests += from->requests;
    to->failed += from->failed;
    to->reply_bytes += from->reply_bytes;
    to->queue_ms += from->queue_ms;
    to->device_ms += from->device_ms;
    to->timed += from->timed;
    if (to->first.fault == KV_OK) to->first = from->first;
    for (int i = 0; i < KV_FAULT_COUNT; i++) to->faults[i] += from->faults[i];
    for (int i = 0; i < KV_LATENCY_BUCKETS; i++) to->latency.bucket[i] += from->latency.bucket[i];
    to->latency.count += from->latency.count;
    to->latency.sum += from->latency.sum;
    if (from->latency.max > to->latency.max) to->latency.max = from->latency.max;
}

static bool run_workers(struct bench *bench, struct worker *workers, struct kv_error *err)
{
    int32_t count = bench->options->connections, started = 0;
    while (started < count && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    open_gate(bench, count, started < count);
    for (int32_t i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    if (started < count)
        return kv_fail(err, KV_INTERNAL, "Only %d of %d threads could be started", started, count);
    return true;
}

bool kv_bench_run(const struct kv_bench_options *options, struct kv_bench_result *result,
                  struct kv_error *err)
{
    struct bench bench = {.options = options};
    const struct kv_client_options client = {.call_ms = options->call_ms, .silence_ms = options->call_ms};
    struct worker *workers = calloc((size_t)options->connections, sizeof *workers);
    bool run = workers != NULL ||
               kv_fail(err, KV_INTERNAL, "There is no memory for %d connections", options->connections);
    memset(result, 0, sizeof *result);
    atomic_init(&bench.left, options->requests);
    pthread_mutex_init(&bench.lock, NULL);
    pthread_cond_init(&bench.changed, NULL);
    for (int32_t i = 0; run && i < options->connections; i++) {
        workers[i].bench = &bench;
        run = kv_client_open(&workers[i].client, options->url, &client, err);
    }
    if (run) run = run_workers(&bench, workers, err);
    int64_t begin_ns = INT64_MAX, end_ns = 0;
    for (int32_t i = 0; workers && i < options->connections; i++) {
        kv_client_close(workers[i].client);
        add_result(result, &workers[i].result);
        if (workers[i].begin_ns < begin_ns) begin_ns = workers[i].begin_ns;
        if (workers[i].end_ns > end_ns) end_ns = workers[i].end_ns;
    }
    result->seconds = run ? (double)(end_ns - begin_ns) / 1e9 : 0;
    pthread_cond_destroy(&bench.changed);
    pthread_mutex_destroy(&bench.lock);
    free(workers);
    return run;
}
