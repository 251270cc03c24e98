/* The CPU backend's numbers: against float64, against the chain of fused operations that defines V, and with
 * values that are not finite. Every instruction set that the processor has. */
#include "kernels/cpu_backend.h"
#include "tests/exact_kv.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>

static uint64_t seed;

static struct kv_backend *open_with(const struct kv_isa *isa, struct random_weights *weights, int32_t threads)
{
    struct kv_weights source = random_weights_source(weights);
    struct kv_backend_options options = {.threads = threads, .rows_max = 4096, .items_max = 64};
    struct kv_backend *backend = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_cpu_open(&backend, &source, &options, isa, &err), "%s", err.message);
    ck_assert(random_weights_pulled_once(weights));
    return backend;
}

/* ||got - exact|| / ||exact|| over K or V of an item. */
static double distance(const struct rig *rig, const struct kv_item *item, bool v, const double *exact)
{
    const struct kv_geometry *geometry = &rig->geometry;
    uint16_t bits[1024];
    double off = 0, all = 0;
    for (int32_t layer = 0; layer < geometry->layers; layer++)
        for (int64_t t = 0; t < item->rows; t++)
            for (int32_t head = 0; head < geometry->kv_heads; head++) {
                rig_head(rig, item, v, layer, t, head, bits);
                for (int32_t d = 0; d < geometry->head_dim; d++, exact++) {
                    double difference = exact_from_bits(geometry->dtype, bits[d]) - *exact;
                    off += difference * difference;
                    all += *exact * *exact;
                }
            }
    return sqrt(off / all);
}

/* Bounds on K and V: from exact arithmetic one rounding or two away; from the same roundings in float64
 * (staged) only where float32 falls on the other side of a tie. */
static void check_distances(const struct rig *rig, const struct kv_item *item,
                            const struct random_weights *weights, const struct rig_input *input,
                            const struct kv_isa *isa, bool staged)
{
    const struct kv_geometry *geometry = &rig->geometry;
    bool fc = input->kind == KV_TARGET_HIDDEN, half = geometry->dtype == KV_F16;
    double k_most = fc ? 6e-3 : 3e-3, v_most = fc ? 6e-3 : 2.5e-3, *k, *v;
    if (half) k_most = v_most = fc ? 1e-3 : 6e-4;
    if (staged) k_most = v_most = half ? (fc ? 1.6e-4 : 1e-4) : 6e-4;
    /* A norm over two elements makes much of their error where both happen to be small. */
    if (geometry->head_dim == 2) k_most *= 10;
    exact_kv(geometry, weights, input, staged, &k, &v);
    double k_off = distance(rig, item, false, k), v_off = distance(rig, item, true, v);
    ck_assert_msg(k_off <= k_most && v_off <= v_most,
                  "K is %g off (%g), V %g (%g)%s: %s, %s, L %d H %lld heads %d D %d rotary %d fc %d T %lld",
                  k_off, k_most, v_off, v_most, staged ? ", staged" : "", isa->name,
                  kv_dtype_name(geometry->dtype), (int)geometry->layers, (long long)geometry->hidden,
                  (int)geometry->kv_heads, (int)geometry->head_dim, (int)geometry->rotary_dim, (int)fc,
                  (long long)input->rows);
    free(k);
    free(v);
}

static void check_geometry(const struct kv_geometry *geometry, const struct kv_isa *isa,
                           enum kv_input_kind kind, uint64_t *state)
{
    static const enum kv_dtype dtypes[] = {KV_BF16, KV_F16, KV_F32};
    struct random_weights *weights = random_weights_make(geometry, state);
    /* The bounds are for a tensor, not for an element: there are always some thousands of them. */
    int64_t rows = 1 + random_below(state, 20) + 4000 / kv_geometry_token_elements(geometry);
    struct rig_input input = rig_input_make(geometry, kind, dtypes[random_below(state, 3)], rows, state);
    struct rig_layout layout = {.row_gap = random_below(state, 3),
                                .misalign = (size_t)random_below(state, 3),
                                .narrow_positions = random_below(state, 2) > 0,
                                .positions_checked = random_below(state, 2) > 0};
    struct kv_ref bases[16];
    struct rig rig;
    rig_open(&rig, &kv_cpu_ops, open_with(isa, weights, 2), geometry, 16 << 20);
    struct kv_item item = rig_item(&rig, &input, NULL, input.rows, &layout, bases);
    rig_run(&rig, &item, 1);
    ck_assert_int_eq(item.fault, KV_OK);
    check_distances(&rig, &item, weights, &input, isa, false);
    check_distances(&rig, &item, weights, &input, isa, true);
    rig_close(&rig);
    rig_input_free(&input);
    random_weights_free(weights);
}

START_TEST(random_geometries_match_float64)
{
    uint64_t state = seed + (uint64_t)_i;
    struct kv_geometry geometry = random_geometry(&state);
    enum kv_input_kind kind =
        geometry.taps > 0 && random_below(&state, 2) ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES;
    for (int32_t i = 0; kv_isa_at(i); i++)
        if (kv_isa_at(i)->available()) check_geometry(&geometry, kv_isa_at(i), kind, &state);
}
END_TEST

/* The sizes that models have, the least and the most; and a depth of several blocks. */
START_TEST(named_head_dims_match_float64)
{
    static const int32_t head_dims[] = {2, 32, 64, 80, 96, 112, 128, 192, 256, 576, 1024};
    uint64_t state = seed + 1000;
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++) {
        struct kv_geometry geometry = random_geometry(&state);
        geometry.head_dim = head_dims[i];
        geometry.rotary_dim = i % 2 || head_dims[i] < 4 ? head_dims[i] : head_dims[i] / 4 * 2;
        geometry.hidden = i == 6 ? 1037 : geometry.hidden;
        geometry.k_norm = true;
        if (head_dims[i] > 256) geometry.layers = geometry.kv_heads = 1;
        check_geometry(&geometry, kv_isa_best(), KV_HIDDEN_STATES, &state);
    }
}
END_TEST

/* One element of V as it is defined: one accumulator, k increasing, then bias, rounding, scale and rounding.
 */
static uint16_t defined_v(const struct kv_geometry *geometry, const struct random_weights *weights,
                          bool fused, const double *x, int32_t layer, int64_t column)
{
    const uint16_t *row = random_weights_part(weights, layer, KV_PART_V_WEIGHT);
    const float *bias = random_weights_part(weights, layer, KV_PART_V_BIAS);
    float sum = 0;
    row += column * geometry->hidden;
    for (int64_t i = 0; i < geometry->hidden; i++) {
        float weight = (float)exact_from_bits(geometry->dtype, row[i]), given = (float)x[i];
        sum = fused ? fmaf(weight, given, sum) : sum + weight * given;
    }
    if (bias) sum += bias[column];
    sum = (float)exact_round(geometry->dtype, (double)sum);
    if (geometry->value_scale != 1.0f)
        sum = (float)exact_round(geometry->dtype, (double)(sum * geometry->value_scale));
    uint16_t bits;
    kv_from_f32(geometry->dtype, &sum, 1, &bits);
    return bits;
}

static void check_v_bits(const struct kv_geometry *geometry, const struct kv_isa *isa, uint64_t *state)
{
    struct random_weights *weights = random_weights_make(geometry, state);
    struct rig_input input = rig_input_make(geometry, KV_HIDDEN_STATES, KV_F32, 33, state);
    struct kv_ref bases[16];
    struct rig rig;
    double *x = calloc((size_t)geometry->hidden, sizeof *x);
    uint16_t got[1024];
    ck_assert_ptr_nonnull(x);
    rig_open(&rig, &kv_cpu_ops, open_with(isa, weights, 2), geometry, 16 << 20);
    struct kv_item item = rig_item(&rig, &input, NULL, input.rows, &(struct rig_layout){0}, bases);
    rig_run(&rig, &item, 1);
    for (int64_t t = 0; t < input.rows; t += 8) {
        exact_row(&input, t, geometry->dtype, x);
        for (int32_t layer = 0; layer < geometry->layers; layer++)
            for (int32_t head = 0; head < geometry->kv_heads; head++) {
                rig_head(&rig, &item, true, layer, t, head, got);
                for (int32_t d = 0; d < geometry->head_dim; d++) {
                    uint16_t want = defined_v(geometry, weights, isa->fused, x, layer,
                                              (int64_t)head * geometry->head_dim + d);
                    ck_assert_msg(got[d] == want, "%s: V[%d, %lld, %d, %d] is 0x%04x, defined is 0x%04x",
                                  isa->name, (int)layer, (long long)t, (int)head, (int)d, got[d], want);
                }
            }
    }
    free(x);
    rig_close(&rig);
    rig_input_free(&input);
    random_weights_free(weights);
}

START_TEST(v_is_the_defined_chain_bit_for_bit)
{
    uint64_t state = seed + 2000 + (uint64_t)_i;
    struct kv_geometry geometry = random_geometry(&state);
    for (int32_t i = 0; kv_isa_at(i); i++) {
        const struct kv_isa *isa = kv_isa_at(i);
        if (isa->available()) check_v_bits(&geometry, isa, &state);
    }
}
END_TEST

/* Values that are not finite are computed with, and stay in their row. */
START_TEST(what_is_not_finite_stays_in_its_row)
{
    uint64_t state = seed + 3000 + (uint64_t)_i;
    struct kv_geometry geometry = random_geometry(&state);
    geometry.taps = 1;
    enum kv_input_kind kind = _i % 2 ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES;
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct rig_input input = rig_input_make(&geometry, kind, KV_F32, 40, &state);
    struct kv_ref clean_bases[16], dirty_bases[16];
    uint16_t clean_bits[1024], dirty_bits[1024];
    struct rig rig;
    rig_open(&rig, &kv_cpu_ops, open_with(kv_isa_best(), weights, 2), &geometry, 16 << 20);
    struct kv_item clean = rig_item(&rig, &input, NULL, input.rows, &(struct rig_layout){0}, clean_bases);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int64_t t = 5; t < 8; t++)
        memcpy(input.bytes + (t * input.columns + random_below(&state, input.columns)) * 4, &bad[t - 5], 4);
    struct kv_item dirty = rig_item(&rig, &input, NULL, input.rows, &(struct rig_layout){0}, dirty_bases);
    rig_run(&rig, &clean, 1);
    rig_run(&rig, &dirty, 1);
    for (int64_t t = 0; t < input.rows; t++)
        for (int32_t v = 0; v < 2; v++) {
            rig_head(&rig, &clean, v == 1, 0, t, 0, clean_bits);
            rig_head(&rig, &dirty, v == 1, 0, t, 0, dirty_bits);
            if (t < 5 || t > 7)
                ck_assert_mem_eq(clean_bits, dirty_bits, (size_t)geometry.head_dim * 2);
            else
                ck_assert(!isfinite(exact_from_bits(geometry.dtype, dirty_bits[0])));
        }
    rig_close(&rig);
    rig_input_free(&input);
    random_weights_free(weights);
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: the CPU's numbers");
    TCase *numbers = tcase_create("numbers");
    tcase_set_timeout(numbers, 300);
    tcase_add_loop_test(numbers, random_geometries_match_float64, 0, 12);
    tcase_add_test(numbers, named_head_dims_match_float64);
    tcase_add_loop_test(numbers, v_is_the_defined_chain_bit_for_bit, 0, 6);
    tcase_add_loop_test(numbers, what_is_not_finite_stays_in_its_row, 0, 4);
    suite_add_tcase(suite, numbers);
    return suite_run(suite);
}
