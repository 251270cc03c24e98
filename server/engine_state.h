/* The inside of the engine, shared by engine.c (life and state), admission.c (memory) and queue.c (the
 * device). */
#ifndef KV_SERVER_ENGINE_STATE_H
#define KV_SERVER_ENGINE_STATE_H

#include "server/engine.h"

#include <stdatomic.h>

enum {
    KV_WATCH_US = 20 * 1000 /* how often a waiting thread looks at its deadline and its caller */
};

/* One batch on its way through the device. */
struct kv_flight {
    struct kv_batch batch;
    struct kv_item item[KV_BATCH_ITEMS_MAX];
    struct kv_job *job[KV_BATCH_ITEMS_MAX];
    struct kv_ref *bases; /* [KV_BATCH_ITEMS_MAX][2 * layers], of each item: K's, then V's */
    int64_t submitted_us;
    bool busy;     /* with the device */
    bool stranded; /* busy, and nobody waits for it any more: the device was given up */
};

/* A thread that waits for pool memory, in order of arrival. */
struct kv_waiter {
    struct kv_waiter *next;
    struct kv_job *job; /* its `done` is what wakes the thread */
    uint64_t bytes;     /* wanted, of the pool */
};

struct kv_engine {
    struct kv_engine_options options;
    struct kv_geometry geometry;
    const struct kv_backend_ops *ops;
    struct kv_backend *backend;
    struct kv_backend_description description;
    struct kv_mem *slab;
    unsigned char *slab_host;

    pthread_mutex_t lock;
    pthread_cond_t work; /* the device thread: a job was queued, a flight came back, or it is to stop */
    pthread_t thread;
    bool thread_started, stopping, abandoned;
    _Atomic enum kv_engine_state state; /* written under the lock */
    struct kv_error lost;               /* why, in state KV_ENGINE_LOST */

    struct kv_pool pool;
    struct kv_waiter *first_waiter;
    uint64_t waiters_bytes; /* wanted by all in the line; at most the pool's */
    int32_t waiters, jobs;

    struct kv_job *head, *tail; /* the queue: jobs with rows that no batch has taken yet */
    int32_t queued;
    int64_t queued_rows;
    struct kv_flight *flight; /* [flights] */
    struct kv_ref *bases;     /* of all flights */
    int32_t flights, flights_busy;
    _Atomic int64_t oldest_us; /* when the oldest batch with the device was handed to it; 0: none is */

    struct kv_engine_stats stats; /* only the counters in it */
};

/* All below: the engine's lock is held. */

/* True when the state lets work begin, else why not. */
bool kv_engine_check_locked(const struct kv_engine *engine, struct kv_error *err);
/* Has this job's deadline passed, its caller hung up, or the engine been abandoned? Then says so in err. */
bool kv_engine_given_up(struct kv_engine *engine, const struct kv_job *job, struct kv_error *err);
/* Waits on a condition until it is signalled or this time has passed. */
void kv_engine_wait(struct kv_engine *engine, pthread_cond_t *condition, int64_t timeout_us);
/* Waits for job->done; not past the job's deadline, nor longer than KV_WATCH_US without a look at its caller.
 */
void kv_engine_await_job(struct kv_engine *engine, struct kv_job *job);
/* Memory came back: whoever is first in the line for it may fit now. */
void kv_engine_wake_line(struct kv_engine *engine);

/* queue.c: the device is gone; every request from now on gets `cause`. */
void kv_engine_lose(struct kv_engine *engine, const struct kv_error *cause);
/* queue.c: hands a flight to the device, or takes it for returned. */
void kv_flight_set_busy(struct kv_engine *engine, struct kv_flight *flight, bool busy);

/* queue.c: what the device thread runs, and a job's way through the device without a look at the state. */
void *kv_engine_serve(void *of);
bool kv_engine_run_rows(struct kv_engine *engine, struct kv_job *job, struct kv_error *err);

#endif
