/* The tensors and the config of a random checkpoint, in the form that draft models are published in. */
#include "client/model_shape.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool wrong(struct kv_error *err, const char *option, const char *expected, int64_t got)
{
    return kv_fail_values(err, KV_OPTION_INVALID, option, kv_text(expected), kv_integer(got), "%s", option);
}

bool kv_model_shape_check(const struct kv_model_shape *shape, struct kv_error *err)
{
    if (shape->heads % shape->kv_heads != 0) {
        return kv_fail_values(err, KV_OPTION_INVALID, "--heads", kv_none(), kv_integer(shape->heads),
                              "--heads is not a multiple of --kv-heads %lld", (long long)shape->kv_heads);
    }
    if (shape->rotary_dim < 2 || shape->rotary_dim % 2 != 0) {
        return wrong(err, "--rotary-dim", "an even number of at least 2", shape->rotary_dim);
    }
    if (shape->rotary_dim > shape->head_dim) {
        return kv_fail_values(err, KV_OPTION_INVALID, "--rotary-dim", kv_none(),
                              kv_integer(shape->rotary_dim), "--rotary-dim is larger than --head-dim %lld",
                              (long long)shape->head_dim);
    }
    if (shape->yarn > 0 && floor((double)shape->positions / shape->yarn) < 1) {
        return kv_fail(err, KV_OPTION_INVALID, "--yarn %g leaves nothing of --max-position %lld", shape->yarn,
                       (long long)shape->positions);
    }
    int32_t count = kv_model_shape_count(shape);
    if (shape->shards > count) {
        return kv_fail_values(err, KV_OPTION_INVALID, "--shards", kv_none(), kv_integer(shape->shards),
                              "--shards is larger than the number of tensors, %d", count);
    }
    uint64_t total = 0, bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        struct kv_model_tensor tensor;
        kv_model_shape_tensor(shape, i, &tensor);
        if (!kv_tensor_bytes(shape->dtype, tensor.rank, tensor.dims, &bytes) || bytes > INT64_MAX - total) {
            return kv_fail(err, KV_OPTION_INVALID, "The checkpoint would be larger than any file: %s",
                           tensor.name);
        }
        total += bytes;
    }
    return true;
}

static int32_t tensors_of_layer(const struct kv_model_shape *shape)
{
    return 2 + (shape->k_norm ? 1 : 0) + (shape->bias ? 2 : 0);
}

int32_t kv_model_shape_count(const struct kv_model_shape *shape)
{
    return (int32_t)shape->layers * tensors_of_layer(shape) + (shape->taps > 0 ? 2 : 0);
}

static void set(struct kv_model_tensor *out, int32_t rank, int64_t rows, int64_t columns, float mean,
                double deviation)
{
    uint64_t elements = 0;
    out->rank = rank;
    out->dims[0] = rows;
    out->dims[1] = columns;
    /* A product that overflows is found by the check, which multiplies again. */
    if (!kv_mul((uint64_t)rows, (uint64_t)(rank == 2 ? columns : 1), &elements)) elements = 0;
    out->elements = (int64_t)elements;
    out->mean = mean;
    out->deviation = (float)deviation;
}

void kv_model_shape_tensor(const struct kv_model_shape *shape, int32_t index, struct kv_model_tensor *out)
{
    int32_t each = tensors_of_layer(shape), layer = index / each, part = index % each;
    int64_t rows = shape->kv_heads * shape->head_dim;
    double spread = 1 / sqrt((double)shape->hidden);
    *out = (struct kv_model_tensor){0};
    if (layer >= shape->layers) {
        bool fc = index == shape->layers * each;
        snprintf(out->name, sizeof out->name, fc ? "fc.weight" : "hidden_norm.weight");
        if (!fc) set(out, 1, shape->hidden, 0, 1, 0.1);
        if (fc)
            set(out, 2, shape->hidden, shape->taps * shape->hidden, 0, spread / sqrt((double)shape->taps));
        return;
    }
    static const char *const parts[] = {"k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias",
                                        "v_proj.bias"};
    if (part >= 2 && !shape->k_norm) part++;
    snprintf(out->name, sizeof out->name, "layers.%d.self_attn.%s", layer, parts[part]);
    if (part < 2) {
        set(out, 2, rows, shape->hidden, 0, spread);
    } else if (part == 2) {
        set(out, 1, shape->head_dim, 0, 1, 0.1);
    } else {
        set(out, 1, rows, 0, 0, 0.1);
    }
}

struct text {
    char *to;
    size_t room, bytes;
};

static void add(struct text *text, const char *format, ...) KV_PRINTF(2, 3);

static void add(struct text *text, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int bytes = vsnprintf(text->to + text->bytes, text->room - text->bytes, format, values);
    va_end(values);
    if (bytes > 0) text->bytes += (size_t)bytes;
    if (text->bytes >= text->room) text->bytes = text->room - 1;
}

/* The shortest decimal that reads back as the same double. */
static void add_real(struct text *text, double real)
{
    char digits[32];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, real);
        double back = strtod(digits, NULL);
        if (back >= real && back <= real) break;
    }
    add(text, "%s", digits);
}

/* The factor that gives rotary_dim when a reader multiplies by head_dim and truncates. */
static double partial_factor(const struct kv_model_shape *shape)
{
    double factor = (double)shape->rotary_dim / (double)shape->head_dim;
    while ((int64_t)((double)shape->head_dim * factor) < shape->rotary_dim) factor = nextafter(factor, 2);
    return factor;
}

size_t kv_model_shape_config(const struct kv_model_shape *shape, char *to, size_t to_bytes)
{
    static const char *const dtypes[] = {"bfloat16", "float16", "float32"};
    struct text text = {to, to_bytes, 0};
    add(&text, "{\n  \"architectures\": [\"DFlashDraftModel\"],\n  \"model_type\": \"qwen3\",\n");
    add(&text, "  \"dtype\": \"%s\",\n", dtypes[shape->dtype]);
    add(&text, "  \"hidden_size\": %lld,\n  \"num_hidden_layers\": %lld,\n", (long long)shape->hidden,
        (long long)shape->layers);
    add(&text, "  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n  \"head_dim\": %lld,\n",
        (long long)shape->heads, (long long)shape->kv_heads, (long long)shape->head_dim);
    add(&text, "  \"rms_norm_eps\": ");
    add_real(&text, shape->eps);
    add(&text, ",\n  \"max_position_embeddings\": %lld,\n", (long long)shape->positions);
    add(&text, "  \"attention_bias\": %s,\n", shape->bias ? "true" : "false");
    if (shape->interleaved) add(&text, "  \"rope_is_neox_style\": false,\n");
    if (shape->value_scale < 1 || shape->value_scale > 1) {
        add(&text, "  \"attention_value_scale\": ");
        add_real(&text, shape->value_scale);
        add(&text, ",\n");
    }
    if (shape->taps > 0) {
        add(&text, "  \"block_size\": 16,\n  \"dflash_config\": {\"target_layer_ids\": [");
        for (int64_t i = 0; i < shape->taps; i++) add(&text, "%s%lld", i ? ", " : "", 4 * (long long)i + 1);
        add(&text, "], \"mask_token_id\": 0},\n");
    }
    add(&text, "  \"rope_parameters\": {\"rope_type\": \"%s\", \"rope_theta\": ",
        shape->yarn > 0 ? "yarn" : "default");
    add_real(&text, shape->theta);
    if (shape->rotary_dim < shape->head_dim) {
        add(&text, ", \"partial_rotary_factor\": ");
        add_real(&text, partial_factor(shape));
    }
    if (shape->yarn > 0) {
        add(&text, ", \"factor\": ");
        add_real(&text, shape->yarn);
        add(&text, ", \"original_max_position_embeddings\": %lld",
            (long long)floor((double)shape->positions / shape->yarn));
    }
    add(&text, "}\n}\n");
    return text.bytes;
}
