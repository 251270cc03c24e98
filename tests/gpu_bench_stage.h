/* Our side of the GPU benchmark: several open backends with the same weights, so that launches can rotate
 * over copies; every slot holds an uploaded batch. Knows no opponent. */
#ifndef KV_TESTS_GPU_BENCH_STAGE_H
#define KV_TESTS_GPU_BENCH_STAGE_H

#include "kernels/cuda_backend.h"
#include "tests/gpu_bench_gemm.h"
#include "tests/random_weights.h"

#include <math.h>
#include <string.h>

enum { ROWS_MAX = 16384, SLOTS_MAX = 8, LAYERS_MAX = 8, ITEMS_MAX = 64, POSITION_FIRST = 12345 };

/* A model as the host has it. */
struct model {
    struct kv_geometry geometry;
    uint16_t *weights; /* [2][layers][outputs][hidden]: K of all layers, then V */
    uint16_t *x;       /* [ROWS_MAX][hidden] */
    size_t weight_bytes, x_bytes;
};

struct stage {
    const struct kv_backend_ops *ops;
    struct kv_backend *backend[COPIES_MAX];
    int copies;
    int64_t rows;
    size_t row_bytes;      /* of K, or of V, of one layer */
    unsigned char *reply;  /* [2][layers][ROWS_MAX][row_bytes]: what a submitted batch gave */
    unsigned char *staged; /* as much room */
};

static int64_t outputs_of(const struct model *model)
{
    return (int64_t)model->geometry.kv_heads * model->geometry.head_dim;
}

static struct model model_make(int32_t layers, int64_t hidden, uint64_t *state)
{
    struct model model = {.geometry = {.layers = layers,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .rotary_dim = 128,
                                       .hidden = hidden,
                                       .positions = 40960,
                                       .dtype = KV_BF16,
                                       .k_norm = true,
                                       .value_scale = 1,
                                       .attention_factor = 1}};
    int64_t weights = 2 * layers * outputs_of(&model) * hidden, x = ROWS_MAX * hidden;
    model.weight_bytes = (size_t)weights * 2;
    model.x_bytes = (size_t)x * 2;
    model.weights = malloc(model.weight_bytes);
    model.x = malloc(model.x_bytes);
    must(model.weights && model.x, "no memory for a model");
    random_fill(state, KV_BF16, 1.0f / sqrtf((float)hidden), weights, model.weights);
    random_fill(state, KV_BF16, 1.0f, x, model.x);
    return model;
}

static void model_free(struct model *model)
{
    free(model->weights);
    free(model->x);
}

static bool read_part(void *source, int32_t layer, enum kv_part part, uint64_t offset, void *to, size_t bytes,
                      struct kv_error *err)
{
    const struct model *model = source;
    const struct kv_geometry *geometry = &model->geometry;
    float row[1024];
    uint64_t part_bytes = kv_part_bytes(geometry, part);
    const unsigned char *from = (const unsigned char *)row;
    if (part == KV_PART_K_WEIGHT || part == KV_PART_V_WEIGHT) {
        int32_t block = part == KV_PART_V_WEIGHT ? geometry->layers + layer : layer;
        from = (const unsigned char *)model->weights + (uint64_t)block * part_bytes;
    } else if (part_bytes > sizeof row) {
        return kv_fail(err, KV_INTERNAL, "the benchmark has no part %d", (int)part);
    }
    for (int i = 0; i < 1024; i++) {
        if (part == KV_PART_K_NORM) row[i] = 1.0f + 0.001f * (float)(i % 97);
        if (part == KV_PART_EPS) row[i] = 1e-6f;
        if (part == KV_PART_INV_FREQ) row[i] = powf(1e6f, (float)(-2 * i) / (float)geometry->rotary_dim);
    }
    memcpy(to, from + offset, bytes);
    return true;
}

/* K and V of one span, written where the whole batch's reply has them. */
static struct kv_item item_of(const struct stage *stage, const struct model *model, struct kv_mem *mem,
                              int64_t first, int64_t rows,
                              struct kv_ref *bases /* [2 * layers], the whole reply's */)
{
    int64_t row = model->geometry.hidden * 2;
    return (struct kv_item){.rows = rows,
                            .in = {.kind = KV_HIDDEN_STATES,
                                   .dtype = KV_BF16,
                                   .rows = {mem, (uint64_t)(first * row)},
                                   .row_stride = row,
                                   .positions = {mem, model->x_bytes + (uint64_t)first * 8},
                                   .positions_dtype = KV_I64,
                                   .positions_checked = true},
                            .out = {.k = bases,
                                    .v = bases + model->geometry.layers,
                                    .block_tokens = ROWS_MAX,
                                    .token_stride = (int64_t)stage->row_bytes,
                                    .head_stride = model->geometry.head_dim * 2,
                                    .slot_first = first,
                                    .slots_max = first + rows,
                                    .dtype = KV_BF16,
                                    .layer_end = model->geometry.layers,
                                    .head_end = model->geometry.kv_heads}};
}

static size_t reply_bytes(const struct stage *stage, const struct model *model)
{
    return 2 * (size_t)model->geometry.layers * ROWS_MAX * stage->row_bytes;
}

/* Runs one batch of ROWS_MAX rows through every slot, all in flight at once, so that each holds inputs and
 * positions; keeps the reply of the first backend. */
static void fill_slots(struct stage *stage, const struct model *model, int copy)
{
    struct kv_backend *backend = stage->backend[copy];
    struct kv_backend_description description;
    struct kv_mem *mem = NULL;
    void *host = NULL;
    struct kv_error err = {0};
    struct kv_ref bases[2 * LAYERS_MAX];
    static struct kv_item items[SLOTS_MAX][ITEMS_MAX];
    struct kv_batch batches[SLOTS_MAX];
    size_t inputs = model->x_bytes + ROWS_MAX * 8;
    stage->ops->describe(backend, &description);
    must(stage->ops->alloc(backend, inputs + reply_bytes(stage, model), &mem, &host, &err), err.message);
    memcpy(host, model->x, model->x_bytes);
    for (int64_t t = 0; t < ROWS_MAX; t++) {
        int64_t position = (POSITION_FIRST + t) % model->geometry.positions;
        memcpy((char *)host + model->x_bytes + t * 8, &position, sizeof position);
    }
    for (int32_t i = 0; i < 2 * model->geometry.layers; i++)
        bases[i] = (struct kv_ref){mem, inputs + (uint64_t)i * ROWS_MAX * stage->row_bytes};
    int slots = description.batches_max < SLOTS_MAX ? description.batches_max : SLOTS_MAX;
    int64_t span = description.span_rows < ROWS_MAX ? description.span_rows : ROWS_MAX;
    must(span * ITEMS_MAX >= ROWS_MAX, "spans are too short for the benchmark");
    for (int slot = 0; slot < slots; slot++) {
        int32_t count = 0;
        for (int64_t first = 0; first < ROWS_MAX; first += span) {
            int64_t rows = ROWS_MAX - first < span ? ROWS_MAX - first : span;
            items[slot][count++] = item_of(stage, model, mem, first, rows, bases);
        }
        batches[slot] = (struct kv_batch){.rows = ROWS_MAX, .items = count, .item = items[slot]};
        must(stage->ops->submit(backend, &batches[slot], &err), err.message);
    }
    for (int slot = 0; slot < slots; slot++) {
        must(stage->ops->wait(backend, &batches[slot], -1, &err) == KV_WAIT_DONE, err.message);
        for (int32_t i = 0; i < batches[slot].items; i++)
            must(items[slot][i].fault == KV_OK, "a batch was refused");
    }
    if (copy == 0) memcpy(stage->reply, (char *)host + inputs, reply_bytes(stage, model));
    stage->ops->release(backend, mem);
}

static void stage_open(struct stage *stage, const struct kv_backend_ops *ops, struct model *model, int copies,
                       int device)
{
    const struct kv_weights weights = {model->geometry, model, read_part};
    const struct kv_backend_options options = {
        .device = device, .rows_max = ROWS_MAX, .items_max = ITEMS_MAX, .tune = true};
    *stage = (struct stage){.ops = ops, .copies = copies, .row_bytes = (size_t)outputs_of(model) * 2};
    stage->reply = malloc(reply_bytes(stage, model));
    stage->staged = malloc(reply_bytes(stage, model));
    must(stage->reply && stage->staged, "no memory for replies");
    for (int copy = 0; copy < copies; copy++) {
        struct kv_error err = {0};
        must(ops->open(&stage->backend[copy], &weights, &options, &err), err.message);
        fill_slots(stage, model, copy);
    }
}

static void stage_close(struct stage *stage)
{
    for (int copy = 0; copy < stage->copies; copy++) stage->ops->close(stage->backend[copy]);
    free(stage->reply);
    free(stage->staged);
}

static void launch_stage(const void *of, int copy, cudaStream_t stream)
{
    const struct stage *stage = of;
    struct kv_error err = {0};
    must(kv_cuda_stage_enqueue(stage->backend[copy], stage->rows, 0, stream, &err), err.message);
}

/* What is timed gives, on every copy, the bits that the submitted batch gave: it starts from a poisoned
 * output. */
static void check_stage(const struct stage *stage, const struct model *model, cudaStream_t stream)
{
    size_t blocks = 2 * (size_t)model->geometry.layers, block = (size_t)stage->rows * stage->row_bytes;
    for (int copy = 0; copy < stage->copies; copy++) {
        void *x = NULL, *out = NULL;
        kv_cuda_stage_buffers(stage->backend[copy], 0, &x, &out);
        CUDA(cudaMemsetAsync(out, 0xff, blocks * block, stream));
        launch_stage(stage, copy, stream);
        CUDA(cudaMemcpyAsync(stage->staged, out, blocks * block, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < blocks; i++)
            must(memcmp(stage->staged + i * block, stage->reply + i * ROWS_MAX * stage->row_bytes, block) ==
                     0,
                 "the stage that is timed has other bits than a submitted batch");
        if (stage->rows > 1024) break; /* one copy is enough where it takes long */
    }
}

/* Our V against the opponent's product, which came with other sums. `out` is its [batch][rows][outputs]. */
static void check_product(const struct stage *stage, const struct model *model, const void *out,
                          cudaStream_t stream)
{
    size_t blocks = 2 * (size_t)model->geometry.layers, block = (size_t)stage->rows * stage->row_bytes;
    uint16_t *got = (void *)stage->staged;
    CUDA(cudaMemcpyAsync(got, out, blocks * block, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    double wrong = 0, whole = 0;
    for (size_t i = blocks / 2; i < blocks; i++) {
        const uint16_t *ours = (const void *)(stage->reply + i * ROWS_MAX * stage->row_bytes);
        for (size_t k = 0; k < block / 2; k += 1 + (size_t)stage->rows / 64) {
            double a = (double)kv_bf16_to_f32(ours[k]), b = (double)kv_bf16_to_f32(got[i * block / 2 + k]);
            wrong += (a - b) * (a - b);
            whole += a * a;
        }
    }
    must(whole > 0 && sqrt(wrong / whole) < 2e-3, "cuBLASLt's product is another one than ours");
}

#endif
