/* What items may ask of the tested device: a fault stays with its item and leaves the others right; a layout
 * other than a reply's is either refused as unsupported, untouched, or written exactly as the formula of
 * backend.h says. */
#include "tests/tested_device.h"

#include <stdio.h>

enum { ROWS = 37, SLAB_BYTES = 32 << 20 };

struct placed_item {
    struct kv_item item;
    struct kv_ref bases[TESTED_BASES_MAX];
};

struct table {
    struct random_weights *weights;
    struct rig rig;
    struct rig_input input;
    struct placed_item plain; /* the same rows in the layout of a reply: what must be in the others */
};

static void open_table(struct table *table, uint64_t *state)
{
    struct kv_geometry geometry = random_geometry(state);
    geometry.taps = 0;
    geometry.layers = geometry.kv_heads = 3;
    *table = (struct table){.weights = random_weights_make(&geometry, state)};
    rig_open(&table->rig, tested_ops(), tested_open(tested_ops(), table->weights, false), &geometry,
             SLAB_BYTES);
    table->input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_BF16, ROWS, state);
    table->plain.item =
        rig_item(&table->rig, &table->input, NULL, ROWS, &(struct rig_layout){0}, table->plain.bases);
    rig_run(&table->rig, &table->plain.item, 1);
    ck_assert_int_eq(table->plain.item.fault, KV_OK);
}

static void close_table(struct table *table)
{
    rig_input_free(&table->input);
    rig_close(&table->rig);
    random_weights_free(table->weights);
}

/* The rows of the table into a cache of their own: `layer_bytes` for each of K and V of each layer, which
 * fill a place one after the other. */
static void make_item(struct table *table, const struct kv_output *out, size_t layer_bytes,
                      struct placed_item *made)
{
    int32_t layers = table->rig.geometry.layers;
    struct kv_ref place = rig_place(&table->rig, layer_bytes * 2 * (size_t)layers, 0);
    made->item = rig_item(&table->rig, &table->input, NULL, ROWS, &(struct rig_layout){0}, made->bases);
    for (int32_t i = 0; i < 2 * layers; i++)
        made->bases[i] = (struct kv_ref){place.mem, place.offset + (uint64_t)i * layer_bytes};
    made->item.out = *out;
    made->item.out.k = made->bases;
    made->item.out.v = made->bases + layers;
    made->item.out.dtype = table->rig.geometry.dtype;
}

static int64_t slot_of(const struct table *table, const struct kv_output *out, int64_t t)
{
    int64_t slot = out->slot_first + t;
    if (out->slots.mem) memcpy(&slot, table->rig.host + out->slots.offset + (uint64_t)t * 8, sizeof slot);
    return slot;
}

/* Where an element is to be, or NULL where it is not asked for. */
static unsigned char *place_of(const struct table *table, const struct kv_output *out, bool v, int32_t layer,
                               int64_t t, int32_t head)
{
    int64_t slot = slot_of(table, out, t);
    if (slot < 0 || layer < out->layer_begin || layer >= out->layer_end || head < out->head_begin ||
        head >= out->head_end)
        return NULL;
    return table->rig.host + (v ? out->v : out->k)[layer].offset +
           slot / out->block_tokens * out->block_stride + slot % out->block_tokens * out->token_stride +
           head * out->head_stride;
}

static void check_poison(const struct table *table, const struct kv_ref *bases, size_t layer_bytes)
{
    size_t bytes = layer_bytes * 2 * (size_t)table->rig.geometry.layers, clean = 0;
    const unsigned char *from = table->rig.host + bases[0].offset;
    while (clean < bytes && from[clean] == 0xff) clean++;
    ck_assert_msg(clean == bytes, "byte %zu was written and should not have been", clean);
}

/* Every element asked for is there, and after taking these away only poison is left. */
static void check_output(struct table *table, const struct kv_item *item, size_t layer_bytes)
{
    const struct kv_geometry *geometry = &table->rig.geometry;
    size_t bytes = (size_t)geometry->head_dim * 2;
    uint16_t want[256];
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t v = 0; v < 2; v++)
            for (int32_t layer = 0; layer < geometry->layers; layer++)
                for (int64_t t = 0; t < ROWS; t++)
                    for (int32_t head = 0; head < geometry->kv_heads; head++) {
                        unsigned char *place = place_of(table, &item->out, v == 1, layer, t, head);
                        if (!place) continue;
                        rig_head(&table->rig, &table->plain.item, v == 1, layer, t, head, want);
                        if (pass == 1)
                            memset(place, 0xff, bytes);
                        else
                            ck_assert_msg(memcmp(place, want, bytes) == 0, "%s of layer %d, row %d, head %d",
                                          v ? "V" : "K", (int)layer, (int)t, (int)head);
                    }
    check_poison(table, item->out.k, layer_bytes);
}

/* Beside a plain item, which must be right in any case. */
static void try_layout(struct table *table, const char *name, const struct kv_output *out, size_t layer_bytes)
{
    struct placed_item tried;
    rig_reset(&table->rig);
    table->plain.item =
        rig_item(&table->rig, &table->input, NULL, ROWS, &(struct rig_layout){0}, table->plain.bases);
    struct kv_ref slots = {0};
    if (out->slots.mem) { /* every fifth is skipped, the others go backwards from slots_max - 1 */
        slots = rig_place(&table->rig, ROWS * 8, 3);
        for (int64_t t = 0; t < ROWS; t++) {
            int64_t slot = t % 5 == 0 ? -1 : out->slots_max - 1 - t;
            memcpy(table->rig.host + slots.offset + 8 * (uint64_t)t, &slot, sizeof slot);
        }
    }
    make_item(table, out, layer_bytes, &tried);
    tried.item.out.slots = slots;
    struct kv_item items[2] = {table->plain.item, tried.item};
    rig_run(&table->rig, items, 2);
    ck_assert_int_eq(items[0].fault, KV_OK);
    printf("layout %s: %s\n", name,
           items[1].fault == KV_OK ? "written" : kv_fault_info(items[1].fault)->code);
    if (items[1].fault == KV_OK) {
        check_output(table, &items[1], layer_bytes);
    } else {
        ck_assert_msg(items[1].fault == KV_UNSUPPORTED, "%s: %s", name, kv_fault_info(items[1].fault)->code);
        check_poison(table, tried.bases, layer_bytes);
    }
}

START_TEST(a_layout_is_right_or_refused)
{
    enum { BLOCK = 16, BLOCKS = 5 };
    uint64_t state = tested_seed() + 11000027 * (uint64_t)(_i + 1);
    struct table table;
    open_table(&table, &state);
    const struct kv_geometry *geometry = &table.rig.geometry;
    int64_t head = geometry->head_dim * 2, token = head * geometry->kv_heads;
    struct kv_output out = {.block_tokens = INT64_MAX,
                            .token_stride = token,
                            .head_stride = head,
                            .slots_max = ROWS,
                            .layer_end = geometry->layers,
                            .head_end = geometry->kv_heads};
    try_layout(&table, "of a reply", &out, (size_t)(ROWS * token));
    struct kv_output other = out;
    other.slot_first = 11;
    other.slots_max = ROWS + 11;
    try_layout(&table, "from slot 11", &other, (size_t)((ROWS + 11) * token));
    other.slot_first = -3;
    try_layout(&table, "from slot -3", &other, (size_t)((ROWS + 11) * token));
    other = out;
    other.head_stride = head + 6;
    other.token_stride = other.head_stride * geometry->kv_heads + 7;
    try_layout(&table, "with gaps", &other, (size_t)(ROWS * other.token_stride));
    other = out;
    other.token_stride = head;
    other.head_stride = head * ROWS;
    try_layout(&table, "head-major", &other, (size_t)(ROWS * token));
    other = out;
    other.layer_begin = other.head_begin = 1;
    try_layout(&table, "of some layers and heads", &other, (size_t)(ROWS * token));
    other.layer_begin = other.layer_end;
    try_layout(&table, "of no layer", &other, (size_t)(ROWS * token));
    other = out;
    other.block_tokens = BLOCK;
    other.block_stride = BLOCK * token + 10;
    other.slots_max = BLOCK * BLOCKS - 5;
    try_layout(&table, "in blocks", &other, (size_t)(BLOCKS * other.block_stride));
    other.slots.mem = table.rig.mem;
    try_layout(&table, "in blocks by slots", &other, (size_t)(BLOCKS * other.block_stride));
    close_table(&table);
}
END_TEST

/* What is wrong with an item, one at a time, and the fault that must come of it. */
enum wrong {
    POSITION_LOW,
    POSITION_HIGH,
    POSITION_NARROW,
    POSITION_HUGE,
    DTYPE_OUT,
    K_SCALE,
    V_SCALE,
    KIND,
    DTYPE_IN,
    DTYPE_POSITIONS,
    LAYERS,
    HEADS,
    BLOCK_ZERO,
    SLOT_FIRST,
    SLOT_OVERFLOW,
    OUTPUT_SHORT,
    ROWS_SHORT,
    NOWHERE,
    OFFSET_HUGE,
    ROWS_NEGATIVE,
    WRONGS
};

static enum kv_fault spoil(struct table *table, enum wrong wrong, struct placed_item *made)
{
    static const float scale[TESTED_BASES_MAX];
    struct kv_item *item = &made->item;
    unsigned char *positions = table->rig.host + item->in.positions.offset;
    int64_t bad = table->rig.geometry.positions;
    switch (wrong) {
    case POSITION_NARROW:
        for (int64_t t = 0; t < ROWS; t++) memset(positions + 4 * t, t == ROWS / 2 ? 0xff : 0, 4);
        item->in.positions_dtype = KV_I32;
        return KV_POSITION_OUT_OF_RANGE;
    case POSITION_LOW:
    case POSITION_HUGE: bad = wrong == POSITION_LOW ? -1 : INT64_MAX; /* fall through */
    case POSITION_HIGH: memcpy(positions + 8 * (ROWS - 1), &bad, sizeof bad); return KV_POSITION_OUT_OF_RANGE;
    case DTYPE_OUT:
        item->out.dtype = table->rig.geometry.dtype == KV_BF16 ? KV_F16 : KV_BF16;
        return KV_UNSUPPORTED;
    case K_SCALE: item->out.k_scale = scale; return KV_UNSUPPORTED;
    case V_SCALE: item->out.v_scale = scale; return KV_UNSUPPORTED;
    case KIND: item->in.kind = KV_TARGET_HIDDEN; return KV_UNSUPPORTED;
    case DTYPE_IN: item->in.dtype = KV_I32; return KV_UNSUPPORTED;
    case DTYPE_POSITIONS: item->in.positions_dtype = KV_F32; return KV_UNSUPPORTED;
    case LAYERS: item->out.layer_end++; return KV_PARAMETER_INVALID;
    case HEADS: item->out.head_begin = -1; return KV_PARAMETER_INVALID;
    case BLOCK_ZERO: item->out.block_tokens = 0; return KV_PARAMETER_INVALID;
    case SLOT_FIRST: item->out.slot_first = 1; return KV_PARAMETER_INVALID;
    case SLOT_OVERFLOW: item->out.slot_first = INT64_MAX; return KV_PARAMETER_INVALID;
    case OUTPUT_SHORT: made->bases[table->rig.geometry.layers].offset = SLAB_BYTES - 100; break;
    case ROWS_SHORT: item->in.rows.offset = SLAB_BYTES - 100; break;
    case NOWHERE: item->in.positions.mem = NULL; break;
    case OFFSET_HUGE: made->bases[0].offset = UINT64_MAX - 3; break;
    case ROWS_NEGATIVE: item->rows = -1; break;
    case WRONGS: break;
    }
    return KV_PARAMETER_INVALID;
}

START_TEST(a_fault_stays_with_its_item)
{
    uint64_t state = tested_seed() + 12000017 * (uint64_t)(_i + 1);
    struct table table;
    open_table(&table, &state);
    const struct kv_output out = table.plain.item.out;
    size_t layer_bytes = (size_t)(ROWS * out.token_stride);
    struct placed_item made[3];
    for (int32_t i = 0; i < 3; i++) make_item(&table, &out, layer_bytes, &made[i]);
    const struct kv_ref untouched = made[1].bases[0];
    enum kv_fault want = spoil(&table, (enum wrong)_i, &made[1]);
    struct kv_item items[4] = {made[0].item, made[1].item, made[2].item, table.plain.item};
    items[3].rows = 0;
    items[3].fault = KV_FAULT_COUNT;
    rig_run(&table.rig, items, 4);
    /* What is no layout at all may be refused as one that is not built. */
    ck_assert_msg(items[1].fault == want ||
                      (want == KV_PARAMETER_INVALID && items[1].fault == KV_UNSUPPORTED),
                  "%d: %s instead of %s", _i, kv_fault_info(items[1].fault)->code, kv_fault_info(want)->code);
    for (int32_t i = 0; i < 4; i++) ck_assert_msg(i == 1 || items[i].fault == KV_OK, "item %d", (int)i);
    check_output(&table, &items[0], layer_bytes);
    check_output(&table, &items[2], layer_bytes);
    check_poison(&table, &untouched, layer_bytes);
    /* The device goes on, and nothing of it is left. */
    table.plain.item.fault = KV_FAULT_COUNT;
    rig_run(&table.rig, &table.plain.item, 1);
    ck_assert_int_eq(table.plain.item.fault, KV_OK);
    close_table(&table);
}
END_TEST

int main(void)
{
    int status = tested_probe();
    if (status != 0) return status;
    Suite *suite = suite_create("gpu: items");
    TCase *items = tcase_create("items");
    tcase_add_loop_test(items, a_layout_is_right_or_refused, 0, 3);
    tcase_add_loop_test(items, a_fault_stays_with_its_item, 0, WRONGS);
    suite_add_tcase(suite, items);
    return tested_run(suite);
}
