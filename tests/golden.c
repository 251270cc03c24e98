/* See golden.h. */
#include "tests/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const names[GOLDEN_CASES] = {"dflash_default",
                                                "dflash_target_hidden",
                                                "f32_weights",
                                                "far_positions",
                                                "fused_qkv_bias",
                                                "gpt_oss_form",
                                                "head_dim_80",
                                                "head_dim_absent",
                                                "int32_positions_f32_hidden",
                                                "interleaved",
                                                "kimi_form",
                                                "linear",
                                                "llama3",
                                                "mimo_form",
                                                "no_k_norm",
                                                "norms_f32",
                                                "one_token",
                                                "partial_rotary_half",
                                                "rope_by_layer_type",
                                                "separate_bias",
                                                "sharded_fp16_v4",
                                                "theta_in_rope_scaling",
                                                "yarn_attention_factor",
                                                "yarn_factor_not_ratio",
                                                "yarn_v4_rope_scaling",
                                                "yarn_v5"};

struct golden_case golden_case(int index)
{
    struct golden_case golden = {.name = names[index], .k_bound = 3e-3, .v_bound = 2.5e-3};
    char path[192];
    snprintf(golden.folder, sizeof golden.folder, "tests/vectors/%s", golden.name);
    snprintf(path, sizeof path, "%s/expected_sglang.safetensors", golden.folder);
    golden.has_sglang = access(path, R_OK) == 0;
    if (strcmp(golden.name, "sharded_fp16_v4") == 0) golden.k_bound = golden.v_bound = 6e-4;
    /* A projection in front rounds twice more; F32 weights are rounded at load. */
    if (strcmp(golden.name, "dflash_target_hidden") == 0 || strcmp(golden.name, "f32_weights") == 0)
        golden.k_bound = golden.v_bound = 6e-3;
    return golden;
}

void *golden_read(const struct golden_case *golden, const char *file, uint64_t *bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", golden->folder, file);
    FILE *stream = fopen(path, "rb");
    if (!stream || fseek(stream, 0, SEEK_END) != 0) {
        perror(path);
        abort();
    }
    long size = ftell(stream);
    rewind(stream);
    void *data = malloc((size_t)size);
    if (!data || fread(data, 1, (size_t)size, stream) != (size_t)size) {
        perror(path);
        abort();
    }
    fclose(stream);
    *bytes = (uint64_t)size;
    return data;
}

static double relative(const struct kv_view *got, const struct kv_view *expected)
{
    int64_t count = 1;
    if (got->rank != expected->rank) return INFINITY;
    for (int32_t i = 0; i < got->rank; i++) {
        if (got->dims[i] != expected->dims[i]) return INFINITY;
        count *= got->dims[i];
    }
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        float a, b;
        kv_to_f32(got->dtype, (const char *)got->data + (size_t)i * kv_dtype_bytes(got->dtype), 1, &a);
        kv_to_f32(expected->dtype, (const char *)expected->data + (size_t)i * kv_dtype_bytes(expected->dtype),
                  1, &b);
        difference += ((double)a - b) * ((double)a - b);
        norm += (double)b * b;
    }
    double error = sqrt(difference / norm);
    return isnan(error) ? INFINITY : error;
}

double golden_error(const void *got, uint64_t got_bytes, const void *expected, uint64_t expected_bytes,
                    const char *tensor)
{
    struct kv_document a = {0}, b = {0};
    double error = INFINITY;
    if (kv_document_open(&a, got, got_bytes, KV_DOCUMENT_FILE, NULL) &&
        kv_document_open(&b, expected, expected_bytes, KV_DOCUMENT_FILE, NULL)) {
        const struct kv_tensor *in_a = kv_document_find(&a, tensor), *in_b = kv_document_find(&b, tensor);
        if (in_a && in_b) {
            struct kv_view view_a = kv_document_view(&a, in_a, got),
                           view_b = kv_document_view(&b, in_b, expected);
            error = relative(&view_a, &view_b);
        }
    }
    kv_document_close(&a);
    kv_document_close(&b);
    return error;
}
