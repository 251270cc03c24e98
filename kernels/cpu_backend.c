/* The CPU backend: life, memory, and the queue of batches in front of the crew. What a batch is computed like
 * is cpu_batch.c's. Defines right for every other backend: kernels/README.md. */
#include "kernels/cpu_backend.h"

#include "kernels/norm_rope.h"
#include "kernels/cpu_panel.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t at_most(int64_t value, int64_t bound)
{
    return value < bound ? value : bound;
}

/* Rows that go through the stages together, and tiles of one unit of work: bounded by the bytes they take. */
static void choose_sizes(struct kv_backend *backend)
{
    const struct kv_geometry *geometry = &backend->geometry;
    int64_t tile_rows = backend->isa->rows_max;
    int64_t row_bytes = geometry->hidden * (geometry->taps > 1 ? geometry->taps : 1) * (int64_t)sizeof(float);
    int64_t rows = at_most(KV_CPU_PASS_ROWS, KV_CPU_PASS_BYTES / row_bytes);
    if (rows < 2 * tile_rows) rows = 2 * tile_rows;
    backend->pass_rows = at_most(rows, backend->rows_max > 0 ? backend->rows_max : 1);
    int64_t columns = kv_panel_columns(geometry->head_dim);
    if (geometry->taps > 0 && columns < KV_FC_COLUMNS) columns = KV_FC_COLUMNS;
    rows = at_most(KV_CPU_BLOCK_ROWS, KV_CPU_BLOCK_BYTES / (columns * (int64_t)sizeof(float)));
    backend->block_tiles = rows > tile_rows ? rows / tile_rows : 1;
    backend->sums_floats = backend->block_tiles * tile_rows * columns;
}

static bool make_scratch(struct kv_backend *backend, struct kv_error *err)
{
    enum { TARGET, REDUCED, LINE, X, COSINES, SINES, ROW, SUMS, SLICES };
    const struct kv_geometry *g = &backend->geometry;
    int64_t rows = backend->pass_rows, threads = backend->threads, reduced = g->taps > 0 ? g->hidden : 0;
    struct kv_slice slice[SLICES] = {
        [TARGET] = {rows, g->taps, g->hidden, sizeof(float), NULL},
        [REDUCED] = {rows, reduced, 1, sizeof(uint16_t), NULL},
        [LINE] = {threads, reduced, 1, sizeof(float), NULL},
        [X] = {rows, g->hidden, 1, sizeof(float), NULL},
        [COSINES] = {rows, g->rotary_dim / 2, 1, sizeof(float), NULL},
        [SINES] = {rows, g->rotary_dim / 2, 1, sizeof(float), NULL},
        [ROW] = {rows, 1, 1, sizeof(struct kv_row), NULL},
        [SUMS] = {threads, backend->sums_floats, 1, sizeof(float), NULL},
    };
    if (!kv_region_carve(&backend->scratch, slice, SLICES, "the buffers", err)) return false;
    kv_region_touch(&backend->scratch);
    backend->target = slice[TARGET].at;
    backend->reduced = slice[REDUCED].at;
    backend->line = slice[LINE].at;
    backend->x = slice[X].at;
    backend->cosines = slice[COSINES].at;
    backend->sines = slice[SINES].at;
    backend->row = slice[ROW].at;
    backend->sums = slice[SUMS].at;
    return true;
}

static void close_cpu(struct kv_backend *backend)
{
    if (!backend) return;
    assert(backend->queued == 0);
    kv_crew_close(backend->crew);
    kv_resident_close(&backend->resident);
    kv_region_unmap(&backend->scratch);
    pthread_cond_destroy(&backend->done);
    pthread_mutex_destroy(&backend->lock);
    free(backend);
}

static void init_wait(struct kv_backend *backend)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&backend->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&backend->lock, NULL);
}

bool kv_cpu_open(struct kv_backend **out, const struct kv_weights *weights,
                 const struct kv_backend_options *options, const struct kv_isa *isa, struct kv_error *err)
{
    const struct kv_geometry *geometry = &weights->geometry;
    assert(geometry->head_dim >= 2 && geometry->head_dim <= KV_HEAD_DIM_MAX);
    assert(geometry->dtype == KV_BF16 || geometry->dtype == KV_F16);
    *out = NULL;
    struct kv_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for a backend");
    init_wait(backend);
    backend->geometry = *geometry;
    backend->isa = isa;
    backend->threads = options->threads > 0 ? options->threads : kv_host_cpus();
    backend->rows_max = options->rows_max;
    backend->items_max = options->items_max;
    choose_sizes(backend);
    if (!make_scratch(backend, err) || !kv_crew_open(&backend->crew, backend->threads, err) ||
        !kv_resident_open(&backend->resident, weights, backend->crew, backend->threads, err)) {
        close_cpu(backend);
        return false;
    }
    *out = backend;
    return true;
}

static bool open_cpu(struct kv_backend **out, const struct kv_weights *weights,
                     const struct kv_backend_options *options, struct kv_error *err)
{
    return kv_cpu_open(out, weights, options, kv_isa_best(), err);
}

static void describe(const struct kv_backend *backend, struct kv_backend_description *out)
{
    char model[96];
    *out = (struct kv_backend_description){.kind = "cpu",
                                           .memory_bytes =
                                               backend->resident.region.bytes + backend->scratch.bytes,
                                           .span_rows = backend->pass_rows,
                                           .batches_max = KV_CPU_BATCHES_MAX,
                                           .pool_bytes = 256u << 20,
                                           .spin_us = 50};
    snprintf(out->name, sizeof out->name, "%s (%s, %d threads)", kv_host_name(model, sizeof model),
             backend->isa->name, (int)backend->threads);
}

static bool alloc(struct kv_backend *backend, size_t bytes, struct kv_mem **out, void **host,
                  struct kv_error *err)
{
    (void)backend;
    *out = NULL;
    *host = NULL;
    struct kv_mem *mem = calloc(1, sizeof *mem);
    if (!mem) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for a memory's own record");
    if (!kv_region_map(&mem->region, bytes, "the pool", err)) {
        free(mem);
        return false;
    }
    kv_region_touch(&mem->region);
    mem->extent = (struct kv_mem_extent){mem->region.base, mem->region.bytes};
    *out = mem;
    *host = mem->region.base;
    return true;
}

static bool import(struct kv_backend *backend, const struct kv_handle *handle, struct kv_mem **out,
                   struct kv_error *err)
{
    (void)backend;
    *out = NULL;
    return kv_fail(err, KV_UNSUPPORTED, "the CPU backend cannot map %s yet: send data in the request",
                   handle->gpu ? "GPU memory" : "shared memory");
}

static void release(struct kv_backend *backend, struct kv_mem *mem)
{
    (void)backend;
    if (!mem) return;
    kv_region_unmap(&mem->region);
    free(mem);
}

/* Under the lock. */
static void finish_flight(struct kv_backend *backend, struct kv_cpu_flight *flight)
{
    atomic_store_explicit(&flight->done, true, memory_order_release);
    pthread_cond_broadcast(&backend->done);
}

void kv_cpu_batch_done(struct kv_backend *backend)
{
    pthread_mutex_lock(&backend->lock);
    finish_flight(backend, backend->queue[0]);
    backend->queued--;
    for (int32_t i = 0; i < backend->queued; i++) backend->queue[i] = backend->queue[i + 1];
    if (backend->queued > 0) kv_cpu_batch_start(backend, backend->queue[0]->batch);
    pthread_mutex_unlock(&backend->lock);
}

static bool submit(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err)
{
    if (batch->rows > backend->rows_max || batch->items > backend->items_max)
        return kv_fail(err, KV_INTERNAL,
                       "a batch of %" PRId64 " rows and %d items exceeds what was reserved: %" PRId64
                       " and %d",
                       batch->rows, (int)batch->items, backend->rows_max, (int)backend->items_max);
    pthread_mutex_lock(&backend->lock);
    struct kv_cpu_flight *flight = NULL;
    for (int32_t i = 0; i < KV_CPU_BATCHES_MAX && !flight; i++)
        if (!backend->flight[i].used) flight = &backend->flight[i];
    if (!flight) {
        pthread_mutex_unlock(&backend->lock);
        return kv_fail(err, KV_INTERNAL, "%d batches are in flight already", KV_CPU_BATCHES_MAX);
    }
    flight->used = true;
    flight->batch = batch;
    atomic_store_explicit(&flight->done, false, memory_order_relaxed);
    batch->inflight = flight;
    if (batch->items == 0) {
        finish_flight(backend, flight);
    } else {
        backend->queue[backend->queued++] = flight;
        if (backend->queued == 1) kv_cpu_batch_start(backend, batch);
    }
    pthread_mutex_unlock(&backend->lock);
    return true;
}

static struct timespec deadline_after(int64_t timeout_us)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += (time_t)(timeout_us / 1000000);
    at.tv_nsec += (long)(timeout_us % 1000000) * 1000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_nsec -= 1000000000;
        at.tv_sec++;
    }
    return at;
}

static enum kv_wait wait_cpu(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                             struct kv_error *err)
{
    (void)err; /* this device is never lost */
    struct kv_cpu_flight *flight = batch->inflight;
    assert(flight && flight->batch == batch);
    if (timeout_us == 0 && !atomic_load_explicit(&flight->done, memory_order_acquire)) return KV_WAIT_PENDING;
    struct timespec deadline = timeout_us > 0 ? deadline_after(timeout_us) : (struct timespec){0};
    pthread_mutex_lock(&backend->lock);
    bool late = false;
    while (!atomic_load_explicit(&flight->done, memory_order_acquire) && !late) {
        if (timeout_us < 0)
            pthread_cond_wait(&backend->done, &backend->lock);
        else
            late = pthread_cond_timedwait(&backend->done, &backend->lock, &deadline) == ETIMEDOUT;
    }
    bool done = atomic_load_explicit(&flight->done, memory_order_acquire);
    if (done) {
        batch->inflight = NULL;
        flight->batch = NULL;
        flight->used = false;
    }
    pthread_mutex_unlock(&backend->lock);
    return done ? KV_WAIT_DONE : KV_WAIT_PENDING;
}

const struct kv_backend_ops kv_cpu_ops = {
    .name = "cpu",
    .open = open_cpu,
    .describe = describe,
    .alloc = alloc,
    .import = import,
    .release = release,
    .submit = submit,
    .wait = wait_cpu,
    .close = close_cpu,
};
