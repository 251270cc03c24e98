/* The inside of the CUDA backend, shared by cuda_backend.c (life and memory), cuda_weights.c (resident
 * weights), cuda_gemm.c (products), cuda_tune.c (their algorithms) and cuda_batch.c (a batch on its way). Not
 * for other rooms. */
#ifndef KV_KERNELS_CUDA_BACKEND_H
#define KV_KERNELS_CUDA_BACKEND_H

#include "kernels/backend_list.h"
#include "kernels/cuda_kernels.h"
#include "kernels/item_check.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

enum {
    KV_CUDA_SLOTS = 3, /* batches in flight: one goes up, one computes, one comes down */
    KV_CUDA_SPAN_ROWS = 4096,
    KV_CUDA_COLUMNS = 8,                  /* inputs are padded with zeros to a multiple: 16-byte rows */
    KV_CUDA_RAW_BYTES = 32 * 1024 * 1024, /* inputs of another dtype go through so much at a time */
    KV_CUDA_WORKSPACE_BYTES = 32 * 1024 * 1024,
    KV_CUDA_BUCKETS_MAX = 24
};

struct kv_mem {
    struct kv_mem_extent extent; /* pinned */
};

/* One matrix product, D [batch][rows][outputs] = X [rows][depth] W [batch][outputs][depth]^T, for any number
 * of rows. Every algorithm in it gives the bits of the first. */
struct kv_cuda_gemm {
    cublasLtMatmulDesc_t operation;
    cudaDataType_t type, out_type;
    int64_t outputs, depth, batch, out_pitch; /* out_pitch: elements between rows of D */
    const void *weights;
    int32_t buckets;
    struct {
        int64_t rows_max;
        cublasLtMatmulAlgo_t algorithm;
    } bucket[KV_CUDA_BUCKETS_MAX]; /* [0] is the reference, for every number of rows */
};

/* Buffers and stream of one batch in flight. */
struct kv_cuda_slot {
    cudaStream_t stream;
    cudaEvent_t done;
    struct kv_batch *batch; /* NULL: free */
    void *workspace;
    void *raw;                           /* [KV_CUDA_RAW_BYTES] */
    void *target;                        /* [rows_max][target_pitch], 16 bits; NULL without fc */
    void *x;                             /* [rows_max][hidden_pitch], 16 bits */
    void *out;                           /* [2][layers][rows][kv_heads * head_dim], 16 bits */
    float *sums;                         /* the same in float32, where there are biases; or NULL */
    int32_t *positions, *host_positions; /* [rows_max]; the latter is pinned */
};

struct kv_backend {
    struct kv_geometry geometry;
    int32_t device, processors, items_max;
    int64_t rows_max, outputs, hidden_pitch, target_pitch;
    uint64_t memory_bytes;
    char name[128];

    cublasLtHandle_t blas;
    struct kv_cuda_gemm project, reduce; /* reduce: fc; unused without it */
    void *weights;                       /* [2][layers][outputs][hidden_pitch] */
    void *fc;                            /* [hidden][target_pitch] */
    float *k_bias, *v_bias, *k_norm, *eps, *hidden_norm, *inv_freq;
    struct kv_cuda_slot slot[KV_CUDA_SLOTS];

    pthread_mutex_t lock; /* of the slots' `batch` */
    bool lost;
};

/* Always false. Out of memory is device_out_of_memory; what leaves the context unusable is device_lost; the
 * rest is device_unavailable. `what` is what was tried. */
bool kv_cuda_fail(cudaError_t status, const char *what, struct kv_error *err);
bool kv_cuda_blas_fail(cublasStatus_t status, const char *what, struct kv_error *err);
/* Device memory, zeroed, counted in memory_bytes. Needed and free bytes are said where there is too little.
 */
bool kv_cuda_alloc(struct kv_backend *backend, void *out /* void ** */, uint64_t bytes, const char *what,
                   struct kv_error *err);

/* cuda_weights.c: allocates and fills everything resident. */
bool kv_cuda_weights_open(struct kv_backend *backend, const struct kv_weights *weights, struct kv_error *err);

/* cuda_gemm.c. What kv_cuda_gemm_multiply computes by one algorithm, kv_cuda_gemm_run does by that of the
 * bucket. Both only enqueue. */
struct kv_cuda_layouts {
    cublasLtMatrixLayoutOpaque_t w, x, out;
};
cublasStatus_t kv_cuda_gemm_layouts(const struct kv_cuda_gemm *gemm, int64_t rows,
                                    struct kv_cuda_layouts *layouts);
cublasStatus_t kv_cuda_gemm_multiply(const struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                     const struct kv_cuda_slot *slot, const void *x, void *out, int64_t rows,
                                     const cublasLtMatmulAlgo_t *algorithm);
bool kv_cuda_gemm_open(struct kv_backend *backend, struct kv_cuda_gemm *gemm, bool tune,
                       struct kv_error *err);
void kv_cuda_gemm_close(struct kv_cuda_gemm *gemm);
cublasStatus_t kv_cuda_gemm_run(struct kv_backend *backend, const struct kv_cuda_gemm *gemm,
                                const struct kv_cuda_slot *slot, const void *x, void *out, int64_t rows);

/* cuda_tune.c: fills the buckets; the slots' buffers are its own meanwhile. */
bool kv_cuda_tune(struct kv_backend *backend, struct kv_cuda_gemm *gemm, bool tune, struct kv_error *err);

/* cuda_batch.c: what a slot computes once its inputs and positions are on the device; only enqueues. */
bool kv_cuda_stage_enqueue(struct kv_backend *backend, int64_t rows, int32_t slot, void *cuda_stream,
                           struct kv_error *err);
void kv_cuda_stage_buffers(struct kv_backend *backend, int32_t slot, void **x, void **out);
bool kv_cuda_submit(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err);
enum kv_wait kv_cuda_wait(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                          struct kv_error *err);

#endif
