/* The opponent: cuBLASLt's product of the same shape alone, in each form a caller could choose, by the
 * algorithms its heuristic offers and, from ENUMERATED_ROWS_MIN to ENUMERATED_ROWS_MAX, by every tile and
 * cluster of the kind that it puts first. Also the product whose rate is the ceiling. */
#ifndef KV_TESTS_GPU_BENCH_GEMM_H
#define KV_TESTS_GPU_BENCH_GEMM_H

#include "tests/gpu_bench_ceiling.h"
#include "tests/gpu_bench_time.h"

#include <stdint.h>

enum {
    COPIES_MAX = 8,
    ALGORITHMS_MAX = 32, /* that are asked of the heuristic for a form */
    ENUMERATED_MAX = 1500,
    ENUMERATED_ROWS_MIN = 64,   /* fewer or more rows than this were never served better by what the */
    ENUMERATED_ROWS_MAX = 1024, /* heuristic leaves out, and trying all takes minutes */
    CHOSEN_MAX = 7,             /* the first of each form, and the fastest of all the others */
    OPPONENT_WORKSPACE = 64 << 20
};

/* Weights row-major as [outputs][depth] (TN to the library) or [depth][outputs] (NN); one product [T][batch *
 * outputs], or a batch of products that write [batch][T][outputs]. */
enum form { BATCH_TN, BATCH_NN, SINGLE_TN, SINGLE_NN, FORMS };
static const char *const form_names[FORMS] = {"batch TN", "batch NN", "single TN", "single NN"};

struct product {
    cublasLtHandle_t blas;
    void *workspace;
    int64_t rows, outputs, depth, batch;
    int copies;
    void *x[COPIES_MAX], *w[COPIES_MAX], *out[COPIES_MAX]; /* bf16 */
};

/* One form at one number of rows. */
struct setup {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulHeuristicResult_t result[ALGORITHMS_MAX + ENUMERATED_MAX];
    int found; /* the heuristic's come first, best first */
};

struct plan {
    const struct product *product;
    const struct setup *setup;
    enum form form;
    int rank; /* in `result` */
    double us;
};

static void launch_plan(const void *of, int copy, cudaStream_t stream)
{
    const struct plan *plan = of;
    const struct product *product = plan->product;
    const struct setup *setup = plan->setup;
    const float one = 1, zero = 0;
    BLAS(cublasLtMatmul(product->blas, setup->operation, &one, product->w[copy], setup->w, product->x[copy],
                        setup->x, &zero, product->out[copy], setup->out, product->out[copy], setup->out,
                        &setup->result[plan->rank].algo, product->workspace, OPPONENT_WORKSPACE, stream));
}

static void set_batch(cublasLtMatrixLayout_t layout, int64_t batch, int64_t stride)
{
    const int32_t count = (int32_t)batch;
    BLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    BLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                          sizeof stride));
}

/* Appends one algorithm if the library can run it. */
static void append_checked(struct setup *setup, const struct product *product,
                           const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulHeuristicResult_t *next = &setup->result[setup->found];
    if (setup->found == ALGORITHMS_MAX + ENUMERATED_MAX) return;
    if (cublasLtMatmulAlgoCheck(product->blas, setup->operation, setup->w, setup->x, setup->out, setup->out,
                                algorithm, next) != CUBLAS_STATUS_SUCCESS ||
        next->state != CUBLAS_STATUS_SUCCESS || next->workspaceSize > OPPONENT_WORKSPACE)
        return;
    next->algo = *algorithm;
    setup->found++;
}

/* Every tile and cluster of the kind that the heuristic puts first. */
static void enumerate(struct setup *setup, const struct product *product)
{
    static uint32_t tiles[CUBLASLT_MATMUL_TILE_END];
    const cublasLtMatmulAlgo_t *first = &setup->result[0].algo;
    cublasLtMatmulAlgo_t plain;
    int32_t kind = 0;
    uint32_t stages = 0;
    size_t bytes = 0;
    BLAS(cublasLtMatmulAlgoConfigGetAttribute(first, CUBLASLT_ALGO_CONFIG_ID, &kind, sizeof kind, &bytes));
    BLAS(cublasLtMatmulAlgoConfigGetAttribute(first, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages,
                                              &bytes));
    BLAS(cublasLtMatmulAlgoInit(product->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF,
                                CUDA_R_16BF, CUDA_R_16BF, kind, &plain));
    BLAS(
        cublasLtMatmulAlgoConfigSetAttribute(&plain, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages));
    BLAS(cublasLtMatmulAlgoCapGetAttribute(&plain, CUBLASLT_ALGO_CAP_TILE_IDS, tiles, sizeof tiles, &bytes));
    for (size_t i = 0; i < bytes / sizeof *tiles; i++)
        for (int shape = CUBLASLT_CLUSTER_SHAPE_1x1x1; shape < CUBLASLT_CLUSTER_SHAPE_END; shape++) {
            const uint16_t cluster = (uint16_t)shape;
            cublasLtMatmulAlgo_t one = plain;
            if (cublasLtMatmulAlgoConfigSetAttribute(&one, CUBLASLT_ALGO_CONFIG_TILE_ID, &tiles[i],
                                                     sizeof tiles[i]) == CUBLAS_STATUS_SUCCESS &&
                cublasLtMatmulAlgoConfigSetAttribute(&one, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                                     sizeof cluster) == CUBLAS_STATUS_SUCCESS)
                append_checked(setup, product, &one);
        }
}

/* The library is column-major: a row-major [a][b] is its [b][a] with leading dimension b. */
static void setup_open(struct setup *setup, const struct product *product, enum form form)
{
    bool batched = form == BATCH_TN || form == BATCH_NN, transposed = form == BATCH_TN || form == SINGLE_TN;
    int64_t outputs = product->outputs * (batched ? 1 : product->batch), depth = product->depth;
    const cublasOperation_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t workspace = OPPONENT_WORKSPACE;
    setup->found = 0;
    BLAS(cublasLtMatmulDescCreate(&setup->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS(cublasLtMatmulDescSetAttribute(setup->operation, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op));
    BLAS(cublasLtMatrixLayoutCreate(&setup->w, CUDA_R_16BF, (uint64_t)(transposed ? depth : outputs),
                                    (uint64_t)(transposed ? outputs : depth), transposed ? depth : outputs));
    BLAS(cublasLtMatrixLayoutCreate(&setup->x, CUDA_R_16BF, (uint64_t)depth, (uint64_t)product->rows, depth));
    BLAS(cublasLtMatrixLayoutCreate(&setup->out, CUDA_R_16BF, (uint64_t)outputs, (uint64_t)product->rows,
                                    outputs));
    if (batched) {
        set_batch(setup->w, product->batch, outputs * depth);
        set_batch(setup->x, product->batch, 0);
        set_batch(setup->out, product->batch, outputs * product->rows);
    }
    cublasLtMatmulPreference_t preference;
    BLAS(cublasLtMatmulPreferenceCreate(&preference));
    BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace, sizeof workspace));
    BLAS(cublasLtMatmulAlgoGetHeuristic(product->blas, setup->operation, setup->w, setup->x, setup->out,
                                        setup->out, preference, ALGORITHMS_MAX, setup->result,
                                        &setup->found));
    must(setup->found > 0 && setup->result[0].state == CUBLAS_STATUS_SUCCESS, "cuBLASLt offers no algorithm");
    BLAS(cublasLtMatmulPreferenceDestroy(preference));
}

static void setup_close(struct setup *setup)
{
    BLAS(cublasLtMatmulDescDestroy(setup->operation));
    BLAS(cublasLtMatrixLayoutDestroy(setup->w));
    BLAS(cublasLtMatrixLayoutDestroy(setup->x));
    BLAS(cublasLtMatrixLayoutDestroy(setup->out));
}

/* A first look at one algorithm; what is far slower than the best so far is not looked at again. */
static double screen(struct timer *timer, const struct plan *plan, double best_us)
{
    const struct candidate candidate = {.launch = launch_plan, .of = plan};
    double us = time_directly(timer, &candidate, 1); /* loads it, which takes long the first time */
    if (us > 2 * best_us) us = time_directly(timer, &candidate, 1);
    if (us > 2 * best_us) return us;
    int launches = us > 300 ? 2 : 8, looks = us > 300 ? 2 : 3;
    double seen[3];
    for (int i = 0; i < looks; i++) {
        seen[i] = time_directly(timer, &candidate, launches);
        if (i == 0 && seen[0] > 1.5 * best_us) return seen[0];
    }
    return bench_median(seen, looks);
}

static void keep_fastest(struct plan *chosen, int *count, const struct plan *plan)
{
    int at = *count;
    while (at > FORMS && chosen[at - 1].us > plan->us) at--;
    if (at == CHOSEN_MAX) return;
    if (*count < CHOSEN_MAX) (*count)++;
    for (int i = *count - 1; i > at; i--) chosen[i] = chosen[i - 1];
    chosen[at] = *plan;
}

/* What is worth measuring at this number of rows: chosen[form] is the heuristic's first choice of each form;
 * behind them stand the fastest of all others. Returns how many. */
static int choose(struct timer *timer, const struct product *product, struct setup setups[FORMS],
                  struct plan chosen[CHOSEN_MAX])
{
    int count = FORMS;
    double best_us = 1e9;
    for (int form = 0; form < FORMS; form++) {
        setup_open(&setups[form], product, (enum form)form);
        if (product->rows >= ENUMERATED_ROWS_MIN && product->rows <= ENUMERATED_ROWS_MAX)
            enumerate(&setups[form], product);
        for (int rank = 0; rank < setups[form].found; rank++) {
            struct plan plan = {product, &setups[form], (enum form)form, rank, 0};
            if (setups[form].result[rank].state != CUBLAS_STATUS_SUCCESS) continue;
            plan.us = screen(timer, &plan, best_us);
            if (plan.us < best_us) best_us = plan.us;
            if (rank == 0)
                chosen[form] = plan;
            else
                keep_fastest(chosen, &count, &plan);
        }
    }
    return count;
}

enum { CEILING_SIDE = 8192, CEILING_COPY = 1 << 30 };

struct ceilings {
    double copy_bytes_per_us, read_bytes_per_us, flops_per_us;
};

struct mover {
    void *from, *to;
    size_t bytes;
    int blocks;
    bool copy;
};

static void launch_mover(const void *of, int copy, cudaStream_t stream)
{
    const struct mover *mover = of;
    (void)copy;
    CUDA(bench_move(mover->from, mover->to, mover->bytes, mover->blocks, mover->copy, stream));
}

/* Copying and reading CEILING_COPY bytes, each with the best of a few numbers of blocks. */
static void measure_memory(struct timer *timer, enum mode mode, void *const memory[2],
                           struct ceilings *ceilings)
{
    enum { TRIES = 3 };
    struct mover movers[2 * TRIES];
    struct candidate candidates[2 * TRIES] = {0};
    struct cudaDeviceProp device;
    int number = 0;
    CUDA(cudaGetDevice(&number));
    CUDA(cudaGetDeviceProperties(&device, number));
    for (int i = 0; i < 2 * TRIES; i++) {
        movers[i] = (struct mover){memory[0], memory[1], CEILING_COPY,
                                   device.multiProcessorCount << (1 + i / 2), i % 2 == 0};
        candidates[i] = (struct candidate){.name = "memory", .launch = launch_mover, .of = &movers[i]};
    }
    measure(timer, candidates, 2 * TRIES, mode, 400, 0, 200);
    for (int i = 2; i < 2 * TRIES; i++)
        if (candidates[i].median_us < candidates[i % 2].median_us)
            candidates[i % 2].median_us = candidates[i].median_us;
    ceilings->copy_bytes_per_us = 2.0 * CEILING_COPY / candidates[0].median_us;
    ceilings->read_bytes_per_us = (double)CEILING_COPY / candidates[1].median_us;
}

/* What the card does at best in this mode: a copy, read and written bytes counted, a read, and a large square
 * product. `data` [data_bytes] is random. */
static struct ceilings measure_ceilings(struct timer *timer, cublasLtHandle_t blas, void *workspace,
                                        enum mode mode, const void *data, size_t data_bytes, double settle_ms)
{
    void *memory[2];
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc(&memory[i], CEILING_COPY));
        for (size_t at = 0; at < CEILING_COPY; at += data_bytes) {
            size_t bytes = CEILING_COPY - at < data_bytes ? CEILING_COPY - at : data_bytes;
            CUDA(cudaMemcpy((char *)memory[i] + at, data, bytes, cudaMemcpyHostToDevice));
        }
    }
    size_t side = CEILING_SIDE, matrix = side * side * 2;
    struct product product = {blas, workspace, CEILING_SIDE, CEILING_SIDE, CEILING_SIDE, 1, 1, {0}, {0}, {0}};
    product.x[0] = memory[0];
    product.w[0] = (char *)memory[0] + matrix;
    product.out[0] = memory[1];
    struct setup setup;
    setup_open(&setup, &product, SINGLE_TN);
    struct candidate of_plan[CANDIDATES_MAX] = {0};
    struct ceilings ceilings;
    struct plan plans[4] = {0};
    int copies = timer->copies, count = 0;
    timer->copies = 1;
    for (int rank = 0; rank < setup.found && count < 4; rank++) {
        if (setup.result[rank].state != CUBLAS_STATUS_SUCCESS) continue;
        plans[count] = (struct plan){&product, &setup, SINGLE_TN, rank, 0};
        of_plan[count] = (struct candidate){.name = "product", .launch = launch_plan, .of = &plans[count]};
        time_directly(timer, &of_plan[count], 1);
        count++;
    }
    double flops = 2.0 * CEILING_SIDE * CEILING_SIDE * CEILING_SIDE;
    measure(timer, of_plan, count, mode, 1400, settle_ms, 100);
    for (int i = 1; i < count; i++)
        if (of_plan[i].median_us < of_plan[0].median_us) of_plan[0].median_us = of_plan[i].median_us;
    ceilings.flops_per_us = flops / of_plan[0].median_us;
    measure_memory(timer, mode, memory, &ceilings);
    timer->copies = copies;
    setup_close(&setup);
    for (int i = 0; i < 2; i++) CUDA(cudaFree(memory[i]));
    return ceilings;
}

#endif
