/* Inverse frequencies, yarn's ramp and attention factors. How they are spelt is in tests/vectors/accepted/.
 */
#include "server/rope.h"
#include "tests/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void frequencies(const struct kv_rope *rope, float *to)
{
    struct kv_error error = {0};
    ck_assert_msg(kv_rope_frequencies(rope, to, &error), "%s", error.message);
}

START_TEST(default_is_powers_of_theta)
{
    static const struct {
        double theta;
        int64_t rotary_dim;
    } cases[] = {{1e4, 64}, {1e6, 128}, {5e6, 64}, {1e7, 128}, {150000, 64}, {1e6, 80}, {5e4, 2}};
    float got[64];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct kv_rope rope = {.theta = cases[c].theta, .rotary_dim = cases[c].rotary_dim};
        frequencies(&rope, got);
        ck_assert_float_eq(got[0], 1);
        for (int64_t i = 0; i < rope.rotary_dim / 2; i++) {
            double want = pow(rope.theta, -2.0 * (double)i / (double)rope.rotary_dim);
            ck_assert_double_le(fabs((double)got[i] - want), 2e-6 * want);
        }
    }
}
END_TEST

START_TEST(linear_divides)
{
    float plain[32], got[32];
    struct kv_rope rope = {.theta = 10000, .rotary_dim = 64};
    frequencies(&rope, plain);
    rope.type = KV_ROPE_LINEAR;
    rope.factor = 4;
    frequencies(&rope, got);
    for (int i = 0; i < 32; i++) ck_assert_float_eq(got[i], plain[i] / 4);
}
END_TEST

static const struct kv_rope yarn = {.type = KV_ROPE_YARN,
                                    .theta = 1e7,
                                    .rotary_dim = 128,
                                    .factor = 64,
                                    .original_positions = 4096,
                                    .beta_fast = 32,
                                    .beta_slow = 1,
                                    .truncate = true};

START_TEST(yarn_ranges_are_the_published_ones)
{
    static const struct {
        double theta;
        int64_t rotary_dim;
        bool truncate;
        double low, high;
    } cases[] = {{1e7, 128, true, 11, 26},
                 {5e4, 128, true, 17, 39},
                 {150000, 64, true, 8, 18},
                 {150000, 64, false, 8.09, 17.40}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct kv_rope rope = yarn;
        double low, high;
        rope.theta = cases[c].theta;
        rope.rotary_dim = cases[c].rotary_dim;
        rope.truncate = cases[c].truncate;
        kv_rope_yarn_range(&rope, &low, &high);
        ck_assert_double_le(fabs(low - cases[c].low), cases[c].truncate ? 0 : 0.01);
        ck_assert_double_le(fabs(high - cases[c].high), cases[c].truncate ? 0 : 0.01);
    }
}
END_TEST

START_TEST(yarn_keeps_fast_pairs_and_divides_slow_ones)
{
    float plain[64], got[64];
    struct kv_rope rope = {.theta = 1e7, .rotary_dim = 128};
    frequencies(&rope, plain);
    frequencies(&yarn, got);
    for (int i = 0; i < 64; i++) {
        double ratio = (double)got[i] / (double)plain[i];
        double ramp = i <= 11 ? 0 : i >= 26 ? 1 : (i - 11) / 15.0;
        ck_assert_double_le(fabs(ratio - (ramp / 64 + (1 - ramp))), 1e-6);
    }
}
END_TEST

START_TEST(yarn_without_a_ramp_steps)
{
    float got[16];
    struct kv_rope rope = yarn; /* both bounds are clamped to the first dimension */
    rope.rotary_dim = 32;
    rope.original_positions = 1;
    frequencies(&rope, got);
    for (int i = 0; i < 16; i++) ck_assert(isfinite(got[i]));
    rope.theta = 1; /* every pair turns alike: there is no range */
    struct kv_error error = {0};
    ck_assert(!kv_rope_frequencies(&rope, got, &error));
    ck_assert_int_eq((int)error.fault, (int)KV_CONFIG_INVALID);
}
END_TEST

START_TEST(yarn_attention_factors)
{
    ck_assert_double_eq(kv_rope_yarn_attention(64, 0, 0), 1.4158883083359672);
    ck_assert_double_eq(kv_rope_yarn_attention(64, 1, 1), 1.0);
    ck_assert_double_eq(kv_rope_yarn_attention(64, 1, 0), 1.4158883083359672);
    ck_assert_double_eq(kv_rope_yarn_attention(64, 0.5, 0), 1.4158883083359672);
    ck_assert_double_eq(kv_rope_yarn_attention(64, 0, 0.5), 1.4158883083359672);
    ck_assert_double_eq(kv_rope_yarn_attention(8, 0, 0), 1.2079441541679836);
    ck_assert_double_eq(kv_rope_yarn_attention(1, 0, 0), 1.0);
    ck_assert_double_eq(kv_rope_yarn_attention(64, 0.5, 1), (0.05 * log(64) + 1) / (0.1 * log(64) + 1));
}
END_TEST

START_TEST(llama3_keeps_fast_divides_slow_and_blends)
{
    float plain[32], got[32];
    struct kv_rope rope = {.theta = 500000, .rotary_dim = 64};
    frequencies(&rope, plain);
    rope = (struct kv_rope){.type = KV_ROPE_LLAMA3,
                            .theta = 500000,
                            .rotary_dim = 64,
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 512};
    frequencies(&rope, got);
    int kept = 0, divided = 0, blended = 0;
    for (int i = 0; i < 32; i++) {
        double wave = 6.283185307179586 / (double)plain[i], smooth = (512 / wave - 1) / 3;
        double want = wave < 128   ? (double)plain[i]
                      : wave > 512 ? (double)plain[i] / 8
                                   : (1 - smooth) * (double)plain[i] / 8 + smooth * (double)plain[i];
        ck_assert_double_le(fabs((double)got[i] - want), 2e-6 * want);
        if (wave < 128)
            kept++;
        else if (wave > 512)
            divided++;
        else
            blended++;
    }
    ck_assert_int_gt(kept, 0);
    ck_assert_int_gt(divided, 0);
    ck_assert_int_gt(blended, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rope");
    TCase *numbers = tcase_create("numbers");
    tcase_add_test(numbers, default_is_powers_of_theta);
    tcase_add_test(numbers, linear_divides);
    tcase_add_test(numbers, yarn_ranges_are_the_published_ones);
    tcase_add_test(numbers, yarn_keeps_fast_pairs_and_divides_slow_ones);
    tcase_add_test(numbers, yarn_without_a_ramp_steps);
    tcase_add_test(numbers, yarn_attention_factors);
    tcase_add_test(numbers, llama3_keeps_fast_divides_slow_and_blends);
    suite_add_tcase(suite, numbers);
    return suite_run(suite);
}
