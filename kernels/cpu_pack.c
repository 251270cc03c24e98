/* Pulling the weights: what is resident and where, and which thread reads which part. Knows no batches. */
#include "kernels/cpu_pack.h"

#include "kernels/cpu_panel.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* One pull of everything. */
struct pull {
    struct kv_resident *resident;
    const struct kv_weights *weights;
    uint16_t *pieces; /* [threads][KV_PANEL_COLUMNS + 1][depth]: rows as read, then a row of zeros */
    int64_t depth;    /* of the deepest weight */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over;
    atomic_bool failed;
    struct kv_error err; /* of the first failure */
};

int64_t kv_resident_fc_panels(const struct kv_resident *resident)
{
    const struct kv_geometry *geometry = &resident->geometry;
    return geometry->taps > 0 ? (geometry->hidden + KV_FC_COLUMNS - 1) / KV_FC_COLUMNS : 0;
}

struct kv_panel kv_resident_head(const struct kv_resident *resident, int32_t layer, bool v, int32_t head)
{
    const struct kv_geometry *geometry = &resident->geometry;
    int64_t panel = ((int64_t)layer * 2 + (v ? 1 : 0)) * geometry->kv_heads + head;
    return (struct kv_panel){.dtype = geometry->dtype,
                             .depth = geometry->hidden,
                             .columns = resident->head_columns,
                             .packed =
                                 resident->heads + panel * geometry->hidden * (resident->head_columns / 2)};
}

struct kv_panel kv_resident_fc(const struct kv_resident *resident, int64_t panel)
{
    const struct kv_geometry *geometry = &resident->geometry;
    int64_t depth = geometry->taps * geometry->hidden, left = geometry->hidden - panel * KV_FC_COLUMNS;
    return (struct kv_panel){.dtype = geometry->dtype,
                             .depth = depth,
                             .columns = kv_panel_columns(left < KV_FC_COLUMNS ? left : KV_FC_COLUMNS),
                             .packed = resident->fc + panel * depth * (KV_FC_COLUMNS / 2)};
}

static bool read_part(struct pull *pull, int32_t layer, enum kv_part part, uint64_t offset, void *to,
                      size_t bytes, struct kv_error *err)
{
    return pull->weights->read(pull->weights->source, layer, part, offset, to, bytes, err);
}

/* A part of float32 that stays as it is; nothing to do where the geometry does not have it. */
static bool read_floats(struct pull *pull, int32_t layer, enum kv_part part, float *first,
                        struct kv_error *err)
{
    uint64_t bytes = kv_part_bytes(&pull->resident->geometry, part);
    if (bytes == 0) return true;
    float *to = first + (layer < 0 ? 0 : (uint64_t)layer * (bytes / sizeof *to));
    return read_part(pull, layer, part, 0, to, (size_t)bytes, err);
}

/* The rows of one panel: the next ones of a part. */
static bool read_panel(struct pull *pull, uint16_t *piece, int32_t layer, enum kv_part part,
                       int64_t first_row, int64_t rows, const struct kv_panel *panel, struct kv_error *err)
{
    const uint16_t *zeros = piece + KV_PANEL_COLUMNS * pull->depth;
    for (int64_t row = 0; row < rows; row += KV_PANEL_COLUMNS) {
        int64_t count = rows - row < KV_PANEL_COLUMNS ? rows - row : KV_PANEL_COLUMNS;
        uint64_t offset = (uint64_t)((first_row + row) * panel->depth) * sizeof *piece;
        size_t bytes = (size_t)(count * panel->depth) * sizeof *piece;
        if (!read_part(pull, layer, part, offset, piece, bytes, err)) return false;
        kv_panel_pack(piece, count, panel->depth, zeros, panel->packed + row / 2, panel->columns / 2);
    }
    return true;
}

static bool read_layer(struct pull *pull, uint16_t *piece, int32_t layer, bool v, struct kv_error *err)
{
    struct kv_resident *resident = pull->resident;
    const struct kv_geometry *geometry = &resident->geometry;
    for (int32_t head = 0; head < geometry->kv_heads; head++) {
        struct kv_panel panel = kv_resident_head(resident, layer, v, head);
        if (!read_panel(pull, piece, layer, v ? KV_PART_V_WEIGHT : KV_PART_K_WEIGHT,
                        (int64_t)head * geometry->head_dim, geometry->head_dim, &panel, err))
            return false;
    }
    if (v) return read_floats(pull, layer, KV_PART_V_BIAS, resident->v_bias, err);
    return read_floats(pull, layer, KV_PART_K_BIAS, resident->k_bias, err) &&
           read_floats(pull, layer, KV_PART_K_NORM, resident->k_norm, err) &&
           read_floats(pull, layer, KV_PART_EPS, resident->eps, err);
}

static bool read_others(struct pull *pull, uint16_t *piece, struct kv_error *err)
{
    struct kv_resident *resident = pull->resident;
    int64_t hidden = resident->geometry.hidden;
    for (int64_t i = 0; i < kv_resident_fc_panels(resident); i++) {
        struct kv_panel panel = kv_resident_fc(resident, i);
        int64_t first = i * KV_FC_COLUMNS,
                rows = hidden - first < KV_FC_COLUMNS ? hidden - first : KV_FC_COLUMNS;
        if (!read_panel(pull, piece, -1, KV_PART_FC, first, rows, &panel, err)) return false;
    }
    return read_floats(pull, -1, KV_PART_HIDDEN_NORM, resident->hidden_norm, err) &&
           read_floats(pull, -1, KV_PART_INV_FREQ, resident->inv_freq, err);
}

/* Unit 0 is what has no layer, fc above all: the longest of them begins first. Then K and V of each layer. */
static void run_pull(void *context, int32_t worker, int64_t unit)
{
    struct pull *pull = context;
    struct kv_error err = {0};
    if (atomic_load(&pull->failed)) return;
    uint16_t *piece = pull->pieces + worker * (KV_PANEL_COLUMNS + 1) * pull->depth;
    bool read = unit == 0 ? read_others(pull, piece, &err)
                          : read_layer(pull, piece, (int32_t)((unit - 1) / 2), (unit - 1) % 2 == 1, &err);
    if (read) return;
    pthread_mutex_lock(&pull->lock);
    if (!atomic_load(&pull->failed)) pull->err = err;
    atomic_store(&pull->failed, true);
    pthread_mutex_unlock(&pull->lock);
}

static void end_pull(void *context)
{
    struct pull *pull = context;
    pthread_mutex_lock(&pull->lock);
    pull->over = true;
    pthread_cond_signal(&pull->ended);
    pthread_mutex_unlock(&pull->lock);
}

static bool pull_all(struct pull *pull, struct kv_crew *crew, struct kv_error *err)
{
    struct kv_stage stage = {.units = 1 + 2 * (int64_t)pull->resident->geometry.layers,
                             .run = run_pull,
                             .next = end_pull,
                             .context = pull};
    pthread_mutex_init(&pull->lock, NULL);
    pthread_cond_init(&pull->ended, NULL);
    kv_crew_start(crew, &stage);
    pthread_mutex_lock(&pull->lock);
    while (!pull->over) pthread_cond_wait(&pull->ended, &pull->lock);
    pthread_mutex_unlock(&pull->lock);
    pthread_cond_destroy(&pull->ended);
    pthread_mutex_destroy(&pull->lock);
    if (!atomic_load(&pull->failed)) return true;
    if (err && err->fault == KV_OK) *err = pull->err;
    return false;
}

/* One region holds everything, and its size is known before it is asked for. */
static bool reserve(struct kv_resident *resident, struct kv_error *err)
{
    enum { HEADS, FC, K_BIAS, V_BIAS, K_NORM, EPS, HIDDEN_NORM, INV_FREQ, SLICES };
    const struct kv_geometry *g = &resident->geometry;
    int64_t outputs = (int64_t)g->kv_heads * g->head_dim,
            fc_words = g->taps > 0 ? kv_panel_columns(g->hidden) / 2 : 0;
    struct kv_slice slice[SLICES] = {
        [HEADS] = {2 * (int64_t)g->layers * g->kv_heads, g->hidden, resident->head_columns / 2,
                   sizeof(uint32_t), NULL},
        [FC] = {fc_words, g->taps, g->hidden, sizeof(uint32_t), NULL},
        [K_BIAS] = {g->layers, g->k_bias ? outputs : 0, 1, sizeof(float), NULL},
        [V_BIAS] = {g->layers, g->v_bias ? outputs : 0, 1, sizeof(float), NULL},
        [K_NORM] = {g->layers, g->k_norm ? g->head_dim : 0, 1, sizeof(float), NULL},
        [EPS] = {g->layers, 1, 1, sizeof(float), NULL},
        [HIDDEN_NORM] = {g->taps > 0 ? g->hidden : 0, 1, 1, sizeof(float), NULL},
        [INV_FREQ] = {g->rotary_dim / 2, 1, 1, sizeof(float), NULL},
    };
    if (!kv_region_carve(&resident->region, slice, SLICES, "the weights", err)) return false;
    resident->heads = slice[HEADS].at;
    resident->fc = slice[FC].at;
    resident->k_bias = slice[K_BIAS].at;
    resident->v_bias = slice[V_BIAS].at;
    resident->k_norm = slice[K_NORM].at;
    resident->eps = slice[EPS].at;
    resident->hidden_norm = slice[HIDDEN_NORM].at;
    resident->inv_freq = slice[INV_FREQ].at;
    return true;
}

bool kv_resident_open(struct kv_resident *resident, const struct kv_weights *weights, struct kv_crew *crew,
                      int32_t threads, struct kv_error *err)
{
    const struct kv_geometry *geometry = &weights->geometry;
    *resident =
        (struct kv_resident){.geometry = *geometry, .head_columns = kv_panel_columns(geometry->head_dim)};
    if (!reserve(resident, err)) return false;
    struct pull pull = {.resident = resident, .weights = weights};
    pull.depth = geometry->hidden * (geometry->taps > 1 ? geometry->taps : 1);
    size_t rows = (size_t)threads * (KV_PANEL_COLUMNS + 1);
    pull.pieces = calloc(rows * (size_t)pull.depth, sizeof *pull.pieces);
    bool pulled = pull.pieces ? pull_all(&pull, crew, err)
                              : kv_fail(err, KV_DEVICE_OUT_OF_MEMORY,
                                        "no memory to read weights with: needed %zu bytes",
                                        rows * (size_t)pull.depth * sizeof *pull.pieces);
    free(pull.pieces);
    if (!pulled) kv_resident_close(resident);
    return pulled;
}

void kv_resident_close(struct kv_resident *resident)
{
    kv_region_unmap(&resident->region);
    *resident = (struct kv_resident){0};
}
