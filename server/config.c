/* config.json: sizes and scalars. RoPE and quantization have files of their own. */
#include "server/config.h"

#include "server/config_sections.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include <jansson.h>

static const char config_name[] = "config.json";

static void missing(const struct kv_object *object, const char *key, const char *expected,
                    struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    kv_key_path(object, key, path);
    kv_findings_fail(findings, -1, KV_CONFIG_MISSING_KEY, path, kv_text(expected), kv_text("nothing"),
                     "config.json has no %s", path);
}

/* 0 when it is not known. */
static int64_t size_of(const struct kv_object *object, const char *key, int64_t max, bool required,
                       struct kv_findings *findings)
{
    int64_t size = 0;
    if (kv_key_integer(object, key, 1, max, &size, findings) == KV_KEY_ABSENT && required)
        missing(object, key, "an integer", findings);
    return size;
}

static void read_head_dim(struct kv_config *config, const struct kv_object *decoder,
                          struct kv_findings *findings)
{
    int64_t head_dim = 0;
    if (kv_key_integer(decoder, "head_dim", 1, KV_HEAD_DIM_MAX, &head_dim, findings) == KV_KEY_ABSENT &&
        config->hidden && config->heads) {
        head_dim = config->hidden / config->heads;
        if (head_dim < 1 || head_dim > KV_HEAD_DIM_MAX) {
            char path[KV_PARAM_BYTES];
            kv_findings_fail(findings, -1, KV_CONFIG_INVALID, kv_key_path(decoder, "head_dim", path),
                             kv_text("from 1 to 1024"), kv_integer(head_dim),
                             "head_dim is absent, and hidden_size / num_attention_heads is no head_dim");
            head_dim = 0;
        }
    }
    config->head_dim = (int32_t)head_dim;
}

static void read_sizes(struct kv_config *config, const struct kv_object *decoder,
                       struct kv_findings *findings)
{
    config->layers = (int32_t)size_of(decoder, "num_hidden_layers", KV_LAYERS_MAX, true, findings);
    config->hidden = size_of(decoder, "hidden_size", KV_HIDDEN_MAX, true, findings);
    config->heads = (int32_t)size_of(decoder, "num_attention_heads", KV_HEADS_MAX, true, findings);
    config->positions = size_of(decoder, "max_position_embeddings", KV_POSITIONS_MAX, true, findings);
    int64_t kv_heads = config->heads;
    if (kv_key_integer(decoder, "num_key_value_heads", 1, KV_HEADS_MAX, &kv_heads, findings) == KV_KEY_WRONG)
        kv_heads = 0;
    config->kv_heads = (int32_t)kv_heads;
    read_head_dim(config, decoder, findings);
}

/* Any number is read, so that one that is no eps is named as such. float32 is what it is used in. */
static void read_eps(struct kv_config *config, const struct kv_object *decoder, struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    double eps = 0;
    enum kv_key key =
        kv_key_number(decoder, "rms_norm_eps", -DBL_MAX, DBL_MAX, "a number over 0", &eps, findings);
    if (key == KV_KEY_ABSENT) missing(decoder, "rms_norm_eps", "a number above 0", findings);
    if (key != KV_KEY_FOUND) return;
    if ((float)eps > 0 && isfinite((float)eps)) {
        config->eps = eps;
        return;
    }
    kv_findings_fail(findings, -1, KV_EPS_INVALID, kv_key_path(decoder, "rms_norm_eps", path),
                     kv_text("a float32 over 0"), kv_real(eps), "rms_norm_eps is out of range");
}

/* A list of scales, one for each layer, is another computation unless they are all the same. */
static void read_scales(struct kv_config *config, const struct kv_object *object, const json_t *list,
                        struct kv_findings *findings)
{
    static const char key[] = "attention_value_scale";
    char path[KV_PARAM_BYTES];
    kv_key_path(object, key, path);
    if (config->layers && json_array_size(list) != (size_t)config->layers) {
        kv_findings_fail(findings, -1, KV_CONFIG_INVALID, path, kv_integer(config->layers),
                         kv_integer((int64_t)json_array_size(list)),
                         "%s does not have one entry for each layer", path);
        return;
    }
    double first = json_number_value(json_array_get(list, 0));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_number(item) || !isfinite((float)json_number_value(item))) {
            kv_key_wrong(object, key, "finite numbers", item, findings);
            return;
        }
        if (json_number_value(item) == first) continue;
        kv_findings_fail(findings, (int32_t)i, KV_ARCHITECTURE_UNSUPPORTED, path, kv_real(first),
                         kv_json_value(item),
                         "%s differs between layers, and only one scale for all is computed", path);
        return;
    }
    config->value_scale = json_array_size(list) ? first : 1;
}

static void read_value_scale(struct kv_config *config, const struct kv_sections *sections,
                             struct kv_findings *findings)
{
    static const char key[] = "attention_value_scale";
    const struct kv_object *object = &sections->decoder;
    const json_t *value = json_object_get(object->json, key);
    if (!value || json_is_null(value)) {
        object = &sections->root;
        value = json_object_get(object->json, key);
    }
    if (json_is_array(value))
        read_scales(config, object, value, findings);
    else
        kv_key_number(object, key, -(double)FLT_MAX, (double)FLT_MAX, "a finite float32",
                      &config->value_scale, findings);
}

/* Families whose norms weigh by 1 + w. */
static void read_model_type(const struct kv_object *object, struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    const char *type = NULL;
    if (kv_key_text(object, "model_type", &type, findings) != KV_KEY_FOUND) return;
    if (strcmp(type, "gemma") != 0 && strcmp(type, "gemma2") != 0 && strncmp(type, "gemma3", 6) != 0) return;
    kv_findings_fail(findings, -1, KV_ARCHITECTURE_UNSUPPORTED, kv_key_path(object, "model_type", path),
                     kv_text("norms that weigh by w"), kv_text(type),
                     "the norms of this model type weigh by 1 + w, which is not computed here");
}

/* The ids of the layers whose outputs fc takes, in the spellings that exist; the first list that is there
 * counts. */
static void read_target_layers(struct kv_config *config, const struct kv_sections *sections,
                               struct kv_findings *findings)
{
    static const char *const keys[] = {"target_layer_ids", "aux_hidden_state_layer_ids",
                                       "eagle_aux_hidden_state_layer_ids"};
    const struct kv_object *const places[] = {&sections->dflash, &sections->decoder, &sections->root};
    config->target_layers = -1;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            const json_t *list = NULL;
            enum kv_key key = kv_key_array(places[i], keys[k], &list, findings);
            if (key == KV_KEY_ABSENT) continue;
            if (key == KV_KEY_FOUND && json_array_size(list) <= KV_TAPS_MAX)
                config->target_layers = (int32_t)json_array_size(list);
            else if (key == KV_KEY_FOUND)
                kv_key_wrong(places[i], keys[k], "at most 1024 layers", list, findings);
            return;
        }
    }
}

static void find_sections(struct kv_sections *sections, const json_t *json, struct kv_findings *findings)
{
    const struct kv_object file = {.json = json};
    sections->decoder = file;
    if (kv_key_object(&file, "transformer_layer_config", &sections->decoder, findings) == KV_KEY_FOUND)
        sections->root = file;
    if (kv_key_object(&sections->decoder, "dflash_config", &sections->dflash, findings) == KV_KEY_ABSENT)
        kv_key_object(&sections->root, "dflash_config", &sections->dflash, findings);
}

static void check_options(const struct kv_checkpoint_options *options, struct kv_findings *findings)
{
    if (options->positions_max < 0 || options->positions_max > KV_POSITIONS_MAX)
        kv_findings_fail(findings, -1, KV_OPTION_INVALID, "--max-position", kv_text("from 1 to 2147483647"),
                         kv_integer(options->positions_max), "--max-position is out of range");
    if (!(options->rope_theta >= 0 && options->rope_theta <= 1e30))
        kv_findings_fail(findings, -1, KV_OPTION_INVALID, "--rope-theta",
                         kv_text("a number over 0, at most 1e30"), kv_real(options->rope_theta),
                         "--rope-theta is out of range");
    if (!(options->attention_factor <= (double)FLT_MAX))
        kv_findings_fail(findings, -1, KV_OPTION_INVALID, "--rope-attention-factor",
                         kv_text("a finite float32"), kv_real(options->attention_factor),
                         "--rope-attention-factor is out of range");
}

static void heed_positions(struct kv_config *config, const struct kv_checkpoint_options *options,
                           struct kv_notes *notes)
{
    if (options->positions_max > 0 && config->positions > 0) {
        if (options->positions_max != config->positions)
            kv_notes_add(notes, "--max-position %lld overrides max_position_embeddings %lld",
                         (long long)options->positions_max, (long long)config->positions);
        config->positions = options->positions_max;
    }
    if (config->positions > 1 << 24)
        kv_notes_add(notes,
                     "positions past 16777216 share angles: float32, as engines use it, tells no more apart");
}

void kv_config_read(struct kv_config *config, int folder, const struct kv_checkpoint_options *options,
                    struct kv_notes *notes, struct kv_findings *findings)
{
    *config = (struct kv_config){.value_scale = 1, .target_layers = -1};
    struct kv_file file = {0};
    struct kv_error error = {0};
    json_t *json = NULL;
    check_options(options, findings);
    if (kv_file_open(&file, folder, config_name, KV_MODEL_NOT_FOUND, KV_CONFIG_INVALID, &error))
        json = kv_json_read(&file, KV_CONFIG_BYTES_MAX, &error);
    if (json) {
        struct kv_sections sections = {0};
        find_sections(&sections, json, findings);
        read_model_type(&sections.decoder, findings);
        read_model_type(&sections.root, findings);
        read_sizes(config, &sections.decoder, findings);
        read_eps(config, &sections.decoder, findings);
        kv_key_flag(&sections.decoder, "attention_bias", &config->attention_bias, findings);
        read_value_scale(config, &sections, findings);
        read_target_layers(config, &sections, findings);
        kv_config_rope(config, &sections, options, notes, findings);
        kv_config_quantized(config, &sections, findings);
        heed_positions(config, options, notes);
    } else {
        if (error.fault == KV_CONFIG_INVALID)
            kv_error_hint(&error, "Take config.json from where the checkpoint was published.");
        kv_findings_add(findings, -1, &error);
    }
    kv_json_free(json);
    kv_file_close(&file);
}
