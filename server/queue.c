/* In front of the device: what is large is cut into spans, what is small is joined into batches. An idle
 * device is served by the request's own thread, a busy one by the device thread. A row's bits do not depend
 * on any of it. */
#include "server/engine_state.h"

#include <assert.h>
#include <sched.h>

static void unqueue(struct kv_engine *engine, struct kv_job *job)
{
    assert(job->queued);
    *(job->previous ? &job->previous->next : &engine->head) = job->next;
    *(job->next ? &job->next->previous : &engine->tail) = job->previous;
    job->next = job->previous = NULL;
    job->queued = false;
    engine->queued--;
    engine->queued_rows -= job->rows - job->rows_submitted;
}

static void enqueue(struct kv_engine *engine, struct kv_job *job)
{
    assert(!job->queued);
    job->previous = engine->tail;
    job->next = NULL;
    *(engine->tail ? &engine->tail->next : &engine->head) = job;
    engine->tail = job;
    job->queued = true;
    engine->queued++;
    engine->queued_rows += job->rows - job->rows_submitted;
}

static bool finished(const struct kv_job *job)
{
    return job->flights == 0 && !job->queued && (job->rows_done == job->rows || job->err.fault != KV_OK);
}

/* Takes a job that is still waiting out of the queue, for good. */
static void fail_queued(struct kv_engine *engine, struct kv_job *job, const struct kv_error *why)
{
    unqueue(engine, job);
    if (job->err.fault == KV_OK) job->err = *why;
    pthread_cond_signal(&job->done);
}

void kv_flight_set_busy(struct kv_engine *engine, struct kv_flight *flight, bool busy)
{
    int64_t oldest_us = 0;
    flight->busy = busy;
    flight->stranded = false;
    engine->flights_busy += busy ? 1 : -1;
    for (int32_t i = 0; i < engine->flights; i++) {
        const struct kv_flight *other = &engine->flight[i];
        if (other->busy && (oldest_us == 0 || other->submitted_us < oldest_us))
            oldest_us = other->submitted_us;
    }
    atomic_store(&engine->oldest_us, oldest_us);
}

void kv_engine_lose(struct kv_engine *engine, const struct kv_error *cause)
{
    struct kv_error why = {0};
    if (engine->state != KV_ENGINE_LOST) engine->lost = *cause;
    engine->state = KV_ENGINE_LOST;
    (void)kv_engine_check_locked(engine, &why);
    while (engine->head) fail_queued(engine, engine->head, &why);
    for (struct kv_waiter *waiter = engine->first_waiter; waiter; waiter = waiter->next)
        pthread_cond_signal(&waiter->job->done);
}

/* The next `rows` rows of a job, as the device sees them: an item of the flight, which points to nothing of
 * the job's own, so that a job may end while the device still has the flight. */
static void set_item(const struct kv_engine *engine, struct kv_flight *flight, const struct kv_job *job,
                     int64_t rows)
{
    const struct kv_geometry *geometry = &engine->geometry;
    const struct kv_request *request = &job->request;
    int64_t columns = request->hidden.dims[1];
    int64_t row_stride = columns * (int64_t)kv_dtype_bytes(request->hidden.dtype);
    int64_t position_bytes = (int64_t)kv_dtype_bytes(request->positions.dtype);
    uint64_t hidden_at = (uint64_t)((const unsigned char *)request->hidden.data - engine->slab_host);
    uint64_t positions_at = (uint64_t)((const unsigned char *)request->positions.data - engine->slab_host);
    int64_t head_stride = geometry->head_dim * (int64_t)kv_dtype_bytes(geometry->dtype);
    const int64_t begin = job->rows_submitted;
    const int32_t at = flight->batch.items, parts = 2 * geometry->layers;
    struct kv_ref *bases = flight->bases + (size_t)at * (size_t)parts;
    uint64_t layer_bytes = job->reply_bytes / (uint64_t)parts;
    uint64_t reply_at = job->reply_range.offset + KV_REPLY_HEADER_BYTES_MAX;

    for (int32_t i = 0; i < parts; i++)
        bases[i] = (struct kv_ref){engine->slab, reply_at + (uint64_t)i * layer_bytes};
    flight->item[at] = (struct kv_item){
        .rows = rows,
        .in = {.kind = request->kind,
               .dtype = request->hidden.dtype,
               .rows = {engine->slab, hidden_at + (uint64_t)(begin * row_stride)},
               .row_stride = row_stride,
               .positions = {engine->slab, positions_at + (uint64_t)(begin * position_bytes)},
               .positions_dtype = request->positions.dtype,
               .positions_checked = true},
        .out = {.k = bases,
                .v = bases + geometry->layers,
                .block_tokens = job->rows, /* a reply is one block: layer-major, then tokens */
                .block_stride = 0,
                .token_stride = geometry->kv_heads * head_stride,
                .head_stride = head_stride,
                .slot_first = begin,
                .slots_max = job->rows,
                .dtype = geometry->dtype,
                .layer_end = geometry->layers,
                .head_end = geometry->kv_heads},
    };
}

static void board(struct kv_engine *engine, struct kv_flight *flight, struct kv_job *job, int64_t rows)
{
    struct kv_batch *batch = &flight->batch;
    set_item(engine, flight, job, rows);
    flight->job[batch->items++] = job;
    batch->rows += rows;
    if (job->rows_submitted == 0) job->submitted_us = kv_now_us();
    job->rows_submitted += rows;
    job->flights++;
}

static struct kv_flight *idle_flight(struct kv_engine *engine)
{
    for (int32_t i = 0; i < engine->flights; i++) {
        struct kv_flight *flight = &engine->flight[i];
        if (flight->busy) continue;
        flight->batch.rows = 0;
        flight->batch.items = 0;
        return flight;
    }
    return NULL;
}

/* Books the end of a batch for every job in it. `why` is set when the whole batch failed. */
static void disembark(struct kv_engine *engine, struct kv_flight *flight, const struct kv_error *why,
                      int64_t now_us)
{
    for (int32_t i = 0; i < flight->batch.items; i++) {
        struct kv_job *job = flight->job[i];
        const struct kv_item *item = &flight->item[i];
        job->flights--;
        job->done_us = now_us;
        if (why->fault != KV_OK) {
            if (job->err.fault == KV_OK) job->err = *why;
        } else if (item->fault != KV_OK) {
            kv_fail(&job->err, item->fault, "the device refused the rows from %lld on: %s",
                    (long long)item->out.slot_first, kv_fault_info(item->fault)->title);
        } else {
            job->rows_done += item->rows;
        }
        if (job->err.fault != KV_OK && job->queued) unqueue(engine, job);
        if (finished(job)) pthread_cond_signal(&job->done);
    }
}

/* The first power of two that is not less, as an exponent. */
static int32_t size_bucket(int64_t size)
{
    int32_t at = 0;
    while (at < KV_SIZE_BUCKETS && size > 1LL << at) at++;
    return at;
}

static void land(struct kv_engine *engine, struct kv_flight *flight, const struct kv_error *why)
{
    struct kv_engine_stats *stats = &engine->stats;
    int64_t now_us = kv_now_us();
    disembark(engine, flight, why, now_us);
    stats->batches++;
    stats->batch_rows += (uint64_t)flight->batch.rows;
    stats->batch_items += (uint64_t)flight->batch.items;
    stats->rows_bucket[size_bucket(flight->batch.rows)]++;
    stats->items_bucket[size_bucket(flight->batch.items)]++;
    stats->device_us += (uint64_t)(now_us - flight->submitted_us);
    kv_flight_set_busy(engine, flight, false);
    if (engine->head)
        pthread_cond_signal(&engine->work); /* waking a thread for nothing costs a request 10 us */
}

/* Hands a filled flight to the device; books the failure when the device does not take it. */
static bool take_off(struct kv_engine *engine, struct kv_flight *flight)
{
    struct kv_error why = {0};
    flight->submitted_us = kv_now_us();
    kv_flight_set_busy(engine, flight, true); /* also while submit runs: it, too, can get stuck */
    if (engine->ops->submit(engine->backend, &flight->batch, &why)) return true;
    kv_flight_set_busy(engine, flight, false);
    disembark(engine, flight, &why, kv_now_us());
    if (why.fault == KV_DEVICE_LOST) kv_engine_lose(engine, &why);
    return false;
}

/* Waits for a flight without the lock; books its landing with it. Polls first; soon others may run between
 * two looks. A flight that is still with the device when the engine is lost is left behind with its memory.
 */
static void await(struct kv_engine *engine, struct kv_flight *flight)
{
    enum { GREEDY_US = 50, LOOK_US = 100 * 1000 };
    struct kv_error why = {0};
    pthread_mutex_unlock(&engine->lock);
    enum kv_wait seen = KV_WAIT_PENDING;
    for (int64_t flown_us = 0; seen == KV_WAIT_PENDING && flown_us < engine->options.spin_us;
         flown_us = kv_now_us() - flight->submitted_us) {
        if (flown_us > GREEDY_US) sched_yield();
        seen = engine->ops->wait(engine->backend, &flight->batch, 0, &why);
    }
    while (seen == KV_WAIT_PENDING && kv_engine_state(engine) != KV_ENGINE_LOST)
        seen = engine->ops->wait(engine->backend, &flight->batch, LOOK_US, &why);
    pthread_mutex_lock(&engine->lock);
    if (seen == KV_WAIT_LOST) kv_engine_lose(engine, &why);
    if (seen != KV_WAIT_DONE) {
        why = (struct kv_error){0};
        (void)kv_engine_check_locked(engine, &why);
    }
    if (seen != KV_WAIT_PENDING) {
        land(engine, flight, &why);
    } else {
        disembark(engine, flight, &why, kv_now_us());
        flight->stranded = true;
    }
}

/* Fills a flight from the queue: in order, one span of each job, one kind of input. A job that has more rows
 * goes to the end, so that a large one never starves the small. */
static void fill(struct kv_engine *engine, struct kv_flight *flight)
{
    const struct kv_limits *limits = &engine->options.limits;
    int64_t room = limits->batch_tokens_max;
    struct kv_job *next = engine->head;
    for (int32_t left = engine->queued; left > 0 && next; left--) {
        struct kv_job *job = next;
        struct kv_error why = {0};
        next = job->next;
        if (job->rows_submitted == 0 && kv_engine_given_up(engine, job, &why)) {
            fail_queued(engine, job, &why);
            continue;
        }
        if (flight->batch.items > 0 && flight->job[0]->request.kind != job->request.kind) continue;
        int64_t rows = job->rows - job->rows_submitted;
        if (rows > limits->span_tokens_max) rows = limits->span_tokens_max;
        if (rows > room) break;
        unqueue(engine, job);
        board(engine, flight, job, rows);
        if (job->rows_submitted < job->rows) enqueue(engine, job);
        room -= rows;
        if (room == 0 || flight->batch.items == KV_BATCH_ITEMS_MAX) break;
    }
}

/* Holds a batch back while company may still come. */
static bool is_due(const struct kv_engine *engine)
{
    if (!engine->head) return false;
    return engine->options.batch_delay_us == 0 || engine->stopping || engine->abandoned ||
           engine->queued_rows >= engine->options.limits.batch_tokens_max ||
           kv_now_us() >= engine->head->queued_us + engine->options.batch_delay_us;
}

/* Keeps the device busy while there is a queue: up to `flights` batches at once, landed in order. */
void *kv_engine_serve(void *of)
{
    struct kv_engine *engine = of;
    enum { MINE_MAX = 8 };
    struct kv_flight *mine[MINE_MAX];
    int32_t count = 0;
    pthread_mutex_lock(&engine->lock);
    while (!engine->stopping || engine->head || count > 0) {
        struct kv_flight *flight = count < MINE_MAX && is_due(engine) ? idle_flight(engine) : NULL;
        if (flight) {
            fill(engine, flight);
            if (flight->batch.items > 0 && take_off(engine, flight)) mine[count++] = flight;
        } else if (count > 0) {
            await(engine, mine[0]);
            count--;
            memmove(&mine[0], &mine[1], (size_t)count * sizeof mine[0]);
        } else if (engine->head && !is_due(engine)) {
            kv_engine_wait(engine, &engine->work,
                           engine->head->queued_us + engine->options.batch_delay_us - kv_now_us());
        } else {
            pthread_cond_wait(&engine->work, &engine->lock);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* What has not begun is dropped when its deadline passes; what has begun only when nobody waits for it any
 * more. */
static bool is_dropped(struct kv_engine *engine, const struct kv_job *job, struct kv_error *why)
{
    if (job->rows_submitted == 0 || engine->abandoned) return kv_engine_given_up(engine, job, why);
    return job->gone && job->gone(job->who) &&
           !kv_fail(why, KV_CLIENT_GONE, "the caller closed its connection while its rows were computed");
}

/* Waits in the queue's order, watching the deadline and the caller. */
static void wait_in_queue(struct kv_engine *engine, struct kv_job *job)
{
    enqueue(engine, job);
    pthread_cond_signal(&engine->work);
    while (!finished(job)) {
        struct kv_error why = {0};
        kv_engine_await_job(engine, job);
        if (job->queued && is_dropped(engine, job, &why)) fail_queued(engine, job, &why);
    }
}

bool kv_engine_run_rows(struct kv_engine *engine, struct kv_job *job, struct kv_error *err)
{
    const struct kv_limits *limits = &engine->options.limits;
    uint64_t part_bytes = kv_reply_part_bytes(&engine->geometry, job->request.tokens);
    job->rows = job->request.tokens;
    job->rows_submitted = job->rows_done = 0;

    pthread_mutex_lock(&engine->lock);
    kv_pool_shrink(&engine->pool, &job->reply_range, KV_REPLY_HEADER_BYTES_MAX + 2 * part_bytes);
    kv_engine_wake_line(engine);
    job->reply = engine->slab_host + job->reply_range.offset + KV_REPLY_HEADER_BYTES_MAX;
    job->reply_bytes = 2 * part_bytes;

    job->queued_us = job->submitted_us = job->done_us = kv_now_us();
    /* Warming up, there is no device thread yet to hand over to. */
    bool joins = engine->options.batch_delay_us > 0 && engine->thread_started;
    bool alone = !joins && !engine->head && job->rows <= limits->span_tokens_max;
    struct kv_flight *flight = alone && job->rows > 0 ? idle_flight(engine) : NULL;
    if (job->deadline_us && job->queued_us >= job->deadline_us) { /* passed while the body came in */
        (void)kv_engine_given_up(engine, job, &job->err);
    } else if (flight) {
        board(engine, flight, job, job->rows);
        if (take_off(engine, flight)) {
            engine->stats.inline_batches++;
            await(engine, flight);
        }
    } else if (job->rows > 0) {
        wait_in_queue(engine, job);
    }
    bool begun = job->rows_submitted > 0 || job->rows == 0;
    job->queue_us += (begun ? job->submitted_us : kv_now_us()) - job->queued_us;
    job->device_us = job->done_us - job->submitted_us;
    pthread_mutex_unlock(&engine->lock);
    if (job->err.fault == KV_OK) return true;
    if (err && err->fault == KV_OK) *err = job->err;
    return false;
}

bool kv_engine_run(struct kv_job *job, struct kv_error *err)
{
    struct kv_engine *engine = job->engine;
    /* What was admitted is finished, also while draining; only a lost device refuses it. */
    if (kv_engine_state(engine) == KV_ENGINE_LOST && !kv_engine_check(engine, err)) return false;
    return kv_engine_run_rows(engine, job, err);
}
