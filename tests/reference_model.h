/* What tests/reference.c reads: a checkpoint's config, its rotary frequencies and its tensors as float64.
 * Header-only, for that program alone. Knows no projection and no request. */
#ifndef KV_TESTS_REFERENCE_MODEL_H
#define KV_TESTS_REFERENCE_MODEL_H

#include "protocol/safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 64, BLOCK = 8, ROTARY_MAX = 1024 };

struct file {
    char name[512];
    void *bytes;
    size_t size;
    struct kv_document document;
};

struct options {
    const char *model, *input, *output;
    double theta, attention_factor; /* NAN: from the config */
    bool unrounded;
};

struct model {
    struct file file[FILES_MAX];
    int32_t files;
    int64_t layers, hidden, heads, kv_heads, head_dim, rotary;
    double eps, value_scale;
    bool interleaved;
    enum kv_dtype round_to;                /* KV_F64: not at all */
    float inverse[ROTARY_MAX / 2], factor; /* of the angles, and of cos and sin */
};

static double rounded(enum kv_dtype to, double value)
{
    /* Through float32 first: a sum of float64 is rounded twice, as an accumulation in float32 would be. */
    if (to == KV_BF16) return (double)kv_bf16_to_f32(kv_f32_to_bf16((float)value));
    if (to == KV_F16) return (double)kv_f16_to_f32(kv_f32_to_f16((float)value));
    return value;
}

static bool map_file(struct file *file, const char *folder, const char *name, struct kv_error *err)
{
    struct stat info;
    snprintf(file->name, sizeof file->name, "%s%s%s", folder, *folder ? "/" : "", name);
    int fd = open(file->name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0 || info.st_size == 0) {
        if (fd >= 0) close(fd);
        return kv_fail(err, KV_MODEL_NOT_FOUND, "Cannot read %s", file->name);
    }
    file->size = (size_t)info.st_size;
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED) return kv_fail(err, KV_MODEL_NOT_FOUND, "Cannot map %s", file->name);
    file->bytes = bytes;
    return true;
}

static bool open_document(struct file *file, const char *folder, const char *name, struct kv_error *err)
{
    if (!map_file(file, folder, name, err)) return false;
    return kv_document_open(&file->document, file->bytes, file->size, KV_DOCUMENT_FILE, err);
}

static void close_file(struct file *file)
{
    kv_document_close(&file->document);
    if (file->bytes) munmap(file->bytes, file->size);
    file->bytes = NULL;
}

static json_t *load_json(const char *folder, const char *name, struct kv_error *err)
{
    struct file file = {0};
    json_t *root = NULL;
    if (map_file(&file, folder, name, err)) {
        root = json_loadb(file.bytes, file.size, 0, NULL);
        if (!json_is_object(root)) kv_fail(err, KV_CONFIG_INVALID, "%s is no JSON object", file.name);
    }
    close_file(&file);
    return root;
}

static bool open_weights(struct model *model, const char *folder, struct kv_error *err)
{
    if (open_document(&model->file[0], folder, "model.safetensors", NULL)) {
        model->files = 1;
        return true;
    }
    close_file(&model->file[0]);
    json_t *index = load_json(folder, "model.safetensors.index.json", err);
    const char *tensor;
    json_t *value;
    bool opened = index != NULL;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, value)
    {
        const char *name = json_string_value(value);
        bool known = name == NULL;
        for (int32_t i = 0; i < model->files && !known; i++) {
            const char *slash = strrchr(model->file[i].name, '/');
            known = strcmp(slash ? slash + 1 : model->file[i].name, name) == 0;
        }
        if (known || !opened) continue;
        if (model->files == FILES_MAX)
            opened = kv_fail(err, KV_CONFIG_INVALID, "More than %d shards", FILES_MAX);
        if (opened) opened = open_document(&model->file[model->files++], folder, name, err);
    }
    json_decref(index);
    return opened;
}

/* The tensor of this name, with or without the prefix, as float64; NULL when it is nowhere. `count` must fit.
 */
static double *tensor_values(const struct model *model, const char *name, int64_t *count,
                             enum kv_dtype *dtype)
{
    char prefixed[192];
    snprintf(prefixed, sizeof prefixed, "model.%s", name);
    for (int32_t i = 0; i < model->files; i++) {
        const struct file *file = &model->file[i];
        const struct kv_tensor *tensor = kv_document_find(&file->document, name);
        if (!tensor) tensor = kv_document_find(&file->document, prefixed);
        if (!tensor || tensor->dtype > KV_F32) continue;
        struct kv_view view = kv_document_view(&file->document, tensor, file->bytes);
        *count = (int64_t)(view.bytes / kv_dtype_bytes(view.dtype));
        float *narrow = malloc((size_t)*count * sizeof *narrow + 1);
        double *values = malloc((size_t)*count * sizeof *values + 1);
        if (narrow && values) {
            kv_to_f32(view.dtype, view.data, *count, narrow);
            for (int64_t k = 0; k < *count; k++) values[k] = (double)narrow[k];
        }
        free(narrow);
        if (dtype) *dtype = view.dtype;
        return values;
    }
    *count = 0;
    return NULL;
}

static double *layer_values(const struct model *model, int64_t layer, const char *part, int64_t *count,
                            enum kv_dtype *dtype)
{
    char name[160];
    snprintf(name, sizeof name, "layers.%lld.self_attn.%s", (long long)layer, part);
    return tensor_values(model, name, count, dtype);
}

/* A number of the config or of a dict in it; null is absent. */
static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static double magnitude(double factor, double scale)
{
    return factor > 1 ? 0.1 * scale * log(factor) + 1.0 : 1.0;
}

/* YaRN: frequencies that turn often within the original length stay, those that turn rarely are divided. */
static void scale_yarn(struct model *model, const json_t *rope, double theta, double original,
                       const float *plain)
{
    double factor = number(rope, "factor", 1), dims = (double)model->rotary, bound[2];
    double turns[2] = {number(rope, "beta_fast", 32), number(rope, "beta_slow", 1)};
    for (int i = 0; i < 2; i++) bound[i] = dims * log(original / (turns[i] * 2 * M_PI)) / (2 * log(theta));
    if (!json_is_false(json_object_get(rope, "truncate"))) {
        bound[0] = floor(bound[0]);
        bound[1] = ceil(bound[1]);
    }
    double low = fmax(bound[0], 0), high = fmin(bound[1], dims - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < model->rotary / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1), stays = 1 - ramp;
        float divided = 1 / ((float)factor * plain[i]);
        model->inverse[i] = divided * (1 - stays) + 1 / plain[i] * stays;
    }
    double m = number(rope, "mscale", 0), all = number(rope, "mscale_all_dim", 0);
    double implied =
        m != 0 && all != 0 ? magnitude(factor, m) / magnitude(factor, all) : magnitude(factor, 1);
    model->factor = (float)number(rope, "attention_factor", implied);
}

static void scale_llama3(struct model *model, const json_t *rope, double original)
{
    float factor = (float)number(rope, "factor", 1), low = (float)number(rope, "low_freq_factor", 1);
    float high = (float)number(rope, "high_freq_factor", 4), length = (float)original;
    for (int64_t i = 0; i < model->rotary / 2; i++) {
        float inverse = model->inverse[i], wave = 2 * (float)M_PI / inverse;
        float smooth = (length / wave - low) / (high - low);
        if (wave > length / low) {
            model->inverse[i] = inverse / factor;
        } else if (wave >= length / high) {
            model->inverse[i] = (1 - smooth) * inverse / factor + smooth * inverse;
        }
    }
}

/* The dict of the rotary embedding; where there is one for each layer type they are equal, and any serves. */
static const json_t *rope_of(json_t *config)
{
    json_t *rope = json_object_get(config, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(config, "rope_scaling");
    void *first = json_object_iter(rope);
    return first && json_is_object(json_object_iter_value(first)) ? json_object_iter_value(first) : rope;
}

static bool make_rope(struct model *model, json_t *root, json_t *config, const struct options *options,
                      struct kv_error *err)
{
    const json_t *rope = rope_of(config), *type = json_object_get(rope, "rope_type");
    if (!type) type = json_object_get(rope, "type");
    const char *name = json_is_string(type) ? json_string_value(type) : "default";
    double theta = number(config, "rope_theta", number(rope, "rope_theta", NAN));
    theta = number(json_object_get(root, "dflash_config"), "backbone_rotary_base", theta);
    if (!isnan(options->theta)) theta = options->theta;
    double part = number(config, "partial_rotary_factor", number(rope, "partial_rotary_factor", 1));
    model->rotary = (int64_t)((double)model->head_dim * part);
    if (!(theta > 0) || model->rotary < 2 || model->rotary % 2 || model->rotary > ROTARY_MAX) {
        return kv_fail(err, KV_CONFIG_INVALID, "theta %g, rotary_dim %lld", theta, (long long)model->rotary);
    }
    double original =
        number(rope, "original_max_position_embeddings", number(config, "max_position_embeddings", 0));
    float plain[ROTARY_MAX / 2];
    for (int64_t i = 0; i < model->rotary / 2; i++) {
        plain[i] = powf((float)theta, (float)(2 * i) / (float)model->rotary);
        model->inverse[i] = 1 / plain[i];
        if (strcmp(name, "linear") == 0) model->inverse[i] /= (float)number(rope, "factor", 1);
    }
    model->factor = 1;
    if (strcmp(name, "yarn") == 0) {
        scale_yarn(model, rope, theta, original, plain);
    } else if (strcmp(name, "llama3") == 0) {
        scale_llama3(model, rope, original);
    } else if (strcmp(name, "default") != 0 && strcmp(name, "linear") != 0) {
        return kv_fail(err, KV_ROPE_TYPE_UNSUPPORTED, "rope_type %s", name);
    }
    if (!isnan(options->attention_factor)) model->factor = (float)options->attention_factor;
    return true;
}

static bool open_model(struct model *model, const struct options *options, struct kv_error *err)
{
    json_t *root = load_json(options->model, "config.json", err);
    if (!json_is_object(root)) {
        json_decref(root);
        return false;
    }
    json_t *nested = json_object_get(root, "transformer_layer_config"),
           *config = json_is_object(nested) ? nested : root;
    model->layers = (int64_t)number(config, "num_hidden_layers", 0);
    model->hidden = (int64_t)number(config, "hidden_size", 0);
    model->heads = (int64_t)number(config, "num_attention_heads", 0);
    model->kv_heads = (int64_t)number(config, "num_key_value_heads", (double)model->heads);
    int64_t even = model->heads > 0 ? model->hidden / model->heads : 0;
    model->head_dim = (int64_t)number(config, "head_dim", (double)even);
    model->eps = (double)(float)number(config, "rms_norm_eps", NAN);
    model->value_scale = (double)(float)number(config, "attention_value_scale", 1);
    model->interleaved = json_is_false(json_object_get(config, "rope_is_neox_style")) ||
                         json_is_false(json_object_get(config, "is_neox_style"));
    bool made = model->layers > 0 && model->hidden > 0 && model->kv_heads > 0 && model->head_dim > 0 &&
                model->eps > 0;
    made = made ? make_rope(model, root, config, options, err)
                : kv_fail(err, KV_CONFIG_MISSING_KEY, "config.json");
    json_decref(root);
    if (!made || !open_weights(model, options->model, err)) return false;
    int64_t count;
    enum kv_dtype dtype = KV_BF16;
    double *first = layer_values(model, 0, "k_proj.weight", &count, &dtype);
    if (!first) first = layer_values(model, 0, "qkv_proj.weight", &count, &dtype);
    free(first);
    model->round_to = options->unrounded ? KV_F64 : dtype == KV_F32 ? KV_BF16 : dtype;
    return true;
}

#endif
