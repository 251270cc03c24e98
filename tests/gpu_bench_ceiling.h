/* Kernels of the benchmark that do nothing but move memory. */
#ifndef KV_TESTS_GPU_BENCH_CEILING_H
#define KV_TESTS_GPU_BENCH_CEILING_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `bytes`, a multiple of 16; writes them to `to` only for a copy. Enqueues. */
cudaError_t bench_move(const void *from, void *to, size_t bytes, int blocks, bool copy, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
