/* The stages of a batch on the CPU backend: check the items; then, pass by pass, pack inputs, reduce target
 * hidden states by fc and norm them, and project every head. Stages run on the crew; what is between them
 * runs alone. */
#include "kernels/cpu_backend.h"
#include "kernels/norm_rope.h"

#include <assert.h>

static void begin_pass(void *context);

static void start(struct kv_backend *backend, int64_t units, void (*run)(void *, int32_t, int64_t),
                  void (*next)(void *))
{
    struct kv_stage stage = {.units = units, .run = run, .next = next, .context = backend};
    kv_crew_start(backend->crew, &stage);
}

static unsigned char *output_row(const struct kv_ref *base, const struct kv_output *out, int64_t place,
                                 int32_t head)
{
    return base->mem->region.base + base->offset + place + head * out->head_stride;
}

static bool wants(const struct kv_item *item, int32_t layer, int32_t head)
{
    const struct kv_output *out = &item->out;
    return item->fault == KV_OK && item->rows > 0 && layer >= out->layer_begin && layer < out->layer_end &&
           head >= out->head_begin && head < out->head_end;
}

static bool anyone_wants(const struct kv_backend *backend, int32_t layer, int32_t head)
{
    for (int32_t i = backend->pass.item_begin; i < backend->pass.item_end; i++)
        if (wants(&backend->batch->item[i], layer, head)) return true;
    return false;
}

/* From the sums of one row of one head to its place in the item's output. */
static void finish_row(const struct kv_backend *backend, const struct kv_row *row, int32_t layer, bool v,
                       int32_t head, float *sums)
{
    const struct kv_geometry *geometry = &backend->geometry;
    const struct kv_resident *resident = &backend->resident;
    const struct kv_output *out = &row->item->out;
    int64_t outputs = (int64_t)geometry->kv_heads * geometry->head_dim;
    int64_t bias_at = layer * outputs + (int64_t)head * geometry->head_dim;
    int64_t angles_at = (row - backend->row) * (geometry->rotary_dim / 2);
    uint16_t bits[KV_HEAD_DIM_MAX];
    if (row->place < 0 || !wants(row->item, layer, head)) return;
    if (v) {
        kv_v_row(geometry, resident->v_bias ? resident->v_bias + bias_at : NULL, sums, bits);
    } else {
        kv_k_row(geometry, resident->k_bias ? resident->k_bias + bias_at : NULL,
                 resident->k_norm ? resident->k_norm + (int64_t)layer * geometry->head_dim : NULL,
                 resident->eps[layer], backend->cosines + angles_at, backend->sines + angles_at, sums, bits);
    }
    unsigned char *to = output_row(v ? &out->v[layer] : &out->k[layer], out, row->place, head);
    memcpy(to, bits, (size_t)geometry->head_dim * sizeof *bits);
}

/* The tiles of one unit of work: block `block` of the pass. */
static void block_tiles(const struct kv_pass *pass, int64_t block, int64_t *begin, int64_t *end)
{
    *begin = block * pass->tiling.tiles / pass->blocks;
    *end = (block + 1) * pass->tiling.tiles / pass->blocks;
}

/* One head of K or V of one layer, for one block of rows. Neighbouring units share a panel: it is read once
 * for all. */
static void run_project(void *context, int32_t worker, int64_t unit)
{
    struct kv_backend *backend = context;
    const struct kv_geometry *geometry = &backend->geometry;
    const struct kv_pass *pass = &backend->pass;
    int64_t block = unit % pass->blocks, at = unit / pass->blocks, tile_begin, tile_end;
    int32_t head = (int32_t)(at % geometry->kv_heads), layer = (int32_t)(at / geometry->kv_heads / 2);
    bool v = at / geometry->kv_heads % 2 == 1;
    if (!anyone_wants(backend, layer, head)) return;
    block_tiles(pass, block, &tile_begin, &tile_end);
    float *sums = backend->sums + worker * backend->sums_floats;
    struct kv_panel panel = kv_resident_head(&backend->resident, layer, v, head);
    kv_gemm(backend->isa, &panel, backend->x, &pass->tiling, tile_begin, tile_end, sums);
    int64_t begin = kv_tiling_row(&pass->tiling, tile_begin), end = kv_tiling_row(&pass->tiling, tile_end);
    for (int64_t row = begin; row < end; row++)
        finish_row(backend, &backend->row[row], layer, v, head, sums + (row - begin) * panel.columns);
}

static void project(void *context)
{
    struct kv_backend *backend = context;
    const struct kv_geometry *geometry = &backend->geometry;
    start(backend, (int64_t)geometry->layers * 2 * geometry->kv_heads * backend->pass.blocks, run_project,
          begin_pass);
}

static void run_norm(void *context, int32_t worker, int64_t unit)
{
    struct kv_backend *backend = context;
    kv_cpu_norm_tile(backend, unit, backend->line + worker * backend->geometry.hidden);
}

static void norm(void *context)
{
    struct kv_backend *backend = context;
    start(backend, backend->pass.tiling.tiles, run_norm, project);
}

/* Some columns of fc's output, for one block of rows. */
static void run_reduce(void *context, int32_t worker, int64_t unit)
{
    struct kv_backend *backend = context;
    const struct kv_geometry *geometry = &backend->geometry;
    const struct kv_pass *pass = &backend->pass;
    int64_t block = unit % pass->blocks, group = unit / pass->blocks, tile_begin, tile_end;
    block_tiles(pass, block, &tile_begin, &tile_end);
    float *sums = backend->sums + worker * backend->sums_floats;
    struct kv_panel panel = kv_resident_fc(&backend->resident, group);
    kv_gemm(backend->isa, &panel, backend->target, &pass->tiling, tile_begin, tile_end, sums);
    int64_t first = group * KV_FC_COLUMNS, left = geometry->hidden - first;
    int64_t columns = left < KV_FC_COLUMNS ? left : KV_FC_COLUMNS;
    int64_t begin = kv_tiling_row(&pass->tiling, tile_begin), end = kv_tiling_row(&pass->tiling, tile_end);
    for (int64_t row = begin; row < end; row++)
        kv_from_f32(geometry->dtype, sums + (row - begin) * panel.columns, columns,
                    backend->reduced + row * geometry->hidden + first);
}

static void reduce(void *context)
{
    struct kv_backend *backend = context;
    start(backend, kv_resident_fc_panels(&backend->resident) * backend->pass.blocks, run_reduce, norm);
}

static void run_pack(void *context, int32_t worker, int64_t unit)
{
    (void)worker;
    kv_cpu_pack_tile(context, unit);
}

/* Gathers the next rows of items without a fault; when there are none left, the batch is done. */
static void begin_pass(void *context)
{
    struct kv_backend *backend = context;
    struct kv_batch *batch = backend->batch;
    struct kv_pass *pass = &backend->pass;
    pass->rows = 0;
    pass->item_begin = pass->next_item;
    while (pass->next_item < batch->items && pass->rows < backend->pass_rows) {
        const struct kv_item *item = &batch->item[pass->next_item];
        if (item->fault != KV_OK || pass->next_t >= item->rows) {
            pass->next_item++;
            pass->next_t = 0;
            continue;
        }
        backend->row[pass->rows++] = (struct kv_row){.item = item, .t = pass->next_t++};
        pass->item_end = pass->next_item + 1;
    }
    if (pass->rows == 0) {
        kv_cpu_batch_done(backend);
        return;
    }
    pass->tiling = kv_tiling_make(pass->rows, backend->isa->rows_max);
    pass->blocks = (pass->tiling.tiles + backend->block_tiles - 1) / backend->block_tiles;
    start(backend, pass->tiling.tiles, run_pack, backend->kind == KV_TARGET_HIDDEN ? reduce : project);
}

static void run_check(void *context, int32_t worker, int64_t unit)
{
    (void)worker;
    struct kv_backend *backend = context;
    struct kv_item *item = &backend->batch->item[unit];
    item->fault = kv_item_check(&backend->geometry, backend->kind, item);
}

void kv_cpu_batch_start(struct kv_backend *backend, struct kv_batch *batch)
{
    assert(batch->items > 0);
    int32_t first = 0;
    while (first < batch->items - 1 && batch->item[first].rows == 0) first++;
    backend->batch = batch;
    backend->kind = batch->item[first].in.kind;
    backend->pass = (struct kv_pass){0};
    start(backend, batch->items, run_check, begin_pass);
}
