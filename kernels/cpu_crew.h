/* The worker threads of the CPU backend. They run stages: units 0 .. units - 1, each once, by whichever
 * worker is free, and then the stage's `next`, alone, which may start another stage. Knows nothing of what
 * the units do. */
#ifndef KV_KERNELS_CPU_CREW_H
#define KV_KERNELS_CPU_CREW_H

#include "protocol/error.h"

struct kv_crew;

struct kv_stage {
    int64_t units;                                            /* 1 .. UINT32_MAX */
    void (*run)(void *context, int32_t worker, int64_t unit); /* worker: 0 .. threads - 1 */
    void (*next)(void *context);
    void *context;
};

/* device_unavailable when threads cannot be had. */
bool kv_crew_open(struct kv_crew **out, int32_t threads, struct kv_error *err) KV_MUST_CHECK;
/* Starts a stage and returns. Any thread; no stage may be running (inside `next` none is). */
void kv_crew_start(struct kv_crew *crew, const struct kv_stage *stage);
/* No stage may be running. NULL is fine. */
void kv_crew_close(struct kv_crew *crew);

#endif
