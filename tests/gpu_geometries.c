/* Random geometries on the tested device and on the CPU backend, from the same weights and inputs: every head
 * size, spelling of the model and form of input. Prints a line for each, with how far the two are apart and
 * how many elements are the same bits. CK_RUN_CASE=small runs a few small ones, for compute-sanitizer. */
#include "tests/tested_device.h"

#include <math.h>
#include <stdio.h>

enum { ITEMS = 6, FORMS = 6, HEADS = 8, BASES = 2 * 3 };

/* Over a tensor: ||got - cpu|| / ||cpu||. One rounding to the other side, here and there, is what two orders
 * of summing may differ by; a rounding left out or added shows in how few elements are equal. */
static const double bf16_bound = 1e-3, f16_bound = 3e-4, equal_least = 0.85;

/* One backend, and the items as it has them. */
struct side {
    struct rig rig;
    struct kv_item item[ITEMS];
    struct kv_ref bases[ITEMS][BASES];
};

/* What two sides make of the same items: [0] K, [1] V. */
struct distance {
    double difference[2], norm[2];
    int64_t equal, count;
};

static void open_side(struct side *side, const struct kv_backend_ops *ops, struct random_weights *weights,
                      const struct kv_geometry *geometry, int64_t rows, bool tune)
{
    struct kv_backend *backend = tested_open(ops, weights, tune);
    rig_open(&side->rig, ops, backend, geometry, tested_slab_bytes(geometry, rows, ITEMS));
}

static void add_head(const struct kv_geometry *geometry, int32_t v, const uint16_t *got, const uint16_t *want,
                     struct distance *distance)
{
    for (int32_t d = 0; d < geometry->head_dim; d++) {
        float a, b;
        kv_to_f32(geometry->dtype, &got[d], 1, &a);
        kv_to_f32(geometry->dtype, &want[d], 1, &b);
        distance->difference[v] += ((double)a - b) * ((double)a - b);
        distance->norm[v] += (double)b * b;
        distance->equal += got[d] == want[d];
        distance->count++;
    }
}

static void add_item(const struct side *got, const struct side *want, int32_t i, struct distance *distance)
{
    const struct kv_geometry *geometry = &got->rig.geometry;
    uint16_t a[256], b[256];
    ck_assert_int_le(geometry->head_dim, 256);
    ck_assert_int_eq(want->item[i].fault, KV_OK);
    ck_assert_msg(got->item[i].fault == KV_OK, "item %d: %s", (int)i,
                  kv_fault_info(got->item[i].fault)->code);
    for (int32_t v = 0; v < 2; v++)
        for (int32_t layer = 0; layer < geometry->layers; layer++)
            for (int64_t t = 0; t < got->item[i].rows; t++)
                for (int32_t head = 0; head < geometry->kv_heads; head++) {
                    rig_head(&got->rig, &got->item[i], v == 1, layer, t, head, a);
                    rig_head(&want->rig, &want->item[i], v == 1, layer, t, head, b);
                    add_head(geometry, v, a, b, distance);
                }
}

static void judge(const struct kv_geometry *g, const struct distance *distance)
{
    double bound = g->dtype == KV_BF16 ? bf16_bound : f16_bound;
    /* fc's output is rounded twice before it is projected: a difference in its last place reaches every
     * output. */
    if (g->taps > 0) bound *= 2;
    double k = sqrt(distance->difference[0] / distance->norm[0]);
    double v = sqrt(distance->difference[1] / distance->norm[1]);
    double equal = (double)distance->equal / (double)distance->count;
    printf("%-4s L%d H%-4lld %dx%-3d rotary %-3d taps %d positions %-7lld%s%s%s%s%s: K %.1e V %.1e, %.3f %% "
           "equal\n",
           kv_dtype_name(g->dtype), (int)g->layers, (long long)g->hidden, (int)g->kv_heads, (int)g->head_dim,
           (int)g->rotary_dim, (int)g->taps, (long long)g->positions, g->k_norm ? "" : " no-k-norm",
           g->k_bias ? " k-bias" : "", g->v_bias ? " v-bias" : "", g->interleaved ? " interleaved" : "",
           g->value_scale < 1 ? " scaled" : "", k, v, 100 * equal);
    fflush(stdout);
    ck_assert_msg(k <= bound, "K is off by %.3e, more than %.1e", k, bound); /* false for NaN */
    ck_assert_msg(v <= bound, "V is off by %.3e, more than %.1e", v, bound);
    ck_assert_msg(equal >= equal_least, "only %.1f %% of the elements are equal", 100 * equal);
}

/* One batch of items of every input dtype and both dtypes of positions, unaligned, with gaps, one of them
 * empty; rows are `rows` in all, more or less. */
static void compare(const struct kv_geometry *geometry, int64_t rows, bool tune, uint64_t *state)
{
    static const enum kv_dtype dtypes[ITEMS] = {KV_BF16, KV_F16, KV_F32, KV_F32, KV_BF16, KV_F16};
    enum kv_input_kind kind = geometry->taps > 0 ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES;
    struct random_weights *weights = random_weights_make(geometry, state);
    struct side tested, cpu;
    struct distance distance = {0};
    open_side(&tested, tested_ops(), weights, geometry, 2 * rows + ITEMS, tune);
    open_side(&cpu, kv_backend_find("cpu"), weights, geometry, 2 * rows + ITEMS, false);
    int32_t empty = (int32_t)random_below(state, ITEMS);
    for (int32_t i = 0; i < ITEMS; i++) {
        int64_t item_rows = i == empty ? 0 : 1 + random_below(state, 2 * rows / ITEMS);
        struct rig_layout layout = {.row_gap = i % 2 ? random_below(state, 60) : 0,
                                    .misalign = i % 3 ? (size_t)random_below(state, 64) : 0,
                                    .narrow_positions = i % 2 == (int32_t)random_below(state, 2),
                                    .positions_checked = random_below(state, 2) > 0};
        struct rig_input input = rig_input_make(geometry, kind, dtypes[i], item_rows, state);
        if (item_rows > 0) input.positions[item_rows - 1] = geometry->positions - 1;
        tested.item[i] = rig_item(&tested.rig, &input, NULL, item_rows, &layout, tested.bases[i]);
        cpu.item[i] = rig_item(&cpu.rig, &input, NULL, item_rows, &layout, cpu.bases[i]);
        rig_input_free(&input);
    }
    rig_run(&tested.rig, tested.item, ITEMS);
    rig_run(&cpu.rig, cpu.item, ITEMS);
    for (int32_t i = 0; i < ITEMS; i++) add_item(&tested, &cpu, i, &distance);
    judge(geometry, &distance);
    rig_close(&tested.rig);
    rig_close(&cpu.rig);
    random_weights_free(weights);
}

/* Every head size in every form; what a form leaves open is random. */
static struct kv_geometry form(int32_t number, uint64_t *state)
{
    static const int32_t head_dims[HEADS] = {32, 64, 80, 96, 112, 128, 192, 256};
    struct kv_geometry g = random_geometry(state);
    g.head_dim = g.rotary_dim = head_dims[number / FORMS];
    switch (number % FORMS) {
    case 0: /* the form that most drafts have */
        g.hidden = 33;
        g.dtype = KV_BF16;
        g.taps = 0;
        g.k_norm = true;
        g.k_bias = g.v_bias = g.interleaved = false;
        g.value_scale = g.attention_factor = 1.0f;
        break;
    case 1:
        g.hidden = 100;
        g.k_bias = g.v_bias = g.interleaved = true;
        g.value_scale = 0.7f;
        break;
    case 2:
        g.hidden = 288;
        g.dtype = KV_F16;
        g.k_norm = false;
        g.rotary_dim = 2 * (1 + (int32_t)random_below(state, g.head_dim / 2 - 1));
        break;
    case 3:
        g.hidden = 100 + random_below(state, 200);
        g.taps = 1 + (int32_t)random_below(state, 5);
        g.positions = 1 << 20;
        break;
    case 4:
        g.hidden = 2880;
        g.taps = 0;
        g.rotary_dim = g.head_dim / 4 * 2;
        g.positions = 1 << 20;
        break;
    default: /* all at random, the rotated part too */
        g.rotary_dim = 2 * (1 + (int32_t)random_below(state, g.head_dim / 2));
        g.kv_heads = 1 + (int32_t)random_below(state, 8);
        break;
    }
    return g;
}

START_TEST(geometries_agree_with_the_cpu)
{
    uint64_t state = tested_seed() + 1000003 * (uint64_t)_i;
    struct kv_geometry geometry = form(_i, &state);
    compare(&geometry, 60 + random_below(&state, 240), random_below(&state, 2) > 0, &state);
}
END_TEST

/* Whatever random_geometry makes, head sizes of 2 and 18 included. */
START_TEST(any_geometry_agrees_with_the_cpu)
{
    uint64_t state = tested_seed() + 2000003 * (uint64_t)(_i + 100);
    struct kv_geometry geometry = random_geometry(&state);
    compare(&geometry, 60 + random_below(&state, 240), random_below(&state, 2) > 0, &state);
}
END_TEST

/* As published drafts are, once with fc. */
START_TEST(large_geometries_agree_with_the_cpu)
{
    uint64_t state = tested_seed() + 3000003 * (uint64_t)(_i + 100);
    struct kv_geometry geometry = {.layers = 3,
                                   .kv_heads = 8,
                                   .head_dim = 128,
                                   .rotary_dim = 128,
                                   .taps = _i == 1 ? 3 : 0,
                                   .hidden = _i == 1 ? 2560 : 4096,
                                   .positions = 262144,
                                   .dtype = _i == 2 ? KV_F16 : KV_BF16,
                                   .k_norm = true,
                                   .value_scale = 1.0f,
                                   .attention_factor = 1.0f,
                                   .hidden_norm_eps = 1e-6f};
    compare(&geometry, 300, true, &state);
}
END_TEST

START_TEST(small_geometries_agree_with_the_cpu)
{
    uint64_t state = tested_seed() + 4000003 * (uint64_t)(_i + 100);
    struct kv_geometry geometry = form(FORMS * (1 + _i % 2) + _i, &state);
    geometry.layers = 2;
    geometry.hidden = geometry.hidden > 300 ? 300 : geometry.hidden;
    compare(&geometry, 60, _i == 3, &state);
}
END_TEST

int main(void)
{
    int status = tested_probe();
    if (status != 0) return status;
    Suite *suite = suite_create("gpu: geometries");
    TCase *all = tcase_create("geometries"), *small = tcase_create("small");
    tcase_add_loop_test(all, geometries_agree_with_the_cpu, 0, HEADS * FORMS);
    tcase_add_loop_test(all, any_geometry_agrees_with_the_cpu, 0, 24);
    tcase_add_loop_test(all, large_geometries_agree_with_the_cpu, 0, 3);
    tcase_add_loop_test(small, small_geometries_agree_with_the_cpu, 0, 6);
    suite_add_tcase(suite, all);
    suite_add_tcase(suite, small);
    return tested_run(suite);
}
