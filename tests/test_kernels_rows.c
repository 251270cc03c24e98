/* A row's bits are its own: the same wherever the row stands, whoever its neighbours are, however many rows
 * there are, and however they are cut into items and batches. */
#include "kernels/cpu_backend.h"
#include "tests/device_rig.h"
#include "tests/suite.h"

#include <stdlib.h>

static uint64_t seed;

enum { ROWS = 310 };

struct table {
    struct random_weights *weights;
    struct rig rig;
    struct rig_input input;
    uint16_t *alone; /* [ROWS][elements]: all K, then all V of a row computed alone */
    int64_t elements;
};

/* All K and V of one row of an item. */
static void gather(const struct rig *rig, const struct kv_item *item, int64_t t, uint16_t *to)
{
    for (int32_t v = 0; v < 2; v++)
        for (int32_t layer = 0; layer < rig->geometry.layers; layer++)
            for (int32_t head = 0; head < rig->geometry.kv_heads; head++) {
                rig_head(rig, item, v == 1, layer, t, head, to);
                to += rig->geometry.head_dim;
            }
}

static void open_table(struct table *table, const struct kv_isa *isa, uint64_t *state)
{
    struct kv_geometry geometry = random_geometry(state);
    enum kv_input_kind kind = geometry.taps > 0 ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES;
    struct kv_backend_options options = {.threads = 3, .rows_max = 1024, .items_max = 64};
    struct kv_backend *backend;
    struct kv_error err = {0};
    struct kv_ref bases[16];
    *table = (struct table){.weights = random_weights_make(&geometry, state)};
    struct kv_weights source = random_weights_source(table->weights);
    ck_assert_msg(kv_cpu_open(&backend, &source, &options, isa, &err), "%s", err.message);
    rig_open(&table->rig, &kv_cpu_ops, backend, &geometry, 64 << 20);
    table->input = rig_input_make(&geometry, kind, KV_F32, ROWS, state);
    table->elements = 2 * kv_geometry_token_elements(&geometry);
    table->alone = malloc((size_t)(ROWS * table->elements) * sizeof *table->alone);
    ck_assert_ptr_nonnull(table->alone);
    for (int64_t t = 0; t < ROWS; t++) {
        rig_reset(&table->rig);
        struct kv_item item = rig_item(&table->rig, &table->input, &t, 1, &(struct rig_layout){0}, bases);
        rig_run(&table->rig, &item, 1);
        gather(&table->rig, &item, 0, table->alone + t * table->elements);
    }
}

static void close_table(struct table *table)
{
    free(table->alone);
    rig_input_free(&table->input);
    rig_close(&table->rig);
    random_weights_free(table->weights);
}

static void check_item(const struct table *table, const struct kv_item *item, const int64_t *pick,
                       const char *what)
{
    uint16_t *got = malloc((size_t)table->elements * sizeof *got);
    ck_assert_ptr_nonnull(got);
    ck_assert_int_eq(item->fault, KV_OK);
    for (int64_t t = 0; t < item->rows; t++) {
        gather(&table->rig, item, t, got);
        ck_assert_msg(
            !memcmp(got, table->alone + pick[t] * table->elements, (size_t)table->elements * sizeof *got),
            "%s: row %lld at %lld of %lld differs from itself alone (%s, hidden %lld, head_dim %d)", what,
            (long long)pick[t], (long long)t, (long long)item->rows, kv_dtype_name(table->rig.geometry.dtype),
            (long long)table->rig.geometry.hidden, (int)table->rig.geometry.head_dim);
    }
    free(got);
}

static void check_counts(struct table *table, int64_t first, int64_t last, int64_t step, uint64_t *state)
{
    struct kv_ref bases[16];
    int64_t pick[ROWS] = {0};
    for (int64_t rows = first; rows <= last; rows += step) {
        rig_reset(&table->rig);
        for (int64_t t = 0; t < rows; t++) pick[t] = random_below(state, ROWS);
        struct kv_item item =
            rig_item(&table->rig, &table->input, pick, rows, &(struct rig_layout){0}, bases);
        rig_run(&table->rig, &item, 1);
        check_item(table, &item, pick, "one item");
    }
}

/* Rows of many items in one batch: each item its own length, memory and alignment; some are empty. */
static void check_items(struct table *table, int32_t items, int64_t rows_most, uint64_t *state)
{
    struct kv_ref bases[64][16];
    struct kv_item item[64];
    int64_t pick[64][80] = {{0}};
    rig_reset(&table->rig);
    for (int32_t i = 0; i < items; i++) {
        int64_t rows = random_below(state, rows_most + 1);
        struct rig_layout layout = {.row_gap = random_below(state, 5),
                                    .misalign = (size_t)random_below(state, 9),
                                    .narrow_positions = random_below(state, 2) > 0,
                                    .positions_checked = random_below(state, 2) > 0};
        for (int64_t t = 0; t < rows; t++) pick[i][t] = random_below(state, ROWS);
        item[i] = rig_item(&table->rig, &table->input, pick[i], rows, &layout, bases[i]);
    }
    rig_run(&table->rig, item, items);
    for (int32_t i = 0; i < items; i++) check_item(table, &item[i], pick[i], "one of several items");
}

START_TEST(a_row_has_the_same_bits_everywhere)
{
    uint64_t state = seed + 17 * (uint64_t)_i;
    for (int32_t i = 0; kv_isa_at(i); i++) {
        const struct kv_isa *isa = kv_isa_at(i);
        struct table table;
        if (!isa->available() || (i > 0 && _i > 0)) continue;
        open_table(&table, isa, &state);
        check_counts(&table, 1, 48, 1, &state);
        check_counts(&table, 49, 300, 1 + random_below(&state, 23), &state);
        for (int32_t j = 0; j < 4; j++)
            check_items(&table, 2 + (int32_t)random_below(&state, 20), 12, &state);
        check_items(&table, 10, 79, &state);
        close_table(&table);
    }
}
END_TEST

/* A reply that is computed in spans, as slots of one output, is the reply that is computed at once. */
START_TEST(spans_join_to_the_same_reply)
{
    uint64_t state = seed + 1000 + (uint64_t)_i;
    struct table table;
    struct kv_ref bases[16];
    int64_t pick[ROWS] = {0};
    open_table(&table, kv_isa_best(), &state);
    rig_reset(&table.rig);
    for (int64_t t = 0; t < ROWS; t++) pick[t] = t;
    struct kv_item whole = rig_item(&table.rig, &table.input, pick, ROWS, &(struct rig_layout){0}, bases);
    for (int64_t begin = 0; begin < ROWS;) {
        int64_t rows = 1 + random_below(&state, 90);
        if (rows > ROWS - begin) rows = ROWS - begin;
        struct kv_item span = whole;
        span.rows = rows;
        span.in.rows.offset += (uint64_t)(begin * span.in.row_stride);
        span.in.positions.offset += (uint64_t)(begin * (int64_t)kv_dtype_bytes(span.in.positions_dtype));
        span.out.slot_first = begin;
        rig_run(&table.rig, &span, 1);
        ck_assert_int_eq(span.fault, KV_OK);
        begin += rows;
    }
    whole.fault = KV_OK;
    check_item(&table, &whole, pick, "spans");
    close_table(&table);
}
END_TEST

/* More rows than one pass of the backend holds, and the first of them again at the end. */
START_TEST(long_requests_keep_their_bits)
{
    enum { LONG_ROWS = 1024 };
    uint64_t state = seed + 2000;
    struct table table;
    struct kv_ref bases[16];
    static int64_t pick[LONG_ROWS];
    open_table(&table, kv_isa_best(), &state);
    rig_reset(&table.rig);
    for (int64_t t = 0; t < LONG_ROWS; t++) pick[t] = t % ROWS;
    struct kv_item item = rig_item(&table.rig, &table.input, pick, LONG_ROWS, &(struct rig_layout){0}, bases);
    rig_run(&table.rig, &item, 1);
    check_item(&table, &item, pick, "a long request");
    close_table(&table);
}
END_TEST

/* Row numbers beyond 16 bits, in one item. */
START_TEST(rows_are_counted_in_64_bits)
{
    enum { MANY = 70001, DISTINCT = 97 };
    uint64_t state = seed + 3000;
    const struct kv_geometry geometry = {.layers = 1,
                                         .kv_heads = 1,
                                         .head_dim = 32,
                                         .rotary_dim = 32,
                                         .hidden = 24,
                                         .positions = 100000,
                                         .dtype = KV_BF16,
                                         .k_norm = true,
                                         .value_scale = 1.0f,
                                         .attention_factor = 1.0f};
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct kv_weights source = random_weights_source(weights);
    struct kv_backend_options options = {.threads = 2, .rows_max = MANY, .items_max = 1};
    struct kv_backend *backend;
    struct kv_error err = {0};
    struct kv_ref bases[2];
    struct rig rig;
    static int64_t pick[MANY];
    uint16_t first[32], again[32];
    ck_assert_msg(kv_cpu_ops.open(&backend, &source, &options, &err), "%s", err.message);
    rig_open(&rig, &kv_cpu_ops, backend, &geometry, 32 << 20);
    struct rig_input input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_F32, DISTINCT, &state);
    for (int64_t t = 0; t < MANY; t++) pick[t] = t % DISTINCT;
    struct kv_item item = rig_item(&rig, &input, pick, MANY, &(struct rig_layout){0}, bases);
    rig_run(&rig, &item, 1);
    ck_assert_int_eq(item.fault, KV_OK);
    int64_t wrong = 0;
    for (int64_t t = 0; t < 2 * MANY; t++) {
        rig_head(&rig, &item, t >= MANY, 0, pick[t % MANY], 0, first);
        rig_head(&rig, &item, t >= MANY, 0, t % MANY, 0, again);
        wrong += memcmp(first, again, sizeof first) != 0;
    }
    ck_assert_int_eq(wrong, 0);
    rig_input_free(&input);
    rig_close(&rig);
    random_weights_free(weights);
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: a row's bits");
    TCase *rows = tcase_create("rows");
    tcase_set_timeout(rows, 600);
    tcase_add_loop_test(rows, a_row_has_the_same_bits_everywhere, 0, 4);
    tcase_add_loop_test(rows, spans_join_to_the_same_reply, 0, 3);
    tcase_add_test(rows, long_requests_keep_their_bits);
    tcase_add_test(rows, rows_are_counted_in_64_bits);
    suite_add_tcase(suite, rows);
    return suite_run(suite);
}
