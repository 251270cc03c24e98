/* Products by cuBLASLt: one strided batch over K and V of all layers. Which algorithm is fastest depends on
 * the number of rows; which bits it gives must not. One algorithm is the reference; another may serve a range
 * of rows only if it gives the reference's bits on a probe at open. Split-K is never eligible: its order of
 * sums depends on the shape. */
#include "kernels/cuda_backend.h"

#include <math.h>

enum {
    SAMPLES = 5,
    SAMPLE_US = 400, /* so long that the ticks of the device's clock do not matter */
    SAMPLE_LAUNCHES = 16,
    WINDOWS = 64,
    PROBED = 4 * 1000 * 1000
};

struct layouts {
    cublasLtMatrixLayoutOpaque_t w, x, out;
};

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

static cublasStatus_t set_layouts(const struct kv_cuda_gemm *gemm, int64_t rows, struct layouts *layouts)
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

static cublasStatus_t multiply(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                               const struct kv_cuda_slot *slot, const void *x, void *out, int64_t rows,
                               const cublasLtMatmulAlgo_t *algorithm)
{
    static const float one = 1.0f, zero = 0.0f;
    struct layouts layouts;
    cublasStatus_t status = set_layouts(gemm, rows, &layouts);
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
    cublasStatus_t status = multiply(backend, gemm, slot, x, out, rows, &gemm->bucket[at].algorithm);
    /* Probed at a bucket's ends; within it cuBLASLt may still decline a size. The reference has the same
     * bits. */
    if (status == CUBLAS_STATUS_NOT_SUPPORTED && at != 0)
        status = multiply(backend, gemm, slot, x, out, rows, &gemm->bucket[0].algorithm);
    return status;
}

/* The heuristic's choices without split-K for so many rows, best first. */
static int32_t candidates_for(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm, int64_t rows,
                              cublasLtMatmulAlgo_t *out /* [KV_CUDA_CANDIDATES] */)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found[2 * KV_CUDA_CANDIDATES];
    struct layouts layouts;
    uint64_t workspace_bytes = KV_CUDA_WORKSPACE_BYTES;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    int count = 0;
    if (set_layouts(gemm, rows, &layouts) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes,
                                             sizeof workspace_bytes) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &schemes, sizeof schemes) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoGetHeuristic(backend->blas, gemm->operation, &layouts.w, &layouts.x, &layouts.out,
                                       &layouts.out, &preference, 2 * KV_CUDA_CANDIDATES, found,
                                       &count) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int32_t kept = 0;
    for (int i = 0; i < count && kept < KV_CUDA_CANDIDATES; i++) {
        int32_t split = 0;
        size_t written;
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                 sizeof split, &written) == CUBLAS_STATUS_SUCCESS &&
            split <= 1)
            out[kept++] = found[i].algo;
    }
    return kept;
}

/* What a probe works with: the reference's result for the most rows, and room for a candidate's. */
struct probe {
    const struct kv_cuda_slot *slot;
    const void *x;
    void *expected, *got;
    int64_t rows_max;
    unsigned long long *differing; /* pinned: the host reads it, the device adds to it */
    cudaEvent_t begin, end;
};

/* Does the algorithm give the reference's bits for so many rows? Two orders of sums differ only where they
 * round to different 16 bits, once in some thousands: so windows of the reference's rows are computed again,
 * as many as it takes to see PROBED elements. */
static bool agrees(struct kv_backend *backend, const struct kv_cuda_gemm *gemm, struct probe *probe,
                   int64_t rows, const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t element_bytes = gemm->out_type == CUDA_R_32F ? 4 : 2;
    int64_t elements = rows * gemm->batch * gemm->outputs, windows = (PROBED + elements - 1) / elements;
    bool ran = true;
    if (windows > WINDOWS) windows = WINDOWS;
    *probe->differing = 0;
    for (int64_t window = 0; ran && window < windows && (window + 1) * rows <= probe->rows_max; window++) {
        const char *x = (const char *)probe->x + (size_t)(window * rows * gemm->depth) * 2;
        const char *expected =
            (const char *)probe->expected + (size_t)(window * rows * gemm->out_pitch) * (size_t)element_bytes;
        ran = multiply(backend, gemm, probe->slot, x, probe->got, rows, algorithm) == CUBLAS_STATUS_SUCCESS &&
              kv_cuda_compare(expected, probe->rows_max, probe->got, rows, rows, gemm->batch, gemm->out_pitch,
                              element_bytes, probe->differing, probe->slot->stream) == cudaSuccess;
    }
    ran = cudaStreamSynchronize(probe->slot->stream) == cudaSuccess && ran;
    return ran && *probe->differing == 0;
}

/* Microseconds of one launch, the median of a few samples of `launches`; infinity when it does not run. */
static float time_of(struct kv_backend *backend, const struct kv_cuda_gemm *gemm, struct probe *probe,
                     int64_t rows, const cublasLtMatmulAlgo_t *algorithm, int32_t launches)
{
    float sorted[SAMPLES];
    for (int32_t sample = 0; sample < SAMPLES; sample++) {
        float ms = 0;
        bool ran = cudaEventRecord(probe->begin, probe->slot->stream) == cudaSuccess;
        for (int32_t i = 0; i < launches && ran; i++)
            ran = multiply(backend, gemm, probe->slot, probe->x, probe->got, rows, algorithm) ==
                  CUBLAS_STATUS_SUCCESS;
        if (!ran || cudaEventRecord(probe->end, probe->slot->stream) != cudaSuccess ||
            cudaEventSynchronize(probe->end) != cudaSuccess ||
            cudaEventElapsedTime(&ms, probe->begin, probe->end) != cudaSuccess)
            return INFINITY;
        int32_t at = sample;
        while (at > 0 && sorted[at - 1] > ms) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = ms;
    }
    return sorted[SAMPLES / 2] * 1e3f / (float)launches;
}

struct timed {
    float us;
    cublasLtMatmulAlgo_t algorithm;
};

/* Orders by a first look at the time; what does not run comes last. */
static void order_by_time(struct kv_backend *backend, const struct kv_cuda_gemm *gemm, struct probe *probe,
                          int64_t rows, struct timed *timed, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        struct timed one = timed[i];
        one.us = time_of(backend, gemm, probe, rows, &one.algorithm, 1);
        int32_t at = i;
        while (at > 0 && timed[at - 1].us > one.us) {
            timed[at] = timed[at - 1];
            at--;
        }
        timed[at] = one;
    }
}

/* The fastest eligible algorithm for up to `rows` rows and more than half as many; without tuning the first
 * eligible. Only those near the fastest are looked at twice. */
static void fill_bucket(struct kv_backend *backend, struct kv_cuda_gemm *gemm, struct probe *probe,
                        int64_t rows, bool tune)
{
    struct timed timed[KV_CUDA_CANDIDATES];
    cublasLtMatmulAlgo_t candidate[KV_CUDA_CANDIDATES], chosen = gemm->bucket[0].algorithm;
    int32_t count = candidates_for(backend, gemm, rows, candidate);
    for (int32_t i = 0; i < count; i++) timed[i] = (struct timed){0, candidate[i]};
    if (tune) order_by_time(backend, gemm, probe, rows, timed, count);
    float best = INFINITY;
    for (int32_t i = 0; i < count && timed[i].us < 1.1f * best; i++) {
        const cublasLtMatmulAlgo_t *algorithm = &timed[i].algorithm;
        if (!agrees(backend, gemm, probe, rows, algorithm) ||
            !agrees(backend, gemm, probe, rows / 2 + 1, algorithm))
            continue;
        float launches = (float)SAMPLE_US / timed[i].us;
        launches = launches < 1 ? 1 : launches > SAMPLE_LAUNCHES ? SAMPLE_LAUNCHES : launches;
        float us = tune ? time_of(backend, gemm, probe, rows, algorithm, (int32_t)launches) : 0;
        if (us >= best) continue;
        best = us;
        chosen = *algorithm;
        if (!tune) break;
    }
    int32_t at = gemm->buckets++;
    gemm->bucket[at].rows_max = rows;
    gemm->bucket[at].algorithm = chosen;
}

/* The reference must run for every number of rows: it is the heuristic's first for a middling one that also
 * runs, with the same bits, for one row and for the most. */
static bool choose_reference(struct kv_backend *backend, struct kv_cuda_gemm *gemm, struct probe *probe,
                             struct kv_error *err)
{
    static const int64_t middling[] = {256, 128, 64, 1024, 16, 1};
    for (size_t i = 0; i < sizeof middling / sizeof middling[0]; i++) {
        cublasLtMatmulAlgo_t candidate[KV_CUDA_CANDIDATES];
        int64_t rows = middling[i] < probe->rows_max ? middling[i] : probe->rows_max;
        int32_t count = candidates_for(backend, gemm, rows, candidate);
        for (int32_t j = 0; j < count; j++) {
            gemm->bucket[0].rows_max = probe->rows_max;
            gemm->bucket[0].algorithm = candidate[j];
            if (multiply(backend, gemm, probe->slot, probe->x, probe->expected, probe->rows_max,
                         &candidate[j]) == CUBLAS_STATUS_SUCCESS &&
                agrees(backend, gemm, probe, 1, &candidate[j]) &&
                agrees(backend, gemm, probe, rows, &candidate[j])) {
                gemm->buckets = 1;
                return true;
            }
        }
    }
    return kv_fail(err, KV_DEVICE_UNAVAILABLE, "cuBLASLt has no algorithm for a product of %lld x %lld",
                   (long long)gemm->outputs, (long long)gemm->depth);
}

static bool open_operation(struct kv_cuda_gemm *gemm, struct kv_error *err)
{
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasStatus_t status = cublasLtMatmulDescCreate(&gemm->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                sizeof transpose);
    return status == CUBLAS_STATUS_SUCCESS || kv_cuda_blas_fail(status, "describing a product", err);
}

bool kv_cuda_gemm_open(struct kv_backend *backend, struct kv_cuda_gemm *gemm, bool tune, struct kv_error *err)
{
    bool is_fc = gemm == &backend->reduce, ok = false;
    struct kv_cuda_slot *a = &backend->slot[0], *b = &backend->slot[1];
    struct probe probe = {.slot = a, .rows_max = backend->rows_max};
    probe.x = is_fc ? a->target : a->x;
    probe.expected = is_fc ? a->x : gemm->out_type == CUDA_R_32F ? (void *)a->sums : a->out;
    probe.got = is_fc ? b->x : gemm->out_type == CUDA_R_32F ? (void *)b->sums : b->out;
    if (!open_operation(gemm, err)) return false;
    cudaError_t status =
        cudaHostAlloc((void **)&probe.differing, sizeof *probe.differing, cudaHostAllocMapped);
    if (status == cudaSuccess) status = cudaEventCreate(&probe.begin);
    if (status == cudaSuccess) status = cudaEventCreate(&probe.end);
    if (status == cudaSuccess)
        status =
            kv_cuda_fill(is_fc ? a->target : a->x, backend->geometry.dtype, backend->rows_max,
                         is_fc ? backend->geometry.hidden * backend->geometry.taps : backend->geometry.hidden,
                         gemm->depth, a->stream);
    if (status != cudaSuccess) {
        kv_cuda_fail(status, "preparing to choose algorithms", err);
        goto cleanup;
    }
    ok = choose_reference(backend, gemm, &probe, err);
    for (int64_t rows = 16; ok && gemm->buckets < KV_CUDA_BUCKETS_MAX; rows *= 2) {
        fill_bucket(backend, gemm, &probe, rows < backend->rows_max ? rows : backend->rows_max, tune);
        if (rows >= backend->rows_max) break;
    }
    status = cudaStreamSynchronize(a->stream);
    if (ok && status != cudaSuccess) ok = kv_cuda_fail(status, "choosing algorithms", err);
cleanup:
    if (probe.begin) cudaEventDestroy(probe.begin);
    if (probe.end) cudaEventDestroy(probe.end);
    cudaFreeHost(probe.differing);
    return ok;
}

void kv_cuda_gemm_close(struct kv_cuda_gemm *gemm)
{
    if (gemm->operation) cublasLtMatmulDescDestroy(gemm->operation);
    *gemm = (struct kv_cuda_gemm){.buckets = 0};
}
