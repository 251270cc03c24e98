/* Fuzz target: any bytes as config.json. A config without faults, and weights of the shapes that it asks for,
 * are a checkpoint that opens. Golden configs are seeds too. */
#include "tests/fuzz/folder.h"
#include "tests/fuzz/opening.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The config alone. False: it has faults. */
static bool read_config(struct kv_config *config, const struct kv_checkpoint_options *options)
{
    struct kv_notes notes = {0};
    struct kv_findings findings;
    kv_findings_init(&findings);
    kv_config_read(config, fuzz_folder, options, &notes, &findings);
    fuzz_findings(&findings);
    bool sound = findings.count == 0;
    kv_findings_free(&findings);
    if (!sound) return false;
    FUZZ_CHECK(config->layers > 0 && config->heads > 0 && config->kv_heads > 0 && config->head_dim > 0);
    FUZZ_CHECK(config->hidden > 0 && config->positions > 0 && config->eps > 0);
    FUZZ_CHECK(config->target_layers >= -1 && config->target_layers <= KV_TAPS_MAX);
    FUZZ_CHECK(isfinite(config->value_scale) && config->rope_known);
    FUZZ_CHECK(config->rope.rotary_dim >= 2 && config->rope.rotary_dim <= config->head_dim);
    return true;
}

/* The tensors that a config asks for. False: too many for one file here. */
static bool fill_weights(struct fuzz_weights *weights, const struct kv_config *config)
{
    static const char *const layer_names[] = {"k_proj.weight", "v_proj.weight", "k_norm.weight",
                                              "k_proj.bias", "v_proj.bias"};
    const int64_t rows = (int64_t)config->kv_heads * config->head_dim;
    const int64_t dims[][2] = {
        {rows, config->hidden}, {rows, config->hidden}, {config->head_dim, 0}, {rows, 0}, {rows, 0}};
    *weights = (struct fuzz_weights){0};
    if (config->layers > (FUZZ_ENTRIES_MAX - 2) / 5) return false;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        for (int32_t i = 0; i < (config->attention_bias ? 5 : 3); i++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", (int)layer, layer_names[i]);
            fuzz_weights_add(weights, name, KV_BF16, i < 2 ? 2 : 1, dims[i]);
        }
    }
    if (config->target_layers > 0) {
        const int64_t fc[] = {config->hidden, config->target_layers * config->hidden};
        fuzz_weights_add(weights, "fc.weight", KV_BF16, 2, fc);
        fuzz_weights_add(weights, "hidden_norm.weight", KV_BF16, 1, fc);
    }
    return true;
}

/* Weights that fit the first golden configs, or nothing at all. */
static void write_some_weights(void)
{
    const struct kv_config config = {
        .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .hidden = 32, .target_layers = -1};
    static struct fuzz_weights weights;
    FUZZ_CHECK(fill_weights(&weights, &config) && fuzz_weights_write("model.safetensors", &weights));
}

static void check(const struct kv_checkpoint_options *options)
{
    static struct fuzz_weights weights;
    struct kv_config config;
    struct kv_findings findings;
    bool sound = read_config(&config, options);
    bool fitting =
        sound && fill_weights(&weights, &config) && fuzz_weights_write("model.safetensors", &weights);
    if (!fitting) write_some_weights();
    bool taken = fuzz_opening(options, &findings);
    FUZZ_CHECK(sound || !taken);
    /* Only the frequencies are computed after the config has passed. */
    if (fitting && !taken)
        FUZZ_CHECK(findings.count == 1 && strcmp(findings.item[0].error.param, "rope_theta") == 0);
    kv_findings_free(&findings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_folder_open();
    const struct kv_checkpoint_options plain = {.directory = fuzz_folder_path, .attention_factor = -1};
    const struct kv_checkpoint_options all = {
        .directory = fuzz_folder_path, .positions_max = 1000, .rope_theta = 5e5, .attention_factor = 0.5};
    fuzz_file_write("config.json", data, size, NULL, 0, 0);
    check(&plain);
    check(&all);
    return 0;
}
