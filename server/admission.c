/* Admission: every request's memory, body and worst-case reply together, is reserved before its body is read,
 * so that an admitted request never waits for memory again and nothing can deadlock. */
#include "server/engine_state.h"

#include <assert.h>
#include <stdlib.h>

/* Pool bytes of the largest reply that a body of this size can ask for. */
static uint64_t reply_bytes_bound(const struct kv_engine *engine, uint64_t body_bytes)
{
    int64_t tokens =
        kv_request_tokens_bound(&engine->geometry, body_bytes, engine->options.limits.tokens_max);
    return KV_REPLY_HEADER_BYTES_MAX + 2 * kv_reply_part_bytes(&engine->geometry, tokens);
}

static bool accepts_locked(const struct kv_engine *engine, uint64_t body_bytes, struct kv_error *err)
{
    if (!kv_engine_check_locked(engine, err)) return false;
    uint64_t body = kv_pool_round(body_bytes), reply = kv_pool_round(reply_bytes_bound(engine, body_bytes));
    if (body <= engine->pool.bytes && reply <= engine->pool.bytes - body) return true;
    kv_fail_values(
        err, KV_PAYLOAD_TOO_LARGE, "Content-Length", kv_none(), kv_integer((int64_t)body_bytes),
        "the body (%llu bytes) and the largest reply it can ask for (%llu bytes) exceed the pool of "
        "%llu bytes",
        (unsigned long long)body_bytes, (unsigned long long)reply, (unsigned long long)engine->pool.bytes);
    kv_error_hint(err, "Send fewer tokens in one request, or start the daemon with a larger --pool-bytes.");
    return false;
}

bool kv_engine_accepts(struct kv_engine *engine, uint64_t body_bytes, struct kv_error *err)
{
    pthread_mutex_lock(&engine->lock);
    bool ok = accepts_locked(engine, body_bytes, err);
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

static bool take_both(struct kv_engine *engine, struct kv_job *job, uint64_t body, uint64_t reply)
{
    if (!kv_pool_take(&engine->pool, body, &job->body_range)) return false;
    if (kv_pool_take(&engine->pool, reply, &job->reply_range)) return true;
    kv_pool_give(&engine->pool, &job->body_range);
    return false;
}

static void join_line(struct kv_engine *engine, struct kv_waiter *self)
{
    struct kv_waiter **last = &engine->first_waiter;
    while (*last) last = &(*last)->next;
    *last = self;
    engine->waiters++;
    engine->waiters_bytes += self->bytes;
}

static void leave_line(struct kv_engine *engine, const struct kv_waiter *self)
{
    struct kv_waiter **at = &engine->first_waiter;
    while (*at != self) at = &(*at)->next;
    *at = self->next;
    engine->waiters--;
    engine->waiters_bytes -= self->bytes;
    kv_engine_wake_line(engine);
}

/* May one more request wait? A long line is refused at its end, at once, instead of being let wait in
 * silence: it is bounded in requests, and in the memory it wants, by one whole pool. The first in it always
 * fits that.
 */
static bool may_wait(const struct kv_engine *engine, uint64_t bytes, struct kv_error *err)
{
    if (engine->waiters_bytes <= engine->pool.bytes && bytes <= engine->pool.bytes - engine->waiters_bytes)
        return true;
    kv_fail_values(err, KV_QUEUE_FULL, "Content-Length", kv_integer((int64_t)engine->pool.bytes),
                   kv_integer((int64_t)(engine->waiters_bytes + bytes)),
                   "with this one, the requests in line would want more bytes of memory than the pool has");
    kv_error_hint(err,
                  "Send it again after Retry-After, send fewer tokens in one request, or start the daemon "
                  "with a larger --pool-bytes.");
    return false;
}

/* Takes the memory, waiting in line for it when others wait already or the pool is short. Only here is a
 * request refused because too many wait: one whose body is in is computed. */
static bool take_in_turn(struct kv_engine *engine, struct kv_job *job, uint64_t body, uint64_t reply,
                         struct kv_error *err)
{
    int32_t waiting = engine->waiters + engine->queued;
    if (waiting >= engine->options.limits.queue_max)
        return kv_fail_values(err, KV_QUEUE_FULL, "--max-queue", kv_integer(engine->options.limits.queue_max),
                              kv_integer(waiting + 1), "with this one, more requests would wait than may");
    if (!engine->first_waiter && take_both(engine, job, body, reply)) return true;
    struct kv_waiter self = {.job = job, .bytes = kv_pool_round(body) + kv_pool_round(reply)};
    if (!may_wait(engine, self.bytes, err)) return false;
    join_line(engine, &self);
    bool taken = false;
    /* A drain lets in nobody new, but who stands in line already is served. */
    while (!taken && (engine->state != KV_ENGINE_LOST || kv_engine_check_locked(engine, err)) &&
           !kv_engine_given_up(engine, job, err)) {
        taken = engine->first_waiter == &self && take_both(engine, job, body, reply);
        if (!taken) kv_engine_await_job(engine, job);
    }
    leave_line(engine, &self);
    return taken;
}

bool kv_engine_admit(struct kv_engine *engine, struct kv_job *job, uint64_t body_bytes, struct kv_error *err)
{
    bool ok = false;
    pthread_mutex_lock(&engine->lock);
    if (!accepts_locked(engine, body_bytes, err)) goto unlock;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    job->done_made = true;
    int64_t began_us = kv_now_us();
    ok = take_in_turn(engine, job, body_bytes, reply_bytes_bound(engine, body_bytes), err);
    job->queue_us = kv_now_us() - began_us;
    if (ok) {
        job->engine = engine;
        job->body = engine->slab_host + job->body_range.offset;
        job->body_bytes = body_bytes;
        engine->jobs++;
    } else {
        pthread_cond_destroy(&job->done);
        job->done_made = false;
    }
unlock:
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

void kv_engine_release_body(struct kv_job *job)
{
    struct kv_engine *engine = job->engine;
    pthread_mutex_lock(&engine->lock);
    kv_pool_give(&engine->pool, &job->body_range);
    kv_engine_wake_line(engine);
    pthread_mutex_unlock(&engine->lock);
    job->body = NULL;
}

void kv_engine_release(struct kv_job *job)
{
    struct kv_engine *engine = job->engine;
    if (!engine) return;
    pthread_mutex_lock(&engine->lock);
    assert(!job->queued && job->flights == 0);
    kv_pool_give(&engine->pool, &job->body_range);
    kv_pool_give(&engine->pool, &job->reply_range);
    engine->jobs--;
    kv_engine_wake_line(engine);
    pthread_mutex_unlock(&engine->lock);
    pthread_cond_destroy(&job->done);
    *job = (struct kv_job){0};
}
