/* A batch on its way: inputs up, products, K and V, outputs down, each batch on its own stream, so that one's
 * copies overlap another's products. An item's outputs come down by one strided copy where they lie as a
 * reply does. */
#include "kernels/cuda_backend.h"

#include <time.h>

enum { NAP_US = 50 };

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* What the check of every backend lets pass, but is not built here. */
static enum kv_fault check(const struct kv_backend *backend, enum kv_input_kind kind,
                           const struct kv_item *item)
{
    const struct kv_output *out = &item->out;
    enum kv_fault fault = kv_item_check(&backend->geometry, kind, item);
    if (fault != KV_OK || item->rows == 0) return fault;
    bool one_block = out->slot_first >= 0 && out->slot_first + item->rows <= out->block_tokens;
    return out->slots.mem || !one_block ? KV_UNSUPPORTED : KV_OK;
}

/* Rows of an item to rows [at, at + rows) of the stage's input. */
static cudaError_t upload_rows(struct kv_backend *backend, struct kv_cuda_slot *slot,
                               const struct kv_item *item, int64_t at)
{
    const struct kv_geometry *g = &backend->geometry;
    const struct kv_input *in = &item->in;
    bool is_target = in->kind == KV_TARGET_HIDDEN;
    int64_t columns = is_target ? g->hidden * g->taps : g->hidden;
    int64_t pitch = is_target ? backend->target_pitch : backend->hidden_pitch;
    size_t row_bytes = (size_t)columns * kv_dtype_bytes(in->dtype);
    char *to = (char *)(is_target ? slot->target : slot->x) + (size_t)(at * pitch) * 2;
    const unsigned char *from = kv_ref_host(&in->rows);
    cudaError_t status = cudaSuccess;
    if (in->dtype == g->dtype)
        return cudaMemcpy2DAsync(to, (size_t)pitch * 2, from, (size_t)in->row_stride, row_bytes,
                                 (size_t)item->rows, cudaMemcpyHostToDevice, slot->stream);
    int64_t at_once = KV_CUDA_RAW_BYTES / (int64_t)row_bytes;
    for (int64_t row = 0; row < item->rows && status == cudaSuccess; row += at_once) {
        int64_t count = item->rows - row < at_once ? item->rows - row : at_once;
        status = cudaMemcpy2DAsync(slot->raw, row_bytes, from + row * in->row_stride, (size_t)in->row_stride,
                                   row_bytes, (size_t)count, cudaMemcpyHostToDevice, slot->stream);
        if (status == cudaSuccess)
            status = kv_cuda_convert(slot->raw, in->dtype, count, columns, to + (size_t)(row * pitch) * 2,
                                     g->dtype, pitch, slot->stream);
    }
    return status;
}

/* Are the bases of all layers, K's and then V's, the same distance apart, and their tokens as dense as here?
 */
static bool is_reply(const struct kv_backend *backend, const struct kv_output *out, int64_t *layer_stride)
{
    const struct kv_geometry *g = &backend->geometry;
    if (out->layer_begin != 0 || out->layer_end != g->layers || out->head_begin != 0 ||
        out->head_end != g->kv_heads || out->head_stride != (int64_t)g->head_dim * 2 ||
        out->token_stride != backend->outputs * 2 || out->v[0].offset <= out->k[0].offset ||
        out->v[0].mem != out->k[0].mem)
        return false;
    uint64_t stride = (out->v[0].offset - out->k[0].offset) / (uint64_t)g->layers;
    for (int32_t layer = 0; layer < g->layers; layer++) {
        uint64_t k = out->k[0].offset + (uint64_t)layer * stride,
                 v = out->v[0].offset + (uint64_t)layer * stride;
        if (out->k[layer].offset != k || out->v[layer].offset != v || out->k[layer].mem != out->k[0].mem ||
            out->v[layer].mem != out->k[0].mem)
            return false;
    }
    *layer_stride = (int64_t)stride;
    return out->v[0].offset == out->k[0].offset + stride * (uint64_t)g->layers;
}

/* One layer's heads, for layouts that are no reply. */
static cudaError_t download_layer(const struct kv_backend *backend, const struct kv_cuda_slot *slot,
                                  const struct kv_item *item, const struct kv_ref *base, const char *from)
{
    const struct kv_output *out = &item->out;
    size_t head_bytes = (size_t)backend->geometry.head_dim * 2, pitch = (size_t)backend->outputs * 2;
    unsigned char *to = kv_ref_host(base) + out->slot_first * out->token_stride;
    bool dense = out->head_stride == (int64_t)head_bytes;
    int32_t step = dense ? out->head_end - out->head_begin : 1;
    cudaError_t status = cudaSuccess;
    for (int32_t head = out->head_begin; head < out->head_end && status == cudaSuccess; head += step) {
        size_t width = head_bytes * (size_t)step;
        const char *source = from + (size_t)head * head_bytes;
        unsigned char *target = to + head * out->head_stride;
        if ((size_t)out->token_stride >= width)
            status = cudaMemcpy2DAsync(target, (size_t)out->token_stride, source, pitch, width,
                                       (size_t)item->rows, cudaMemcpyDeviceToHost, slot->stream);
        else /* tokens closer than a head: the copy engine's pitch cannot say that */
            for (int64_t t = 0; t < item->rows && status == cudaSuccess; t++)
                status = cudaMemcpyAsync(target + t * out->token_stride, source + (size_t)t * pitch, width,
                                         cudaMemcpyDeviceToHost, slot->stream);
    }
    return status;
}

static cudaError_t download(const struct kv_backend *backend, const struct kv_cuda_slot *slot,
                            const struct kv_item *item, int64_t at, int64_t rows)
{
    const struct kv_geometry *g = &backend->geometry;
    const struct kv_output *out = &item->out;
    size_t row_bytes = (size_t)backend->outputs * 2, layer_bytes = (size_t)rows * row_bytes;
    const char *from = (const char *)slot->out + (size_t)at * row_bytes;
    int64_t stride = 0;
    cudaError_t status = cudaSuccess;
    if (is_reply(backend, out, &stride) && (size_t)stride >= (size_t)item->rows * row_bytes)
        return cudaMemcpy2DAsync(kv_ref_host(&out->k[0]) + out->slot_first * out->token_stride,
                                 (size_t)stride, from, layer_bytes, (size_t)item->rows * row_bytes,
                                 2 * (size_t)g->layers, cudaMemcpyDeviceToHost, slot->stream);
    for (int32_t layer = out->layer_begin; layer < out->layer_end && status == cudaSuccess; layer++) {
        status = download_layer(backend, slot, item, &out->k[layer], from + (size_t)layer * layer_bytes);
        if (status == cudaSuccess)
            status = download_layer(backend, slot, item, &out->v[layer],
                                    from + (size_t)(g->layers + layer) * layer_bytes);
    }
    return status;
}

static bool project(struct kv_backend *backend, struct kv_cuda_slot *slot, int64_t rows, struct kv_error *err)
{
    const struct kv_cuda_products products = {.geometry = backend->geometry,
                                              .rows = rows,
                                              .out = slot->out,
                                              .sums = slot->sums,
                                              .k_bias = backend->k_bias,
                                              .v_bias = backend->v_bias,
                                              .k_norm = backend->k_norm,
                                              .eps = backend->eps,
                                              .inv_freq = backend->inv_freq,
                                              .positions = slot->positions};
    void *sums = slot->sums ? (void *)slot->sums : slot->out;
    cublasStatus_t status = kv_cuda_gemm_run(backend, &backend->project, slot, slot->x, sums, rows);
    if (status != CUBLAS_STATUS_SUCCESS) return kv_cuda_blas_fail(status, "projecting", err);
    cudaError_t finished = kv_cuda_finish(&products, slot->stream);
    return finished == cudaSuccess || kv_cuda_fail(finished, "norm and rotation", err);
}

static bool reduce(struct kv_backend *backend, struct kv_cuda_slot *slot, int64_t rows, struct kv_error *err)
{
    const struct kv_geometry *g = &backend->geometry;
    cublasStatus_t status = kv_cuda_gemm_run(backend, &backend->reduce, slot, slot->target, slot->x, rows);
    if (status != CUBLAS_STATUS_SUCCESS)
        return kv_cuda_blas_fail(status, "reducing target hidden states", err);
    cudaError_t normed = kv_cuda_norm_rows(slot->x, g->dtype, rows, g->hidden, backend->hidden_pitch,
                                           backend->hidden_norm, g->hidden_norm_eps, slot->stream);
    return normed == cudaSuccess || kv_cuda_fail(normed, "norming hidden states", err);
}

bool kv_cuda_stage_enqueue(struct kv_backend *backend, int64_t rows, int32_t slot, void *cuda_stream,
                           struct kv_error *err)
{
    struct kv_cuda_slot on = backend->slot[slot];
    on.stream = cuda_stream;
    return project(backend, &on, rows, err);
}

void kv_cuda_stage_buffers(struct kv_backend *backend, int32_t slot, void **x, void **out)
{
    *x = backend->slot[slot].x;
    *out = backend->slot[slot].out;
}

/* Checks the items and sends up what is good; returns the rows. */
static bool board(struct kv_backend *backend, struct kv_cuda_slot *slot, struct kv_batch *batch,
                  int64_t *rows, struct kv_error *err)
{
    int32_t first = 0;
    while (first < batch->items - 1 && batch->item[first].rows == 0) first++;
    enum kv_input_kind kind = batch->items > 0 ? batch->item[first].in.kind : KV_HIDDEN_STATES;
    *rows = 0;
    for (int32_t i = 0; i < batch->items; i++) {
        struct kv_item *item = &batch->item[i];
        item->fault = check(backend, kind, item);
        if (item->fault != KV_OK || item->rows == 0) continue;
        cudaError_t status = upload_rows(backend, slot, item, *rows);
        if (status != cudaSuccess) return kv_cuda_fail(status, "sending inputs", err);
        for (int64_t t = 0; t < item->rows; t++) /* every valid position fits 32 bits */
            slot->host_positions[*rows + t] = (int32_t)kv_input_position(&item->in, t);
        *rows += item->rows;
    }
    if (*rows == 0) return true;
    cudaError_t status =
        cudaMemcpyAsync(slot->positions, slot->host_positions, (size_t)*rows * sizeof(int32_t),
                        cudaMemcpyHostToDevice, slot->stream);
    if (status != cudaSuccess) return kv_cuda_fail(status, "sending positions", err);
    return kind != KV_TARGET_HIDDEN || reduce(backend, slot, *rows, err);
}

static bool fly(struct kv_backend *backend, struct kv_cuda_slot *slot, struct kv_batch *batch,
                struct kv_error *err)
{
    int64_t rows = 0, at = 0;
    cudaError_t status = cudaSetDevice(backend->device);
    if (status != cudaSuccess) return kv_cuda_fail(status, "taking the CUDA device", err);
    if (!board(backend, slot, batch, &rows, err)) return false;
    if (rows > 0 && !project(backend, slot, rows, err)) return false;
    for (int32_t i = 0; i < batch->items; i++) {
        const struct kv_item *item = &batch->item[i];
        if (item->fault != KV_OK || item->rows == 0) continue;
        status = download(backend, slot, item, at, rows);
        if (status != cudaSuccess) return kv_cuda_fail(status, "fetching outputs", err);
        at += item->rows;
    }
    status = cudaEventRecord(slot->done, slot->stream);
    return status == cudaSuccess || kv_cuda_fail(status, "marking the end of a batch", err);
}

static struct kv_cuda_slot *take_slot(struct kv_backend *backend, struct kv_batch *batch)
{
    struct kv_cuda_slot *slot = NULL;
    pthread_mutex_lock(&backend->lock);
    for (int i = 0; i < KV_CUDA_SLOTS && !slot; i++)
        if (!backend->slot[i].batch) slot = &backend->slot[i];
    if (slot) slot->batch = batch;
    pthread_mutex_unlock(&backend->lock);
    return slot;
}

static void give_slot(struct kv_backend *backend, struct kv_cuda_slot *slot)
{
    pthread_mutex_lock(&backend->lock);
    slot->batch = NULL;
    pthread_mutex_unlock(&backend->lock);
}

bool kv_cuda_submit(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err)
{
    struct kv_error why = {0};
    if (batch->rows > backend->rows_max || batch->items > backend->items_max)
        return kv_fail(
            err, KV_INTERNAL, "a batch of %lld rows and %d items exceeds what was reserved: %lld and %d",
            (long long)batch->rows, (int)batch->items, (long long)backend->rows_max, (int)backend->items_max);
    struct kv_cuda_slot *slot = take_slot(backend, batch);
    if (!slot) return kv_fail(err, KV_INTERNAL, "%d batches are in flight already", KV_CUDA_SLOTS);
    batch->inflight = slot;
    if (fly(backend, slot, batch, &why)) return true;
    /* Copies that were started may still be writing; only when they have ended does the memory belong to
     * others. */
    if (cudaStreamSynchronize(slot->stream) != cudaSuccess && why.fault != KV_DEVICE_LOST)
        why = (struct kv_error){.fault = KV_DEVICE_LOST};
    batch->inflight = NULL;
    give_slot(backend, slot);
    if (err && err->fault == KV_OK) *err = why;
    return false;
}

enum kv_wait kv_cuda_wait(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                          struct kv_error *err)
{
    struct kv_cuda_slot *slot = batch->inflight;
    int64_t until_us = now_us() + timeout_us;
    cudaError_t status = cudaSetDevice(backend->device);
    if (status == cudaSuccess && timeout_us < 0) status = cudaEventSynchronize(slot->done);
    while (status == cudaSuccess && timeout_us >= 0) {
        status = cudaEventQuery(slot->done);
        if (status != cudaErrorNotReady) break;
        int64_t left_us = until_us - now_us();
        if (left_us <= 0) return KV_WAIT_PENDING;
        nanosleep(&(struct timespec){.tv_nsec = (left_us < NAP_US ? left_us : NAP_US) * 1000}, NULL);
        status = cudaSuccess;
    }
    if (status != cudaSuccess) {
        kv_fail(err, KV_DEVICE_LOST, "a batch ended with: %s", cudaGetErrorString(status));
        return KV_WAIT_LOST;
    }
    batch->inflight = NULL;
    give_slot(backend, slot);
    return KV_WAIT_DONE;
}
