/* The engine's life and state: open without a device, start with one, drain, close. */
#include "server/engine_state.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

int64_t kv_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

struct kv_engine *kv_engine_open(const struct kv_engine_options *options)
{
    struct kv_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return NULL;
    engine->options = *options;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return engine;
}

void kv_engine_wait(struct kv_engine *engine, pthread_cond_t *condition, int64_t timeout_us)
{
    int64_t until_us = kv_now_us() + timeout_us;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    pthread_cond_timedwait(condition, &engine->lock, &until);
}

void kv_engine_await_job(struct kv_engine *engine, struct kv_job *job)
{
    int64_t left_us = job->deadline_us ? job->deadline_us - kv_now_us() : KV_WATCH_US;
    /* Past its deadline a job in the air is only waited for. */
    kv_engine_wait(engine, &job->done, left_us > 0 && left_us < KV_WATCH_US ? left_us : KV_WATCH_US);
}

void kv_engine_wake_line(struct kv_engine *engine)
{
    if (engine->first_waiter) pthread_cond_signal(&engine->first_waiter->job->done);
}

/* Runs one batch of zeros of this many rows, so that the first request finds warm code, caches and threads.
 */
static bool warm_up(struct kv_engine *engine, enum kv_input_kind kind, int64_t rows, struct kv_error *err)
{
    const struct kv_geometry *geometry = &engine->geometry;
    struct kv_job job = {.engine = engine};
    int64_t columns = kind == KV_TARGET_HIDDEN ? geometry->hidden * geometry->taps : geometry->hidden;
    uint64_t hidden_bytes = (uint64_t)rows * (uint64_t)columns * 2;
    uint64_t body_bytes = hidden_bytes + (uint64_t)rows * 8;
    uint64_t reply_bytes = KV_REPLY_HEADER_BYTES_MAX + 2 * kv_reply_part_bytes(geometry, rows);
    bool ok = false;

    pthread_mutex_lock(&engine->lock);
    bool taken = kv_pool_take(&engine->pool, body_bytes, &job.body_range) &&
                 kv_pool_take(&engine->pool, reply_bytes, &job.reply_range);
    pthread_mutex_unlock(&engine->lock);
    if (!taken) {
        ok = true; /* a pool too small for this batch will never see it */
        goto cleanup;
    }
    job.body = engine->slab_host + job.body_range.offset;
    memset(job.body, 0, body_bytes);
    job.request = (struct kv_request){
        .kind = kind,
        .tokens = rows,
        .hidden = {KV_BF16, 2, {rows, columns}, job.body, hidden_bytes},
        .positions = {KV_I64, 1, {rows}, job.body + hidden_bytes, (uint64_t)rows * 8},
    };
    ok = kv_engine_run_rows(engine, &job, err);
cleanup:
    pthread_mutex_lock(&engine->lock);
    kv_pool_give(&engine->pool, &job.body_range);
    kv_pool_give(&engine->pool, &job.reply_range);
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

static bool make_flights(struct kv_engine *engine, struct kv_error *err)
{
    const size_t flights = (size_t)engine->description.batches_max;
    const size_t bases = KV_BATCH_ITEMS_MAX * 2 * (size_t)engine->geometry.layers; /* of one flight */
    engine->flight = calloc(flights, sizeof *engine->flight);
    engine->bases = calloc(flights * bases, sizeof *engine->bases);
    if (!engine->flight || !engine->bases)
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for the device's batches");
    for (size_t i = 0; i < flights; i++) {
        engine->flight[i].batch.item = engine->flight[i].item;
        engine->flight[i].bases = engine->bases + i * bases;
    }
    engine->flights = (int32_t)flights;
    return true;
}

bool kv_engine_start(struct kv_engine *engine, const struct kv_backend_ops *ops, struct kv_backend *backend,
                     const struct kv_geometry *geometry, struct kv_error *err)
{
    struct kv_limits *limits = &engine->options.limits;
    void *host = NULL;
    pthread_mutex_lock(&engine->lock);
    assert(!engine->ops);
    engine->ops = ops;
    engine->backend = backend;
    engine->geometry = *geometry;
    ops->describe(backend, &engine->description);
    limits->span_tokens_max = engine->description.span_rows < limits->batch_tokens_max
                                  ? engine->description.span_rows
                                  : limits->batch_tokens_max;
    if (limits->pool_bytes == 0) limits->pool_bytes = engine->description.pool_bytes;
    if (engine->options.spin_us < 0) engine->options.spin_us = engine->description.spin_us;
    pthread_mutex_unlock(&engine->lock);

    if (!make_flights(engine, err)) return false;
    if (!ops->alloc(backend, (size_t)limits->pool_bytes, &engine->slab, &host, err)) return false;
    engine->slab_host = host;
    /* Each job holds at most two ranges, and connections bound the jobs; twice that and many more, since one
     * that was cut has given its place away before its memory. */
    pthread_mutex_lock(&engine->lock);
    bool kept = kv_pool_open(&engine->pool, limits->pool_bytes, 4 * limits->connections_max + 1024);
    pthread_mutex_unlock(&engine->lock);
    if (!kept) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for the pool's book");
    for (int64_t rows = 1;; rows = limits->span_tokens_max) {
        if (!warm_up(engine, KV_HIDDEN_STATES, rows, err)) return false;
        if (geometry->taps > 0 && !warm_up(engine, KV_TARGET_HIDDEN, rows, err)) return false;
        if (rows == limits->span_tokens_max) break;
    }
    if (pthread_create(&engine->thread, NULL, kv_engine_serve, engine) != 0)
        return kv_fail(err, KV_INTERNAL, "the device thread cannot be started");

    pthread_mutex_lock(&engine->lock);
    engine->thread_started = true;
    engine->stats = (struct kv_engine_stats){0}; /* warming up is not service */
    engine->pool.used_max = 0;
    pthread_mutex_unlock(&engine->lock);
    return true;
}

void kv_engine_open_doors(struct kv_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    assert(engine->thread_started);
    if (engine->state == KV_ENGINE_STARTING) engine->state = KV_ENGINE_READY;
    pthread_mutex_unlock(&engine->lock);
}

void kv_engine_close(struct kv_engine *engine)
{
    if (!engine) return;
    bool settled = kv_engine_settle(engine);
    assert(settled);
    if (engine->thread_started) {
        pthread_mutex_lock(&engine->lock);
        engine->stopping = true;
        pthread_cond_broadcast(&engine->work);
        pthread_mutex_unlock(&engine->lock);
        pthread_join(engine->thread, NULL);
    }
    assert(engine->jobs == 0);
    if (engine->ops) {
        engine->ops->release(engine->backend, engine->slab);
        engine->ops->close(engine->backend);
    }
    kv_pool_close(&engine->pool);
    free(engine->flight);
    free(engine->bases);
    pthread_cond_destroy(&engine->work);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

bool kv_engine_check_locked(const struct kv_engine *engine, struct kv_error *err)
{
    const enum kv_engine_state state = engine->state;
    switch (state) {
    case KV_ENGINE_STARTING: return kv_fail(err, KV_NOT_READY, "the model is still being loaded");
    case KV_ENGINE_READY: return true;
    case KV_ENGINE_DRAINING:
        return kv_fail(err, KV_DRAINING, "the daemon is stopping and takes no new requests");
    case KV_ENGINE_LOST: break;
    }
    return kv_fail(err, KV_DEVICE_LOST, "the device failed and the daemon has to be restarted: %s",
                   engine->lost.message);
}

bool kv_engine_check(struct kv_engine *engine, struct kv_error *err)
{
    pthread_mutex_lock(&engine->lock);
    bool ok = kv_engine_check_locked(engine, err);
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

bool kv_engine_given_up(struct kv_engine *engine, const struct kv_job *job, struct kv_error *err)
{
    if (engine->abandoned)
        return !kv_fail(err, KV_DRAINING, "the daemon stopped before this request reached the device");
    int64_t now_us = kv_now_us();
    if (job->deadline_us && now_us >= job->deadline_us)
        return !kv_fail(err, KV_DEADLINE_EXCEEDED,
                        "the request's deadline passed %lld ms ago, before the device",
                        (long long)((now_us - job->deadline_us) / 1000));
    if (!job->gone || !job->gone(job->who)) return false;
    engine->stats.gone++;
    return !kv_fail(err, KV_CLIENT_GONE, "the caller closed its connection before the device was free");
}

void kv_engine_drain(struct kv_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->state != KV_ENGINE_LOST) engine->state = KV_ENGINE_DRAINING;
    pthread_mutex_unlock(&engine->lock);
}

void kv_engine_abandon(struct kv_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->abandoned = true;
    for (struct kv_waiter *waiter = engine->first_waiter; waiter; waiter = waiter->next)
        pthread_cond_signal(&waiter->job->done);
    for (struct kv_job *job = engine->head; job; job = job->next) pthread_cond_signal(&job->done);
    pthread_mutex_unlock(&engine->lock);
}

enum kv_engine_state kv_engine_state(const struct kv_engine *engine)
{
    return atomic_load(&engine->state);
}

void kv_engine_stats(struct kv_engine *engine, struct kv_engine_stats *out)
{
    pthread_mutex_lock(&engine->lock);
    *out = engine->stats;
    out->state = engine->state;
    out->jobs = engine->jobs;
    out->waiting = engine->waiters + engine->queued;
    out->queued_rows = engine->queued_rows;
    out->busy_us = kv_engine_busy_us(engine);
    out->pool_bytes = engine->pool.bytes;
    out->pool_used_bytes = engine->pool.used;
    out->pool_used_bytes_max = engine->pool.used_max;
    pthread_mutex_unlock(&engine->lock);
}

bool kv_engine_device(struct kv_engine *engine, struct kv_device_info *out)
{
    pthread_mutex_lock(&engine->lock);
    bool known = engine->ops != NULL;
    struct kv_backend_description said = engine->description;
    pthread_mutex_unlock(&engine->lock);
    /* What is free changes. A device that is lost is not asked. */
    if (kv_engine_state(engine) == KV_ENGINE_READY) engine->ops->describe(engine->backend, &said);
    memcpy(out->kind, said.kind, sizeof out->kind);
    memcpy(out->name, said.name, sizeof out->name);
    out->memory_bytes = said.memory_bytes;
    out->total_bytes = said.total_bytes;
    out->free_bytes = said.free_bytes;
    return known;
}

const struct kv_limits *kv_engine_limits(const struct kv_engine *engine)
{
    return &engine->options.limits;
}

const struct kv_geometry *kv_engine_geometry(const struct kv_engine *engine)
{
    return &engine->geometry;
}
