/* The engine: admission to a bounded pool, spans and batches, and the one queue in front of the device.
 * Knows the device through kernels/backend.h alone, and nothing of HTTP.
 *
 * One request is one kv_job: admit (memory), the caller fills job.body, decode, run (blocks until K and V are
 * there), release. A job is used by one thread at a time; every function here may be called from any thread.
 */
#ifndef KV_SERVER_ENGINE_H
#define KV_SERVER_ENGINE_H

#include "kernels/backend.h"
#include "protocol/description.h"
#include "server/pool.h"

#include <pthread.h>

struct kv_engine;

enum { KV_BATCH_ITEMS_MAX = 64 }; /* requests, or spans of them, in one batch */
enum { KV_SIZE_BUCKETS = 15 };    /* powers of two up to 16384 */

enum kv_engine_state {
    KV_ENGINE_STARTING, /* no device yet */
    KV_ENGINE_READY,
    KV_ENGINE_DRAINING, /* admits nothing, finishes what is admitted */
    KV_ENGINE_LOST      /* the device is gone: everything fails with device_lost */
};

struct kv_engine_options {
    struct kv_limits limits; /* span_tokens_max is set from the device at start */
    int64_t batch_delay_us;  /* a queued batch waits this long for company; 0: not at all */
    int64_t spin_us; /* a batch is polled for this long before the wait for it sleeps; -1: the device's own */
};

/* One request in the engine. Zero-initialise; the first block is the caller's. */
struct kv_job {
    struct kv_request request; /* decoded by the caller from `body`, before run */
    int64_t deadline_us; /* on the monotonic clock; 0: none. A job still waiting then fails: deadline_exceeded
                          */
    bool (*gone)(void *who); /* has the caller hung up? Asked while waiting, at times under the engine's lock
                              */
    void *who;

    unsigned char *body; /* from admit: body_bytes bytes of pool memory to read the body into */
    uint64_t body_bytes;
    unsigned char *reply; /* from run: K [layers, T, kv_heads, head_dim], then V; valid until release. Before
                             it lie KV_REPLY_HEADER_BYTES_MAX bytes for the header, so that a reply is one
                             piece */
    uint64_t reply_bytes;
    int64_t queue_us, device_us; /* from run: waited before the device; from the first submit to the last
                                    result */

    /* The engine's own. */
    struct kv_engine *engine;
    struct kv_range body_range, reply_range;
    int64_t rows, rows_submitted, rows_done;
    int32_t flights;
    int64_t queued_us, submitted_us, done_us;
    bool queued;
    struct kv_error err;
    pthread_cond_t done;
    bool done_made;
    struct kv_job *next, *previous;
};

/* Numbers for /metrics; counters are since the start. */
struct kv_engine_stats {
    enum kv_engine_state state;
    int32_t jobs;    /* admitted and not yet released */
    int32_t waiting; /* for memory or in the queue */
    int64_t queued_rows;
    int64_t busy_us; /* how long the oldest batch has been with the device */
    uint64_t pool_bytes, pool_used_bytes, pool_used_bytes_max;
    uint64_t batches, batch_rows, batch_items; /* done by the device */
    /* Of them, those with up to 1, 2, 4, ... rows and requests; the last are those with more. */
    uint64_t rows_bucket[KV_SIZE_BUCKETS + 1], items_bucket[KV_SIZE_BUCKETS + 1];
    uint64_t inline_batches; /* of them, submitted by the request's own thread */
    uint64_t device_us;      /* summed over the batches, from submit to done */
    uint64_t gone; /* requests whose caller hung up while they waited; they never reached the device */
};

/* An engine without a device: it refuses with not_ready. NULL when memory is out. */
struct kv_engine *kv_engine_open(const struct kv_engine_options *options);

/* Gives the engine its open device, which it owns from here on (also on failure), makes the pool, and runs a
 * small and a full batch to warm up. Call it once; the engine still refuses work. */
bool kv_engine_start(struct kv_engine *engine, const struct kv_backend_ops *ops, struct kv_backend *backend,
                     const struct kv_geometry *geometry, struct kv_error *err) KV_MUST_CHECK;

/* Started -> ready: work is taken from here on. Not when it drains already. */
void kv_engine_open_doors(struct kv_engine *engine);

/* Stops the device thread and closes the device. No job may be admitted any more, and the engine is settled.
 * NULL is fine. */
void kv_engine_close(struct kv_engine *engine);

/* Can a body of this size ever be served? payload_too_large with the numbers when body and worst-case reply
 * exceed the pool; not_ready, draining, device_lost by state. Takes nothing. */
bool kv_engine_accepts(struct kv_engine *engine, uint64_t body_bytes, struct kv_error *err) KV_MUST_CHECK;

/* Reserves memory for the body and the largest reply that a body of this size can ask for. Waits for memory
 * in order of arrival, watching job->deadline_us and job->gone. queue_full, at once, when limits.queue_max
 * requests wait or the line for memory would want more than the whole pool. On success job->body is set and
 * the job must be released; on failure it must not. */
bool kv_engine_admit(struct kv_engine *engine, struct kv_job *job, uint64_t body_bytes,
                     struct kv_error *err) KV_MUST_CHECK;

/* Computes job->request, whose views lie in job->body; gives back what the reply does not need. Blocks. */
bool kv_engine_run(struct kv_job *job, struct kv_error *err) KV_MUST_CHECK;

/* Gives the memory of the body back early: after run, once nothing points into it. */
void kv_engine_release_body(struct kv_job *job);

/* Gives all memory back. A job that was not admitted, or is already released, is fine. */
void kv_engine_release(struct kv_job *job);

/* Ready -> draining; other states stay. */
void kv_engine_drain(struct kv_engine *engine);
/* Jobs that wait, now and later, fail with draining at once: for the end of the time that a drain is given.
 */
void kv_engine_abandon(struct kv_engine *engine);

/* How long the oldest batch has been with the device, in microseconds; 0: there is none. Takes no lock. */
int64_t kv_engine_busy_us(const struct kv_engine *engine);
/* Call it now and then. False when a batch has been with the device for longer than limits.device_seconds:
 * the engine is lost then, and err says for how long the batch has been there. Never blocks for more than a
 * second, wherever the device is stuck. */
bool kv_engine_watch(struct kv_engine *engine, struct kv_error *err) KV_MUST_CHECK;
/* Can the engine be spoken to? Not when a thread is stuck in the device while it holds the engine's lock.
 * Waits for at most a second. */
bool kv_engine_responds(struct kv_engine *engine) KV_MUST_CHECK;
/* Is no batch with the device, and no thread in it? If not, a join or kv_engine_close would wait for the
 * device, and freed memory could still be written by it. */
bool kv_engine_settle(struct kv_engine *engine) KV_MUST_CHECK;

/* Takes no lock. */
enum kv_engine_state kv_engine_state(const struct kv_engine *engine);
void kv_engine_stats(struct kv_engine *engine, struct kv_engine_stats *out);
/* What the device is, and how much of its memory is free now; false before start. */
bool kv_engine_device(struct kv_engine *engine, struct kv_device_info *out);
/* The geometry; zeros before start. */
const struct kv_geometry *kv_engine_geometry(const struct kv_engine *engine);
/* The limits in force (span_tokens_max is known after start). */
const struct kv_limits *kv_engine_limits(const struct kv_engine *engine);
/* Why a state refuses work, as an error; true when it does not. */
bool kv_engine_check(struct kv_engine *engine, struct kv_error *err) KV_MUST_CHECK;

/* Microseconds on the monotonic clock. */
int64_t kv_now_us(void);

#endif
