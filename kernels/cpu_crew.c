/* Worker threads: one atomic word says which stage runs and how many of its units nobody has taken yet. Knows
 * nothing of what the units do. */
#include "kernels/cpu_crew.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* How often an idle worker looks before it sleeps: some tens of microseconds, about what waking one costs. */
enum { LOOKS = 1000 };

struct worker {
    struct kv_crew *crew;
    pthread_t thread;
    int32_t index;
};

struct kv_crew {
    /* Stage number << 32 | units that nobody has taken. Taking one is a compare-and-swap: it cannot succeed
     * on a stage that has ended meanwhile, and a stage cannot end while a taken unit runs, so `stage` below
     * is safe to read. */
    _Atomic uint64_t word;
    _Atomic int64_t unfinished;
    struct kv_stage stage; /* written while no unit is running, published by `word` */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    int32_t sleepers;
    bool stopping;

    int32_t threads;
    struct worker *worker; /* [threads] */
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool take_unit(struct kv_crew *crew, int64_t *unit)
{
    uint64_t word = atomic_load_explicit(&crew->word, memory_order_acquire);
    while ((uint32_t)word > 0) {
        if (!atomic_compare_exchange_weak_explicit(&crew->word, &word, word - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        *unit = crew->stage.units - (int64_t)(uint32_t)word;
        return true;
    }
    return false;
}

static void run_unit(struct kv_crew *crew, int32_t worker, int64_t unit)
{
    crew->stage.run(crew->stage.context, worker, unit);
    if (atomic_fetch_sub_explicit(&crew->unfinished, 1, memory_order_acq_rel) > 1) return;
    struct kv_stage ended = crew->stage; /* `next` may start another one in its place */
    ended.next(ended.context);
}

/* Sleeps until there is a unit to take; false when the crew is to stop. */
static bool sleep_until_work(struct kv_crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    crew->sleepers++;
    while (!crew->stopping && (uint32_t)atomic_load_explicit(&crew->word, memory_order_acquire) == 0)
        pthread_cond_wait(&crew->wake, &crew->lock);
    crew->sleepers--;
    bool stopping = crew->stopping;
    pthread_mutex_unlock(&crew->lock);
    return !stopping;
}

static void *work(void *argument)
{
    struct worker *self = argument;
    struct kv_crew *crew = self->crew;
    int64_t unit;
    for (int32_t looks = 0;; looks++) {
        if (take_unit(crew, &unit)) {
            run_unit(crew, self->index, unit);
            looks = 0;
        } else if (looks < LOOKS) {
            relax();
        } else {
            if (!sleep_until_work(crew)) return NULL;
            looks = 0;
        }
    }
}

void kv_crew_start(struct kv_crew *crew, const struct kv_stage *stage)
{
    assert(stage->units >= 1 && stage->units <= UINT32_MAX);
    assert((uint32_t)atomic_load(&crew->word) == 0);
    pthread_mutex_lock(&crew->lock);
    crew->stage = *stage;
    atomic_store_explicit(&crew->unfinished, stage->units, memory_order_relaxed);
    uint64_t number = (atomic_load_explicit(&crew->word, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&crew->word, number << 32 | (uint64_t)stage->units, memory_order_release);
    if (crew->sleepers > 0) pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
}

/* Where there is a worker for each CPU, each gets its own: woken together, two of them would else share one
 * for as long as a small batch takes. A system that does not let itself be told loses only that. */
static void bind_worker(const struct worker *worker, int32_t threads)
{
    cpu_set_t allowed, own;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) != threads) return;
    size_t cpu = 0;
    for (int32_t before = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && before++ == worker->index) break;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    pthread_setaffinity_np(worker->thread, sizeof own, &own);
}

static bool start_worker(struct kv_crew *crew, int32_t threads, struct kv_error *err)
{
    /* Signals are for the program's own threads: a worker that runs a handler holds up a whole stage. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    struct worker *worker = &crew->worker[crew->threads];
    *worker = (struct worker){.crew = crew, .index = crew->threads};
    int status = pthread_create(&worker->thread, NULL, work, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0)
        return kv_fail(err, KV_DEVICE_UNAVAILABLE, "worker thread %d cannot be started: %s",
                       (int)crew->threads, strerror(status));
    bind_worker(worker, threads);
    crew->threads++;
    return true;
}

bool kv_crew_open(struct kv_crew **out, int32_t threads, struct kv_error *err)
{
    *out = NULL;
    struct kv_crew *crew = calloc(1, sizeof *crew);
    struct worker *worker = calloc((size_t)threads, sizeof *worker);
    if (!crew || !worker) {
        free(crew);
        free(worker);
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for %d worker threads", (int)threads);
    }
    crew->worker = worker;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wake, NULL);
    for (int32_t i = 0; i < threads; i++) {
        if (start_worker(crew, threads, err)) continue;
        kv_crew_close(crew);
        return false;
    }
    *out = crew;
    return true;
}

void kv_crew_close(struct kv_crew *crew)
{
    if (!crew) return;
    pthread_mutex_lock(&crew->lock);
    crew->stopping = true;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    for (int32_t i = 0; i < crew->threads; i++) pthread_join(crew->worker[i].thread, NULL);
    pthread_cond_destroy(&crew->wake);
    pthread_mutex_destroy(&crew->lock);
    free(crew->worker);
    free(crew);
}
