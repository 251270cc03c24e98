/* A row's bits are its own on the tested device: at every T from 0 to 65,536 in spans as the engine cuts
 * them, at every place in batches of several items, beside NaN and infinity, and in replies of over 2^31
 * elements. */
#include "tests/row_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DISTINCT = 211, TOKENS_MOST = 65536, PLACES_MOST = 2600 };

/* Layers, hidden size and heads of a common draft: 20 KiB of K and V a row. */
static const struct kv_geometry draft = {.layers = 5,
                                         .kv_heads = 8,
                                         .head_dim = 128,
                                         .rotary_dim = 128,
                                         .hidden = 4096,
                                         .positions = 262144,
                                         .dtype = KV_BF16,
                                         .k_norm = true,
                                         .value_scale = 1.0f,
                                         .attention_factor = 1.0f};

/* 0: the draft above; odd: from target_hidden; else random. */
static struct kv_geometry geometry_of(int32_t number, uint64_t *state)
{
    if (number == 0) return draft;
    struct kv_geometry geometry = random_geometry(state);
    geometry.taps = number % 2 ? 1 + (int32_t)random_below(state, 3) : 0;
    return geometry;
}

static int64_t *make_picks(int64_t count)
{
    int64_t *pick = malloc((size_t)count * sizeof *pick);
    ck_assert_ptr_nonnull(pick);
    return pick;
}

START_TEST(every_count_keeps_the_bits)
{
    static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 1000, 4097, TOKENS_MOST};
    uint64_t state = tested_seed() + 5000011 * (uint64_t)(_i + 1);
    struct kv_geometry geometry = geometry_of(_i, &state);
    struct kv_ref bases[TESTED_BASES_MAX];
    struct row_table table;
    char what[64];
    row_table_open(&table, &geometry, _i % 3 == 1 ? KV_F32 : KV_BF16, DISTINCT, TOKENS_MOST, &state);
    int64_t *pick = make_picks(TOKENS_MOST);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        snprintf(what, sizeof what, "T = %lld", (long long)counts[i]);
        rig_reset(&table.rig);
        row_table_pick(&table, counts[i], &state, pick);
        struct rig_layout layout = {.positions_checked = true};
        struct kv_item item = rig_item(&table.rig, &table.input, pick, counts[i], &layout, bases);
        row_table_run_spans(&table, &item);
        row_table_check(&table, &item, pick, what);
    }
    free(pick);
    row_table_close(&table);
}
END_TEST

/* One batch of these lengths: every row of every item is looked at, so each is first, last and in the middle
 * of batches of every make-up. Row 0 of the table is at both ends and in the middle each time. */
static void check_batch(struct row_table *table, const int64_t *lengths, int32_t items, int64_t *pick,
                        uint64_t *state)
{
    struct kv_ref bases[TESTED_ITEMS_MAX][TESTED_BASES_MAX];
    struct kv_item item[TESTED_ITEMS_MAX];
    int64_t *next = pick;
    rig_reset(&table->rig);
    for (int32_t i = 0; i < items; i++) {
        struct rig_layout layout = {.row_gap = random_below(state, 2) ? random_below(state, 60) : 0,
                                    .misalign = random_below(state, 2) ? (size_t)random_below(state, 64) : 0,
                                    .narrow_positions = random_below(state, 2) > 0,
                                    .positions_checked = random_below(state, 2) > 0};
        row_table_pick(table, lengths[i], state, next);
        if (lengths[i] > 0) next[0] = next[lengths[i] / 2] = next[lengths[i] - 1] = 0;
        item[i] = rig_item(&table->rig, &table->input, next, lengths[i], &layout, bases[i]);
        next += lengths[i];
    }
    rig_run(&table->rig, item, items);
    next = pick;
    for (int32_t i = 0; i < items; i++) {
        row_table_check(table, &item[i], next, "one of several items");
        next += lengths[i];
    }
}

START_TEST(every_place_keeps_the_bits)
{
    static const int64_t fixed[][4] = {{1, 1, 1, 1},     {1, 63, 1, 64},   {16, 1, 15, 17},
                                       {129, 1, 127, 1}, {0, 5, 0, 1},     {255, 0, 1, 256},
                                       {1, 1000, 1, 7},  {64, 64, 64, 64}, {2, 510, 1, 1000}};
    uint64_t state = tested_seed() + 6000011 * (uint64_t)(_i + 1);
    struct kv_geometry geometry = geometry_of(_i, &state);
    static const enum kv_dtype dtypes[] = {KV_BF16, KV_F16, KV_F32};
    int64_t lengths[TESTED_ITEMS_MAX];
    struct row_table table;
    row_table_open(&table, &geometry, dtypes[_i % 3], 61, PLACES_MOST, &state);
    int64_t *pick = make_picks(PLACES_MOST);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) check_batch(&table, fixed[i], 4, pick, &state);
    for (int32_t round = 0; round < 12; round++) {
        int32_t items = round == 0 ? TESTED_ITEMS_MAX : 1 + (int32_t)random_below(&state, TESTED_ITEMS_MAX);
        for (int32_t i = 0; i < items; i++) lengths[i] = random_below(&state, 40);
        check_batch(&table, lengths, items, pick, &state);
    }
    free(pick);
    row_table_close(&table);
}
END_TEST

/* Replaces element `column` of a row of an item's input by NaN, infinity, or a number that is infinity in
 * F16. */
static void spoil_row(const struct rig *rig, const struct kv_item *item, int64_t t, int64_t column,
                      int32_t how)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 3.4e38f};
    unsigned char *row = rig->host + item->in.rows.offset + t * item->in.row_stride;
    if (item->in.dtype == KV_F32)
        memcpy(row + 4 * column, &values[how], sizeof values[how]);
    else
        kv_from_f32(item->in.dtype, &values[how], 1, row + 2 * column);
}

static bool any_not_finite(const struct row_table *table, const uint16_t *row)
{
    bool found = false;
    for (int64_t i = 0; i < table->elements; i++) {
        float value;
        kv_to_f32(table->rig.geometry.dtype, &row[i], 1, &value);
        found |= !isfinite(value);
    }
    return found;
}

/* Two items, one row of the first spoiled: that row shows it, the others do not, and neither does the batch
 * after it. */
static void check_spoiled(struct row_table *table, int64_t rows, int32_t how, uint64_t *state)
{
    struct kv_ref bases[2][TESTED_BASES_MAX];
    int64_t pick[2][300], bad = how % 2 ? random_below(state, rows) : rows - 1;
    struct kv_item item[2];
    uint16_t *row = malloc((size_t)table->elements * sizeof *row);
    ck_assert_ptr_nonnull(row);
    rig_reset(&table->rig);
    for (int32_t i = 0; i < 2; i++) {
        row_table_pick(table, rows, state, pick[i]);
        item[i] = rig_item(&table->rig, &table->input, pick[i], rows, &(struct rig_layout){0}, bases[i]);
    }
    struct kv_item clean = item[0];
    spoil_row(&table->rig, &item[0], bad, random_below(state, table->input.columns), how);
    pick[0][bad] = -1;
    rig_run(&table->rig, item, 2);
    row_table_check(table, &item[0], pick[0], "beside a row that is not finite");
    row_table_check(table, &item[1], pick[1], "beside an item that is not finite");
    row_table_gather(table, &item[0], bad, row);
    ck_assert_msg(any_not_finite(table, row), "a row with %s has finite results",
                  how == 0 ? "NaN" : "infinity");
    free(row);
    clean.rows = rows - 1; /* what is left in buffers behind the last row must not matter */
    rig_run(&table->rig, &clean, 1);
    row_table_check(table, &clean, pick[0], "after a row that is not finite");
}

START_TEST(not_finite_stays_in_its_row)
{
    static const int64_t counts[] = {1, 2, 15, 17, 64, 65, 128, 130, 257};
    uint64_t state = tested_seed() + 7000011 * (uint64_t)(_i + 1);
    struct kv_geometry geometry = geometry_of(_i, &state);
    if (_i == 0) geometry.layers = 2;
    struct row_table table;
    geometry.dtype = _i % 3 == 2 ? KV_F16 : KV_BF16;
    row_table_open(&table, &geometry, _i % 3 == 1 ? KV_BF16 : KV_F32, 61, 600, &state);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int32_t how = 0; how < (geometry.dtype == KV_F16 ? 4 : 3); how++)
            check_spoiled(&table, counts[i], how, &state);
    row_table_close(&table);
}
END_TEST

/* More than 2^31 elements, and 2^32 bytes, of K and V in one reply. */
static const int64_t many_rows = 215000; /* of 10,240 elements each */

static struct kv_geometry many_geometry(void)
{
    struct kv_geometry geometry = draft;
    geometry.hidden = 24;
    return geometry;
}

START_TEST(replies_over_two_gigaelements_are_right)
{
    uint64_t state = tested_seed() + 8000011;
    struct kv_geometry geometry = many_geometry();
    struct kv_ref bases[TESTED_BASES_MAX];
    struct row_table table;
    row_table_open(&table, &geometry, KV_BF16, DISTINCT, many_rows, &state);
    ck_assert_int_gt(many_rows * table.elements, INT64_C(1) << 31);
    int64_t *pick = make_picks(many_rows);
    row_table_pick(&table, many_rows, &state, pick);
    struct kv_item item = rig_item(&table.rig, &table.input, pick, many_rows, &(struct rig_layout){0}, bases);
    row_table_run_spans(&table, &item);
    row_table_check(&table, &item, pick, "a reply of over 2^31 elements");
    free(pick);
    row_table_close(&table);
}
END_TEST

static bool has_memory_for_many(void)
{
    char line[128];
    long long available_kib = 0;
    struct kv_geometry geometry = many_geometry();
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return false;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "MemAvailable:", 13) == 0) available_kib = strtoll(line + 13, NULL, 10);
    fclose(file);
    return (size_t)available_kib * 1024 > tested_slab_bytes(&geometry, many_rows, 64) / 2 * 3;
}

int main(void)
{
    int status = tested_probe();
    if (status != 0) return status;
    Suite *suite = suite_create("gpu: a row's bits");
    TCase *rows = tcase_create("rows");
    tcase_add_loop_test(rows, every_count_keeps_the_bits, 0, 4);
    tcase_add_loop_test(rows, every_place_keeps_the_bits, 0, 6);
    tcase_add_loop_test(rows, not_finite_stays_in_its_row, 0, 6);
    if (has_memory_for_many())
        tcase_add_test(rows, replies_over_two_gigaelements_are_right);
    else
        puts("too little memory for a reply of over 2^31 elements: 0 passed, 0 failed, 1 skipped");
    suite_add_tcase(suite, rows);
    return tested_run(suite);
}
