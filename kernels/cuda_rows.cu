/* Rows before the products, converted and normed; and what choosing algorithms needs: numbers and
 * comparisons. */
#include "kernels/cuda_kernels.h"
#include "kernels/cuda_values.cuh"

namespace
{

template <typename F, typename T>
__global__ void __launch_bounds__(256) convert(const F *from, int64_t columns, T *to, int64_t pitch)
{
    const int64_t row = blockIdx.x;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        to[row * pitch + i] = round_to<T>(to_float(from[row * columns + i]));
}

/* Thread i adds the squares of elements i, i + 256, ...; the 256 sums are added as a tree. */
template <typename T>
__global__ void __launch_bounds__(256)
    norm_rows(T *rows_at, int64_t columns, int64_t pitch, const float *weight, float eps)
{
    __shared__ float partial[256];
    T *row = rows_at + blockIdx.x * pitch;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += 256) {
        const float x = to_float(row[i]);
        sum = __fmaf_rn(x, x, sum);
    }
    partial[threadIdx.x] = sum;
    for (int apart = 128; apart >= 1; apart /= 2) {
        __syncthreads();
        if (threadIdx.x < apart)
            partial[threadIdx.x] = __fadd_rn(partial[threadIdx.x], partial[threadIdx.x + apart]);
    }
    __syncthreads();
    const float r = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(partial[0], static_cast<float>(columns)), eps)));
    for (int64_t i = threadIdx.x; i < columns; i += 256)
        row[i] = round_to<T>(__fmul_rn(__fmul_rn(to_float(row[i]), r), weight[i]));
}

template <typename T> __global__ void __launch_bounds__(256) fill(T *to, int64_t columns, int64_t pitch)
{
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
        uint32_t mixed = static_cast<uint32_t>(blockIdx.x * columns + i) * 2654435761u;
        mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
        to[blockIdx.x * pitch + i] = round_to<T>(static_cast<float>(mixed >> 8) * 0x1p-23f - 1.0f);
    }
}

template <typename W>
__global__ void __launch_bounds__(256) compare(const W *a, int64_t a_rows, const W *b, int64_t b_rows,
                                               int64_t columns, unsigned long long *differing)
{
    const W *in_a = a + (static_cast<int64_t>(blockIdx.y) * a_rows + blockIdx.x) * columns;
    const W *in_b = b + (static_cast<int64_t>(blockIdx.y) * b_rows + blockIdx.x) * columns;
    unsigned long long found = 0;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) found += in_a[i] != in_b[i];
    if (found) atomicAdd(differing, found);
}

template <typename F>
cudaError_t convert_from(const F *from, int64_t rows, int64_t columns, void *to, kv_dtype to_dtype,
                         int64_t pitch, cudaStream_t stream)
{
    const unsigned grid = static_cast<unsigned>(rows);
    if (to_dtype == KV_BF16)
        convert<<<grid, 256, 0, stream>>>(from, columns, static_cast<__nv_bfloat16 *>(to), pitch);
    else
        convert<<<grid, 256, 0, stream>>>(from, columns, static_cast<__half *>(to), pitch);
    return cudaGetLastError();
}

} // namespace

cudaError_t kv_cuda_convert(const void *from, enum kv_dtype from_dtype, int64_t rows, int64_t columns,
                            void *to, enum kv_dtype to_dtype, int64_t pitch, cudaStream_t stream)
{
    if (from_dtype == KV_F32)
        return convert_from(static_cast<const float *>(from), rows, columns, to, to_dtype, pitch, stream);
    if (from_dtype == KV_F16)
        return convert_from(static_cast<const __half *>(from), rows, columns, to, to_dtype, pitch, stream);
    return convert_from(static_cast<const __nv_bfloat16 *>(from), rows, columns, to, to_dtype, pitch, stream);
}

cudaError_t kv_cuda_norm_rows(void *rows_at, enum kv_dtype dtype, int64_t rows, int64_t columns,
                              int64_t pitch, const float *weight, float eps, cudaStream_t stream)
{
    const unsigned grid = static_cast<unsigned>(rows);
    if (dtype == KV_BF16)
        norm_rows<<<grid, 256, 0, stream>>>(static_cast<__nv_bfloat16 *>(rows_at), columns, pitch, weight,
                                            eps);
    else
        norm_rows<<<grid, 256, 0, stream>>>(static_cast<__half *>(rows_at), columns, pitch, weight, eps);
    return cudaGetLastError();
}

cudaError_t kv_cuda_fill(void *to, enum kv_dtype dtype, int64_t rows, int64_t columns, int64_t pitch,
                         cudaStream_t stream)
{
    const unsigned grid = static_cast<unsigned>(rows);
    if (dtype == KV_BF16)
        fill<<<grid, 256, 0, stream>>>(static_cast<__nv_bfloat16 *>(to), columns, pitch);
    else
        fill<<<grid, 256, 0, stream>>>(static_cast<__half *>(to), columns, pitch);
    return cudaGetLastError();
}

cudaError_t kv_cuda_compare(const void *a, int64_t a_rows, const void *b, int64_t b_rows, int64_t rows,
                            int64_t batch, int64_t columns, int32_t element_bytes,
                            unsigned long long *differing, cudaStream_t stream)
{
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(batch));
    if (element_bytes == 2)
        compare<<<grid, 256, 0, stream>>>(static_cast<const uint16_t *>(a), a_rows,
                                          static_cast<const uint16_t *>(b), b_rows, columns, differing);
    else
        compare<<<grid, 256, 0, stream>>>(static_cast<const uint32_t *>(a), a_rows,
                                          static_cast<const uint32_t *>(b), b_rows, columns, differing);
    return cudaGetLastError();
}
