/* What comes after the matrix product, for one row of one head: bias, rounding, value scale, norm and
 * rotation. The definition that every other backend is held against, in plain C: see MODEL in
 * kernels/README.md for the formulas. Knows no layouts, threads or requests. */
#ifndef KV_KERNELS_NORM_ROPE_H
#define KV_KERNELS_NORM_ROPE_H

#include "protocol/tensor.h"

enum { KV_HEAD_DIM_MAX = 1024 };

/* The angles' cosines and sines of one position, times the attention factor: [rotary_dim / 2] each. */
void kv_rope_angles(const struct kv_geometry *geometry, const float *inv_freq /* [rotary_dim / 2] */,
                    int64_t position, float *cosines, float *sines);

/* From float32 sums to the 16-bit row of V. `row` [head_dim] holds the sums and is overwritten; `bias`
 * [head_dim] may be NULL; `out` is [head_dim] of the geometry's dtype. */
void kv_v_row(const struct kv_geometry *geometry, const float *bias, float *row, uint16_t *out);

/* The same for K; `norm` [head_dim] is NULL where the geometry has no K norm. */
void kv_k_row(const struct kv_geometry *geometry, const float *bias, const float *norm, float eps,
              const float *cosines, const float *sines, float *row, uint16_t *out);

/* x[i] = x[i] * 1/sqrt(mean(x^2) + eps) * weight[i], all in float32. */
void kv_rms_norm(const float *weight /* [count] */, float eps, int64_t count, float *x /* [count] */);

#endif
