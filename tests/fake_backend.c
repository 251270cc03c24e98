/* The fake device. Work is done in submit; wait only decides when it is seen. */
#include "tests/fake_backend.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct fake_device fake;

struct kv_backend {
    struct kv_geometry geometry;
};
struct kv_mem {
    unsigned char *host;
    size_t bytes;
};

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static bool open_fake(struct kv_backend **out, const struct kv_weights *weights,
                      const struct kv_backend_options *options, struct kv_error *err)
{
    (void)options;
    *out = calloc(1, sizeof **out);
    if (!*out) return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for the fake device");
    (*out)->geometry = weights->geometry;
    fake.open++;
    return true;
}

static void describe(const struct kv_backend *backend, struct kv_backend_description *out)
{
    (void)backend;
    *out = (struct kv_backend_description){.kind = "fake", .name = "no device at all", .memory_bytes = 1};
    out->span_rows = fake.span_rows ? fake.span_rows : 64;
    out->batches_max = fake.batches_max ? fake.batches_max : 1;
}

static bool alloc(struct kv_backend *backend, size_t bytes, struct kv_mem **out, void **host,
                  struct kv_error *err)
{
    (void)backend;
    struct kv_mem *mem = calloc(1, sizeof *mem);
    unsigned char *memory = malloc(bytes);
    if (!mem || !memory) {
        free(mem);
        free(memory);
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY, "no memory for the fake pool");
    }
    memset(memory, 0xff, bytes);
    *mem = (struct kv_mem){memory, bytes};
    *out = mem;
    *host = memory;
    fake.mems++;
    return true;
}

static bool import(struct kv_backend *backend, const struct kv_handle *handle, struct kv_mem **out,
                   struct kv_error *err)
{
    (void)backend;
    (void)handle;
    *out = NULL;
    return kv_fail(err, KV_UNSUPPORTED, "the fake device imports nothing");
}

static void release(struct kv_backend *backend, struct kv_mem *mem)
{
    (void)backend;
    if (!mem) return;
    fake.mems--;
    free(mem->host);
    free(mem);
}

uint16_t fake_element(bool is_v, uint16_t first, int64_t position, int32_t layer, int32_t head, int32_t d)
{
    uint64_t mixed = (uint64_t)first * 0x9e3779b97f4a7c15u + (uint64_t)position * 0xbf58476d1ce4e5b9u +
                     (uint64_t)layer * 0x94d049bb133111ebu +
                     (uint64_t)(head * 1024 + d) * 0xd6e8feb86659fd93u + is_v;
    return (uint16_t)(mixed >> 40);
}

static int64_t position_of(const struct kv_item *item, int64_t t)
{
    const unsigned char *at = item->in.positions.mem->host + item->in.positions.offset;
    int64_t wide;
    int32_t narrow;
    if (item->in.positions_dtype == KV_I64) {
        memcpy(&wide, at + t * 8, 8);
        return wide;
    }
    memcpy(&narrow, at + t * 4, 4);
    return narrow;
}

static void write_row(const struct kv_geometry *geometry, const struct kv_item *item, int64_t t,
                      uint16_t first)
{
    int64_t position = position_of(item, t);
    const struct kv_output *out = &item->out;
    int64_t s = out->slot_first + t;
    int64_t at = s / out->block_tokens * out->block_stride + s % out->block_tokens * out->token_stride;
    assert(s < out->slots_max);
    for (int32_t layer = out->layer_begin; layer < out->layer_end; layer++) {
        for (int32_t head = out->head_begin; head < out->head_end; head++) {
            for (int32_t d = 0; d < geometry->head_dim; d++) {
                uint64_t offset = (uint64_t)(at + head * out->head_stride + d * 2);
                uint16_t k = fake_element(false, first, position, layer, head, d);
                uint16_t v = fake_element(true, first, position, layer, head, d);
                assert(out->k[layer].offset + offset + 2 <= out->k[layer].mem->bytes);
                assert(out->v[layer].offset + offset + 2 <= out->v[layer].mem->bytes);
                memcpy(out->k[layer].mem->host + out->k[layer].offset + offset, &k, 2);
                memcpy(out->v[layer].mem->host + out->v[layer].offset + offset, &v, 2);
            }
        }
    }
}

static void run_item(const struct kv_geometry *geometry, struct kv_item *item)
{
    item->fault = KV_OK;
    if (fake.fault && item->rows > 0 && position_of(item, 0) == fake.fault_position) {
        item->fault = (enum kv_fault)atomic_load(&fake.fault);
        return;
    }
    for (int64_t t = 0; t < item->rows && !fake.copy_only; t++) {
        uint16_t first;
        memcpy(&first, item->in.rows.mem->host + item->in.rows.offset + (uint64_t)(t * item->in.row_stride),
               2);
        write_row(geometry, item, t, first);
    }
}

static bool submit(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err)
{
    int64_t rows = 0;
    while (fake.hang) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (fake.submit_fails)
        return kv_fail(err, (enum kv_fault)atomic_load(&fake.submit_fails), "the fake device takes no batch");
    for (int32_t i = 0; i < batch->items; i++) {
        rows += batch->item[i].rows;
        run_item(&backend->geometry, &batch->item[i]);
    }
    assert(rows == batch->rows && batch->items > 0);
    fake.batches++;
    for (int32_t i = 0; i < batch->items; i++)
        if (batch->item[i].rows > 0 && position_of(&batch->item[i], 0) == fake.watched_position)
            fake.watched_batch = fake.batches;
    fake.items += batch->items;
    fake.rows += (int32_t)batch->rows;
    if (batch->rows > fake.rows_max_seen) fake.rows_max_seen = (int32_t)batch->rows;
    if (batch->items > fake.items_max_seen) fake.items_max_seen = batch->items;
    batch->inflight = (void *)(uintptr_t)(now_us() + fake.delay_us);
    return true;
}

static enum kv_wait wait_fake(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                              struct kv_error *err)
{
    int64_t due_us = (int64_t)(uintptr_t)batch->inflight, until_us = now_us() + timeout_us;
    (void)backend;
    for (;;) {
        if (fake.lost) {
            kv_fail(err, KV_DEVICE_LOST, "the fake device was told to get lost");
            return KV_WAIT_LOST;
        }
        if (!fake.held && now_us() >= due_us) return KV_WAIT_DONE;
        if (timeout_us >= 0 && now_us() >= until_us) return KV_WAIT_PENDING;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static void close_fake(struct kv_backend *backend)
{
    if (!backend) return;
    fake.open--;
    free(backend);
}

const struct kv_backend_ops fake_ops = {
    .name = "fake",
    .open = open_fake,
    .describe = describe,
    .alloc = alloc,
    .import = import,
    .release = release,
    .submit = submit,
    .wait = wait_fake,
    .close = close_fake,
};

struct kv_backend *fake_open(const struct kv_geometry *geometry)
{
    struct kv_backend *backend = NULL;
    const struct kv_weights weights = {*geometry, NULL, NULL};
    const struct kv_backend_options options = {.rows_max = 1024, .items_max = 64};
    return fake_ops.open(&backend, &weights, &options, NULL) ? backend : NULL;
}
