/* See row_table.h. */
#include "tests/row_table.h"

#include <stdlib.h>

enum { FLIGHTS_MAX = 16 };

void row_table_gather(const struct row_table *table, const struct kv_item *item, int64_t t, uint16_t *to)
{
    const struct kv_geometry *geometry = &table->rig.geometry;
    for (int32_t v = 0; v < 2; v++)
        for (int32_t layer = 0; layer < geometry->layers; layer++)
            for (int32_t head = 0; head < geometry->kv_heads; head++) {
                rig_head(&table->rig, item, v == 1, layer, t, head, to);
                to += geometry->head_dim;
            }
}

void row_table_open(struct row_table *table, const struct kv_geometry *geometry, enum kv_dtype dtype,
                    int64_t rows, int64_t rows_max, uint64_t *state)
{
    const struct kv_backend_ops *ops = tested_ops();
    struct kv_ref bases[TESTED_BASES_MAX];
    ck_assert_int_le(2 * geometry->layers, TESTED_BASES_MAX);
    *table = (struct row_table){.weights = random_weights_make(geometry, state)};
    struct kv_backend *backend = tested_open(ops, table->weights, random_below(state, 2) > 0);
    ops->describe(backend, &table->device);
    ck_assert_int_ge(table->device.span_rows, 1);
    rig_open(&table->rig, ops, backend, geometry, tested_slab_bytes(geometry, rows_max, TESTED_ITEMS_MAX));
    table->input = rig_input_make(geometry, geometry->taps > 0 ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES, dtype,
                                  rows, state);
    table->elements = 2 * kv_geometry_token_elements(geometry);
    table->alone = malloc((size_t)(rows * table->elements) * sizeof *table->alone);
    ck_assert_ptr_nonnull(table->alone);
    for (int64_t t = 0; t < rows; t++) {
        rig_reset(&table->rig);
        struct kv_item item = rig_item(&table->rig, &table->input, &t, 1, &(struct rig_layout){0}, bases);
        rig_run(&table->rig, &item, 1);
        ck_assert_int_eq(item.fault, KV_OK);
        row_table_gather(table, &item, 0, table->alone + t * table->elements);
    }
    rig_reset(&table->rig);
}

void row_table_close(struct row_table *table)
{
    free(table->alone);
    rig_input_free(&table->input);
    rig_close(&table->rig);
    random_weights_free(table->weights);
}

void row_table_pick(const struct row_table *table, int64_t count, uint64_t *state, int64_t *pick)
{
    for (int64_t t = 0; t < count; t++) pick[t] = random_below(state, table->input.rows);
}

void row_table_check(const struct row_table *table, const struct kv_item *item, const int64_t *pick,
                     const char *what)
{
    const struct kv_geometry *geometry = &table->rig.geometry;
    size_t row_bytes = (size_t)table->elements * sizeof *table->alone;
    uint16_t *got = malloc(row_bytes);
    int64_t wrong = 0, first = -1;
    ck_assert_ptr_nonnull(got);
    ck_assert_msg(item->fault == KV_OK, "%s: %s", what, kv_fault_info(item->fault)->code);
    for (int64_t t = 0; t < item->rows; t++) {
        if (pick[t] < 0) continue;
        row_table_gather(table, item, t, got);
        if (memcmp(got, table->alone + pick[t] * table->elements, row_bytes) == 0) continue;
        if (wrong++ == 0) first = t;
    }
    free(got);
    ck_assert_msg(
        wrong == 0,
        "%s: %lld of %lld rows, the first at %lld, differ from themselves alone (%s, %d layers, hidden "
        "%lld, %d heads of %d, taps %d)",
        what, (long long)wrong, (long long)item->rows, (long long)first, kv_dtype_name(geometry->dtype),
        (int)geometry->layers, (long long)geometry->hidden, (int)geometry->kv_heads, (int)geometry->head_dim,
        (int)geometry->taps);
}

struct flight {
    struct kv_batch batch;
    struct kv_item item;
};

static void land(const struct rig *rig, struct flight *flight, struct kv_item *whole)
{
    struct kv_error err = {0};
    enum kv_wait seen = rig->ops->wait(rig->backend, &flight->batch, -1, &err);
    ck_assert_msg(seen == KV_WAIT_DONE, "%s", err.message);
    if (flight->item.fault != KV_OK) whole->fault = flight->item.fault;
}

void row_table_run_spans(struct row_table *table, struct kv_item *item)
{
    const struct rig *rig = &table->rig;
    int64_t span_rows = table->device.span_rows < TESTED_ROWS_MAX ? table->device.span_rows : TESTED_ROWS_MAX;
    int64_t flights = table->device.batches_max < FLIGHTS_MAX ? table->device.batches_max : FLIGHTS_MAX;
    int64_t position_bytes = (int64_t)kv_dtype_bytes(item->in.positions_dtype), count = 0, landed = 0;
    struct flight flight[FLIGHTS_MAX];
    item->fault = KV_OK;
    for (int64_t begin = 0; begin < item->rows || count == 0; begin += span_rows) {
        struct flight *next = &flight[count % flights];
        struct kv_error err = {0};
        int64_t rows = item->rows - begin < span_rows ? item->rows - begin : span_rows;
        if (count - landed == flights) land(rig, &flight[landed++ % flights], item);
        *next = (struct flight){.batch = {.rows = rows, .items = 1, .item = &next->item}, .item = *item};
        next->item.rows = rows;
        next->item.in.rows.offset += (uint64_t)(begin * item->in.row_stride);
        next->item.in.positions.offset += (uint64_t)(begin * position_bytes);
        next->item.out.slot_first = begin;
        next->item.fault = KV_FAULT_COUNT;
        ck_assert_msg(rig->ops->submit(rig->backend, &next->batch, &err), "%s", err.message);
        count++;
    }
    while (landed < count) land(rig, &flight[landed++ % flights], item);
    rig_check_guards(rig);
}
