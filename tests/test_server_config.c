/* What is refused of a config: one change of a sound one, one finding that must follow. */
#include "tests/checkpoint_maker.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static const struct made_case cases[] = {
    /* keys that are needed */
    {"{\"hidden_size\": null}", NULL, "config_missing_key", -1, "hidden_size", NULL, NULL, 1},
    {"{\"num_hidden_layers\": null}", NULL, "config_missing_key", -1, "num_hidden_layers", NULL, NULL, 1},
    {"{\"num_attention_heads\": null}", NULL, "config_missing_key", -1, "num_attention_heads", NULL, NULL, 1},
    {"{\"rms_norm_eps\": null}", NULL, "config_missing_key", -1, "rms_norm_eps", NULL, NULL, 1},
    {"{\"max_position_embeddings\": null}", NULL, "config_missing_key", -1, "max_position_embeddings", NULL,
     NULL, 1},
    {"{\"rope_theta\": null}", NULL, "config_missing_key", -1, "rope_theta", NULL, NULL, 1},
    {"{\"transformer_layer_config\": {\"hidden_size\": 32}}", NULL, "config_missing_key", -1,
     "transformer_layer_config.num_hidden_layers", NULL, NULL, 0},
    /* types and ranges */
    {"{\"num_hidden_layers\": 3.0}", NULL, "config_invalid", -1, "num_hidden_layers",
     "an integer from 1 to 1024", "3", 1},
    {"{\"num_hidden_layers\": 0}", NULL, "config_invalid", -1, "num_hidden_layers", NULL, "0", 1},
    {"{\"num_hidden_layers\": 1025}", NULL, "config_invalid", -1, "num_hidden_layers", NULL, "1025", 1},
    {"{\"num_hidden_layers\": \"3\"}", NULL, "config_invalid", -1, "num_hidden_layers", NULL, NULL, 1},
    {"{\"hidden_size\": -32}", NULL, "config_invalid", -1, "hidden_size", NULL, "-32", 1},
    {"{\"hidden_size\": 9223372036854775807}", NULL, "config_invalid", -1, "hidden_size", NULL,
     "9223372036854775807", 1},
    {"{\"num_key_value_heads\": 0}", NULL, "config_invalid", -1, "num_key_value_heads", NULL, "0", 1},
    {"{\"head_dim\": 2048}", NULL, "config_invalid", -1, "head_dim", NULL, "2048", 1},
    {"{\"max_position_embeddings\": true}", NULL, "config_invalid", -1, "max_position_embeddings", NULL,
     "true", 1},
    {"{\"rms_norm_eps\": \"1e-6\"}", NULL, "config_invalid", -1, "rms_norm_eps", NULL, "1e-6", 1},
    {"{\"attention_bias\": 1}", NULL, "config_invalid", -1, "attention_bias", "true or false", "1", 1},
    {"{\"model_type\": 3}", NULL, "config_invalid", -1, "model_type", NULL, NULL, 1},
    {"{\"dflash_config\": []}", NULL, "config_invalid", -1, "dflash_config", NULL, NULL, 1},
    {"{\"rope_theta\": 0}", NULL, "config_invalid", -1, "rope_theta", NULL, "0", 1},
    {"{\"rope_theta\": -10000.0}", NULL, "config_invalid", -1, "rope_theta", NULL, "-10000", 1},
    {"{\"rope_theta\": \"1e6\"}", NULL, "config_invalid", -1, "rope_theta", NULL, NULL, 1},
    {"{\"rope_scaling\": \"yarn\"}", NULL, "config_invalid", -1, "rope_scaling", "an object", "yarn", 1},
    {"{\"partial_rotary_factor\": \"half\"}", NULL, "config_invalid", -1, "partial_rotary_factor", NULL, NULL,
     1},
    {"{\"is_neox_style\": 0}", NULL, "config_invalid", -1, "is_neox_style", "true or false", "0", 1},
    {"{\"dflash_config\": {\"backbone_rotary_base\": -1}}", NULL, "config_invalid", -1,
     "dflash_config.backbone_rotary_base", NULL, "-1", 1},
    {"{\"attention_value_scale\": \"x\"}", NULL, "config_invalid", -1, "attention_value_scale", NULL, "x", 1},
    {"{\"attention_value_scale\": 1e39}", NULL, "config_invalid", -1, "attention_value_scale", NULL, NULL, 1},
    {"{\"attention_value_scale\": [0.5, 0.5]}", NULL, "config_invalid", -1, "attention_value_scale", "3", "2",
     1},
    {"{\"attention_value_scale\": [0.5, 0.5, null]}", NULL, "config_invalid", -1, "attention_value_scale",
     NULL, NULL, 1},
    /* eps */
    {"{\"rms_norm_eps\": 0}", NULL, "eps_invalid", -1, "rms_norm_eps", NULL, "0", 1},
    {"{\"rms_norm_eps\": -1e-6}", NULL, "eps_invalid", -1, "rms_norm_eps", NULL, "-1e-06", 1},
    {"{\"rms_norm_eps\": 1e-60}", NULL, "eps_invalid", -1, "rms_norm_eps", NULL, NULL, 1},
    {"{\"rms_norm_eps\": 1e39}", NULL, "eps_invalid", -1, "rms_norm_eps", NULL, NULL, 1},
    /* rotary_dim against head_dim */
    {"{\"partial_rotary_factor\": 0.2}", NULL, "rotary_dim_invalid", 0, "partial_rotary_factor",
     "an even number from 2 to head_dim 16", "3", 1},
    {"{\"partial_rotary_factor\": 0}", NULL, "rotary_dim_invalid", 0, "partial_rotary_factor", NULL, "0", 1},
    {"{\"partial_rotary_factor\": -0.5}", NULL, "rotary_dim_invalid", 0, "partial_rotary_factor", NULL, "-8",
     1},
    {"{\"partial_rotary_factor\": 2}", NULL, "rotary_dim_invalid", 0, "partial_rotary_factor", NULL, "32", 1},
    {"{\"partial_rotary_factor\": 1e30}", NULL, "rotary_dim_invalid", 0, "partial_rotary_factor", NULL, NULL,
     1},
    {"{\"rope_parameters\": {\"rope_theta\": 1e6, \"partial_rotary_factor\": 1.25}}", NULL,
     "rotary_dim_invalid", 0, "rope_parameters.partial_rotary_factor", NULL, "20", 1},
    {"{\"rotary_dim\": 24}", NULL, "rotary_dim_invalid", 0, "rotary_dim", "16", "24", 1},
    {"{\"head_dim\": 15}", NULL, "rotary_dim_invalid", 0, "head_dim", "an even number from 2 to head_dim 15",
     "15", 0},
    /* said twice and not the same */
    {"{\"rope_theta\": 10000, \"rope_parameters\": {\"rope_theta\": 1000000.0}}", NULL, "config_invalid", -1,
     "rope_parameters.rope_theta", "10000", "1000000", 1},
    {"{\"rope_theta\": 10000, \"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 500000}}", NULL,
     "config_invalid", -1, "rope_scaling.rope_theta", "10000", "500000", 1},
    {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}, \"partial_rotary_factor\": 1.0}", NULL,
     "config_invalid", -1, "rope_parameters.partial_rotary_factor", "1", "0.5", 1},
    {"{\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"linear\", "
     "\"factor\": 2}}",
     NULL, "config_invalid", -1, "rope_scaling.type", "default", "linear", 1},
    {"{\"rope_is_neox_style\": true, \"is_neox_style\": false}", NULL, "config_invalid", -1, "is_neox_style",
     "true", "false", 1},
    /* rope types */
    {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", NULL, "rope_type_unsupported", 0,
     "rope_scaling.type", "default, linear, yarn or llama3", "dynamic", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"ntk\"}}", NULL, "rope_type_unsupported", 0,
     "rope_scaling.rope_type", NULL, "ntk", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", NULL, "rope_type_unsupported", 0,
     "rope_scaling.rope_type", NULL, "longrope", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"su\"}}", NULL, "rope_type_unsupported", 0,
     "rope_scaling.rope_type", NULL, "su", 1},
    {"{\"rope_parameters\": {\"rope_type\": \"proportional\"}}", NULL, "rope_type_unsupported", 0,
     "rope_parameters.rope_type", NULL, "proportional", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"default\", \"type\": \"mrope\"}}", NULL, "rope_type_unsupported",
     0, "rope_scaling.type", NULL, "mrope", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [4, 2, 2]}}", NULL,
     "rope_type_unsupported", 0, "rope_scaling.mrope_section", NULL, "mrope", 1},
    {"{\"rope_scaling\": {\"rope_type\": 3}}", NULL, "config_invalid", -1, "rope_scaling.rope_type",
     "a string", "3", 1},
    /* what types need */
    {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", NULL, "config_missing_key", -1, "rope_scaling.factor",
     NULL, NULL, 1},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\"}}", NULL, "config_missing_key", -1, "rope_scaling.factor",
     NULL, NULL, 1},
    {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}}", NULL, "config_missing_key", -1,
     "rope_parameters.low_freq_factor", NULL, NULL, 2},
    {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}}", NULL, "config_missing_key", -1,
     "rope_parameters.high_freq_factor", NULL, NULL, 2},
    {"{\"rope_scaling\": {\"factor\": 8}}", NULL, "config_missing_key", -1, "rope_type", NULL, NULL, 1},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}}", NULL, "config_invalid", -1,
     "rope_scaling.factor", NULL, "0.5", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": \"2\"}}", NULL, "config_invalid", -1,
     "rope_scaling.factor", NULL, "2", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": -1}}", NULL,
     "config_invalid", -1, "rope_scaling.attention_factor", "a number of at least 0", "-1", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 0}}", NULL, "config_invalid",
     -1, "rope_scaling.beta_fast", NULL, "0", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": \"no\"}}", NULL,
     "config_invalid", -1, "rope_scaling.truncate", NULL, "no", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": "
     "4096.5}}",
     NULL, "config_invalid", -1, "rope_scaling.original_max_position_embeddings", NULL, "4096.5", 1},
    {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4}}",
     NULL, "config_invalid", -1, "high_freq_factor", NULL, "4", 1},
    {"{\"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}", NULL,
     "config_invalid", -1, "rope_theta", NULL, "1", 1},
    /* layer types */
    {"{\"layer_types\": [\"a\", \"a\"]}", NULL, "config_invalid", -1, "layer_types", "3", "2", 1},
    {"{\"layer_types\": [\"a\", 1, \"a\"]}", NULL, "config_invalid", 1, "layer_types", "a string", "1", 1},
    {"{\"layer_types\": \"a\"}", NULL, "config_invalid", -1, "layer_types", "an array", "a", 1},
    {"{\"layer_types\": [\"a\", \"a\", \"b\"], \"rope_parameters\": {\"a\": {\"rope_theta\": 1e6}}}", NULL,
     "config_invalid", 2, "layer_types", NULL, "b", 1},
    {"{\"rope_parameters\": {\"a\": {\"rope_theta\": 1e6}, \"rope_theta\": 1e6}}", NULL, "config_invalid", -1,
     "rope_parameters", NULL, NULL, 1},
    {"{\"rope_theta\": null, \"layer_types\": [\"a\", \"b\", \"a\"], \"rope_parameters\": {\"a\": "
     "{\"rope_theta\": 1e6},"
     " \"b\": {}}}",
     NULL, "config_missing_key", 1, "rope_theta", NULL, NULL, 1},
    /* other computations and quantized forms */
    {"{\"model_type\": \"gemma\"}", NULL, "architecture_unsupported", -1, "model_type", NULL, "gemma", 1},
    {"{\"model_type\": \"gemma2\"}", NULL, "architecture_unsupported", -1, "model_type", NULL, "gemma2", 1},
    {"{\"model_type\": \"gemma3_text\"}", NULL, "architecture_unsupported", -1, "model_type", NULL,
     "gemma3_text", 1},
    {"{\"attention_value_scale\": [0.5, 0.5, 0.25]}", NULL, "architecture_unsupported", 2,
     "attention_value_scale", "0.5", "0.25", 1},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\"}}", NULL, "weights_quantized", 0,
     "quantization_config", NULL, "fp8", 1},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"ignore\": [\"lm_head\", \"re:.*q_proj\"]}}",
     NULL, "weights_quantized", 0, "quantization_config", NULL, "fp8", 1},
    {"{\"quantization_config\": {\"modules_to_not_convert\": [\"model.layers.0.self_attn\", "
     "\"layers.1.self_attn\","
     " \"layers.2.self_attn.k_proj\"]}}",
     NULL, "weights_quantized", 2, "quantization_config", NULL, NULL, 1},
    {"{\"quantization_config\": {\"ignore\": [\"k_pro\", \"v_proj\"]}}", NULL, "weights_quantized", 0,
     "quantization_config", NULL, NULL, 1},
    {"{\"quantization_config\": \"fp8\"}", NULL, "config_invalid", -1, "quantization_config", NULL, "fp8", 1},
};

START_TEST(is_refused)
{
    made_check(&cases[_i]);
}
END_TEST

/* Differences between the dicts of two layer types, one value each. Layer 1 has type b. */
static const struct {
    const char *a, *b;
    const char *param, *expected, *got;
} differences[] = {
    {"\"rope_theta\": 1e6", "\"rope_theta\": 1e4", "rope_theta", "1000000", "10000"},
    {"\"partial_rotary_factor\": 1", "\"partial_rotary_factor\": 0.5", "rotary_dim", "16", "8"},
    {"\"rope_is_neox_style\": true", "\"rope_is_neox_style\": false", "rope_is_neox_style", "true", "false"},
    {"\"rope_type\": \"default\"", "\"rope_type\": \"linear\", \"factor\": 2", "rope_type", "default",
     "linear"},
    {"\"rope_type\": \"linear\", \"factor\": 4", "\"type\": \"linear\", \"factor\": 2", "factor", "4", "2"},
    {"\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 32",
     "\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 16", "beta_fast", "32", "16"},
    {"\"rope_type\": \"yarn\", \"factor\": 4", "\"rope_type\": \"yarn\", \"factor\": 4, \"beta_slow\": 2",
     "beta_slow", "1", "2"},
    {"\"rope_type\": \"yarn\", \"factor\": 4", "\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": false",
     "truncate", "true", "false"},
    {"\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": 1",
     "\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": 2", "attention_factor", "1", "2"},
    {"\"rope_type\": \"yarn\", \"factor\": 4",
     "\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 1024",
     "original_max_position_embeddings", "4096", "1024"},
    {"\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1, \"high_freq_factor\": 4",
     "\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1, \"high_freq_factor\": 8",
     "high_freq_factor", "4", "8"},
};

START_TEST(layers_that_differ_are_refused)
{
    char patch[1024], param[KV_PARAM_BYTES];
    bool theta = _i == 0;
    snprintf(patch, sizeof patch,
             "{%s\"layer_types\": [\"a\", \"b\", \"a\"], \"rope_parameters\": {\"a\": {%s}, \"b\": {%s}}}",
             theta ? "\"rope_theta\": null, " : "", differences[_i].a, differences[_i].b);
    snprintf(param, sizeof param, "rope_parameters.b.%s", differences[_i].param);
    const struct made_case one = {
        patch, NULL, "rope_config_mismatch", 1, param, differences[_i].expected, differences[_i].got, 1};
    made_check(&one);
    /* a dict that no layer names may not differ either */
    snprintf(patch, sizeof patch,
             "{%s\"layer_types\": [\"a\", \"a\", \"a\"], \"rope_parameters\": {\"a\": {%s}, \"b\": {%s}}}",
             theta ? "\"rope_theta\": null, " : "", differences[_i].a, differences[_i].b);
    const struct made_case unused = {
        patch, NULL, "rope_config_mismatch", -1, param, differences[_i].expected, differences[_i].got, 1};
    made_check(&unused);
}
END_TEST

static struct kv_checkpoint *open_text(struct made *made, const char *text, struct kv_findings *findings)
{
    made_begin(made);
    const char *folder = made_write(made);
    made_text(made, "config.json", text);
    return made_open(folder, NULL, findings);
}

START_TEST(files_that_are_no_config_are_refused)
{
    static const char *const texts[] = {
        "", "{", "[]", "3", "{} x", "{\"a\": 1, \"a\": 2}", "{\"a\": NaN}", "{\"a\": 1e999}", "\xff\xfe"};
    struct made made;
    struct kv_findings findings;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ck_assert_ptr_null(open_text(&made, texts[i], &findings));
        ck_assert_int_eq(findings.count, 1);
        ck_assert_msg(made_found(&findings, "config_invalid", -1) != NULL, "%s:%s", texts[i],
                      made_report(&findings));
        kv_findings_free(&findings);
        made_end(&made);
    }
}
END_TEST

START_TEST(configs_that_are_large_or_deep_are_refused)
{
    static char text[1100 * 1000];
    struct made made;
    struct kv_findings findings;
    memset(text, ' ', sizeof text - 1);
    ck_assert_ptr_null(open_text(&made, text, &findings));
    ck_assert_ptr_nonnull(made_found(&findings, "config_invalid", -1));
    ck_assert_ptr_nonnull(strstr(made_report(&findings), "limit of 1048576"));
    kv_findings_free(&findings);
    made_end(&made);
    memset(text, '[', 100 * 1000);
    text[100 * 1000] = '\0';
    ck_assert_ptr_null(open_text(&made, text, &findings));
    ck_assert_ptr_nonnull(strstr(made_report(&findings), "deeper"));
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

START_TEST(all_faults_are_listed_together)
{
    struct made made;
    struct kv_findings findings;
    ck_assert_ptr_null(
        open_text(&made, "{\"rope_scaling\": {\"type\": \"dynamic\"}, \"rms_norm_eps\": 0}", &findings));
    static const char *const missing[] = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                          "max_position_embeddings", "rope_theta"};
    for (size_t i = 0; i < 5; i++) {
        bool found = false;
        for (int32_t k = 0; k < findings.count; k++)
            found |= findings.item[k].error.fault == KV_CONFIG_MISSING_KEY &&
                     strcmp(findings.item[k].error.param, missing[i]) == 0;
        ck_assert_msg(found, "%s is not reported:%s", missing[i], made_report(&findings));
    }
    ck_assert_ptr_nonnull(made_found(&findings, "rope_type_unsupported", 0));
    ck_assert_ptr_nonnull(made_found(&findings, "eps_invalid", -1));
    ck_assert_int_eq(findings.count, 7);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

static const char *const accepted[] = {
    "{\"head_dim\": null, \"num_attention_heads\": 2}", /* 32 / 2 = 16 */
    "{\"model_type\": \"gemma4\"}",
    "{\"model_type\": null, \"unknown\": {\"deep\": [1]}, \"rope_scaling\": null}",
    "{\"rope_theta\": 1000000, \"rms_norm_eps\": 1}",
    "{\"attention_value_scale\": [0.5, 0.5, 0.5]}",
    "{\"layer_types\": [\"x\", \"y\", \"x\"]}",
    "{\"rope_theta\": null, \"rope_parameters\": {\"a\": {\"rope_theta\": 1e6}, \"b\": {\"rope_theta\": "
    "1e6}}}",
    "{\"quantization_config\": null}",
    "{\"quantization_config\": {\"ignore\": [\"re:.*self_attn.*\"]}}",
    "{\"quantization_config\": {\"ignore\": [\"re:.*layers\\\\.\\\\d+\\\\.self_attn\\\\.k_proj$\", "
    "\"re:.*v_proj\"]}}",
    "{\"quantization_config\": {\"modules_to_not_convert\": [\"self_attn\"]}}",
    "{\"quantization_config\": {\"ignore\": [\"model.layers.0.self_attn.k_proj\", "
    "\"model.layers.0.self_attn.v_proj\","
    " \"layers.1.self_attn.qkv_proj\", \"model.layers.2.self_attn*\"]}}",
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"ignore\": [\"Linear\"]}}",
};

START_TEST(is_accepted)
{
    struct made made;
    struct kv_findings findings;
    made_begin(&made);
    made_config(&made, accepted[_i]);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", accepted[_i], made_report(&findings));
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

START_TEST(speculators_layout_is_read)
{
    static const char text[] =
        "{\"speculators_model_type\": \"dflash\", \"hidden_size\": 7, \"dflash_config\": {\"is_neox_style\": "
        "false},"
        " \"attention_value_scale\": 0.612, \"transformer_layer_config\": {\"hidden_size\": 32,"
        " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,"
        " \"rms_norm_eps\": 1e-06, \"max_position_embeddings\": 777, \"rope_theta\": 8e6}}";
    struct made made;
    struct kv_findings findings;
    struct kv_description description = {0};
    struct kv_checkpoint *checkpoint = open_text(&made, text, &findings);
    ck_assert_msg(checkpoint != NULL, "%s", made_report(&findings));
    kv_checkpoint_describe(checkpoint, &description);
    ck_assert_int_eq(description.geometry.hidden, 32);
    ck_assert_int_eq(description.geometry.positions, 777);
    ck_assert_double_eq(description.rope.theta, 8e6);
    ck_assert(description.geometry.interleaved);
    ck_assert_float_eq(description.geometry.value_scale, 0.612F);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

START_TEST(options_are_heeded_and_checked)
{
    static const struct {
        struct kv_checkpoint_options options;
        const char *param;
    } bad[] = {
        {{.positions_max = -1, .attention_factor = -1}, "--max-position"},
        {{.positions_max = 1LL << 31, .attention_factor = -1}, "--max-position"},
        {{.rope_theta = -1, .attention_factor = -1}, "--rope-theta"},
        {{.rope_theta = 1e31, .attention_factor = -1}, "--rope-theta"},
        {{.attention_factor = 1e39}, "--rope-attention-factor"},
    };
    struct made made;
    struct kv_findings findings;
    struct kv_description description = {0};
    made_begin(&made);
    const char *folder = made_write(&made);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_ptr_null(made_open(folder, &bad[i].options, &findings));
        const struct kv_finding *finding = made_found(&findings, "option_invalid", -1);
        ck_assert(finding && strcmp(finding->error.param, bad[i].param) == 0);
        kv_findings_free(&findings);
    }
    const struct kv_checkpoint_options longer = {
        .positions_max = 10000, .rope_theta = 5, .attention_factor = 0};
    struct kv_checkpoint *checkpoint = made_open(folder, &longer, &findings);
    ck_assert_msg(checkpoint != NULL, "%s", made_report(&findings));
    kv_checkpoint_describe(checkpoint, &description);
    ck_assert_int_eq(description.geometry.positions, 10000);
    ck_assert_int_eq(description.rope.positions, 10000);
    ck_assert_str_eq(kv_checkpoint_note(checkpoint, 0), "--rope-theta 5 overrides rope_theta 1000000");
    ck_assert_ptr_nonnull(strstr(kv_checkpoint_note(checkpoint, 1), "--rope-attention-factor 0"));
    ck_assert_ptr_nonnull(strstr(kv_checkpoint_note(checkpoint, 2), "--max-position 10000"));
    ck_assert_ptr_null(kv_checkpoint_note(checkpoint, 16));
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tests = tcase_create("config");
    tcase_add_loop_test(tests, is_refused, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_loop_test(tests, layers_that_differ_are_refused, 0,
                        (int)(sizeof differences / sizeof differences[0]));
    tcase_add_loop_test(tests, is_accepted, 0, (int)(sizeof accepted / sizeof accepted[0]));
    tcase_add_test(tests, files_that_are_no_config_are_refused);
    tcase_add_test(tests, configs_that_are_large_or_deep_are_refused);
    tcase_add_test(tests, all_faults_are_listed_together);
    tcase_add_test(tests, speculators_layout_is_read);
    tcase_add_test(tests, options_are_heeded_and_checked);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
