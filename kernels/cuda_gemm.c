/* Products by cuBLASLt: one strided batch over K and V of all layers. cuda_tune.c says by which algorithm. */
#include "kernels/cuda_backend.h"

/* cuBLASLt counts columns first: W is [depth, outputs] transposed, X is [depth, rows], D is [outputs, rows].
 */
static cublasStatus_t set_layout(cublasLtMatrixLayoutOpaque_t *layout, cudaDataType_t type, int64_t a,
                                 int64_t b, int64_t pitch, int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    cublasStatus_t status = cublasLtMatrixLayoutInit(layout, type, (uint64_t)a, (uint64_t)b, pitch);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                  sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                  &stride, sizeof stride);
    return status;
}

cublasStatus_t kv_cuda_gemm_layouts(const struct kv_cuda_gemm *gemm, int64_t rows,
                                    struct kv_cuda_layouts *layouts)
{
    cublasStatus_t status = set_layout(&layouts->w, gemm->type, gemm->depth, gemm->outputs, gemm->depth,
                                       gemm->batch, gemm->outputs * gemm->depth);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_layout(&layouts->x, gemm->type, gemm->depth, rows, gemm->depth, gemm->batch, 0);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_layout(&layouts->out, gemm->out_type, gemm->outputs, rows, gemm->out_pitch, gemm->batch,
                            rows * gemm->out_pitch);
    return status;
}

cublasStatus_t kv_cuda_gemm_multiply(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                     const struct kv_cuda_slot *slot, const void *x, void *out, int64_t rows,
                                     const cublasLtMatmulAlgo_t *algorithm)
{
    static const float one = 1.0f, zero = 0.0f;
    struct kv_cuda_layouts layouts;
    cublasStatus_t status = kv_cuda_gemm_layouts(gemm, rows, &layouts);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul(backend->blas, gemm->operation, &one, gemm->weights, &layouts.w, x, &layouts.x,
                          &zero, out, &layouts.out, out, &layouts.out, algorithm, slot->workspace,
                          KV_CUDA_WORKSPACE_BYTES, slot->stream);
}

cublasStatus_t kv_cuda_gemm_run(struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                const struct kv_cuda_slot *slot, const void *x, void *out, int64_t rows)
{
    int32_t at = 1;
    while (at < gemm->buckets && rows > gemm->bucket[at].rows_max) at++;
    if (at >= gemm->buckets) at = 0;
    cublasStatus_t status =
        kv_cuda_gemm_multiply(backend, gemm, slot, x, out, rows, &gemm->bucket[at].algorithm);
    /* Probed at a bucket's ends; within it cuBLASLt may still decline a size. The reference has the same
     * bits. */
    if (status == CUBLAS_STATUS_NOT_SUPPORTED && at != 0)
        status = kv_cuda_gemm_multiply(backend, gemm, slot, x, out, rows, &gemm->bucket[0].algorithm);
    return status;
}

bool kv_cuda_gemm_open(struct kv_backend *backend, struct kv_cuda_gemm *gemm, bool tune, struct kv_error *err)
{
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasStatus_t status = cublasLtMatmulDescCreate(&gemm->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                sizeof transpose);
    if (status != CUBLAS_STATUS_SUCCESS) return kv_cuda_blas_fail(status, "describing a product", err);
    return kv_cuda_tune(backend, gemm, tune, err);
}

void kv_cuda_gemm_close(struct kv_cuda_gemm *gemm)
{
    if (gemm->operation) cublasLtMatmulDescDestroy(gemm->operation);
    *gemm = (struct kv_cuda_gemm){.buckets = 0};
}
