/* Checkpoints as wholes: every golden folder opens with the geometry that its case.json says, and every fault
 * of tensors and files is found, with layer, tensor, expected and got. */
#include "tests/checkpoint_maker.h"

#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char vectors[] = "tests/vectors";

static int64_t number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    ck_assert_msg(json_is_integer(value), "case.json has no %s", key);
    return json_integer_value(value);
}

static void check_golden(const char *name)
{
    char path[512];
    struct kv_findings findings;
    struct kv_description got = {0};
    snprintf(path, sizeof path, "%s/%.100s/case.json", vectors, name);
    json_t *want = json_load_file(path, 0, NULL);
    ck_assert_msg(want != NULL, "%s", path);
    snprintf(path, sizeof path, "%s/%.100s", vectors, name);
    struct kv_checkpoint *checkpoint = made_open(path, NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", name, made_report(&findings));
    ck_assert_msg(kv_checkpoint_scan(checkpoint), "%s:%s", name, made_report(&findings));
    kv_checkpoint_describe(checkpoint, &got);
    const json_t *rope = json_object_get(want, "rope");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    ck_assert_int_eq(got.geometry.layers, number(want, "L"));
    ck_assert_int_eq(got.geometry.hidden, number(want, "H"));
    ck_assert_int_eq(got.geometry.kv_heads, number(want, "Hkv"));
    ck_assert_int_eq(got.geometry.head_dim, number(want, "D"));
    ck_assert_int_eq(got.geometry.rotary_dim, number(want, "rotary_dim"));
    ck_assert_int_eq(got.geometry.k_norm, json_is_true(json_object_get(want, "k_norm")));
    ck_assert_int_eq(got.geometry.k_bias, json_is_true(json_object_get(want, "bias")));
    ck_assert_int_eq(got.geometry.v_bias, json_is_true(json_object_get(want, "bias")));
    ck_assert_int_eq(got.geometry.interleaved, json_is_true(json_object_get(want, "interleaved")));
    ck_assert_double_eq(got.rope.attention_factor,
                        json_number_value(json_object_get(want, "attention_scaling")));
    ck_assert_double_eq(got.rope.theta, json_number_value(json_object_get(rope, "rope_theta")));
    ck_assert_str_eq(got.rope.type, type);
    ck_assert_int_eq((int)got.geometry.dtype, (int)(strstr(name, "fp16") ? KV_F16 : KV_BF16));
    ck_assert_int_eq(got.geometry.taps, strstr(name, "target_hidden") ? 5 : 0);
    ck_assert_float_eq(got.geometry.value_scale, strstr(name, "mimo") ? 0.612F : 1);
    ck_assert_float_eq(got.eps[got.geometry.layers - 1],
                       strstr(name, "mimo") || strstr(name, "gpt_oss") ? 1e-5F : 1e-6F);
    ck_assert_uint_eq(strlen(got.fingerprint), 32);
    json_decref(want);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
}

START_TEST(goldens_open_as_their_cases_say)
{
    int32_t count = 0;
    DIR *folder = opendir(vectors);
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%.200s/case.json", vectors, entry->d_name);
        if (access(path, R_OK) != 0) continue;
        check_golden(entry->d_name);
        count++;
    }
    closedir(folder);
    ck_assert_int_ge(count, 26);
}
END_TEST

#define ATTN(layer) "layers." #layer ".self_attn."
#define NORMS_8                                                                                              \
    "shape " ATTN(0) "k_norm.weight 8; shape " ATTN(1) "k_norm.weight 8; shape " ATTN(2) "k_norm.weight 8;"
#define ROWS(layer, rows)                                                                                    \
    "shape " ATTN(layer) "k_proj.weight " #rows ",32; shape " ATTN(layer) "v_proj.weight " #rows ",32;"
#define NO_V "drop " ATTN(0) "v_proj.weight; drop " ATTN(1) "v_proj.weight; drop " ATTN(2) "v_proj.weight"

static const struct made_case cases[] = {
    /* missing */
    {NULL, "drop " ATTN(1) "k_proj.weight", "weights_missing_tensor", 1, ATTN(1) "k_proj.weight", NULL, NULL,
     1},
    {NULL, "drop " ATTN(2) "v_proj.weight", "weights_missing_tensor", 2, ATTN(2) "v_proj.weight", NULL, NULL,
     1},
    {NULL, "drop " ATTN(1) "k_norm.weight", "weights_missing_tensor", 1, ATTN(1) "k_norm.weight", NULL, NULL,
     1},
    {"{\"num_hidden_layers\": 4}", NULL, "weights_missing_tensor", 3, ATTN(3) "k_proj.weight", NULL, NULL, 3},
    {"{\"attention_bias\": true}", NULL, "weights_missing_tensor", 2, ATTN(2) "v_proj.bias", NULL, NULL, 6},
    {NULL, "biases; drop " ATTN(1) "k_proj.bias", "weights_missing_tensor", 1, ATTN(1) "k_proj.bias", NULL,
     NULL, 1},
    {NULL, "add fc.weight BF16 32,64", "weights_missing_tensor", -1, "hidden_norm.weight", NULL, NULL, 1},
    /* twice */
    {NULL, "add model." ATTN(1) "k_proj.weight BF16 32,32", "weights_duplicate_tensor", 1,
     "model." ATTN(1) "k_proj.weight", "1", "2", 1},
    {NULL, "add " ATTN(1) "qkv_proj.weight BF16 128,32", "weights_duplicate_tensor", 1,
     ATTN(1) "v_proj.weight", NULL, NULL, 2},
    {NULL, "fc 2; add model.fc.weight BF16 32,64", "weights_duplicate_tensor", -1, "model.fc.weight", NULL,
     NULL, 1},
    /* layers against layer 0 */
    {NULL, "shape " ATTN(2) "k_norm.weight 8", "head_dim_mismatch", 2, ATTN(2) "k_norm.weight", "16", "8", 4},
    {NULL, "shape " ATTN(2) "k_norm.weight 8", "k_norm_shape_mismatch", 2, ATTN(2) "k_norm.weight", "[16]",
     "[8]", 4},
    {NULL, "shape " ATTN(2) "k_norm.weight 8", "num_kv_heads_mismatch", 2, ATTN(2) "k_proj.weight", "2", "4",
     4},
    {NULL, "shape " ATTN(2) "k_norm.weight 8;" ROWS(2, 16), "head_dim_mismatch", 2, ATTN(2) "k_norm.weight",
     "16", "8", 2},
    {NULL, ROWS(1, 64), "num_kv_heads_mismatch", 1, ATTN(1) "k_proj.weight", "2", "4", 2},
    {NULL, ROWS(1, 64), "num_kv_heads_mismatch", 1, ATTN(1) "v_proj.weight", "2", "4", 2},
    {NULL, "shape " ATTN(2) "v_proj.weight 16,32", "num_kv_heads_mismatch", 2, ATTN(2) "v_proj.weight", "2",
     "1", 1},
    {NULL, "shape " ATTN(0) "v_proj.weight 16,32", "num_kv_heads_mismatch", 0, ATTN(0) "v_proj.weight", "2",
     "1", 1},
    {NULL, "shape " ATTN(1) "k_proj.weight 24,32", "num_kv_heads_mismatch", 1, ATTN(1) "k_proj.weight", "2",
     "1.5", 2},
    {NULL, "shape " ATTN(1) "k_proj.weight 24,32", "weights_shape_mismatch", 1, ATTN(1) "k_proj.weight",
     "[32, 32]", "[24, 32]", 2},
    /* all layers against the config */
    {"{\"num_key_value_heads\": 4}", NULL, "weights_shape_mismatch", 0, ATTN(0) "k_proj.weight", "[64, 32]",
     "[32, 32]", 1},
    {"{\"num_key_value_heads\": null}", NULL, "weights_shape_mismatch", 0, ATTN(0) "k_proj.weight",
     "[64, 32]", "[32, 32]", 1},
    {NULL, NORMS_8, "weights_shape_mismatch", 0, ATTN(0) "k_norm.weight", "[16]", "[8]", 4},
    {NULL, NORMS_8, "k_norm_shape_mismatch", 1, ATTN(1) "k_norm.weight", "[16]", "[8]", 4},
    {"{\"head_dim\": null}", NULL, "k_norm_shape_mismatch", 0, ATTN(0) "k_norm.weight", "[8]", "[16]", 0},
    {NULL, "shape " ATTN(1) "k_norm.weight 2,16", "k_norm_shape_mismatch", 1, ATTN(1) "k_norm.weight", "[16]",
     "[2, 16]", 1},
    {NULL, "shape " ATTN(1) "k_norm.weight 32", "k_norm_shape_mismatch", 1, ATTN(1) "k_norm.weight", "[16]",
     "[32]", 0},
    {"{\"hidden_size\": 48}", NULL, "weights_shape_mismatch", 2, ATTN(2) "v_proj.weight", "[32, 48]",
     "[32, 32]", 6},
    {NULL, "shape " ATTN(1) "v_proj.weight 32,2,16", "weights_shape_mismatch", 1, ATTN(1) "v_proj.weight",
     "[32, 32]", "[32, 2, 16]", 1},
    {NULL, "shape " ATTN(1) "v_proj.weight 0,32", "weights_shape_mismatch", 1, ATTN(1) "v_proj.weight",
     "[32, 32]", "[0, 32]", 1},
    {NULL, "biases; shape " ATTN(1) "v_proj.bias 16", "weights_shape_mismatch", 1, ATTN(1) "v_proj.bias",
     "[32]", "[16]", 1},
    {NULL, "biases; shape " ATTN(1) "k_proj.bias 32,1", "weights_shape_mismatch", 1, ATTN(1) "k_proj.bias",
     "[32]", "[32, 1]", 1},
    /* fused */
    {NULL, "fuse 0; fuse 1; fuse 2; shape " ATTN(1) "qkv_proj.weight 64,32", "weights_shape_mismatch", 1,
     ATTN(1) "qkv_proj.weight", "[128, 32]", "[64, 32]", 1},
    {NULL, "fuse 0; fuse 1; fuse 2; shape " ATTN(1) "qkv_proj.weight 192,32", "num_kv_heads_mismatch", 1,
     ATTN(1) "qkv_proj.weight", "2", "4", 2},
    {"{\"num_key_value_heads\": 4}", "fuse 0; fuse 1; fuse 2", "weights_shape_mismatch", 0,
     ATTN(0) "qkv_proj.weight", "[192, 32]", "[128, 32]", 1},
    {NULL, "biases; fuse 0; fuse 1; fuse 2; shape " ATTN(2) "qkv_proj.bias 96", "weights_shape_mismatch", 2,
     ATTN(2) "qkv_proj.bias", "[128]", "[96]", 1},
    /* fc */
    {NULL, "fc 2; shape fc.weight 32,48", "weights_shape_mismatch", -1, "fc.weight", "[32, any]", "[32, 48]",
     1},
    {NULL, "fc 2; shape fc.weight 16,64", "weights_shape_mismatch", -1, "fc.weight", "[32, any]", "[16, 64]",
     1},
    {NULL, "fc 2; shape fc.weight 2048", "weights_shape_mismatch", -1, "fc.weight", NULL, "[2048]", 1},
    {NULL, "fc 2; shape hidden_norm.weight 64", "weights_shape_mismatch", -1, "hidden_norm.weight", "[32]",
     "[64]", 1},
    {"{\"dflash_config\": {\"target_layer_ids\": [1, 2, 3]}}", "fc 2", "weights_shape_mismatch", -1,
     "fc.weight", "[32, 96]", "[32, 64]", 1},
    {"{\"target_layer_ids\": [1]}", "fc 2", "weights_shape_mismatch", -1, "fc.weight", "[32, 32]", "[32, 64]",
     1},
    {"{\"aux_hidden_state_layer_ids\": [1, 2, 3, 4]}", "fc 2", "weights_shape_mismatch", -1, "fc.weight",
     "[32, 128]", "[32, 64]", 1},
    /* dtypes */
    {NULL, "dtype " ATTN(1) "k_proj.weight F64", "weights_dtype_unsupported", 1, ATTN(1) "k_proj.weight",
     "BF16, F16 or F32", "F64", 1},
    {NULL, "dtype " ATTN(1) "v_proj.weight F8_E4M3", "weights_dtype_unsupported", 1, ATTN(1) "v_proj.weight",
     "BF16, F16 or F32", "F8_E4M3", 1},
    {NULL, "dtype " ATTN(1) "k_norm.weight I32", "weights_dtype_unsupported", 1, ATTN(1) "k_norm.weight",
     NULL, "I32", 1},
    {NULL, "dtype " ATTN(2) "k_proj.weight F16", "weights_dtype_unsupported", 2, ATTN(2) "k_proj.weight",
     "BF16", "F16", 1},
    {NULL, "dtype " ATTN(0) "v_proj.weight F32", "weights_dtype_unsupported", 0, ATTN(0) "v_proj.weight",
     "BF16", "F32", 1},
    {NULL, "biases; dtype " ATTN(0) "v_proj.bias I64", "weights_dtype_unsupported", 0, ATTN(0) "v_proj.bias",
     NULL, "I64", 1},
    {NULL, "fc 2; dtype fc.weight F16", "weights_dtype_unsupported", -1, "fc.weight", "BF16 or F32", "F16",
     1},
    {NULL, "fc 2; dtype hidden_norm.weight U8", "weights_dtype_unsupported", -1, "hidden_norm.weight", NULL,
     "U8", 1},
    /* quantized forms */
    {NULL, "add " ATTN(1) "k_proj.weight_scale F32 1", "weights_quantized", 1, ATTN(1) "k_proj.weight_scale",
     NULL, NULL, 1},
    {NULL, "add " ATTN(1) "v_proj.weight_scale_inv F32 1,1", "weights_quantized", 1,
     ATTN(1) "v_proj.weight_scale_inv", NULL, NULL, 1},
    {NULL, "add model." ATTN(1) "v_proj.input_scale F32 1", "weights_quantized", 1,
     "model." ATTN(1) "v_proj.input_scale", NULL, NULL, 1},
    {NULL, "rename " ATTN(2) "k_proj.weight " ATTN(2) "k_proj.qweight", "weights_quantized", 2,
     ATTN(2) "k_proj.qweight", NULL, NULL, 1},
    {NULL, "rename " ATTN(2) "v_proj.weight " ATTN(2) "v_proj.weight_packed", "weights_quantized", 2,
     ATTN(2) "v_proj.weight_packed", NULL, NULL, 1},
    {NULL, "fuse 1; add " ATTN(1) "qkv_proj.scales F16 8", "weights_quantized", 1, ATTN(1) "qkv_proj.scales",
     NULL, NULL, 1},
    {NULL, "add fc.qweight I32 32,8", "weights_quantized", -1, "fc.qweight", NULL, NULL, 1},
    /* other computations */
    {NULL, "add aux_hidden_norms.0.weight BF16 32", "architecture_unsupported", -1,
     "aux_hidden_norms.0.weight", NULL, NULL, 1},
    {NULL, "add model.aux_hidden_norms.3.weight BF16 32", "architecture_unsupported", -1,
     "model.aux_hidden_norms.3.weight", NULL, NULL, 1},
    {NULL, "add " ATTN(1) "g_proj.weight BF16 4,32", "architecture_unsupported", 1, ATTN(1) "g_proj.weight",
     NULL, NULL, 1},
    {NULL, "add " ATTN(2) "g_proj.weight BF16 4,32; add " ATTN(1) "g_proj.weight BF16 4,32",
     "architecture_unsupported", 1, ATTN(1) "g_proj.weight", NULL, NULL, 1},
    {NULL, "add " ATTN(0) "key_layernorm.weight BF16 16", "architecture_unsupported", 0,
     ATTN(0) "key_layernorm.weight", NULL, NULL, 1},
    {NULL, "add " ATTN(2) "k_proj_target.weight BF16 32,32", "architecture_unsupported", 2,
     ATTN(2) "k_proj_target.weight", NULL, NULL, 1},
    {NULL,
     "rename " ATTN(1) "k_proj.weight " ATTN(1) "kv_a_proj_with_mqa.weight; drop " ATTN(1) "v_proj.weight",
     "architecture_unsupported", 1, ATTN(1) "kv_a_proj_with_mqa.weight", NULL, NULL, 1},
    {NULL, "add " ATTN(0) "kv_b_proj.weight BF16 4,4", "architecture_unsupported", 0,
     ATTN(0) "kv_b_proj.weight", NULL, NULL, 1},
    {NULL, "add " ATTN(1) "k_norm.bias BF16 16", "architecture_unsupported", 1, ATTN(1) "k_norm.bias", NULL,
     NULL, 1},
    {NULL, "fc 2; add fc.bias BF16 32", "architecture_unsupported", -1, "fc.bias", NULL, NULL, 1},
    {NULL, NO_V, "architecture_unsupported", 0, ATTN(0) "v_proj.weight", NULL, NULL, 1},
    /* several at once */
    {"{\"rms_norm_eps\": 0, \"partial_rotary_factor\": 0.2}",
     "drop " ATTN(1) "k_proj.weight; dtype " ATTN(2) "v_proj.weight F64", "weights_missing_tensor", 1,
     ATTN(1) "k_proj.weight", NULL, NULL, 4},
};

START_TEST(is_refused)
{
    made_check(&cases[_i]);
}
END_TEST

static const struct {
    const char *config, *commands;
} accepted[] = {
    {NULL, "prefix"},
    {NULL, "rename " ATTN(1) "k_proj.weight model." ATTN(1) "k_proj.weight"},
    {NULL, "fuse 0; fuse 1; fuse 2"},
    {NULL, "fuse 1"},
    {"{\"attention_bias\": true}", "biases; fuse 0; fuse 1; fuse 2"},
    {NULL, "biases"},
    {NULL, "biases; drop " ATTN(0) "v_proj.bias; drop " ATTN(1) "v_proj.bias; drop " ATTN(2) "v_proj.bias"},
    {NULL, "drop " ATTN(0) "k_norm.weight; drop " ATTN(1) "k_norm.weight; drop " ATTN(2) "k_norm.weight"},
    {NULL,
     "dtype " ATTN(1) "k_norm.weight F32; dtype norm.weight F64; add whatever U8 3; add model.whatever U8 3"},
    {"{\"num_hidden_layers\": 2}", "drop " ATTN(2) "v_proj.weight"},
    {"{\"dflash_config\": {\"target_layer_ids\": [1, 2]}}",
     "fc 2; dtype fc.weight F32; dtype hidden_norm.weight F16"},
    {"{\"dflash_config\": {\"target_layer_ids\": [1, 2]}}", NULL},
    {NULL, "fc 2; shard " ATTN(1) "k_proj.weight 1; shard fc.weight 2; shard norm.weight 3"},
    {NULL, "add " ATTN(0) "k_scale F32 1; add layers.0.mlp.up_proj.weight_scale F32 1; add layers.01.x U8 1"},
};

START_TEST(is_accepted)
{
    struct made made;
    struct kv_findings findings;
    made_begin(&made);
    made_config(&made, accepted[_i].config);
    made_change(&made, accepted[_i].commands);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", accepted[_i].commands, made_report(&findings));
    ck_assert_msg(kv_checkpoint_scan(checkpoint), "%s:%s", accepted[_i].commands, made_report(&findings));
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *tests = tcase_create("checkpoint");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, goldens_open_as_their_cases_say);
    tcase_add_loop_test(tests, is_refused, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_loop_test(tests, is_accepted, 0, (int)(sizeof accepted / sizeof accepted[0]));
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
