/* 16-bit values and float32, for the kernels of both dtypes. Every rounding is to nearest, ties to even. */
#ifndef KV_KERNELS_CUDA_VALUES_CUH
#define KV_KERNELS_CUDA_VALUES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}
__device__ __forceinline__ float to_float(__half value)
{
    return __half2float(value);
}
__device__ __forceinline__ float to_float(float value)
{
    return value;
}
template <typename T> __device__ __forceinline__ T round_to(float value);
template <> __device__ __forceinline__ __nv_bfloat16 round_to(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ __forceinline__ __half round_to(float value)
{
    return __float2half_rn(value);
}
template <typename T> __device__ __forceinline__ float rounded(float value)
{
    return to_float(round_to<T>(value));
}

#endif
