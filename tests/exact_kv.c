/* The float64 evaluation. Shares no line with the kernels: conversions go through ldexp and rint. */
#include "tests/exact_kv.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

double exact_from_bits(enum kv_dtype dtype, uint16_t bits)
{
    int mantissa_bits = dtype == KV_BF16 ? 7 : 10, bias = dtype == KV_BF16 ? 127 : 15;
    int exponent_max = dtype == KV_BF16 ? 255 : 31;
    int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    double size;
    if (exponent == exponent_max)
        size = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        size = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        size = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -size : size;
}

double exact_round(enum kv_dtype dtype, double value)
{
    int mantissa_bits = dtype == KV_BF16 ? 7 : 10, exponent_min = dtype == KV_BF16 ? -126 : -14, exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    exponent = exponent - 1 < exponent_min ? exponent_min : exponent - 1;
    double rounded = ldexp(rint(ldexp(value, mantissa_bits - exponent)), exponent - mantissa_bits);
    double beyond = ldexp(1, dtype == KV_BF16 ? 128 : 16);
    return fabs(rounded) >= beyond ? copysign(INFINITY, value) : rounded;
}

void exact_row(const struct rig_input *input, int64_t t, enum kv_dtype to, double *row)
{
    for (int64_t i = 0; i < input->columns; i++) {
        const unsigned char *from =
            input->bytes + (t * input->columns + i) * (int64_t)kv_dtype_bytes(input->dtype);
        float single;
        uint16_t bits;
        memcpy(&single, from, input->dtype == KV_F32 ? sizeof single : 0);
        memcpy(&bits, from, sizeof bits);
        row[i] =
            exact_round(to, input->dtype == KV_F32 ? (double)single : exact_from_bits(input->dtype, bits));
    }
}

static double dot(enum kv_dtype dtype, const uint16_t *weight, const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += exact_from_bits(dtype, weight[i]) * x[i];
    return sum;
}

static void norm_row(const float *weight, double eps, int64_t count, double *x)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < count; i++) x[i] = x[i] / sqrt(squares / (double)count + eps) * (double)weight[i];
}

static void rotate_row(const struct kv_geometry *geometry, const float *inv_freq, int64_t position, double *x)
{
    int32_t half = geometry->rotary_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        float angle = (float)position * inv_freq[i];
        double c = cos((double)angle) * (double)geometry->attention_factor;
        double s = sin((double)angle) * (double)geometry->attention_factor;
        double *first = geometry->interleaved ? &x[2 * i] : &x[i];
        double *second = geometry->interleaved ? &x[2 * i + 1] : &x[i + half];
        double rotated = *first * c - *second * s;
        *second = *second * c + *first * s;
        *first = rotated;
    }
}

static void round_row(const struct kv_geometry *geometry, bool staged, int64_t count, double *x)
{
    for (int64_t i = 0; staged && i < count; i++) x[i] = exact_round(geometry->dtype, x[i]);
}

static void reduce_row(const struct kv_geometry *geometry, const struct random_weights *weights, bool staged,
                       const double *target, double *x)
{
    const uint16_t *fc = random_weights_part(weights, -1, KV_PART_FC);
    int64_t columns = geometry->taps * geometry->hidden;
    for (int64_t i = 0; i < geometry->hidden; i++)
        x[i] = dot(geometry->dtype, fc + i * columns, target, columns);
    round_row(geometry, staged, geometry->hidden, x);
    norm_row(random_weights_part(weights, -1, KV_PART_HIDDEN_NORM), (double)geometry->hidden_norm_eps,
             geometry->hidden, x);
    round_row(geometry, staged, geometry->hidden, x);
}

static void project_head(const struct kv_geometry *geometry, const struct random_weights *weights,
                         bool staged, int32_t layer, int32_t head, int64_t position, const double *x,
                         double *k, double *v)
{
    const uint16_t *k_weight = random_weights_part(weights, layer, KV_PART_K_WEIGHT);
    const uint16_t *v_weight = random_weights_part(weights, layer, KV_PART_V_WEIGHT);
    const float *k_bias = random_weights_part(weights, layer, KV_PART_K_BIAS);
    const float *v_bias = random_weights_part(weights, layer, KV_PART_V_BIAS);
    const float *eps = random_weights_part(weights, layer, KV_PART_EPS);
    int64_t first = (int64_t)head * geometry->head_dim, hidden = geometry->hidden;
    for (int64_t d = 0; d < geometry->head_dim; d++) {
        k[d] = dot(geometry->dtype, k_weight + (first + d) * hidden, x, hidden);
        v[d] = dot(geometry->dtype, v_weight + (first + d) * hidden, x, hidden);
        if (k_bias) k[d] += (double)k_bias[first + d];
        if (v_bias) v[d] += (double)v_bias[first + d];
    }
    round_row(geometry, staged, geometry->head_dim, k);
    round_row(geometry, staged, geometry->head_dim, v);
    for (int64_t d = 0; d < geometry->head_dim; d++) {
        /* A 16-bit number times a scale is often next to a tie: the product's own rounding decides. */
        float product = (float)v[d] * geometry->value_scale;
        v[d] = staged ? (double)product : v[d] * (double)geometry->value_scale;
    }
    round_row(geometry, staged, geometry->head_dim, v);
    if (geometry->k_norm)
        norm_row(random_weights_part(weights, layer, KV_PART_K_NORM), (double)eps[0], geometry->head_dim, k);
    rotate_row(geometry, random_weights_part(weights, -1, KV_PART_INV_FREQ), position, k);
    round_row(geometry, staged, geometry->head_dim, k);
}

void exact_kv(const struct kv_geometry *geometry, const struct random_weights *weights,
              const struct rig_input *input, bool staged, double **k, double **v)
{
    size_t count = (size_t)(kv_geometry_token_elements(geometry) * input->rows);
    *k = calloc(count + 1, sizeof **k);
    *v = calloc(count + 1, sizeof **v);
    double *given = calloc((size_t)input->columns, sizeof *given),
           *x = calloc((size_t)geometry->hidden, sizeof *x);
    ck_assert(*k && *v && given && x);
    for (int64_t t = 0; t < input->rows; t++) {
        exact_row(input, t, geometry->dtype, given);
        if (input->kind == KV_TARGET_HIDDEN)
            reduce_row(geometry, weights, staged, given, x);
        else
            memcpy(x, given, (size_t)geometry->hidden * sizeof *x);
        for (int32_t layer = 0; layer < geometry->layers; layer++)
            for (int32_t head = 0; head < geometry->kv_heads; head++) {
                int64_t at = ((layer * input->rows + t) * geometry->kv_heads + head) * geometry->head_dim;
                project_head(geometry, weights, staged, layer, head, input->positions[t], x, *k + at,
                             *v + at);
            }
    }
    free(given);
    free(x);
}
