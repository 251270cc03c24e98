/* Weights on their way to the device: pulled piece by piece through two pinned buffers, so that reading the
 * next piece overlaps the copy of the last. */
#include "kernels/cuda_backend.h"

#include <string.h>

enum { PIECE_BYTES = 8 * 1024 * 1024, PIECES = 2 };

struct uploader {
    struct kv_backend *backend;
    const struct kv_weights *weights;
    void *piece[PIECES];
    cudaEvent_t sent[PIECES];
    int32_t turn;
    cudaStream_t stream;
};

/* A part [rows][columns] of `element_bytes`, to `to` [rows][pitch]. */
static bool upload(struct uploader *up, int32_t layer, enum kv_part part, int64_t rows, int64_t columns,
                   int64_t pitch, size_t element_bytes, void *to, struct kv_error *err)
{
    size_t row_bytes = (size_t)columns * element_bytes, pitch_bytes = (size_t)pitch * element_bytes;
    int64_t at_once = PIECE_BYTES / (int64_t)row_bytes;
    if (at_once == 0)
        return kv_fail(err, KV_UNSUPPORTED, "a row of %lld columns exceeds the upload buffer",
                       (long long)columns);
    for (int64_t row = 0; row < rows; row += at_once) {
        int64_t count = rows - row < at_once ? rows - row : at_once;
        int32_t turn = up->turn = (up->turn + 1) % PIECES;
        cudaError_t status = cudaEventSynchronize(up->sent[turn]);
        if (status != cudaSuccess) return kv_cuda_fail(status, "uploading weights", err);
        if (!up->weights->read(up->weights->source, layer, part, (uint64_t)row * row_bytes, up->piece[turn],
                               (size_t)count * row_bytes, err))
            return false;
        status = cudaMemcpy2DAsync((char *)to + (size_t)row * pitch_bytes, pitch_bytes, up->piece[turn],
                                   row_bytes, row_bytes, (size_t)count, cudaMemcpyHostToDevice, up->stream);
        if (status == cudaSuccess) status = cudaEventRecord(up->sent[turn], up->stream);
        if (status != cudaSuccess) return kv_cuda_fail(status, "uploading weights", err);
    }
    return true;
}

static bool upload_floats(struct uploader *up, int32_t layer, enum kv_part part, float *first,
                          struct kv_error *err)
{
    uint64_t bytes = kv_part_bytes(&up->weights->geometry, part);
    int64_t count = (int64_t)(bytes / sizeof(float));
    if (bytes == 0) return true;
    return upload(up, layer, part, 1, count, count, sizeof(float), first + (layer < 0 ? 0 : layer * count),
                  err);
}

static bool upload_all(struct uploader *up, struct kv_error *err)
{
    struct kv_backend *backend = up->backend;
    const struct kv_geometry *g = &backend->geometry;
    size_t part_bytes = (size_t)(backend->outputs * backend->hidden_pitch) * 2;
    for (int32_t layer = 0; layer < g->layers; layer++) {
        char *k = (char *)backend->weights + (size_t)layer * part_bytes;
        char *v = k + (size_t)g->layers * part_bytes;
        if (!upload(up, layer, KV_PART_K_WEIGHT, backend->outputs, g->hidden, backend->hidden_pitch, 2, k,
                    err) ||
            !upload(up, layer, KV_PART_V_WEIGHT, backend->outputs, g->hidden, backend->hidden_pitch, 2, v,
                    err) ||
            !upload_floats(up, layer, KV_PART_K_BIAS, backend->k_bias, err) ||
            !upload_floats(up, layer, KV_PART_V_BIAS, backend->v_bias, err) ||
            !upload_floats(up, layer, KV_PART_K_NORM, backend->k_norm, err) ||
            !upload_floats(up, layer, KV_PART_EPS, backend->eps, err))
            return false;
    }
    return (g->taps == 0 || upload(up, -1, KV_PART_FC, g->hidden, g->hidden * g->taps, backend->target_pitch,
                                   2, backend->fc, err)) &&
           upload_floats(up, -1, KV_PART_HIDDEN_NORM, backend->hidden_norm, err) &&
           upload_floats(up, -1, KV_PART_INV_FREQ, backend->inv_freq, err);
}

static bool reserve(struct kv_backend *backend, struct kv_error *err)
{
    const struct kv_geometry *g = &backend->geometry;
    uint64_t layers = (uint64_t)g->layers, outputs = (uint64_t)backend->outputs, hidden = (uint64_t)g->hidden;
    return kv_cuda_alloc(backend, &backend->weights,
                         2 * layers * outputs * (uint64_t)backend->hidden_pitch * 2, "the weights", err) &&
           kv_cuda_alloc(backend, &backend->fc,
                         g->taps > 0 ? hidden * (uint64_t)backend->target_pitch * 2 : 0, "fc", err) &&
           kv_cuda_alloc(backend, &backend->k_bias, g->k_bias ? layers * outputs * 4 : 0, "the biases",
                         err) &&
           kv_cuda_alloc(backend, &backend->v_bias, g->v_bias ? layers * outputs * 4 : 0, "the biases",
                         err) &&
           kv_cuda_alloc(backend, &backend->k_norm, g->k_norm ? layers * (uint64_t)g->head_dim * 4 : 0,
                         "the norms", err) &&
           kv_cuda_alloc(backend, &backend->eps, layers * 4, "the norms", err) &&
           kv_cuda_alloc(backend, &backend->hidden_norm, g->taps > 0 ? hidden * 4 : 0, "the norms", err) &&
           kv_cuda_alloc(backend, &backend->inv_freq, (uint64_t)g->rotary_dim / 2 * 4, "the frequencies",
                         err);
}

bool kv_cuda_weights_open(struct kv_backend *backend, const struct kv_weights *weights, struct kv_error *err)
{
    struct uploader up = {.backend = backend, .weights = weights};
    bool ok = false;
    if (!reserve(backend, err)) return false;
    cudaError_t status = cudaStreamCreateWithFlags(&up.stream, cudaStreamNonBlocking);
    for (int i = 0; i < PIECES && status == cudaSuccess; i++) {
        status = cudaHostAlloc(&up.piece[i], PIECE_BYTES, cudaHostAllocDefault);
        if (status == cudaSuccess) status = cudaEventCreateWithFlags(&up.sent[i], cudaEventDisableTiming);
    }
    if (status != cudaSuccess) {
        kv_cuda_fail(status, "preparing to upload weights", err);
        goto cleanup;
    }
    ok = upload_all(&up, err);
    status = cudaStreamSynchronize(up.stream);
    if (ok && status != cudaSuccess) ok = kv_cuda_fail(status, "uploading weights", err);
cleanup:
    for (int i = 0; i < PIECES; i++) {
        if (up.sent[i]) cudaEventDestroy(up.sent[i]);
        cudaFreeHost(up.piece[i]);
    }
    if (up.stream) cudaStreamDestroy(up.stream);
    return ok;
}
