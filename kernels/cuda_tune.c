/* By which of cuBLASLt's algorithms products are computed. Which is fastest depends on the number of rows;
 * which bits it gives must not. One algorithm is the reference; another may serve a range of rows only if it
 * gives the reference's bits on a probe at open. Split-K is never eligible: its order of sums depends on the
 * shape. */
#include "kernels/cuda_backend.h"

#include <math.h>

enum {
    SAMPLES = 5,
    SAMPLE_US = 400, /* so long that the ticks of the device's clock do not matter */
    SAMPLE_LAUNCHES = 16,
    WINDOWS = 64,
    PROBED = 4 * 1000 * 1000,
    HEURISTIC_MAX = 32,
    WAVE_TILES = 8,
    WAVE_CLUSTERS = 3,
    WAVE_ROWS_MIN = 64, /* more rows than this, up to WAVE_ROWS_MAX, are few waves */
    WAVE_ROWS_MAX = 1024,
    WAVE_OVERHEAD = 512,  /* beginning and end of a tile, as elements of a tile */
    AREA_MIN = 64 * 128,  /* smaller tiles wait for memory */
    AREA_MAX = 128 * 256, /* accumulators of larger ones do not fit into the registers */
    CHOICES_MAX = HEURISTIC_MAX + WAVE_TILES * WAVE_CLUSTERS
};

static const float near_enough = 1.1f, alike = 1.015f; /* times the fastest */

struct choice {
    int32_t place; /* in the order in which it was offered */
    float us;
    cublasLtMatmulAlgo_t algorithm;
};

struct tile {
    cublasLtMatmulTile_t id;
    int64_t outputs, rows;
};
#define TILE(outputs, rows)                                                                                  \
    {                                                                                                        \
        CUBLASLT_MATMUL_TILE_##outputs##x##rows, outputs, rows                                               \
    }
#define TILES(outputs) TILE(outputs, 64), TILE(outputs, 128), TILE(outputs, 192), TILE(outputs, 256)
static const struct tile tiles[] = {TILES(64),  TILES(72),  TILES(80),  TILES(88),  TILES(96),  TILES(104),
                                    TILES(112), TILES(120), TILES(128), TILES(136), TILES(144), TILES(152),
                                    TILES(160), TILES(168), TILES(176), TILES(184), TILES(192)};

/* The heuristic's choices without split-K for so many rows, best first. */
static int32_t offered_by_heuristic(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                    int64_t rows, struct choice *out /* [HEURISTIC_MAX] */)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found[2 * HEURISTIC_MAX];
    struct kv_cuda_layouts layouts;
    uint64_t workspace_bytes = KV_CUDA_WORKSPACE_BYTES;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    int count = 0;
    if (kv_cuda_gemm_layouts(gemm, rows, &layouts) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes,
                                             sizeof workspace_bytes) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &schemes, sizeof schemes) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoGetHeuristic(backend->blas, gemm->operation, &layouts.w, &layouts.x, &layouts.out,
                                       &layouts.out, &preference, 2 * HEURISTIC_MAX, found,
                                       &count) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int32_t kept = 0;
    for (int i = 0; i < count && kept < HEURISTIC_MAX; i++) {
        int32_t split = 0;
        size_t written;
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                 sizeof split, &written) == CUBLAS_STATUS_SUCCESS &&
            split <= 1)
            out[kept++].algorithm = found[i].algo;
    }
    return kept;
}

/* The plain algorithm of the same kind as `like`, whose tile and cluster are still open. */
static bool same_kind(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                      const cublasLtMatmulAlgo_t *like, cublasLtMatmulAlgo_t *out)
{
    int32_t kind = 0;
    uint32_t stages = 0;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(like, CUBLASLT_ALGO_CONFIG_ID, &kind, sizeof kind,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigGetAttribute(like, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoInit(backend->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, gemm->type, gemm->type,
                                  gemm->out_type, gemm->out_type, kind, out) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(out, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages,
                                                sizeof stages) == CUBLAS_STATUS_SUCCESS;
}

/* Gives the algorithm a tile and a cluster; false where cuBLASLt has no such one. */
static bool set_tile(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                     struct kv_cuda_layouts *layouts, const struct tile *tile, uint16_t cluster,
                     cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulHeuristicResult_t checked;
    const uint32_t id = (uint32_t)tile->id;
    return cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &id, sizeof id) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                                sizeof cluster) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoCheck(backend->blas, gemm->operation, &layouts->w, &layouts->x, &layouts->out,
                                   &layouts->out, algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.state == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= KV_CUDA_WORKSPACE_BYTES;
}

/* What a wave of tiles costs, times the waves: all processors are busy until the last wave, which may be
 * nearly empty. */
static int64_t wave_cost(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm, int64_t rows,
                         const struct tile *tile)
{
    int64_t count = (gemm->outputs + tile->outputs - 1) / tile->outputs * gemm->batch *
                    ((rows + tile->rows - 1) / tile->rows);
    int64_t waves = (count + backend->processors - 1) / backend->processors;
    return waves * (tile->outputs * tile->rows + WAVE_OVERHEAD);
}

/* Between a few rows and many the heuristic leaves waves half empty: the tiles that fill them best, of the
 * kind of its first choice. */
static int32_t offered_by_waves(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                int64_t rows, const cublasLtMatmulAlgo_t *like, struct choice *out)
{
    static const uint16_t clusters[WAVE_CLUSTERS] = {
        CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1};
    const struct tile *best[WAVE_TILES];
    cublasLtMatmulAlgo_t plain;
    struct kv_cuda_layouts layouts;
    int32_t tiles_kept = 0, kept = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        int64_t cost = wave_cost(backend, gemm, rows, &tiles[i]), area = tiles[i].outputs * tiles[i].rows;
        if (area < AREA_MIN || area > AREA_MAX) continue;
        int32_t at = tiles_kept;
        while (at > 0 && wave_cost(backend, gemm, rows, best[at - 1]) > cost) at--;
        if (at == WAVE_TILES) continue;
        if (tiles_kept < WAVE_TILES) tiles_kept++;
        for (int32_t k = tiles_kept - 1; k > at; k--) best[k] = best[k - 1];
        best[at] = &tiles[i];
    }
    if (!same_kind(backend, gemm, like, &plain) ||
        kv_cuda_gemm_layouts(gemm, rows, &layouts) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int32_t i = 0; i < WAVE_CLUSTERS * tiles_kept; i++) {
        out[kept].algorithm = plain;
        kept += set_tile(backend, gemm, &layouts, best[i / WAVE_CLUSTERS], clusters[i % WAVE_CLUSTERS],
                         &out[kept].algorithm);
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
        ran = kv_cuda_gemm_multiply(backend, gemm, probe->slot, x, probe->got, rows, algorithm) ==
                  CUBLAS_STATUS_SUCCESS &&
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
            ran = kv_cuda_gemm_multiply(backend, gemm, probe->slot, probe->x, probe->got, rows, algorithm) ==
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

/* Orders by a first look at the time; what does not run comes last. */
static void order_by_time(struct kv_backend *backend, const struct kv_cuda_gemm *gemm, struct probe *probe,
                          int64_t rows, struct choice *choice, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        struct choice one = choice[i];
        one.us = time_of(backend, gemm, probe, rows, &one.algorithm, 1);
        int32_t at = i;
        while (at > 0 && choice[at - 1].us > one.us) {
            choice[at] = choice[at - 1];
            at--;
        }
        choice[at] = one;
    }
}

/* Buckets end at 16, 32, 64, and from there to WAVE_ROWS_MAX at 1.5 times a power of two as well. */
static int64_t bucket_after(int64_t rows)
{
    int64_t power = 16;
    while (power <= rows) power *= 2;
    int64_t between = power / 4 * 3;
    return between > rows && between > WAVE_ROWS_MIN && between < WAVE_ROWS_MAX ? between : power;
}

static bool is_eligible(struct kv_backend *backend, const struct kv_cuda_gemm *gemm, struct probe *probe,
                        int64_t rows_min, int64_t rows, const struct choice *choice)
{
    return agrees(backend, gemm, probe, rows, &choice->algorithm) &&
           agrees(backend, gemm, probe, rows_min, &choice->algorithm);
}

/* The fastest eligible one of `choice`, which is in the order of a first look; only those near the fastest
 * are looked at twice. Those as fast as it within the noise are not told apart by it: the one that was
 * offered first serves, so that a restart chooses no other, and the heuristic knows what power costs. NULL:
 * none is eligible. */
static const struct choice *fastest(struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                    struct probe *probe, int64_t rows_min, int64_t rows,
                                    struct choice *choice, int32_t count)
{
    const struct choice *chosen = NULL;
    float best = INFINITY;
    int32_t looked_at = 0;
    for (; looked_at < count && choice[looked_at].us < near_enough * best; looked_at++) {
        struct choice *one = &choice[looked_at];
        float launches = (float)SAMPLE_US / one->us;
        launches = launches < 1 ? 1 : launches > SAMPLE_LAUNCHES ? SAMPLE_LAUNCHES : launches;
        bool eligible = is_eligible(backend, gemm, probe, rows_min, rows, one);
        one->us =
            eligible ? time_of(backend, gemm, probe, rows, &one->algorithm, (int32_t)launches) : INFINITY;
        if (one->us < best) best = one->us;
    }
    for (int32_t i = 0; i < looked_at; i++)
        if (choice[i].us <= alike * best && choice[i].us < INFINITY &&
            (!chosen || choice[i].place < chosen->place))
            chosen = &choice[i];
    return chosen;
}

/* Who serves `rows_min` to `rows` rows; without tuning the heuristic's first that is eligible. */
static void fill_bucket(struct kv_backend *backend, struct kv_cuda_gemm *gemm, struct probe *probe,
                        int64_t rows_min, int64_t rows, bool tune)
{
    struct choice choice[CHOICES_MAX];
    const struct choice *chosen = NULL;
    int32_t count = offered_by_heuristic(backend, gemm, rows, choice);
    if (tune && count > 0 && rows > WAVE_ROWS_MIN && rows <= WAVE_ROWS_MAX)
        count += offered_by_waves(backend, gemm, rows, &choice[0].algorithm, &choice[count]);
    for (int32_t i = 0; i < count; i++) choice[i].place = i;
    if (tune) {
        order_by_time(backend, gemm, probe, rows, choice, count);
        chosen = fastest(backend, gemm, probe, rows_min, rows, choice, count);
    } else {
        for (int32_t i = 0; i < count && !chosen; i++)
            if (is_eligible(backend, gemm, probe, rows_min, rows, &choice[i])) chosen = &choice[i];
    }
    int32_t at = gemm->buckets++;
    gemm->bucket[at].rows_max = rows;
    gemm->bucket[at].algorithm = chosen ? chosen->algorithm : gemm->bucket[0].algorithm;
}

/* The reference must run for every number of rows: it is the heuristic's first for a middling one that also
 * runs, with the same bits, for one row and for the most. */
static bool choose_reference(struct kv_backend *backend, struct kv_cuda_gemm *gemm, struct probe *probe,
                             struct kv_error *err)
{
    static const int64_t middling[] = {256, 128, 64, 1024, 16, 1};
    for (size_t i = 0; i < sizeof middling / sizeof middling[0]; i++) {
        struct choice choice[HEURISTIC_MAX];
        int64_t rows = middling[i] < probe->rows_max ? middling[i] : probe->rows_max;
        int32_t count = offered_by_heuristic(backend, gemm, rows, choice);
        for (int32_t j = 0; j < count; j++) {
            gemm->bucket[0].rows_max = probe->rows_max;
            gemm->bucket[0].algorithm = choice[j].algorithm;
            if (kv_cuda_gemm_multiply(backend, gemm, probe->slot, probe->x, probe->expected, probe->rows_max,
                                      &choice[j].algorithm) == CUBLAS_STATUS_SUCCESS &&
                agrees(backend, gemm, probe, 1, &choice[j].algorithm) &&
                agrees(backend, gemm, probe, rows, &choice[j].algorithm)) {
                gemm->buckets = 1;
                return true;
            }
        }
    }
    return kv_fail(err, KV_DEVICE_UNAVAILABLE, "cuBLASLt has no algorithm for a product of %lld x %lld",
                   (long long)gemm->outputs, (long long)gemm->depth);
}

bool kv_cuda_tune(struct kv_backend *backend, struct kv_cuda_gemm *gemm, bool tune, struct kv_error *err)
{
    bool is_fc = gemm == &backend->reduce, ok = false;
    struct kv_cuda_slot *a = &backend->slot[0], *b = &backend->slot[1];
    struct probe probe = {.slot = a, .rows_max = backend->rows_max};
    probe.x = is_fc ? a->target : a->x;
    probe.expected = is_fc ? a->x : gemm->out_type == CUDA_R_32F ? (void *)a->sums : a->out;
    probe.got = is_fc ? b->x : gemm->out_type == CUDA_R_32F ? (void *)b->sums : b->out;
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
    for (int64_t below = 0; ok && below < backend->rows_max && gemm->buckets < KV_CUDA_BUCKETS_MAX;) {
        int64_t rows = bucket_after(below) < backend->rows_max ? bucket_after(below) : backend->rows_max;
        fill_bucket(backend, gemm, &probe, below + 1, rows, tune);
        below = rows;
    }
    status = cudaStreamSynchronize(a->stream);
    if (ok && status != cudaSuccess) ok = kv_cuda_fail(status, "choosing algorithms", err);
cleanup:
    if (probe.begin) cudaEventDestroy(probe.begin);
    if (probe.end) cudaEventDestroy(probe.end);
    cudaFreeHost(probe.differing);
    return ok;
}
