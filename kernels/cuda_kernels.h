/* Launchers of the CUDA kernels: what surrounds the matrix products. Pointers are device memory; every call
 * only enqueues on the stream. Knows no batches, no cuBLASLt. */
#ifndef KV_KERNELS_CUDA_KERNELS_H
#define KV_KERNELS_CUDA_KERNELS_H

#include "protocol/tensor.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From products to K and V, in place. */
struct kv_cuda_products {
    struct kv_geometry geometry;
    int64_t rows;
    void *out;         /* [2][layers][rows][kv_heads * head_dim], 16 bits: K's products, then V's */
    const float *sums; /* the same shape in float32, where there are biases: then `out` is only written; or
                          NULL */
    const float *k_bias, *v_bias; /* [layers][kv_heads * head_dim] or NULL */
    const float *k_norm;          /* [layers][head_dim] or NULL */
    const float *eps;             /* [layers] */
    const float *inv_freq;        /* [rotary_dim / 2] */
    const int32_t *positions;     /* [rows] */
};

/* V: bias, rounding, value scale. K: bias, rounding, norm, rotation, rounding.
 * Order of operations, kept by every later kernel since bits must not depend on the kernel: pairs are p = (p,
 * p + head_dim/2); q[p] = fma(hi, hi, lo * lo); the q are added as a balanced tree of neighbours over p,
 * padded with zeros to 8 * a power of two; r = rsqrtf(fma(sum, 1/head_dim, eps)); x = (x * r) * w; a rotated
 * pair (x, y) becomes fma(x, c, -(y * s)), fma(y, c, x * s), with c = cosf(angle) * attention_factor and s
 * likewise. */
cudaError_t kv_cuda_finish(const struct kv_cuda_products *finish, cudaStream_t stream);

/* Rows of a float dtype, dense [rows][columns], to `to` [rows][pitch] of 16 bits; columns behind `columns`
 * stay. */
cudaError_t kv_cuda_convert(const void *from, enum kv_dtype from_dtype, int64_t rows, int64_t columns,
                            void *to, enum kv_dtype to_dtype, int64_t pitch, cudaStream_t stream);

/* RMSNorm of rows [rows][pitch] of which `columns` count, in float32, rounded, in place. */
cudaError_t kv_cuda_norm_rows(void *rows_at, enum kv_dtype dtype, int64_t rows, int64_t columns,
                              int64_t pitch, const float *weight /* [columns] */, float eps,
                              cudaStream_t stream);

/* Fills [rows][pitch] with repeatable mild numbers, for probing and timing algorithms. */
cudaError_t kv_cuda_fill(void *to, enum kv_dtype dtype, int64_t rows, int64_t columns, int64_t pitch,
                         cudaStream_t stream);

/* Adds to *differing the elements in which the first `rows` rows of b, [batch][b_rows][columns], differ from
 * those of a, [batch][a_rows][columns], bit for bit; elements have `element_bytes` 2 or 4. */
cudaError_t kv_cuda_compare(const void *a, int64_t a_rows, const void *b, int64_t b_rows, int64_t rows,
                            int64_t batch, int64_t columns, int32_t element_bytes,
                            unsigned long long *differing, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
