/* The CPU backend beside OpenBLAS: one line for each T, ours (the whole stage: rounding, product, norm, rope,
 * store) and cblas_sgemm of the same shape alone, with as many threads, interleaved, medians. And how long
 * packing takes. */
#include "kernels/backend.h"
#include "tests/bench.h"
#include "tests/random_weights.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* After a call, and at first, OpenBLAS' threads spin for some 100 ms and slow down what runs beside them. */
enum { SETTLE_US = 150 * 1000, ROWS_MAX = 512, ROUNDS = 15, PACK_ROUNDS = 61 };

static const struct kv_geometry geometry = {.layers = 5,
                                            .kv_heads = 8,
                                            .head_dim = 128,
                                            .rotary_dim = 128,
                                            .hidden = 4096,
                                            .positions = 40960,
                                            .dtype = KV_BF16,
                                            .k_norm = true,
                                            .value_scale = 1.0f,
                                            .attention_factor = 1.0f};
enum { COLUMNS = 5 * 2 * 8 * 128 };

struct stage {
    const struct kv_backend_ops *ops;
    struct kv_backend *backend;
    struct kv_mem *mem;
    struct kv_ref bases[2 * 5];
    struct kv_item item;
    float *weights, *x, *y; /* the opponent's: [COLUMNS][hidden], [ROWS_MAX][hidden], [ROWS_MAX][COLUMNS] */
};

static void must(bool ok, const struct kv_error *err)
{
    if (ok) return;
    fprintf(stderr, "bench_cpu: %s\n", err->message);
    exit(1);
}

static float *make_floats(size_t count)
{
    float *floats = malloc(count * sizeof *floats);
    must(floats != NULL, &(struct kv_error){.message = "out of memory"});
    return floats;
}

/* What the source gives when only packing is to be timed: nothing, at once. */
static bool read_nothing(void *source, int32_t layer, enum kv_part part, uint64_t offset, void *to,
                         size_t bytes, struct kv_error *err)
{
    (void)source, (void)layer, (void)part, (void)offset, (void)to, (void)bytes, (void)err;
    return true;
}

static double time_open(const struct kv_backend_ops *ops, const struct kv_weights *weights,
                        const struct kv_backend_options *options, struct kv_backend **out)
{
    struct kv_error err = {0};
    double began = bench_now_ms();
    must(ops->open(out, weights, options, &err), &err);
    return bench_now_ms() - began;
}

static void time_packing(const struct kv_backend_ops *ops, const struct kv_backend_options *options,
                         const char *csv)
{
    struct kv_weights weights = {.geometry = geometry, .read = read_nothing};
    uint64_t bytes = 2 * (uint64_t)geometry.layers * kv_part_bytes(&geometry, KV_PART_K_WEIGHT);
    unsigned char *from = malloc(bytes), *to = malloc(bytes);
    /* Many rounds: a virtual machine may first have to get the memory from its host. */
    double packed[PACK_ROUNDS], copied[PACK_ROUNDS];
    must(from && to, &(struct kv_error){.message = "out of memory"});
    memset(from, 1, bytes);
    for (int round = 0; round < PACK_ROUNDS; round++) {
        struct kv_backend *backend;
        double began = bench_now_ms();
        memcpy(to, from, bytes);
        copied[round] = bench_now_ms() - began;
        packed[round] = time_open(ops, &weights, options, &backend);
        ops->close(backend);
    }
    double packed_ms = bench_median(packed, PACK_ROUNDS), copied_ms = bench_median(copied, PACK_ROUNDS);
    printf("open and pack %.0f MB, reading apart: %.1f ms (a copy of as much by one thread: %.1f ms)\n",
           (double)bytes / 1e6, packed_ms, copied_ms);
    bench_csv(csv, "pack", (int)(bytes / 1000000), packed_ms, copied_ms);
    free(from);
    free(to);
}

/* Ours and the opponent's get the same numbers. */
static void open_stage(struct stage *stage, const struct kv_backend_options *options)
{
    uint64_t state = 1;
    int64_t hidden = geometry.hidden, outputs = (int64_t)geometry.kv_heads * geometry.head_dim;
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct kv_weights source = random_weights_source(weights);
    time_open(stage->ops, &source, options, &stage->backend);
    stage->weights = make_floats((size_t)(COLUMNS * hidden));
    stage->x = make_floats((size_t)(ROWS_MAX * hidden));
    stage->y = make_floats((size_t)ROWS_MAX * COLUMNS);
    for (int32_t i = 0; i < 2 * geometry.layers; i++)
        kv_to_f32(KV_BF16, random_weights_part(weights, i / 2, i % 2 ? KV_PART_V_WEIGHT : KV_PART_K_WEIGHT),
                  outputs * hidden, stage->weights + i * outputs * hidden);
    random_weights_free(weights);

    size_t hidden_bytes = (size_t)(ROWS_MAX * hidden * 2), position_bytes = ROWS_MAX * 8;
    size_t layer_bytes = (size_t)(ROWS_MAX * outputs * 2);
    struct kv_error err = {0};
    void *host;
    must(stage->ops->alloc(stage->backend, hidden_bytes + position_bytes + 2 * 5 * layer_bytes, &stage->mem,
                           &host, &err),
         &err);
    unsigned char *bytes = host;
    random_fill(&state, KV_BF16, 1.0f, ROWS_MAX * hidden, bytes);
    kv_to_f32(KV_BF16, bytes, ROWS_MAX * hidden, stage->x);
    for (int64_t t = 0; t < ROWS_MAX; t++) memcpy(bytes + hidden_bytes + (size_t)t * 8, &t, sizeof t);
    for (size_t i = 0; i < 2 * 5; i++)
        stage->bases[i] = (struct kv_ref){stage->mem, hidden_bytes + position_bytes + i * layer_bytes};
    int64_t head_bytes = geometry.head_dim * 2, token_bytes = outputs * 2;
    stage->item = (struct kv_item){.in = {.dtype = KV_BF16,
                                          .rows = {stage->mem, 0},
                                          .row_stride = hidden * 2,
                                          .positions = {stage->mem, hidden_bytes},
                                          .positions_dtype = KV_I64,
                                          .positions_checked = true},
                                   .out = {.k = stage->bases,
                                           .v = stage->bases + 5,
                                           .block_tokens = ROWS_MAX,
                                           .token_stride = token_bytes,
                                           .head_stride = head_bytes,
                                           .slots_max = ROWS_MAX,
                                           .dtype = KV_BF16,
                                           .layer_end = 5,
                                           .head_end = 8}};
}

static double run_ours(struct stage *stage, int64_t rows)
{
    struct kv_error err = {0};
    struct kv_batch batch = {.rows = rows, .items = 1, .item = &stage->item};
    stage->item.rows = rows;
    double began = bench_now_ms();
    must(stage->ops->submit(stage->backend, &batch, &err), &err);
    enum kv_wait seen = stage->ops->wait(stage->backend, &batch, -1, NULL);
    double took = bench_now_ms() - began;
    must(seen == KV_WAIT_DONE && stage->item.fault == KV_OK,
         &(struct kv_error){.message = "the batch failed"});
    return took;
}

static double run_opponent(struct stage *stage, int64_t rows)
{
    int hidden = (int)geometry.hidden;
    double began = bench_now_ms();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, COLUMNS, hidden, 1.0f, stage->x, hidden,
                stage->weights, hidden, 0.0f, stage->y, COLUMNS);
    return bench_now_ms() - began;
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {1, 16, 128, 512};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    static double ours[SIZES][ROUNDS], theirs[SIZES][ROUNDS];
    const char *csv = argc == 3 && strcmp(argv[1], "--csv") == 0 ? argv[2] : NULL;
    if (argc != 1 && !csv) {
        fprintf(stderr, "usage: bench_cpu [--csv FILE]\n");
        return 2;
    }
    int32_t threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    struct kv_backend_options options = {.threads = threads, .rows_max = ROWS_MAX, .items_max = 1};
    struct kv_backend_description said;
    struct stage stage = {.ops = kv_backend_find("cpu")};
    openblas_set_num_threads(threads);
    usleep(SETTLE_US);
    time_packing(stage.ops, &options, csv);
    open_stage(&stage, &options);
    stage.ops->describe(stage.backend, &said);
    printf("%s; OpenBLAS %s, %d threads\n", said.name, openblas_get_corename(), (int)threads);

    /* The first of each pair wakes clocks and threads, the second is timed. */
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < SIZES; i++) {
            usleep(SETTLE_US);
            run_ours(&stage, sizes[i]);
            ours[i][round] = run_ours(&stage, sizes[i]);
            run_opponent(&stage, sizes[i]);
            theirs[i][round] = run_opponent(&stage, sizes[i]);
        }
    printf("L=5 H=4096 Hkv=8 D=128\n    T  ours ms  sgemm ms  ours/sgemm\n");
    for (int i = 0; i < SIZES; i++) {
        double mine = bench_median(ours[i], ROUNDS), opponent = bench_median(theirs[i], ROUNDS);
        printf("%5d  %7.2f  %8.2f  %10.2f\n", (int)sizes[i], mine, opponent, mine / opponent);
        bench_csv(csv, "cpu_stage", (int)sizes[i], mine, opponent);
    }
    stage.ops->release(stage.backend, stage.mem);
    stage.ops->close(stage.backend);
    free(stage.weights);
    free(stage.x);
    free(stage.y);
    return 0;
}
