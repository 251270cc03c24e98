/* Bias, rounding, value scale, norm and rotation of one row of one head: the arithmetic that defines right.
 * Every operation is one float32 operation, in the order written; nothing is fused. Knows no layouts. */
#include "kernels/norm_rope.h"

#include <math.h>

enum { PARTIAL_SUMS = 16 };

void kv_rope_angles(const struct kv_geometry *geometry, const float *inv_freq, int64_t position,
                    float *cosines, float *sines)
{
    for (int32_t i = 0; i < geometry->rotary_dim / 2; i++) {
        float angle = (float)position * inv_freq[i];
        cosines[i] = cosf(angle) * geometry->attention_factor;
        sines[i] = sinf(angle) * geometry->attention_factor;
    }
}

/* Element i goes to partial sum i % 16, i increasing; the sixteen are added in pairs 8, 4, 2 and 1 apart. */
static float sum_of_squares(const float *x, int64_t count)
{
    float partial[PARTIAL_SUMS] = {0};
    int64_t whole = count / PARTIAL_SUMS * PARTIAL_SUMS;
    for (int64_t i = 0; i < whole; i += PARTIAL_SUMS)
        for (int64_t j = 0; j < PARTIAL_SUMS; j++) partial[j] += x[i + j] * x[i + j];
    for (int64_t i = whole; i < count; i++) partial[i - whole] += x[i] * x[i];
    for (int64_t apart = PARTIAL_SUMS / 2; apart > 0; apart /= 2)
        for (int64_t j = 0; j < apart; j++) partial[j] += partial[j + apart];
    return partial[0];
}

void kv_rms_norm(const float *weight, float eps, int64_t count, float *x)
{
    float r = 1.0f / sqrtf(sum_of_squares(x, count) / (float)count + eps);
    for (int64_t i = 0; i < count; i++) x[i] = x[i] * r * weight[i];
}

/* To the weights' dtype and back: `bits` is what was rounded to. */
static void round_row(enum kv_dtype dtype, int32_t count, float *row, uint16_t *bits)
{
    kv_from_f32(dtype, row, count, bits);
    kv_to_f32(dtype, bits, count, row);
}

static void add_bias(const float *bias, int32_t count, float *row)
{
    if (!bias) return;
    for (int32_t i = 0; i < count; i++) row[i] += bias[i];
}

void kv_v_row(const struct kv_geometry *geometry, const float *bias, float *row, uint16_t *out)
{
    int32_t count = geometry->head_dim;
    add_bias(bias, count, row);
    kv_from_f32(geometry->dtype, row, count, out);
    if (geometry->value_scale == 1.0f) return;
    kv_to_f32(geometry->dtype, out, count, row);
    for (int32_t i = 0; i < count; i++) row[i] *= geometry->value_scale;
    kv_from_f32(geometry->dtype, row, count, out);
}

static void rotate(const struct kv_geometry *geometry, const float *cosines, const float *sines, float *row)
{
    int32_t pairs = geometry->rotary_dim / 2;
    /* Partners are `apart` elements away from each other, and pairs begin `step` elements after each other.
     */
    int32_t apart = geometry->interleaved ? 1 : pairs, step = geometry->interleaved ? 2 : 1;
    for (int32_t i = 0; i < pairs; i++) {
        float first = row[i * step], second = row[i * step + apart];
        row[i * step] = first * cosines[i] - second * sines[i];
        row[i * step + apart] = second * cosines[i] + first * sines[i];
    }
}

void kv_k_row(const struct kv_geometry *geometry, const float *bias, const float *norm, float eps,
              const float *cosines, const float *sines, float *row, uint16_t *out)
{
    int32_t count = geometry->head_dim;
    add_bias(bias, count, row);
    round_row(geometry->dtype, count, row, out);
    if (norm) kv_rms_norm(norm, eps, count, row);
    rotate(geometry, cosines, sines, row);
    kv_from_f32(geometry->dtype, row, count, out);
}
