/* Where the CPU backend writes and what it refuses: layouts by the one formula, slots, layer and head ranges,
 * and faults that stay with their item. Every byte that is not an element asked for must keep what it held.
 */
#include "kernels/cpu_backend.h"
#include "tests/device_rig.h"
#include "tests/suite.h"

#include <stdlib.h>

static uint64_t seed;

enum { ROWS = 37, SLAB_BYTES = 24 << 20 };

struct table {
    struct random_weights *weights;
    struct rig rig;
    struct rig_input input;
    struct kv_item plain; /* the same rows in the layout of a reply: what must be in the others */
    struct kv_ref plain_bases[16];
};

static void open_table(struct table *table, uint64_t *state)
{
    struct kv_geometry geometry = random_geometry(state);
    geometry.taps = 0;
    geometry.layers = 3;
    geometry.kv_heads = 3;
    struct kv_backend_options options = {.threads = 2, .rows_max = 256, .items_max = 16};
    struct kv_backend *backend;
    struct kv_error err = {0};
    *table = (struct table){.weights = random_weights_make(&geometry, state)};
    struct kv_weights source = random_weights_source(table->weights);
    ck_assert_msg(kv_cpu_ops.open(&backend, &source, &options, &err), "%s", err.message);
    rig_open(&table->rig, &kv_cpu_ops, backend, &geometry, SLAB_BYTES);
    table->input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_BF16, ROWS, state);
    table->plain =
        rig_item(&table->rig, &table->input, NULL, ROWS, &(struct rig_layout){0}, table->plain_bases);
    rig_run(&table->rig, &table->plain, 1);
    ck_assert_int_eq(table->plain.fault, KV_OK);
}

static void close_table(struct table *table)
{
    rig_input_free(&table->input);
    rig_close(&table->rig);
    random_weights_free(table->weights);
}

/* An output in a cache of its own: bases for each layer in one place of `bytes` for each of K and V. */
static struct kv_item make_item(struct table *table, const struct kv_output *out, size_t layer_bytes,
                                struct kv_ref *bases)
{
    int32_t layers = table->rig.geometry.layers;
    struct kv_item item = table->plain;
    for (int32_t i = 0; i < 2 * layers; i++) bases[i] = rig_place(&table->rig, layer_bytes, 0);
    item.out = *out;
    item.out.k = bases;
    item.out.v = bases + layers;
    item.out.dtype = table->rig.geometry.dtype;
    item.fault = KV_FAULT_COUNT;
    return item;
}

static bool in_range(const struct kv_output *out, int32_t layer, int32_t head)
{
    return layer >= out->layer_begin && layer < out->layer_end && head >= out->head_begin &&
           head < out->head_end;
}

static int64_t slot_of(const struct table *table, const struct kv_output *out, int64_t t)
{
    int64_t slot = out->slot_first + t;
    if (out->slots.mem) memcpy(&slot, table->rig.host + out->slots.offset + (uint64_t)t * 8, sizeof slot);
    return slot;
}

static void check_poison(const struct rig *rig, const struct kv_ref *base, size_t bytes)
{
    const unsigned char *from = rig->host + base->offset;
    size_t clean = 0;
    while (clean < bytes && from[clean] == 0xff) clean++;
    ck_assert_msg(clean == bytes, "byte %zu was written and should not have been", clean);
}

/* Every element asked for is there, and after taking these away only poison is left. */
static void check_output(struct table *table, const struct kv_item *item, size_t layer_bytes)
{
    const struct kv_geometry *geometry = &table->rig.geometry;
    uint16_t want[1024], got[1024];
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t v = 0; v < 2; v++)
            for (int32_t layer = 0; layer < geometry->layers; layer++)
                for (int64_t t = 0; t < item->rows; t++)
                    for (int32_t head = 0; head < geometry->kv_heads; head++) {
                        int64_t slot = slot_of(table, &item->out, t);
                        if (slot < 0 || !in_range(&item->out, layer, head)) continue;
                        int64_t at = slot / item->out.block_tokens * item->out.block_stride +
                                     slot % item->out.block_tokens * item->out.token_stride +
                                     head * item->out.head_stride;
                        unsigned char *place =
                            table->rig.host + (v ? item->out.v : item->out.k)[layer].offset + at;
                        size_t bytes = (size_t)geometry->head_dim * 2;
                        ck_assert_int_le(at + (int64_t)bytes, (int64_t)layer_bytes);
                        memcpy(got, place, bytes);
                        rig_head(&table->rig, &table->plain, v == 1, layer, t, head, want);
                        if (pass == 0)
                            ck_assert_mem_eq(got, want, bytes);
                        else
                            memset(place, 0xff, bytes);
                    }
    for (int32_t i = 0; i < 2 * geometry->layers; i++)
        check_poison(&table->rig, &item->out.k[i], layer_bytes);
}

static void run_and_check(struct table *table, const struct kv_output *out, size_t layer_bytes)
{
    struct kv_ref bases[16];
    struct kv_item item = make_item(table, out, layer_bytes, bases);
    rig_run(&table->rig, &item, 1);
    ck_assert_int_eq(item.fault, KV_OK);
    check_output(table, &item, layer_bytes);
}

/* Slots in random order, each once, every fifth -1. */
static struct kv_ref place_slots(struct table *table, int64_t slots_max, uint64_t *state)
{
    int64_t *all = malloc((size_t)slots_max * sizeof *all);
    ck_assert_ptr_nonnull(all);
    for (int64_t i = 0; i < slots_max; i++) all[i] = i;
    for (int64_t i = slots_max - 1; i > 0; i--) {
        int64_t j = random_below(state, i + 1), held = all[i];
        all[i] = all[j];
        all[j] = held;
    }
    for (int64_t t = 0; t < ROWS; t += 5) all[t] = -1;
    struct kv_ref ref = rig_place(&table->rig, ROWS * sizeof *all, 3);
    memcpy(table->rig.host + ref.offset, all, ROWS * sizeof *all);
    free(all);
    return ref;
}

START_TEST(layouts_follow_the_formula)
{
    uint64_t state = seed + (uint64_t)_i;
    struct table table;
    open_table(&table, &state);
    const struct kv_geometry *geometry = &table.rig.geometry;
    int64_t head = geometry->head_dim * 2, token = head * geometry->kv_heads;
    struct kv_output out = {.slots_max = ROWS, .layer_end = geometry->layers, .head_end = geometry->kv_heads};
    /* Token-major with gaps between heads and tokens that are no multiple of anything. */
    out.block_tokens = INT64_MAX;
    out.head_stride = head + 6;
    out.token_stride = out.head_stride * geometry->kv_heads + 7;
    run_and_check(&table, &out, (size_t)(ROWS * out.token_stride));
    /* Head-major. */
    out.token_stride = head;
    out.head_stride = head * ROWS;
    run_and_check(&table, &out, (size_t)(token * ROWS));
    /* Some slots on from the beginning; the first of them before it, hence skipped. */
    out.slot_first = -3;
    run_and_check(&table, &out, (size_t)(token * ROWS));
    out.slot_first = 11;
    out.slots_max = ROWS + 11;
    out.head_stride = head;
    out.token_stride = token;
    run_and_check(&table, &out, (size_t)(token * (ROWS + 11)));
    close_table(&table);
}
END_TEST

START_TEST(paged_blocks_take_slots_and_ranges)
{
    uint64_t state = seed + 100 + (uint64_t)_i;
    struct table table;
    open_table(&table, &state);
    const struct kv_geometry *geometry = &table.rig.geometry;
    int64_t head = geometry->head_dim * 2, token = head * geometry->kv_heads;
    enum { BLOCK = 16, BLOCKS = 5 };
    for (int32_t i = 0; i < 6; i++) {
        struct kv_output out = {.block_tokens = BLOCK, .slots_max = BLOCK * BLOCKS - 5};
        out.slots = place_slots(&table, out.slots_max, &state);
        out.slot_first = INT64_MAX; /* means nothing beside slots */
        out.layer_begin = (int32_t)random_below(&state, geometry->layers + 1);
        out.layer_end =
            out.layer_begin + (int32_t)random_below(&state, geometry->layers - out.layer_begin + 1);
        out.head_begin = (int32_t)random_below(&state, geometry->kv_heads + 1);
        out.head_end =
            out.head_begin + (int32_t)random_below(&state, geometry->kv_heads - out.head_begin + 1);
        bool head_major = i % 2 == 0;
        out.block_stride = BLOCK * token + (i % 3) * 10;
        out.token_stride = head_major ? head : token;
        out.head_stride = head_major ? BLOCK * head : head;
        run_and_check(&table, &out, (size_t)(BLOCKS * out.block_stride));
    }
    close_table(&table);
}
END_TEST

/* What is wrong with an item, one at a time, and the fault that must come of it. */
enum wrong {
    DTYPE_OUT,
    K_SCALE,
    V_SCALE,
    KIND,
    DTYPE_IN,
    DTYPE_POSITIONS,
    POSITION_LOW,
    POSITION_HIGH,
    SLOT_HIGH,
    SLOT_FIRST,
    SLOT_OVERFLOW,
    LAYERS,
    HEADS,
    BLOCK_ZERO,
    STRIDE_NEGATIVE,
    OUTPUT_SHORT,
    ROWS_SHORT,
    NOWHERE,
    SLOTS_SHORT,
    OFFSET_HUGE,
    ROWS_NEGATIVE,
    TOKENS_APART,
    WRONGS
};

static enum kv_fault spoil(struct table *table, enum wrong wrong, struct kv_item *item, struct kv_ref *bases)
{
    static const float scale[16];
    struct rig *rig = &table->rig;
    int64_t bad = rig->geometry.positions;
    switch (wrong) {
    case DTYPE_OUT:
        item->out.dtype = rig->geometry.dtype == KV_BF16 ? KV_F16 : KV_BF16;
        return KV_UNSUPPORTED;
    case K_SCALE: item->out.k_scale = scale; return KV_UNSUPPORTED;
    case V_SCALE: item->out.v_scale = scale; return KV_UNSUPPORTED;
    case KIND: item->in.kind = KV_TARGET_HIDDEN; return KV_UNSUPPORTED;
    case DTYPE_IN: item->in.dtype = KV_I32; return KV_UNSUPPORTED;
    case DTYPE_POSITIONS: item->in.positions_dtype = KV_F32; return KV_UNSUPPORTED;
    case POSITION_LOW: bad = -1; /* fall through */
    case POSITION_HIGH:
        memcpy(rig->host + item->in.positions.offset + 8 * (ROWS - 1), &bad, sizeof bad);
        return KV_POSITION_OUT_OF_RANGE;
    case SLOT_HIGH:
        item->out.slots = rig_place(rig, ROWS * 8, 0);
        memset(rig->host + item->out.slots.offset, 0, ROWS * 8);
        memcpy(rig->host + item->out.slots.offset + 8 * (ROWS - 1), &item->out.slots_max, 8);
        return KV_PARAMETER_INVALID;
    case SLOT_FIRST: item->out.slot_first = 1; return KV_PARAMETER_INVALID;
    case SLOT_OVERFLOW: item->out.slot_first = INT64_MAX; return KV_PARAMETER_INVALID;
    case LAYERS: item->out.layer_end++; return KV_PARAMETER_INVALID;
    case HEADS: item->out.head_begin = -1; return KV_PARAMETER_INVALID;
    case BLOCK_ZERO: item->out.block_tokens = 0; return KV_PARAMETER_INVALID;
    case STRIDE_NEGATIVE: item->out.token_stride = -item->out.token_stride; return KV_PARAMETER_INVALID;
    case OUTPUT_SHORT: bases[rig->geometry.layers].offset = SLAB_BYTES - 100; return KV_PARAMETER_INVALID;
    case ROWS_SHORT: item->in.rows.offset = SLAB_BYTES - 100; return KV_PARAMETER_INVALID;
    case NOWHERE: item->in.positions.mem = NULL; return KV_PARAMETER_INVALID;
    case SLOTS_SHORT:
        item->out.slots = (struct kv_ref){rig->mem, SLAB_BYTES - 7};
        return KV_PARAMETER_INVALID;
    case OFFSET_HUGE: bases[0].offset = UINT64_MAX - 3; return KV_PARAMETER_INVALID;
    case ROWS_NEGATIVE: item->rows = -1; return KV_PARAMETER_INVALID;
    case TOKENS_APART: /* the last slot is inside, the one before it is not */
        item->out.block_tokens = 2;
        item->out.block_stride = item->out.token_stride;
        item->out.token_stride = SLAB_BYTES;
        return KV_PARAMETER_INVALID;
    case WRONGS: break;
    }
    return KV_OK;
}

START_TEST(a_fault_stays_with_its_item)
{
    uint64_t state = seed + 200 + (uint64_t)_i;
    struct table table;
    open_table(&table, &state);
    const struct kv_geometry *geometry = &table.rig.geometry;
    size_t layer_bytes = (size_t)geometry->head_dim * (size_t)geometry->kv_heads * 2 * ROWS;
    struct kv_output out = table.plain.out;
    struct kv_ref bases[3][16];
    struct kv_item items[4];
    for (int32_t i = 0; i < 3; i++) items[i] = make_item(&table, &out, layer_bytes, bases[i]);
    items[3] = table.plain;
    items[3].rows = 0;
    struct kv_ref own = rig_place(&table.rig, ROWS * 8, 0);
    memcpy(table.rig.host + own.offset, table.rig.host + items[1].in.positions.offset, ROWS * 8);
    items[1].in.positions = own;
    struct kv_ref spoiled_bases[16];
    memcpy(spoiled_bases, bases[1], sizeof spoiled_bases);
    enum kv_fault want = spoil(&table, (enum wrong)_i, &items[1], bases[1]);
    rig_run(&table.rig, items, 4);
    ck_assert_int_eq(items[0].fault, KV_OK);
    ck_assert_msg(items[1].fault == want, "%d: %s instead of %s", _i, kv_fault_info(items[1].fault)->code,
                  kv_fault_info(want)->code);
    ck_assert_int_eq(items[2].fault, KV_OK);
    ck_assert_int_eq(items[3].fault, KV_OK);
    check_output(&table, &items[0], layer_bytes);
    check_output(&table, &items[2], layer_bytes);
    for (int32_t i = 0; i < 2 * geometry->layers; i++)
        check_poison(&table.rig, &spoiled_bases[i], layer_bytes);
    close_table(&table);
}
END_TEST

/* Positions that are known to be right are not looked at again; the last valid one is valid. */
START_TEST(positions_are_checked_when_asked_for)
{
    uint64_t state = seed + 300;
    struct table table;
    struct kv_ref bases[16];
    open_table(&table, &state);
    for (int64_t t = 0; t < ROWS; t++)
        table.input.positions[t] = t % 2 ? 0 : table.rig.geometry.positions - 1;
    for (int32_t i = 0; i < 4; i++) {
        struct rig_layout layout = {.narrow_positions = i % 2 == 1, .positions_checked = i < 2};
        struct kv_item item = rig_item(&table.rig, &table.input, NULL, ROWS, &layout, bases);
        rig_run(&table.rig, &item, 1);
        ck_assert_int_eq(item.fault, KV_OK);
    }
    table.input.positions[3] = -1;
    struct rig_layout narrow = {.narrow_positions = true};
    struct kv_item item = rig_item(&table.rig, &table.input, NULL, ROWS, &narrow, bases);
    rig_run(&table.rig, &item, 1);
    ck_assert_int_eq(item.fault, KV_POSITION_OUT_OF_RANGE);
    close_table(&table);
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: where results go");
    TCase *output = tcase_create("output");
    tcase_set_timeout(output, 300);
    tcase_add_loop_test(output, layouts_follow_the_formula, 0, 3);
    tcase_add_loop_test(output, paged_blocks_take_slots_and_ranges, 0, 3);
    tcase_add_loop_test(output, a_fault_stays_with_its_item, 0, WRONGS);
    tcase_add_test(output, positions_are_checked_when_asked_for);
    suite_add_tcase(suite, output);
    return suite_run(suite);
}
