/* The rig: bump allocation in one slab, guards around everything, items in the layout of a reply. */
#include "tests/device_rig.h"

#include <check.h>
#include <stdlib.h>

enum { GUARD_BYTES = 64, GUARD = 0xa5, POISON = 0xff };

struct rig_input rig_input_make(const struct kv_geometry *geometry, enum kv_input_kind kind,
                                enum kv_dtype dtype, int64_t rows, uint64_t *state)
{
    struct rig_input input = {.kind = kind, .dtype = dtype, .rows = rows};
    input.columns = geometry->hidden * (kind == KV_TARGET_HIDDEN ? geometry->taps : 1);
    input.bytes = malloc((size_t)(rows * input.columns) * kv_dtype_bytes(dtype) + 1);
    input.positions = malloc((size_t)rows * sizeof *input.positions + 1);
    ck_assert(input.bytes && input.positions);
    random_fill(state, dtype, 1.0f, rows * input.columns, input.bytes);
    for (int64_t t = 0; t < rows; t++) input.positions[t] = random_below(state, geometry->positions);
    return input;
}

void rig_input_free(struct rig_input *input)
{
    free(input->bytes);
    free(input->positions);
    *input = (struct rig_input){0};
}

void rig_open(struct rig *rig, const struct kv_backend_ops *ops, struct kv_backend *backend,
              const struct kv_geometry *geometry, size_t bytes)
{
    struct kv_error err = {0};
    void *host;
    *rig = (struct rig){.ops = ops, .backend = backend, .geometry = *geometry, .bytes = bytes};
    ck_assert_msg(ops->alloc(backend, bytes, &rig->mem, &host, &err), "%s", err.message);
    rig->host = host;
}

void rig_close(struct rig *rig)
{
    rig->ops->release(rig->backend, rig->mem);
    rig->ops->close(rig->backend);
    *rig = (struct rig){0};
}

void rig_reset(struct rig *rig)
{
    rig->used = 0;
    rig->guards = 0;
}

static void add_guard(struct rig *rig)
{
    ck_assert_int_lt(rig->guards, RIG_GUARDS_MAX);
    rig->guard[rig->guards++] = rig->used;
    memset(rig->host + rig->used, GUARD, GUARD_BYTES);
    rig->used += GUARD_BYTES;
}

struct kv_ref rig_place(struct rig *rig, size_t bytes, size_t misalign)
{
    ck_assert_uint_le(rig->used + bytes + misalign + 4 * GUARD_BYTES, rig->bytes);
    rig->used = (rig->used + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + misalign;
    add_guard(rig);
    struct kv_ref ref = {.mem = rig->mem, .offset = rig->used};
    memset(rig->host + rig->used, POISON, bytes);
    rig->used += bytes;
    add_guard(rig);
    return ref;
}

void rig_check_guards(const struct rig *rig)
{
    int32_t broken = -1;
    for (int32_t i = 0; i < rig->guards; i++)
        for (int32_t j = 0; j < GUARD_BYTES; j++)
            if (rig->host[rig->guard[i] + (uint64_t)j] != GUARD) broken = i;
    ck_assert_msg(broken < 0, "guard %d was written over", (int)broken);
}

static void place_input(struct rig *rig, const struct rig_input *input, const int64_t *pick,
                        const struct rig_layout *layout, struct kv_item *item)
{
    size_t row_bytes = (size_t)input->columns * kv_dtype_bytes(input->dtype);
    size_t stride = row_bytes + (size_t)layout->row_gap, rows = (size_t)item->rows;
    enum kv_dtype dtype = layout->narrow_positions ? KV_I32 : KV_I64;
    item->in = (struct kv_input){.kind = input->kind,
                                 .dtype = input->dtype,
                                 .row_stride = (int64_t)stride,
                                 .positions_dtype = dtype,
                                 .positions_checked = layout->positions_checked};
    /* Nothing lies behind the last row: its gap must not be read. */
    item->in.rows = rig_place(rig, rows ? (rows - 1) * stride + row_bytes : 0, layout->misalign);
    item->in.positions = rig_place(rig, rows * kv_dtype_bytes(dtype), layout->misalign);
    for (size_t t = 0; t < rows; t++) {
        size_t from = pick ? (size_t)pick[t] : t;
        if ((int64_t)from >= input->rows) ck_abort_msg("row %zu is not in the input", from);
        memcpy(rig->host + item->in.rows.offset + t * stride, input->bytes + from * row_bytes, row_bytes);
        unsigned char *to = rig->host + item->in.positions.offset + t * kv_dtype_bytes(dtype);
        int32_t narrow = (int32_t)input->positions[from];
        if (dtype == KV_I32)
            memcpy(to, &narrow, sizeof narrow);
        else
            memcpy(to, &input->positions[from], sizeof input->positions[from]);
    }
}

struct kv_item rig_item(struct rig *rig, const struct rig_input *input, const int64_t *pick, int64_t rows,
                        const struct rig_layout *layout, struct kv_ref *bases)
{
    const struct kv_geometry *geometry = &rig->geometry;
    struct kv_item item = {.rows = rows, .fault = KV_FAULT_COUNT};
    place_input(rig, input, pick, layout, &item);
    int64_t head_stride = geometry->head_dim * 2, token_stride = head_stride * geometry->kv_heads;
    int64_t layer_bytes = rows * token_stride;
    struct kv_ref output = rig_place(rig, (size_t)(2 * geometry->layers * layer_bytes), layout->misalign);
    for (int32_t i = 0; i < 2 * geometry->layers; i++)
        bases[i] = (struct kv_ref){rig->mem, output.offset + (uint64_t)(i * layer_bytes)};
    item.out = (struct kv_output){.k = bases,
                                  .v = bases + geometry->layers,
                                  .block_tokens = rows > 0 ? rows : 1,
                                  .token_stride = token_stride,
                                  .head_stride = head_stride,
                                  .slots_max = rows,
                                  .dtype = geometry->dtype,
                                  .layer_end = geometry->layers,
                                  .head_end = geometry->kv_heads};
    return item;
}

void rig_head(const struct rig *rig, const struct kv_item *item, bool v, int32_t layer, int64_t t,
              int32_t head, uint16_t *to)
{
    const struct kv_output *out = &item->out;
    int64_t slot = out->slot_first + t;
    if (out->slots.mem) memcpy(&slot, rig->host + out->slots.offset + (uint64_t)t * 8, sizeof slot);
    if (slot < 0) ck_abort_msg("row %lld was not written", (long long)t); /* (cheap: called very often) */
    int64_t at = (int64_t)(v ? out->v : out->k)[layer].offset + slot / out->block_tokens * out->block_stride +
                 slot % out->block_tokens * out->token_stride + head * out->head_stride;
    memcpy(to, rig->host + at, (size_t)rig->geometry.head_dim * sizeof *to);
}

void rig_run(struct rig *rig, struct kv_item *items, int32_t count)
{
    struct kv_error err = {0};
    struct kv_batch batch = {.items = count, .item = items};
    for (int32_t i = 0; i < count; i++) batch.rows += items[i].rows;
    ck_assert_msg(rig->ops->submit(rig->backend, &batch, &err), "%s", err.message);
    ck_assert_int_eq(rig->ops->wait(rig->backend, &batch, -1, NULL), KV_WAIT_DONE);
    rig_check_guards(rig);
}
