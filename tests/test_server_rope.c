/* Inverse frequencies, yarn's ramp and attention factors, and that every spelling of the same RoPE means the
 * same. */
#include "server/rope.h"

#include "tests/checkpoint_maker.h"

#include <check.h>
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

/* Opens the base with this config and returns what it says of RoPE. */
struct said {
    float inv_freq[8];
    struct kv_rope_info info;
    struct kv_geometry geometry;
};

static struct said say(const char *patch, double theta, double attention_factor)
{
    struct said said = {.inv_freq = {0}};
    struct made made;
    struct kv_findings findings;
    struct kv_error error = {0};
    struct kv_description description = {0};
    struct kv_checkpoint_options options = {.rope_theta = theta, .attention_factor = attention_factor};
    made_begin(&made);
    made_config(&made, patch);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), &options, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", patch, made_report(&findings));
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    size_t bytes = (size_t)weights.geometry.rotary_dim / 2 * sizeof(float);
    ck_assert(weights.read(weights.source, -1, KV_PART_INV_FREQ, 0, said.inv_freq, bytes, &error));
    kv_checkpoint_describe(checkpoint, &description);
    said.info = description.rope;
    said.geometry = description.geometry;
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
    return said;
}

#define YARN "\"factor\": 4, \"original_max_position_embeddings\": 1024"

START_TEST(spellings_mean_the_same)
{
    static const char *const patches[] = {
        "{\"rope_theta\": 50000, \"rope_scaling\": {\"rope_type\": \"yarn\", " YARN "}}",
        "{\"rope_theta\": 50000.0, \"rope_scaling\": {\"type\": \"yarn\", " YARN "}}",
        "{\"rope_theta\": null, \"rope_scaling\": {\"rope_type\": \"yarn\", \"rope_theta\": 5e4, " YARN "}}",
        "{\"rope_theta\": null, \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 50000, " YARN
        "}}",
        "{\"rope_theta\": 50000, \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 50000, " YARN
        "}}",
        "{\"rope_theta\": 50000, \"rope_parameters\": {\"rope_type\": \"yarn\", " YARN "}}",
        "{\"rope_theta\": 10000, \"dflash_config\": {\"backbone_rotary_base\": 50000},"
        " \"rope_scaling\": {\"type\": \"yarn\", " YARN "}}",
        ("{\"rope_theta\": null, \"layer_types\": [\"a\", \"b\", \"a\"], \"rope_parameters\": {"
         "\"a\": {\"rope_type\": \"yarn\", \"rope_theta\": 50000, " YARN "},"
         "\"b\": {\"type\": \"yarn\", \"rope_theta\": 50000.0, \"beta_fast\": 32, " YARN "}}}"),
        "{\"rope_theta\": 50000, \"original_max_position_embeddings\": 1024, \"partial_rotary_factor\": 1.0,"
        " \"rope_is_neox_style\": true, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
        "\"truncate\": true}}",
        "{\"rope_theta\": 50000, \"max_position_embeddings\": 1024,"
        " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"attention_factor\": null}}",
    };
    struct said first = say(patches[0], 0, -1);
    ck_assert_str_eq(first.info.type, "yarn");
    ck_assert_double_eq(first.info.theta, 50000);
    ck_assert_double_eq(first.info.attention_factor, 1.138629436111989);
    for (size_t i = 1; i < sizeof patches / sizeof patches[0]; i++) {
        struct said other = say(patches[i], 0, -1);
        ck_assert_mem_eq(first.inv_freq, other.inv_freq, sizeof first.inv_freq);
        ck_assert_double_eq(other.info.theta, 50000);
        ck_assert_double_eq(other.info.attention_factor, first.info.attention_factor);
        ck_assert_float_eq(other.geometry.attention_factor, first.geometry.attention_factor);
    }
}
END_TEST

START_TEST(attention_factor_is_what_is_said_first)
{
    static const struct {
        const char *extra;
        double option, want;
    } cases[] = {
        {"", -1, 1.4158883083359672},
        {", \"mscale\": 1.0, \"mscale_all_dim\": 1.0", -1, 1},
        {", \"mscale\": 1.0, \"mscale_all_dim\": 0", -1, 1.4158883083359672},
        {", \"mscale\": 1.0", -1, 1.4158883083359672},
        {", \"attention_factor\": 1.7, \"mscale\": 1, \"mscale_all_dim\": 1", -1, 1.7},
        {", \"attention_factor\": 0.0", -1, 0},
        {", \"attention_factor\": null", -1, 1.4158883083359672},
        {", \"attention_factor\": 1.7", 0, 0},
        {", \"mscale\": 1.0, \"mscale_all_dim\": 1.0", 1.41589, 1.41589},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char patch[512];
        snprintf(patch, sizeof patch,
                 "{\"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 64, "
                 "\"original_max_position_embeddings\": 4096%s}}",
                 cases[i].extra);
        struct said said = say(patch, 0, cases[i].option);
        ck_assert_double_eq(said.info.attention_factor, cases[i].want);
        ck_assert_float_eq(said.geometry.attention_factor, (float)cases[i].want);
    }
    ck_assert_float_eq(say("{}", 0, 0.5).geometry.attention_factor, 0.5F);
}
END_TEST

START_TEST(theta_is_what_overrides)
{
    static const char both[] = "{\"rope_theta\": 10000, \"rope_parameters\": {\"rope_theta\": 1000000.0}}";
    static const char mimo[] = "{\"rope_theta\": 10000, \"partial_rotary_factor\": 0.5,"
                               " \"dflash_config\": {\"backbone_rotary_base\": 5000000}}";
    ck_assert_double_eq(say(both, 1e6, -1).info.theta, 1e6);
    ck_assert_double_eq(say(both, 1234, -1).info.theta, 1234);
    ck_assert_double_eq(say("{\"rope_theta\": null}", 7e5, -1).info.theta, 7e5);
    struct said said = say(mimo, 0, -1);
    ck_assert_double_eq(said.info.theta, 5e6);
    ck_assert_int_eq(said.geometry.rotary_dim, 8);
    ck_assert_float_eq_tol(said.inv_freq[3], (float)pow(5e6, -6.0 / 8), 1e-11F);
    ck_assert_double_eq(say(mimo, 1e4, -1).info.theta, 1e4);
}
END_TEST

START_TEST(partial_and_pairing_in_every_place)
{
    static const char *const halves[] = {
        "{\"partial_rotary_factor\": 0.5}",
        "{\"rope_parameters\": {\"partial_rotary_factor\": 0.5, \"rope_theta\": 1e6}}",
        "{\"rope_scaling\": {\"partial_rotary_factor\": 0.5, \"rope_type\": \"default\"}}",
        "{\"partial_rotary_factor\": 0.5, \"rotary_dim\": 8}",
    };
    static const char *const interleaved[] = {
        "{\"rope_is_neox_style\": false}",
        "{\"is_neox_style\": false}",
        "{\"dflash_config\": {\"is_neox_style\": false}}",
        "{\"rope_parameters\": {\"rope_is_neox_style\": false, \"rope_theta\": 1e6}}",
    };
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++)
        ck_assert_int_eq(say(halves[i], 0, -1).geometry.rotary_dim, 8);
    for (size_t i = 0; i < sizeof interleaved / sizeof interleaved[0]; i++) {
        struct said said = say(interleaved[i], 0, -1);
        ck_assert(said.geometry.interleaved && said.info.interleaved);
    }
    ck_assert_int_eq(say("{\"partial_rotary_factor\": 0.3}", 0, -1).geometry.rotary_dim, 4); /* 4.8, truncated
                                                                                              */
    ck_assert(!say("{\"rope_is_neox_style\": true}", 0, -1).geometry.interleaved);
    ck_assert(!say("{\"rope_is_neox_style\": null}", 0, -1).geometry.interleaved);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rope");
    TCase *numbers = tcase_create("numbers"), *spellings = tcase_create("spellings");
    tcase_add_test(numbers, default_is_powers_of_theta);
    tcase_add_test(numbers, linear_divides);
    tcase_add_test(numbers, yarn_ranges_are_the_published_ones);
    tcase_add_test(numbers, yarn_keeps_fast_pairs_and_divides_slow_ones);
    tcase_add_test(numbers, yarn_without_a_ramp_steps);
    tcase_add_test(numbers, yarn_attention_factors);
    tcase_add_test(numbers, llama3_keeps_fast_divides_slow_and_blends);
    tcase_add_test(spellings, spellings_mean_the_same);
    tcase_add_test(spellings, attention_factor_is_what_is_said_first);
    tcase_add_test(spellings, theta_is_what_overrides);
    tcase_add_test(spellings, partial_and_pairing_in_every_place);
    suite_add_tcase(suite, numbers);
    suite_add_tcase(suite, spellings);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
