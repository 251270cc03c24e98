/* Device time of things that can be launched: each is captured many times over into a graph, and the graphs
 * take turns. Knows neither the product nor its opponents. Anything that fails ends the program. */
#ifndef KV_TESTS_GPU_BENCH_TIME_H
#define KV_TESTS_GPU_BENCH_TIME_H

#include "tests/bench.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    LAUNCHES = 24, /* in a graph; a multiple of 2, 3 and 4, so that every copy of the weights has the same
                      share */
    CANDIDATES_MAX = 12,
    ROUNDS_MIN = 7,
    ROUNDS_MAX = 25,
    IDLE_MS = 15,    /* before each measurement of a burst */
    BURST_MS = 8,    /* a burst is no longer than this, or the power limit sets in; at least 2 launches */
    SETTLE_MS = 300, /* of work before the first sustained measurement */
    COVER_BYTES = 128 << 20 /* a copy that runs while the host launches what is measured */
};

enum mode { SUSTAINED, BURST, MODES };
static const char *const mode_names[MODES] = {"sustained", "burst"};

static inline void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "gpu_bench: %s\n", what);
    exit(1);
}

static inline void must_cuda(cudaError_t status, const char *what)
{
    if (status == cudaSuccess) return;
    fprintf(stderr, "gpu_bench: %s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

static inline void must_blas(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "gpu_bench: %s: %s\n", what, cublasLtGetStatusString(status));
    exit(1);
}

#define CUDA(call) must_cuda(call, #call)
#define BLAS(call) must_blas(call, #call)

/* `launch` enqueues the work once, on weights number `copy`; it must be possible to capture it. */
struct candidate {
    char name[48];
    void (*launch)(const void *of, int copy, cudaStream_t stream);
    const void *of;
    cudaGraphExec_t graph;
    double us[ROUNDS_MAX], median_us;
};

struct timer {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *cover[2]; /* [COVER_BYTES] */
    int copies;     /* of the weights, over which launches rotate */
};

static void timer_open(struct timer *timer)
{
    CUDA(cudaStreamCreateWithFlags(&timer->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&timer->begin));
    CUDA(cudaEventCreate(&timer->end));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc(&timer->cover[i], COVER_BYTES));
        CUDA(cudaMemset(timer->cover[i], 0x5a, COVER_BYTES));
    }
    CUDA(cudaDeviceSynchronize());
    timer->copies = 1;
}

static void timer_close(struct timer *timer)
{
    for (int i = 0; i < 2; i++) CUDA(cudaFree(timer->cover[i]));
    CUDA(cudaEventDestroy(timer->begin));
    CUDA(cudaEventDestroy(timer->end));
    CUDA(cudaStreamDestroy(timer->stream));
}

/* The copy hides how long the host takes to launch, and leaves the L2 cache with nothing of ours in it. */
static void timer_begin(struct timer *timer)
{
    CUDA(cudaMemcpyAsync(timer->cover[1], timer->cover[0], COVER_BYTES, cudaMemcpyDeviceToDevice,
                         timer->stream));
    CUDA(cudaEventRecord(timer->begin, timer->stream));
}

static double timer_end_us(struct timer *timer)
{
    float ms = 0;
    CUDA(cudaEventRecord(timer->end, timer->stream));
    CUDA(cudaEventSynchronize(timer->end));
    CUDA(cudaGetLastError());
    CUDA(cudaEventElapsedTime(&ms, timer->begin, timer->end));
    return (double)ms * 1e3;
}

/* Microseconds of one of `launches` launches, straight from the host: for a first look. */
static double time_directly(struct timer *timer, const struct candidate *candidate, int launches)
{
    timer_begin(timer);
    for (int i = 0; i < launches; i++) candidate->launch(candidate->of, i % timer->copies, timer->stream);
    return timer_end_us(timer) / launches;
}

static void capture(const struct timer *timer, struct candidate *candidate, int launches)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(timer->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) candidate->launch(candidate->of, i % timer->copies, timer->stream);
    CUDA(cudaStreamEndCapture(timer->stream, &graph));
    CUDA(cudaGraphInstantiate(&candidate->graph, graph, 0));
    CUDA(cudaGraphUpload(candidate->graph, timer->stream));
    CUDA(cudaGraphDestroy(graph));
}

static double time_graph(struct timer *timer, const struct candidate *candidate, int launches, enum mode mode)
{
    const struct timespec idle = {.tv_nsec = IDLE_MS * 1000000L};
    if (mode == BURST) nanosleep(&idle, NULL);
    timer_begin(timer);
    CUDA(cudaGraphLaunch(candidate->graph, timer->stream));
    return timer_end_us(timer) / launches;
}

/* Every candidate once. They begin with another one in each round, so that none always follows the same. */
static double run_round(struct timer *timer, struct candidate *candidates, int count, int launches,
                        enum mode mode, int round)
{
    double begun = bench_now_ms();
    for (int i = 0; i < count; i++) {
        struct candidate *candidate = &candidates[(i + round) % count];
        candidate->us[round] = time_graph(timer, candidate, launches, mode);
    }
    return bench_now_ms() - begun;
}

/* Medians of interleaved rounds, as many as fit into `budget_ms`; `settle_ms` of work come first. `about_us`
 * is how long one launch takes, roughly. */
static void measure(struct timer *timer, struct candidate *candidates, int count, enum mode mode,
                    double about_us, double settle_ms, double budget_ms)
{
    int launches = LAUNCHES, rounds = ROUNDS_MIN;
    if (mode == BURST && about_us * LAUNCHES > BURST_MS * 1e3) {
        launches = (int)(BURST_MS * 1e3 / about_us) / timer->copies * timer->copies;
        if (launches < timer->copies) launches = timer->copies;
    }
    for (int i = 0; i < count; i++) capture(timer, &candidates[i], launches);
    double round_ms = 0, settled = bench_now_ms() + (mode == SUSTAINED ? settle_ms : 0);
    do round_ms = run_round(timer, candidates, count, launches, mode, 0);
    while (bench_now_ms() < settled);
    if (budget_ms / round_ms > ROUNDS_MIN) rounds = (int)(budget_ms / round_ms);
    if (rounds > ROUNDS_MAX) rounds = ROUNDS_MAX;
    for (int round = 0; round < rounds; round++) run_round(timer, candidates, count, launches, mode, round);
    for (int i = 0; i < count; i++) {
        candidates[i].median_us = bench_median(candidates[i].us, rounds);
        CUDA(cudaGraphExecDestroy(candidates[i].graph));
    }
}

#endif
