/* The threads, the pace and the sums of a measurement. */
#include "client/bench.h"

#include "client/bench_call.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { SECOND_NS = 1000000000, MS_NS = 1000000, PAUSE_NS = 10 * MS_NS };

struct bench {
    const struct kv_bench_options *options;
    struct kv_bench_replies replies;
    pthread_mutex_t lock;
    pthread_cond_t changed;      /* on the monotonic clock */
    struct kv_schedule schedule; /* under the lock, as all below */
    int32_t warm;                /* threads that wait at the gate */
    int32_t working;             /* threads that have not ended */
    bool open, cancelled;
    int64_t begin_ns, end_ns; /* end 0: none; unchanged once the gate is open */
};

struct worker {
    struct bench *bench;
    pthread_t thread;
    struct kv_client *client;
    uint64_t connections; /* of the client when the gate opened */
    pthread_mutex_t lock; /* over the result, which is read while it grows */
    int64_t end_ns;
    struct kv_bench_result result;
};

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void sleep_until(int64_t ns)
{
    const struct timespec at = {.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static void count_refusal(struct kv_bench_result *result, const struct kv_response *response,
                          const struct kv_error *err)
{
    struct kv_bench_answer *answer = &result->refused[err->fault];
    answer->count++;
    answer->status = response->status;
}

static void count_failure(struct kv_bench_result *result, const struct kv_error *err)
{
    bool changed = err->fault == KV_REPLY_CHANGED && result->first.fault != KV_REPLY_CHANGED;
    result->failed++;
    if (result->first.fault == KV_OK || changed) result->first = *err;
}

static void count_answer(struct kv_bench_result *result, const struct kv_bench_options *options, int32_t size,
                         const struct kv_reply_view *reply, int64_t latency_ns)
{
    result->requests++;
    result->tokens += (uint64_t)reply->tokens;
    result->request_bytes += options->document[size].iov_len;
    result->reply_bytes += reply->bytes;
    kv_latencies_add(&result->by_size[size], (uint64_t)latency_ns);
    if (reply->queue_ms < 0 || reply->device_ms < 0) return;
    result->queue_ms += reply->queue_ms;
    result->device_ms += reply->device_ms;
    result->timed++;
}

/* A request of the open loop whose turn has come: it is begun, or it is over. */
static void count_due(struct worker *worker, int64_t late_ns, bool over)
{
    struct kv_bench_result *result = &worker->result;
    double late_ms = over ? 0 : (double)late_ns / MS_NS;
    pthread_mutex_lock(&worker->lock);
    result->begun += !over;
    result->not_begun += over;
    result->late_ms += late_ms;
    if (late_ms > result->late_ms_max) result->late_ms_max = late_ms;
    pthread_mutex_unlock(&worker->lock);
}

/* When to send a refused request again; 0: not. Until then its time limit must not have passed, so that a
 * service that is busy for ever is not asked for ever. */
static int64_t again_at(const struct kv_bench_options *options, const struct kv_response *response,
                        int64_t due_ns, int64_t now_ns)
{
    if (!options->retry || response->status == 0 || response->retry_after_s < 0) return 0;
    int64_t wait_ns = (int64_t)response->retry_after_s * SECOND_NS;
    int64_t at_ns = now_ns + (wait_ns > PAUSE_NS ? wait_ns : PAUSE_NS);
    return at_ns < due_ns + (int64_t)options->call_ms * MS_NS ? at_ns : 0;
}

/* One request, sent again where the options say so; its latency counts from due_ns. */
static void send_one(struct worker *worker, int32_t size, int64_t due_ns, bool counted)
{
    struct bench *bench = worker->bench;
    const struct kv_bench_options *options = bench->options;
    struct kv_response response;
    struct kv_reply_view reply;
    for (;;) {
        struct kv_error err = {0};
        bool answered = kv_bench_call(worker->client, options, size, &response, &reply, &err);
        int64_t end_ns = clock_ns();
        int64_t again_ns = answered ? 0 : again_at(options, &response, due_ns, end_ns);
        if (answered && options->verify) answered = kv_bench_verify(&bench->replies, size, &reply, &err);
        pthread_mutex_lock(&worker->lock);
        if (counted && answered) count_answer(&worker->result, options, size, &reply, end_ns - due_ns);
        if (counted && !answered) count_refusal(&worker->result, &response, &err);
        if (counted && again_ns > 0) worker->result.retried++;
        if (counted && !answered && again_ns == 0) count_failure(&worker->result, &err);
        pthread_mutex_unlock(&worker->lock);
        /* A service that is gone is not asked as fast as it can be said that it is. */
        if (err.fault == KV_SERVICE_UNREACHABLE) sleep_until(end_ns + PAUSE_NS);
        if (again_ns == 0) return;
        sleep_until(again_ns);
    }
}

static bool take_turn(struct bench *bench, struct kv_turn *turn)
{
    pthread_mutex_lock(&bench->lock);
    bool taken = !bench->cancelled && kv_schedule_next(&bench->schedule, turn);
    pthread_mutex_unlock(&bench->lock);
    return taken;
}

static void drive(struct worker *worker)
{
    struct bench *bench = worker->bench;
    bool paced = bench->options->rate > 0;
    struct kv_turn turn;
    while (take_turn(bench, &turn)) {
        int64_t due_ns = bench->begin_ns + turn.after_ns;
        if (paced) sleep_until(due_ns);
        int64_t now_ns = clock_ns();
        bool over = bench->end_ns > 0 && now_ns >= bench->end_ns;
        if (over && !paced) return;
        if (paced) count_due(worker, now_ns - due_ns, over);
        /* Once it is over, this counts all that were due and nobody has taken. */
        if (!over) send_one(worker, turn.size, paced ? due_ns : now_ns, true);
    }
}

static void pass_gate(struct bench *bench)
{
    pthread_mutex_lock(&bench->lock);
    bench->warm++;
    pthread_cond_broadcast(&bench->changed);
    while (!bench->open) pthread_cond_wait(&bench->changed, &bench->lock);
    pthread_mutex_unlock(&bench->lock);
}

static void open_gate(struct bench *bench, int32_t threads, bool cancelled)
{
    pthread_mutex_lock(&bench->lock);
    while (!cancelled && bench->warm < threads) pthread_cond_wait(&bench->changed, &bench->lock);
    bench->begin_ns = clock_ns();
    if (bench->options->seconds > 0)
        bench->end_ns = bench->begin_ns + (int64_t)(bench->options->seconds * SECOND_NS);
    bench->working = threads;
    bench->cancelled = cancelled;
    bench->open = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->lock);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct bench *bench = worker->bench;
    const struct kv_bench_options *options = bench->options;
    /* By default a sleep ends 50 us late, which would count as the service's latency. */
    (void)prctl(PR_SET_TIMERSLACK, 1ul);
    for (int32_t i = 0; i < options->warmup; i++) send_one(worker, i % options->mix.count, clock_ns(), false);
    worker->connections = kv_client_connections(worker->client);
    pass_gate(bench);
    drive(worker);
    worker->end_ns = clock_ns();
    pthread_mutex_lock(&bench->lock);
    bench->working--;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->lock);
    return NULL;
}

static void add_result(struct kv_bench_result *to, const struct kv_bench_result *from)
{
    to->requests += from->requests;
    to->failed += from->failed;
    to->not_begun += from->not_begun;
    to->retried += from->retried;
    to->tokens += from->tokens;
    to->request_bytes += from->request_bytes;
    to->reply_bytes += from->reply_bytes;
    to->begun += from->begun;
    to->late_ms += from->late_ms;
    if (from->late_ms_max > to->late_ms_max) to->late_ms_max = from->late_ms_max;
    to->queue_ms += from->queue_ms;
    to->device_ms += from->device_ms;
    to->timed += from->timed;
    bool changed = from->first.fault == KV_REPLY_CHANGED && to->first.fault != KV_REPLY_CHANGED;
    if (to->first.fault == KV_OK || changed) to->first = from->first;
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        to->refused[i].count += from->refused[i].count;
        if (from->refused[i].count > 0) to->refused[i].status = from->refused[i].status;
    }
    for (int i = 0; i < KV_MIX_MAX; i++) {
        kv_latencies_merge(&to->by_size[i], &from->by_size[i]);
        kv_latencies_merge(&to->latency, &from->by_size[i]);
    }
}

/* Tells once a second what is there so far, until all threads have ended. Without memory it only waits. */
static void watch(struct bench *bench, struct worker *workers)
{
    const struct kv_bench_options *options = bench->options;
    struct kv_bench_result *so_far = options->progress ? malloc(sizeof *so_far) : NULL;
    struct timespec next = {.tv_sec = bench->begin_ns / SECOND_NS, .tv_nsec = bench->begin_ns % SECOND_NS};
    pthread_mutex_lock(&bench->lock);
    while (so_far && bench->working > 0) {
        next.tv_sec++;
        int status = 0;
        while (bench->working > 0 && status != ETIMEDOUT)
            status = pthread_cond_timedwait(&bench->changed, &bench->lock, &next);
        if (bench->working == 0) break;
        pthread_mutex_unlock(&bench->lock);
        memset(so_far, 0, sizeof *so_far);
        for (int32_t i = 0; i < options->connections; i++) {
            pthread_mutex_lock(&workers[i].lock);
            add_result(so_far, &workers[i].result);
            pthread_mutex_unlock(&workers[i].lock);
        }
        so_far->seconds = (double)(clock_ns() - bench->begin_ns) / SECOND_NS;
        options->progress(options->context, so_far);
        pthread_mutex_lock(&bench->lock);
    }
    pthread_mutex_unlock(&bench->lock);
    free(so_far);
}

static uint64_t reconnects(const struct worker *worker)
{
    uint64_t before = worker->connections > 0 ? worker->connections : 1; /* the first is none */
    uint64_t now = kv_client_connections(worker->client);
    return now > before ? now - before : 0;
}

static bool run_workers(struct bench *bench, struct worker *workers, struct kv_error *err)
{
    int32_t count = bench->options->connections, started = 0;
    while (started < count && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    open_gate(bench, count, started < count);
    if (started == count) watch(bench, workers);
    for (int32_t i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    if (started < count)
        return kv_fail(err, KV_INTERNAL, "Only %d of %d threads could be started", started, count);
    return true;
}

static void bench_open(struct bench *bench, const struct kv_bench_options *options)
{
    pthread_condattr_t monotonic;
    *bench = (struct bench){.options = options};
    bench->schedule = kv_schedule_open(&options->mix, options->seed);
    bench->schedule.rate = options->rate;
    bench->schedule.poisson = options->poisson;
    bench->schedule.seconds = options->seconds;
    bench->schedule.requests = options->requests;
    kv_bench_replies_open(&bench->replies);
    pthread_mutex_init(&bench->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&bench->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void bench_close(struct bench *bench)
{
    pthread_cond_destroy(&bench->changed);
    pthread_mutex_destroy(&bench->lock);
    kv_bench_replies_close(&bench->replies);
}

bool kv_bench_run(const struct kv_bench_options *options, struct kv_bench_result *result,
                  struct kv_error *err)
{
    struct bench bench;
    const struct kv_client_options client = {
        .call_ms = options->call_ms, .silence_ms = options->call_ms, .api_key = options->api_key};
    struct worker *workers = calloc((size_t)options->connections, sizeof *workers);
    memset(result, 0, sizeof *result);
    if (!workers)
        return kv_fail(err, KV_INTERNAL, "There is no memory for %d connections", options->connections);
    bench_open(&bench, options);
    bool run = true;
    for (int32_t i = 0; i < options->connections; i++) {
        workers[i].bench = &bench;
        pthread_mutex_init(&workers[i].lock, NULL);
        run = run && kv_client_open(&workers[i].client, options->url, &client, err);
    }
    run = run && run_workers(&bench, workers, err);
    int64_t end_ns = bench.begin_ns;
    for (int32_t i = 0; i < options->connections; i++) {
        struct worker *worker = &workers[i];
        add_result(result, &worker->result);
        if (run) result->reconnects += reconnects(worker);
        if (worker->end_ns > end_ns) end_ns = worker->end_ns;
        kv_client_close(worker->client);
        pthread_mutex_destroy(&worker->lock);
    }
    result->seconds = (double)(end_ns - bench.begin_ns) / SECOND_NS;
    /* That the last arrival was answered before the time was over does not make the rate higher. */
    if (options->rate > 0 && options->requests == 0 && result->seconds < options->seconds)
        result->seconds = options->seconds;
    bench_close(&bench);
    free(workers);
    return run;
}
