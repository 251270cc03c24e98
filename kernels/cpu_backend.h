/* The inside of the CPU backend, shared by cpu_backend.c (life, memory, the queue of batches), cpu_batch.c
 * (the stages of a batch) and cpu_rows.c (inputs). Not for other
 * rooms: see backend.h. */
#ifndef KV_KERNELS_CPU_BACKEND_H
#define KV_KERNELS_CPU_BACKEND_H

#include "kernels/backend_list.h"
#include "kernels/cpu_crew.h"
#include "kernels/cpu_gemm.h"
#include "kernels/cpu_host.h"
#include "kernels/cpu_pack.h"
#include "kernels/item_check.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    KV_CPU_BATCHES_MAX = 2,               /* one is computed while the next one waits */
    KV_CPU_PASS_ROWS = 512,               /* rows that go through the stages together */
    KV_CPU_PASS_BYTES = 32 * 1024 * 1024, /* fewer where their packed inputs exceed this */
    KV_CPU_BLOCK_ROWS = 128,              /* rows of one unit of work */
    KV_CPU_BLOCK_BYTES = 256 * 1024       /* fewer where their sums exceed this */
};

struct kv_mem {
    struct kv_mem_extent extent;
    struct kv_region region;
};

/* One row of a pass. */
struct kv_row {
    const struct kv_item *item;
    int64_t t;     /* of the item */
    int64_t place; /* bytes from the base of a layer to its first head; -1: not written */
};

/* Part of a batch: rows that lie packed in the backend's buffers. Written between stages only. */
struct kv_pass {
    int64_t rows;
    struct kv_tiling tiling;
    int64_t blocks;               /* units of work that the tiles are cut into */
    int32_t item_begin, item_end; /* the items that rows are of */
    int32_t next_item;            /* where the next pass begins */
    int64_t next_t;
};

/* A submitted batch. */
struct kv_cpu_flight {
    struct kv_batch *batch;
    atomic_bool done;
    bool used;
};

struct kv_backend {
    struct kv_geometry geometry;
    const struct kv_isa *isa;
    int32_t threads;
    struct kv_crew *crew;
    struct kv_resident resident;
    int64_t rows_max;
    int32_t items_max;

    /* Buffers, all in one region. */
    struct kv_region scratch;
    int64_t pass_rows, block_tiles, sums_floats;
    float *target;          /* packed target_hidden: tiles of [taps * hidden][rows]; NULL without fc */
    uint16_t *reduced;      /* [pass_rows][hidden], fc's output, in the geometry's dtype; NULL without fc */
    float *line;            /* [threads][hidden]; NULL without fc */
    float *x;               /* packed hidden states: tiles of [hidden][rows] */
    float *cosines, *sines; /* [pass_rows][rotary_dim / 2] */
    struct kv_row *row;     /* [pass_rows] */
    float *sums;            /* [threads][sums_floats] */

    /* The batch that the crew works on; it alone touches these while one is. */
    struct kv_batch *batch;
    enum kv_input_kind kind;
    struct kv_pass pass;

    pthread_mutex_t lock; /* guards flight and queue */
    pthread_cond_t done;
    struct kv_cpu_flight flight[KV_CPU_BATCHES_MAX];
    struct kv_cpu_flight *queue[KV_CPU_BATCHES_MAX]; /* the first is being computed */
    int32_t queued;
};

/* The backend with an instruction set of the caller's choice, for tests. */
bool kv_cpu_open(struct kv_backend **out, const struct kv_weights *weights,
                 const struct kv_backend_options *options, const struct kv_isa *isa,
                 struct kv_error *err) KV_MUST_CHECK;

/* cpu_batch.c: starts the stages of the first batch in the queue, which is not empty. The last of them ends
 * in kv_cpu_batch_done (cpu_backend.c), on a worker. */
void kv_cpu_batch_start(struct kv_backend *backend, struct kv_batch *batch);
void kv_cpu_batch_done(struct kv_backend *backend);

/* cpu_rows.c: the rows of one tile, rounded to the weights' dtype and packed; also their places and angles.
 */
void kv_cpu_pack_tile(struct kv_backend *backend, int64_t tile);
/* The same rows of `reduced`, normed by hidden_norm, rounded and packed. `line` [hidden] is scratch. */
void kv_cpu_norm_tile(struct kv_backend *backend, int64_t tile, float *line);

#endif
