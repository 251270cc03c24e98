/* The parts: their bytes against the values that were stored, in pieces of any size and from two threads;
 * conversion; values that are not finite; and a fingerprint that knows the weights and nothing of how they
 * are stored. */
#include "tests/checkpoint_maker.h"
#include "tests/suite.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define ATTN(layer) "layers." #layer ".self_attn."

static struct made made;
static struct kv_findings findings;

static struct kv_checkpoint *open_changed(const char *config, const char *commands)
{
    made_begin(&made);
    made_config(&made, config);
    made_change(&made, commands);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", commands ? commands : "", made_report(&findings));
    return checkpoint;
}

static void end(struct kv_checkpoint *checkpoint)
{
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}

/* A whole part in pieces of this size. The buffer begins at an odd address. */
static unsigned char *pull(const struct kv_weights *weights, int32_t layer, enum kv_part part, size_t piece,
                           size_t *bytes)
{
    struct kv_error error = {0};
    *bytes = (size_t)kv_part_bytes(&weights->geometry, part);
    unsigned char *buffer = malloc(*bytes + 1);
    ck_assert_ptr_nonnull(buffer);
    for (size_t at = 0; at < *bytes; at += piece) {
        size_t some = *bytes - at < piece ? *bytes - at : piece;
        ck_assert_msg(weights->read(weights->source, layer, part, at, buffer + 1 + at, some, &error), "%s",
                      error.message);
    }
    return buffer;
}

/* The part is `count` values of a tensor from `first` on, rounded to the dtype that it is handed out in. */
static void check_part(const struct kv_weights *weights, int32_t layer, enum kv_part part, size_t piece,
                       enum kv_dtype dtype, const struct made_tensor *tensor, int64_t first)
{
    size_t bytes = 0;
    unsigned char *got = pull(weights, layer, part, piece, &bytes);
    int64_t count = (int64_t)(bytes / kv_dtype_bytes(dtype));
    ck_assert_int_gt(count, 0);
    ck_assert_int_le(first + count, tensor->count);
    for (int64_t i = 0; i < count; i++) {
        float stored = tensor->values[first + i], value;
        if (tensor->dtype == KV_BF16 || dtype == KV_BF16) stored = kv_bf16_to_f32(kv_f32_to_bf16(stored));
        if (tensor->dtype == KV_F16 || dtype == KV_F16) stored = kv_f16_to_f32(kv_f32_to_f16(stored));
        kv_to_f32(dtype, got + 1 + (size_t)i * kv_dtype_bytes(dtype), 1, &value);
        ck_assert_msg(value == stored, "part %d of layer %d, element %d: %g, not %g", (int)part, (int)layer,
                      (int)i, (double)value, (double)stored);
    }
    free(got);
}

static const size_t pieces[] = {1, 2, 3, 7, 64, 1000, 4096, 1u << 20};

START_TEST(parts_hold_what_is_stored)
{
    struct kv_checkpoint *checkpoint =
        open_changed(NULL, "biases; fc 2; dtype " ATTN(1) "k_norm.weight F32;"
                                                          "dtype hidden_norm.weight F16");
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    static const char *const names[] = {"k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias",
                                        "k_norm.weight"};
    size_t piece = pieces[_i], bytes = 0;
    for (int32_t layer = 0; layer < 3; layer++) {
        for (int32_t part = 0; part <= KV_PART_K_NORM; part++) {
            char name[KV_PARAM_BYTES];
            snprintf(name, sizeof name, "layers.%d.self_attn.%s", (int)layer, names[part]);
            check_part(&weights, layer, (enum kv_part)part, piece,
                       part <= KV_PART_V_WEIGHT ? KV_BF16 : KV_F32, made_find(&made, name), 0);
        }
        unsigned char *eps = pull(&weights, layer, KV_PART_EPS, piece, &bytes);
        float value;
        ck_assert_uint_eq(bytes, sizeof value);
        memcpy(&value, eps + 1, sizeof value);
        ck_assert_float_eq(value, 1e-6F);
        free(eps);
    }
    check_part(&weights, -1, KV_PART_FC, piece, KV_BF16, made_find(&made, "fc.weight"), 0);
    check_part(&weights, -1, KV_PART_HIDDEN_NORM, piece, KV_F32, made_find(&made, "hidden_norm.weight"), 0);
    free(pull(&weights, -1, KV_PART_INV_FREQ, piece, &bytes));
    ck_assert_uint_eq(bytes, 32);
    ck_assert(kv_checkpoint_finish(checkpoint));
    end(checkpoint);
}
END_TEST

START_TEST(parts_are_converted)
{
    static const struct {
        const char *dtype;
        enum kv_dtype stored, handed;
        const char *note;
    } cases[] = {{"F32", KV_F32, KV_BF16, "weights are F32: converted to BF16"},
                 {"F16", KV_F16, KV_F16, NULL}};
    for (size_t c = 0; c < 2; c++) {
        char commands[1024] = "fc 1; dtype fc.weight F32;", one[128];
        for (int32_t layer = 0; layer < 3; layer++) {
            size_t used = strlen(commands);
            snprintf(one, sizeof one, "layers.%d.self_attn.", (int)layer);
            snprintf(commands + used, sizeof commands - used,
                     "dtype %sk_proj.weight %s; dtype %sv_proj.weight %s;", one, cases[c].dtype, one,
                     cases[c].dtype);
        }
        struct kv_checkpoint *checkpoint = open_changed(NULL, commands);
        struct kv_weights weights = kv_checkpoint_weights(checkpoint);
        ck_assert_int_eq((int)weights.geometry.dtype, (int)cases[c].handed);
        check_part(&weights, 1, KV_PART_K_WEIGHT, pieces[_i], cases[c].handed,
                   made_find(&made, ATTN(1) "k_proj.weight"), 0);
        check_part(&weights, -1, KV_PART_FC, pieces[_i], cases[c].handed, made_find(&made, "fc.weight"), 0);
        if (cases[c].note) ck_assert_str_eq(kv_checkpoint_note(checkpoint, 0), cases[c].note);
        end(checkpoint);
    }
}
END_TEST

START_TEST(fused_rows_are_found)
{
    struct kv_checkpoint *checkpoint = open_changed(NULL, "biases; fuse 0; fuse 1; fuse 2");
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    const struct made_tensor *weight = made_find(&made, ATTN(2) "qkv_proj.weight");
    const struct made_tensor *bias = made_find(&made, ATTN(2) "qkv_proj.bias");
    check_part(&weights, 2, KV_PART_K_WEIGHT, 1000, KV_BF16, weight, 64 * 32);
    check_part(&weights, 2, KV_PART_V_WEIGHT, 1000, KV_BF16, weight, 96 * 32);
    check_part(&weights, 2, KV_PART_K_BIAS, 5, KV_F32, bias, 64);
    check_part(&weights, 2, KV_PART_V_BIAS, 5, KV_F32, bias, 96);
    end(checkpoint);
}
END_TEST

START_TEST(reading_out_of_order_is_a_fault)
{
    struct kv_error error = {0};
    unsigned char buffer[4096];
    struct kv_checkpoint *checkpoint = open_changed(NULL, NULL);
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    ck_assert(!weights.read(weights.source, 0, KV_PART_K_WEIGHT, 64, buffer, 64, &error));
    ck_assert_int_eq((int)error.fault, (int)KV_INTERNAL);
    ck_assert(!weights.read(weights.source, 0, KV_PART_K_WEIGHT, 0, buffer, 2049, NULL));
    ck_assert(!weights.read(weights.source, 0, KV_PART_K_BIAS, 0, buffer, 1, NULL));
    ck_assert(weights.read(weights.source, 0, KV_PART_K_WEIGHT, 0, buffer, 100, NULL));
    ck_assert(!weights.read(weights.source, 0, KV_PART_K_WEIGHT, 200, buffer, 100, NULL));
    ck_assert(!kv_checkpoint_finish(checkpoint)); /* not read to its end */
    ck_assert_ptr_nonnull(made_found(&findings, "internal", -1));
    end(checkpoint);
}
END_TEST

START_TEST(every_place_and_width_is_looked_at)
{
    static const char *const dtypes[] = {"BF16", "F16", "F32"};
    char commands[512];
    for (size_t d = 0; d < 3; d++) {
        for (int32_t at = 0; at < 67; at += d == 1 ? 1 : 6) {
            snprintf(
                commands, sizeof commands,
                "fc 1; dtype hidden_norm.weight %s; value hidden_norm.weight %d nan; value fc.weight %d inf",
                dtypes[d], (int)(at % 32), (int)at);
            struct kv_checkpoint *checkpoint = open_changed(NULL, commands);
            ck_assert(!kv_checkpoint_scan(checkpoint));
            ck_assert_msg(findings.count == 2, "%s:%s", commands, made_report(&findings));
            end(checkpoint);
        }
    }
}
END_TEST

static void fingerprint(const char *config, const char *commands, char to[KV_FINGERPRINT_BYTES])
{
    struct kv_description description = {0};
    struct kv_checkpoint *checkpoint = open_changed(config, commands);
    ck_assert_msg(kv_checkpoint_scan(checkpoint), "%s", made_report(&findings));
    kv_checkpoint_describe(checkpoint, &description);
    ck_assert_uint_eq(strlen(description.fingerprint), 32);
    memcpy(to, description.fingerprint, KV_FINGERPRINT_BYTES);
    end(checkpoint);
}

START_TEST(fingerprint_knows_what_k_and_v_depend_on)
{
    static const char *const ways[][2] = {
        {NULL, NULL},
        {NULL, "value " ATTN(1) "k_proj.weight 500 0.75"},
        {NULL, "value " ATTN(2) "v_proj.weight 1023 0.75"},
        {NULL, "value " ATTN(0) "k_norm.weight 15 0.75"},
        {NULL, "biases"},
        {NULL, "fc 1"},
        {NULL, "fc 1; value hidden_norm.weight 0 0.75"},
        {NULL, "rename " ATTN(0) "k_proj.weight x; rename " ATTN(1) "k_proj.weight " ATTN(
                   0) "k_proj.weight; rename x " ATTN(1) "k_proj.weight"},
        {"{\"rms_norm_eps\": 1e-5}", NULL},
        {"{\"rope_theta\": 999999}", NULL},
        {"{\"partial_rotary_factor\": 0.5}", NULL},
        {"{\"rope_is_neox_style\": false}", NULL},
        {"{\"attention_value_scale\": 0.5}", NULL},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 1, \"attention_factor\": 1.5}}", NULL},
        {"{\"num_hidden_layers\": 2}", NULL},
    };
    enum { WAYS = sizeof ways / sizeof ways[0] };
    static char prints[WAYS][KV_FINGERPRINT_BYTES];
    for (size_t i = 0; i < WAYS; i++) {
        fingerprint(ways[i][0], ways[i][1], prints[i]);
        for (size_t k = 0; k < i; k++)
            ck_assert_msg(strcmp(prints[i], prints[k]) != 0, "%d is as %d", (int)i, (int)k);
    }
}
END_TEST

struct half {
    struct kv_weights weights;
    int32_t first, last, step; /* layers */
};

static void *pull_half(void *argument)
{
    const struct half *half = argument;
    static const size_t sizes[2] = {4096, 17};
    size_t bytes = 0;
    for (int32_t layer = half->first; layer != half->last; layer += half->step)
        for (int32_t part = 0; part <= KV_PART_EPS; part++)
            free(pull(&half->weights, layer, (enum kv_part)part, sizes[half->first & 1], &bytes));
    for (int32_t part = KV_PART_FC + (half->first & 1); part < KV_PART_COUNT; part += 2)
        free(pull(&half->weights, -1, (enum kv_part)part, 33, &bytes));
    return NULL;
}

START_TEST(two_threads_and_any_order_give_the_same_fingerprint)
{
    char want[KV_FINGERPRINT_BYTES];
    static const char commands[] = "biases; fuse 1; fc 2; value " ATTN(1) "qkv_proj.weight 2048 0.5";
    struct kv_description description = {0};
    pthread_t threads[2];
    fingerprint(NULL, commands, want);
    struct kv_checkpoint *checkpoint = open_changed(NULL, commands);
    struct half halves[2] = {{kv_checkpoint_weights(checkpoint), 2, -2, -2},
                             {kv_checkpoint_weights(checkpoint), 1, 3, 2}};
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, pull_half, &halves[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    ck_assert_msg(kv_checkpoint_finish(checkpoint), "%s", made_report(&findings));
    kv_checkpoint_describe(checkpoint, &description);
    ck_assert_str_eq(description.fingerprint, want);
    end(checkpoint);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parts");
    TCase *tests = tcase_create("parts");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, parts_hold_what_is_stored, 0, (int)(sizeof pieces / sizeof pieces[0]));
    tcase_add_loop_test(tests, parts_are_converted, 0, (int)(sizeof pieces / sizeof pieces[0]));
    tcase_add_test(tests, fused_rows_are_found);
    tcase_add_test(tests, reading_out_of_order_is_a_fault);
    tcase_add_test(tests, every_place_and_width_is_looked_at);
    tcase_add_test(tests, fingerprint_knows_what_k_and_v_depend_on);
    tcase_add_test(tests, two_threads_and_any_order_give_the_same_fingerprint);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
