/* The parts of the commands that have no command line: differences, noise, options, files that appear
 * whole. */
#include "client/compare.h"
#include "client/decode.h"
#include "client/input.h"
#include "client/model_shape.h"
#include "client/noise.h"
#include "client/output.h"
#include "client/usage.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kv_view view_of(enum kv_dtype dtype, const void *data, int64_t count)
{
    return (struct kv_view){dtype, 1, {count}, data, (uint64_t)count * kv_dtype_bytes(dtype)};
}

static struct kv_difference measure(const float *a, const float *b, int64_t count)
{
    struct kv_difference found;
    struct kv_view x = view_of(KV_F32, a, count), y = view_of(KV_F32, b, count);
    kv_difference_measure(&found, &x, &y);
    return found;
}

START_TEST(differences_are_measured)
{
    const float a[] = {3, 4, 0}, b[] = {3, 4, 1}, zero[3] = {0}, minus[] = {-0.0f, 0, 0};
    struct kv_difference found = measure(a, b, 3);
    ck_assert_double_eq_tol(found.rel_l2, 1 / sqrt(26), 1e-12);
    ck_assert_double_eq(found.max_abs, 1);
    ck_assert_uint_eq(found.differing, 1);
    ck_assert_double_eq(measure(a, a, 3).rel_l2, 0);
    ck_assert_double_eq(measure(zero, zero, 3).rel_l2, 0);
    ck_assert(isinf(measure(a, zero, 3).rel_l2));
    ck_assert_double_eq(measure(zero, a, 3).rel_l2, 1);
    ck_assert_uint_eq(measure(zero, minus, 3).differing, 1);
    ck_assert_double_eq(measure(zero, minus, 3).rel_l2, 0);
    ck_assert_double_eq(measure(NULL, NULL, 0).rel_l2, 0);
}
END_TEST

START_TEST(nan_and_infinity_are_seen)
{
    const float a[] = {1, NAN, INFINITY, -INFINITY, 2}, b[] = {1, NAN, INFINITY, -INFINITY, 2};
    const float c[] = {1, 0, INFINITY, INFINITY, NAN};
    ck_assert_uint_eq(measure(a, b, 5).broken, 0);
    ck_assert_uint_eq(measure(a, c, 5).broken, 3);
    ck_assert_uint_eq(measure(c, a, 5).broken, 3);
}
END_TEST

START_TEST(dtypes_compare_by_value)
{
    enum { COUNT = 3000 };
    static float wide[COUNT];
    static uint16_t narrow[COUNT];
    static double widest[COUNT];
    struct kv_difference found;
    for (int i = 0; i < COUNT; i++)
        widest[i] = (double)(wide[i] = (float)i / 8), narrow[i] = kv_f32_to_f16(wide[i]);
    struct kv_view x = view_of(KV_F16, narrow, COUNT), y = view_of(KV_F64, widest, COUNT);
    kv_difference_measure(&found, &x, &y);
    /* F16 holds eighths up to 256, hence all of the first 2049 and the quarters after them. */
    ck_assert_uint_eq(found.elements, COUNT);
    ck_assert_uint_eq(found.differing, (COUNT - 2049 + 1) / 2);
    ck_assert(found.rel_l2 > 0 && found.rel_l2 < 5e-4);
    const int64_t p[] = {1, 2, 3}, q[] = {1, 5, 3};
    struct kv_view u = view_of(KV_I64, p, 3), v = view_of(KV_I64, q, 3);
    kv_difference_measure(&found, &u, &v);
    ck_assert_uint_eq(found.differing, 1);
    ck_assert(isinf(found.rel_l2));
}
END_TEST

START_TEST(noise_is_near_normal)
{
    enum { COUNT = 200000 };
    float *values = malloc(COUNT * sizeof *values), *again = malloc(COUNT * sizeof *again);
    ck_assert(values && again);
    struct kv_noise noise = kv_noise_open(5, "k"), same = kv_noise_open(5, "k"),
                    other = kv_noise_open(5, "v");
    kv_noise_fill(&noise, KV_F32, 2, 3, COUNT, values);
    double sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) {
        sum += (double)values[i];
        squares += ((double)values[i] - 2) * ((double)values[i] - 2);
    }
    ck_assert_double_eq_tol(sum / COUNT, 2, 0.05);
    ck_assert_double_eq_tol(sqrt(squares / COUNT), 3, 0.05);
    /* The same values however they are cut into pieces. */
    kv_noise_fill(&same, KV_F32, 2, 3, 1, again);
    kv_noise_fill(&same, KV_F32, 2, 3, 1500, again + 1);
    kv_noise_fill(&same, KV_F32, 2, 3, COUNT - 1501, again + 1501);
    ck_assert_mem_eq(values, again, COUNT * sizeof *values);
    kv_noise_fill(&other, KV_F32, 2, 3, COUNT, again);
    ck_assert_mem_ne(values, again, 4096);
    free(values);
    free(again);
}
END_TEST

struct values {
    const char *text, *word;
    int64_t integer;
    double real;
    bool flag, given;
};

static enum kv_parsed parse(struct values *to, int argc, char **argv, const char **operands, int32_t *count,
                            struct kv_error *err)
{
    const struct kv_option options[] = {
        {"--text", "T", KV_OPTION_TEXT, &to->text, 0, 0, NULL, "t", NULL},
        {"--word", NULL, KV_OPTION_CHOICE, &to->word, 0, 0, "one|two", "w", NULL},
        {"--integer", "N", KV_OPTION_INTEGER, &to->integer, -5, 5, NULL, "n", &to->given},
        {"--real", "X", KV_OPTION_REAL, &to->real, 0, 1, NULL, "x", NULL},
        {"--flag", NULL, KV_OPTION_FLAG, &to->flag, 0, 0, NULL, "f", NULL},
    };
    const struct kv_usage usage = {"test", "A B", "s", options, 5, 1, 2, NULL};
    return kv_usage_parse(&usage, argc, argv, operands, count, err);
}

START_TEST(options_are_read)
{
    char *argv[] = {"test", "a",      "--text=x=y", "--integer", "-5", "--real",
                    "0.25", "--word", "two",        "--flag",    "--", "--b"};
    struct values values = {0};
    const char *operands[2] = {NULL, NULL};
    int32_t count = 0;
    ck_assert_int_eq(parse(&values, 12, argv, operands, &count, NULL), KV_PARSED_RUN);
    ck_assert_int_eq(count, 2);
    ck_assert_str_eq(operands[1], "--b");
    ck_assert_str_eq(values.text, "x=y");
    ck_assert_str_eq(values.word, "two");
    ck_assert(values.integer == -5 && values.given && values.flag);
    ck_assert_double_eq(values.real, 0.25);
}
END_TEST

static char *wrong[] = {"--integer=6",    "--integer=", "--integer=1.0", "--integer=1 ", "--integer=0x1",
                        "--real=nan",     "--real=inf", "--real=1.01",   "--real=.",     "--word=three",
                        "--word=one|two", "--word=",    "--text=",       "--flag=1",     "--no",
                        "--text",         "-x"};

START_TEST(wrong_options_are_refused)
{
    char *argv[] = {"test", "a", wrong[_i]};
    struct values values = {0};
    const char *operands[2] = {NULL, NULL};
    struct kv_error err = {0};
    ck_assert_int_eq(parse(&values, 3, argv, operands, NULL, &err), KV_PARSED_WRONG);
    ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
    ck_assert(strstr(err.message, "--") || strstr(err.message, "-x"));
}
END_TEST

START_TEST(a_file_appears_whole_or_not_at_all)
{
    char path[] = "/tmp/kvmat-output-XXXXXX", byte = 'x';
    ck_assert_int_ge(mkstemp(path), 0);
    struct kv_output output = {0};
    struct kv_input_file file = {0};
    struct kv_error err = {0};
    ck_assert_msg(kv_output_open(&output, path, 5000, &err), "%s", err.message);
    ck_assert(kv_output_write(&output, "abc", 3, &err));
    kv_output_close(&output);
    ck_assert(kv_input_file_open(&file, path, NULL));
    ck_assert_uint_eq(file.size, 0);
    kv_input_file_close(&file);

    char *large = calloc(1, 3 << 20);
    ck_assert_ptr_nonnull(large);
    ck_assert(kv_output_open(&output, path, 5000, &err));
    ck_assert(kv_output_write(&output, "abc", 3, &err) && kv_output_write(&output, large, 3 << 20, &err));
    for (int i = 0; i < 3000; i++) ck_assert(kv_output_write(&output, &byte, 1, &err));
    ck_assert(kv_output_finish(&output, &err) && kv_output_place(&output, &err));
    char temporary[KV_OUTPUT_PATH_BYTES];
    memcpy(temporary, output.temporary, sizeof temporary);
    kv_output_close(&output);
    ck_assert_int_ne(access(temporary, F_OK), 0);
    ck_assert(kv_input_file_open(&file, path, NULL));
    ck_assert_uint_eq(file.size, 3 + (3 << 20) + 3000);
    ck_assert_mem_eq(file.bytes, "abc", 3);
    ck_assert_int_eq(((const char *)file.bytes)[file.size - 1], 'x');
    kv_input_file_close(&file);
    free(large);
    unlink(path);
}
END_TEST

START_TEST(a_device_is_not_replaced)
{
    struct kv_output output = {0};
    struct kv_error err = {0};
    struct stat info;
    ck_assert_msg(kv_output_open(&output, "/dev/null", 100, &err), "%s", err.message);
    ck_assert(kv_output_write(&output, "abc", 3, &err));
    ck_assert(kv_output_finish(&output, &err) && kv_output_place(&output, &err));
    kv_output_close(&output);
    ck_assert_int_eq(stat("/dev/null", &info), 0);
    ck_assert(S_ISCHR(info.st_mode));
    ck_assert(kv_output_open(&output, "/dev/full", 0, &err));
    ck_assert(kv_output_write(&output, "abc", 3, &err));
    ck_assert(!kv_output_finish(&output, &err));
    ck_assert_int_eq(err.fault, KV_FILE_UNUSABLE);
    kv_output_close(&output);
    ck_assert(!kv_output_open(&output, "/tmp", 0, NULL));
    kv_output_close(&output);
}
END_TEST

/* A reader multiplies and truncates; whatever part is asked for must come out. */
START_TEST(a_partial_factor_gives_its_dim)
{
    struct kv_model_shape shape = {.layers = 1,
                                   .hidden = 8,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .positions = 9,
                                   .theta = 1e4,
                                   .eps = 1e-6,
                                   .value_scale = 1,
                                   .shards = 1};
    char text[KV_CONFIG_BYTES];
    for (shape.head_dim = 4; shape.head_dim <= 256; shape.head_dim += 2) {
        for (shape.rotary_dim = 2; shape.rotary_dim < shape.head_dim; shape.rotary_dim += 2) {
            kv_model_shape_config(&shape, text, sizeof text);
            const char *at = strstr(text, "\"partial_rotary_factor\": ");
            ck_assert_ptr_nonnull(at);
            double factor = strtod(at + 25, NULL);
            ck_assert_int_eq((int64_t)((double)shape.head_dim * factor), shape.rotary_dim);
        }
    }
}
END_TEST

START_TEST(configs_are_read)
{
    static const char nested[] = "{\"transformer_layer_config\": {\"hidden_size\": 7}}",
                      bad[] = "{\"hidden_size\": \"7\"}";
    int64_t hidden = 0;
    int32_t taps = 9;
    struct kv_error err = {0};
    ck_assert(kv_config_decode(nested, sizeof nested - 1, &hidden, &taps, NULL));
    ck_assert(hidden == 7 && taps == 0);
    ck_assert(!kv_config_decode(bad, sizeof bad - 1, &hidden, &taps, &err));
    ck_assert_int_eq(err.fault, KV_CONFIG_MISSING_KEY);
    err = (struct kv_error){0};
    ck_assert(!kv_config_decode("{", 1, &hidden, &taps, &err));
    ck_assert_int_eq(err.fault, KV_CONFIG_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client command");
    TCase *tests = tcase_create("command");
    tcase_add_test(tests, differences_are_measured);
    tcase_add_test(tests, nan_and_infinity_are_seen);
    tcase_add_test(tests, dtypes_compare_by_value);
    tcase_add_test(tests, noise_is_near_normal);
    tcase_add_test(tests, options_are_read);
    tcase_add_loop_test(tests, wrong_options_are_refused, 0, (int)(sizeof wrong / sizeof *wrong));
    tcase_add_test(tests, a_file_appears_whole_or_not_at_all);
    tcase_add_test(tests, a_device_is_not_replaced);
    tcase_add_test(tests, a_partial_factor_gives_its_dim);
    tcase_add_test(tests, configs_are_read);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
