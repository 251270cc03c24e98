/* The CUDA backend: life, memory and errors. Everything that a batch needs is allocated at open; a request
 * allocates nothing. What a batch does is cuda_batch.c's. */
#include "kernels/cuda_backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool kv_cuda_fail(cudaError_t status, const char *what, struct kv_error *err)
{
    switch (status) {
    case cudaErrorMemoryAllocation:
        (void)cudaGetLastError(); /* not sticky: taken off, so that the next call does not report it again */
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "%s: the GPU is out of memory", what);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
        return kv_fail(err, KV_DEVICE_UNAVAILABLE, "%s: %s", what, cudaGetErrorString(status));
    default: return kv_fail(err, KV_DEVICE_LOST, "%s: %s", what, cudaGetErrorString(status));
    }
}

bool kv_cuda_blas_fail(cublasStatus_t status, const char *what, struct kv_error *err)
{
    cudaError_t cause = cudaPeekAtLastError();
    if (cause != cudaSuccess) return kv_cuda_fail(cause, what, err);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return kv_cuda_fail(cudaErrorMemoryAllocation, what, err);
    return kv_fail(err, status == CUBLAS_STATUS_EXECUTION_FAILED ? KV_DEVICE_LOST : KV_DEVICE_UNAVAILABLE,
                   "%s: %s", what, cublasLtGetStatusString(status));
}

bool kv_cuda_alloc(struct kv_backend *backend, void *out, uint64_t bytes, const char *what,
                   struct kv_error *err)
{
    void *memory = NULL;
    if (bytes == 0) return true;
    cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaSuccess) status = cudaMemset(memory, 0, bytes);
    if (status == cudaSuccess) {
        memcpy(out, &memory, sizeof memory);
        backend->memory_bytes += bytes;
        return true;
    }
    cudaFree(memory);
    if (status != cudaErrorMemoryAllocation) return kv_cuda_fail(status, what, err);
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) free_bytes = 0;
    return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY,
                   "no GPU memory for %s: needed %" PRIu64 " bytes, free %zu, after %" PRIu64 " bytes so far",
                   what, bytes, free_bytes, backend->memory_bytes);
}

/* Makes a device the thread's own if this code runs on it. */
static bool try_device(struct kv_backend *backend, int32_t device, struct kv_error *err)
{
    struct cudaDeviceProp properties;
    cudaError_t status = cudaSetDevice(device);
    if (status == cudaSuccess)
        status = cudaFree(NULL); /* makes the context: a device that is out says so here */
    if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
    if (status != cudaSuccess) {
        (void)cudaGetLastError();
        return kv_fail(err, KV_DEVICE_UNAVAILABLE, "CUDA device %d: %s", (int)device,
                       cudaGetErrorString(status));
    }
    if (properties.major < 8)
        return kv_fail(err, KV_DEVICE_UNAVAILABLE,
                       "CUDA device %d, %s, has compute capability %d.%d; 8.0 or later is needed",
                       (int)device, properties.name, properties.major, properties.minor);
    backend->device = device;
    backend->processors = properties.multiProcessorCount;
    snprintf(backend->name, sizeof backend->name, "%.80s (compute %d.%d, cuBLASLt)", properties.name,
             properties.major, properties.minor);
    return true;
}

/* `device` -1: the first that works. */
static bool choose_device(struct kv_backend *backend, int32_t device, struct kv_error *err)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return kv_fail(err, KV_DEVICE_UNAVAILABLE, "no CUDA device: %s",
                       status == cudaSuccess ? "none is there" : cudaGetErrorString(status));
    }
    if (device >= count)
        return kv_fail_values(err, KV_DEVICE_UNAVAILABLE, "--device", kv_none(), kv_integer(device),
                              "there are %d CUDA devices, counted from 0", count);
    if (device >= 0) return try_device(backend, device, err);
    for (int32_t i = 0; i < count; i++)
        if (try_device(backend, i, i == count - 1 ? err : NULL)) return true;
    return false;
}

static bool open_slot(struct kv_backend *backend, struct kv_cuda_slot *slot, struct kv_error *err)
{
    const struct kv_geometry *g = &backend->geometry;
    uint64_t rows = (uint64_t)backend->rows_max, heads = 2 * (uint64_t)g->layers * (uint64_t)backend->outputs;
    bool biased = g->k_bias || g->v_bias;
    cudaError_t status = cudaStreamCreateWithFlags(&slot->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming | cudaEventBlockingSync);
    if (status == cudaSuccess)
        status = cudaHostAlloc((void **)&slot->host_positions, rows * sizeof(int32_t), cudaHostAllocDefault);
    if (status != cudaSuccess) return kv_cuda_fail(status, "opening a stream", err);
    return kv_cuda_alloc(backend, &slot->workspace, KV_CUDA_WORKSPACE_BYTES, "the workspace", err) &&
           kv_cuda_alloc(backend, &slot->raw, KV_CUDA_RAW_BYTES, "the inputs", err) &&
           kv_cuda_alloc(backend, &slot->target, g->taps > 0 ? rows * (uint64_t)backend->target_pitch * 2 : 0,
                         "the inputs", err) &&
           kv_cuda_alloc(backend, &slot->x, rows * (uint64_t)backend->hidden_pitch * 2, "the inputs", err) &&
           kv_cuda_alloc(backend, &slot->out, rows * heads * 2, "the outputs", err) &&
           kv_cuda_alloc(backend, &slot->sums, biased ? rows * heads * 4 : 0, "the sums", err) &&
           kv_cuda_alloc(backend, &slot->positions, rows * 4, "the positions", err);
}

static void close_slot(struct kv_cuda_slot *slot)
{
    cudaFree(slot->workspace);
    cudaFree(slot->raw);
    cudaFree(slot->target);
    cudaFree(slot->x);
    cudaFree(slot->out);
    cudaFree(slot->sums);
    cudaFree(slot->positions);
    cudaFreeHost(slot->host_positions);
    if (slot->done) cudaEventDestroy(slot->done);
    if (slot->stream) cudaStreamDestroy(slot->stream);
}

static void close_cuda(struct kv_backend *backend)
{
    if (!backend) return;
    cudaSetDevice(backend->device);
    kv_cuda_gemm_close(&backend->project);
    kv_cuda_gemm_close(&backend->reduce);
    for (int i = 0; i < KV_CUDA_SLOTS; i++) close_slot(&backend->slot[i]);
    if (backend->blas) cublasLtDestroy(backend->blas);
    cudaFree(backend->weights);
    cudaFree(backend->fc);
    cudaFree(backend->k_bias);
    cudaFree(backend->v_bias);
    cudaFree(backend->k_norm);
    cudaFree(backend->eps);
    cudaFree(backend->hidden_norm);
    cudaFree(backend->inv_freq);
    pthread_mutex_destroy(&backend->lock);
    free(backend);
}

static int64_t padded(int64_t columns)
{
    return (columns + KV_CUDA_COLUMNS - 1) / KV_CUDA_COLUMNS * KV_CUDA_COLUMNS;
}

static void describe_products(struct kv_backend *backend)
{
    const struct kv_geometry *g = &backend->geometry;
    cudaDataType_t type = g->dtype == KV_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    backend->project = (struct kv_cuda_gemm){.type = type,
                                             .out_type = g->k_bias || g->v_bias ? CUDA_R_32F : type,
                                             .outputs = backend->outputs,
                                             .depth = backend->hidden_pitch,
                                             .batch = 2 * (int64_t)g->layers,
                                             .out_pitch = backend->outputs,
                                             .weights = backend->weights};
    backend->reduce = (struct kv_cuda_gemm){.type = type,
                                            .out_type = type,
                                            .outputs = g->hidden,
                                            .depth = backend->target_pitch,
                                            .batch = 1,
                                            .out_pitch = backend->hidden_pitch,
                                            .weights = backend->fc};
}

static bool open_all(struct kv_backend *backend, const struct kv_weights *weights,
                     const struct kv_backend_options *options, struct kv_error *err)
{
    bool tune = options->tune;
    if (!choose_device(backend, options->device, err)) return false;
    for (int i = 0; i < KV_CUDA_SLOTS; i++)
        if (!open_slot(backend, &backend->slot[i], err)) return false;
    cublasStatus_t status = cublasLtCreate(&backend->blas);
    if (status != CUBLAS_STATUS_SUCCESS) return kv_cuda_blas_fail(status, "opening cuBLASLt", err);
    if (!kv_cuda_weights_open(backend, weights, err)) return false;
    describe_products(backend);
    if (!kv_cuda_gemm_open(backend, &backend->project, tune, err)) return false;
    if (backend->geometry.taps > 0 && !kv_cuda_gemm_open(backend, &backend->reduce, tune, err)) return false;
    /* Choosing algorithms filled padding columns' neighbours only, but left numbers in the inputs. */
    for (int i = 0; i < KV_CUDA_SLOTS; i++) {
        cudaError_t cleared =
            cudaMemset(backend->slot[i].x, 0, (size_t)(backend->rows_max * backend->hidden_pitch) * 2);
        if (cleared == cudaSuccess && backend->slot[i].target)
            cleared = cudaMemset(backend->slot[i].target, 0,
                                 (size_t)(backend->rows_max * backend->target_pitch) * 2);
        if (cleared != cudaSuccess) return kv_cuda_fail(cleared, "clearing the inputs", err);
    }
    cudaError_t settled = cudaDeviceSynchronize();
    return settled == cudaSuccess || kv_cuda_fail(settled, "opening the CUDA device", err);
}

static bool open_cuda(struct kv_backend **out, const struct kv_weights *weights,
                      const struct kv_backend_options *options, struct kv_error *err)
{
    const struct kv_geometry *g = &weights->geometry;
    *out = NULL;
    /* A kernel loaded at its first call may find no memory left; before the first CUDA call this settles it.
     */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    struct kv_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for a backend");
    pthread_mutex_init(&backend->lock, NULL);
    backend->geometry = *g;
    backend->rows_max = options->rows_max > 0 ? options->rows_max : 1;
    backend->items_max = options->items_max;
    backend->outputs = (int64_t)g->kv_heads * g->head_dim;
    backend->hidden_pitch = padded(g->hidden);
    backend->target_pitch = padded(g->hidden * g->taps);
    if (!open_all(backend, weights, options, err)) {
        close_cuda(backend);
        return false;
    }
    *out = backend;
    return true;
}

static void describe(const struct kv_backend *backend, struct kv_backend_description *out)
{
    *out = (struct kv_backend_description){
        .kind = "cuda",
        .memory_bytes = backend->memory_bytes,
        .span_rows = backend->rows_max < KV_CUDA_SPAN_ROWS ? backend->rows_max : KV_CUDA_SPAN_ROWS,
        .batches_max = KV_CUDA_SLOTS,
        .pool_bytes = 1u << 30,
        .spin_us = 1000}; /* sleeping until an event was seen to end 50 us late: a twentieth of that */
    snprintf(out->name, sizeof out->name, "%s", backend->name);
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaSetDevice(backend->device) != cudaSuccess ||
        cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return;
    out->free_bytes = free_bytes;
    out->total_bytes = total_bytes;
}

static bool alloc(struct kv_backend *backend, size_t bytes, struct kv_mem **out, void **host,
                  struct kv_error *err)
{
    struct kv_mem *mem = calloc(1, sizeof *mem);
    *out = NULL;
    *host = NULL;
    if (!mem) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for a memory's own record");
    cudaError_t status = cudaSetDevice(backend->device);
    if (status == cudaSuccess)
        status = cudaHostAlloc(&mem->extent.host, bytes > 0 ? bytes : 1, cudaHostAllocPortable);
    if (status != cudaSuccess) {
        free(mem);
        if (status != cudaErrorMemoryAllocation) return kv_cuda_fail(status, "the pool", err);
        (void)cudaGetLastError();
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no pinned host memory for the pool: needed %zu bytes",
                       bytes);
    }
    mem->extent.bytes = bytes;
    *out = mem;
    *host = mem->extent.host;
    return true;
}

static bool import(struct kv_backend *backend, const struct kv_handle *handle, struct kv_mem **out,
                   struct kv_error *err)
{
    (void)backend;
    *out = NULL;
    return kv_fail(err, KV_UNSUPPORTED, "the CUDA backend cannot map %s yet: send data in the request",
                   handle->gpu ? "a peer's GPU memory" : "shared memory");
}

static void release(struct kv_backend *backend, struct kv_mem *mem)
{
    if (!mem) return;
    cudaSetDevice(backend->device);
    cudaFreeHost(mem->extent.host);
    free(mem);
}

const struct kv_backend_ops kv_cuda_ops = {
    .name = "cuda",
    .open = open_cuda,
    .describe = describe,
    .alloc = alloc,
    .import = import,
    .release = release,
    .submit = kv_cuda_submit,
    .wait = kv_cuda_wait,
    .close = close_cuda,
};
