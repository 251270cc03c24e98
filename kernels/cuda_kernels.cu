/* The kernels around the matrix products. Every rounding and every order is written out with _rn operations.
 */
#include "kernels/cuda_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

constexpr int kThreads = 128;
constexpr int kPairs = 4; /* of a head, in one thread: 8-byte loads of the low and of the high half */

template <typename T> struct four {
    alignas(8) T at[kPairs];
};

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

/* cos and sin of one token, times the attention factor, to shared memory: once for all heads of a block. */
__device__ void angles(const kv_cuda_products &f, int64_t t, float *cosines, float *sines)
{
    int64_t last = f.geometry.positions - 1, position = f.positions[t];
    if (position < 0) position = 0;
    if (position > last) position = last;
    for (int i = threadIdx.x; i < f.geometry.rotary_dim / 2; i += blockDim.x) {
        float angle = __fmul_rn(static_cast<float>(position), f.inv_freq[i]);
        cosines[i] = __fmul_rn(cosf(angle), f.geometry.attention_factor);
        sines[i] = __fmul_rn(sinf(angle), f.geometry.attention_factor);
    }
    __syncthreads();
}

/* The rotated value of element e of a normed head in shared memory. */
__device__ __forceinline__ float rotate(const kv_geometry &g, const float *head, const float *cosines,
                                        const float *sines, int e)
{
    if (e >= g.rotary_dim) return head[e];
    int half = g.rotary_dim / 2, p = g.interleaved ? e / 2 : e < half ? e : e - half;
    float x = head[g.interleaved ? 2 * p : p], y = head[g.interleaved ? 2 * p + 1 : p + half];
    bool first = g.interleaved ? e % 2 == 0 : e < half;
    return first ? __fmaf_rn(x, cosines[p], -__fmul_rn(y, sines[p]))
                 : __fmaf_rn(y, cosines[p], __fmul_rn(x, sines[p]));
}

/* The four pairs of one thread: a product as it is, or a sum with its bias, rounded. */
template <typename T>
__device__ __forceinline__ void load(const kv_cuda_products &f, int64_t row, int64_t bias_at, int pair,
                                     float *lo, float *hi)
{
    const int half = f.geometry.head_dim / 2;
    if (f.sums) {
        const float *bias = f.k_bias ? f.k_bias + bias_at : nullptr;
        for (int i = 0; i < kPairs; i++) {
            const int at = pair + i;
            lo[i] = rounded<T>(__fadd_rn(f.sums[row + at], bias ? bias[at] : 0.0f));
            hi[i] = rounded<T>(__fadd_rn(f.sums[row + half + at], bias ? bias[half + at] : 0.0f));
        }
        return;
    }
    const T *out = static_cast<const T *>(f.out) + row;
    const four<T> low = *reinterpret_cast<const four<T> *>(out + pair);
    const four<T> high = *reinterpret_cast<const four<T> *>(out + half + pair);
    for (int i = 0; i < kPairs; i++) {
        lo[i] = to_float(low.at[i]);
        hi[i] = to_float(high.at[i]);
    }
}

/* RMSNorm over the head that LANES threads hold; all of a warp take part. */
template <int LANES>
__device__ __forceinline__ void norm(const kv_cuda_products &f, int layer, int pair, bool mine, float *lo,
                                     float *hi)
{
    const int head_dim = f.geometry.head_dim, half = head_dim / 2;
    float q[kPairs];
    for (int i = 0; i < kPairs; i++) q[i] = __fmaf_rn(hi[i], hi[i], __fmul_rn(lo[i], lo[i]));
    float sum = __fadd_rn(__fadd_rn(q[0], q[1]), __fadd_rn(q[2], q[3]));
    for (int apart = 1; apart < LANES; apart *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart, LANES));
    const float r = rsqrtf(__fmaf_rn(sum, __frcp_rn(static_cast<float>(head_dim)), f.eps[layer]));
    const float *w = f.k_norm + static_cast<int64_t>(layer) * head_dim;
    for (int i = 0; mine && i < kPairs; i++) {
        lo[i] = __fmul_rn(__fmul_rn(lo[i], r), w[pair + i]);
        hi[i] = __fmul_rn(__fmul_rn(hi[i], r), w[half + pair + i]);
    }
}

/* LANES threads hold a head of at most 8 * LANES elements. kPlain: the whole head is rotated in pairs (p, p +
 * D/2), so partners are in one thread. */
template <typename T, int LANES, bool kPlain>
__global__ void __launch_bounds__(kThreads) finish_k(kv_cuda_products f)
{
    extern __shared__ float shared[];
    const kv_geometry &g = f.geometry;
    const int head_dim = g.head_dim, half = head_dim / 2, lane = threadIdx.x % LANES,
              group = threadIdx.x / LANES;
    const int groups = kThreads / LANES, pair = lane * kPairs;
    const int64_t t = blockIdx.x, outputs = static_cast<int64_t>(g.kv_heads) * head_dim;
    const int heads = g.layers * g.kv_heads;
    float *cosines = shared, *sines = cosines + g.rotary_dim / 2, *staged = sines + g.rotary_dim / 2;
    const bool active = pair < half;
    angles(f, t, cosines, sines);
    /* All threads of a warp take the same number of turns: the shuffles need them. */
    for (int first = blockIdx.y * groups; first < heads; first += gridDim.y * groups) {
        const int at = first + group, layer = at < heads ? at / g.kv_heads : 0,
                  head = at < heads ? at % g.kv_heads : 0;
        const bool mine = active && at < heads;
        const int64_t row =
            (static_cast<int64_t>(layer) * f.rows + t) * outputs + static_cast<int64_t>(head) * head_dim;
        T *out = static_cast<T *>(f.out) + row;
        float lo[kPairs] = {0, 0, 0, 0}, hi[kPairs] = {0, 0, 0, 0};
        if (mine) load<T>(f, row, layer * outputs + static_cast<int64_t>(head) * head_dim, pair, lo, hi);
        if (f.k_norm) norm<LANES>(f, layer, pair, mine, lo, hi);
        four<T> low, high;
        if (kPlain) {
            for (int i = 0; mine && i < kPairs; i++) {
                const float c = cosines[pair + i], s = sines[pair + i];
                low.at[i] = round_to<T>(__fmaf_rn(lo[i], c, -__fmul_rn(hi[i], s)));
                high.at[i] = round_to<T>(__fmaf_rn(hi[i], c, __fmul_rn(lo[i], s)));
            }
        } else {
            float *mine_at = staged + group * head_dim;
            __syncwarp();
            for (int i = 0; mine && i < kPairs; i++) {
                mine_at[pair + i] = lo[i];
                mine_at[half + pair + i] = hi[i];
            }
            __syncwarp();
            for (int i = 0; mine && i < kPairs; i++) {
                low.at[i] = round_to<T>(rotate(g, mine_at, cosines, sines, pair + i));
                high.at[i] = round_to<T>(rotate(g, mine_at, cosines, sines, half + pair + i));
            }
        }
        if (mine) {
            *reinterpret_cast<four<T> *>(out + pair) = low;
            *reinterpret_cast<four<T> *>(out + half + pair) = high;
        }
    }
}

/* Any even head size: a block for a head, the same tree in shared memory. */
template <typename T> __global__ void __launch_bounds__(kThreads) finish_k_any(kv_cuda_products f, int padded)
{
    extern __shared__ float shared[];
    const kv_geometry &g = f.geometry;
    const int head_dim = g.head_dim, half = head_dim / 2, head = blockIdx.y % g.kv_heads,
              layer = blockIdx.y / g.kv_heads;
    const int64_t t = blockIdx.x, outputs = static_cast<int64_t>(g.kv_heads) * head_dim;
    const int64_t row =
        (static_cast<int64_t>(layer) * f.rows + t) * outputs + static_cast<int64_t>(head) * head_dim;
    float *cosines = shared, *sines = cosines + g.rotary_dim / 2, *x = sines + g.rotary_dim / 2,
          *q = x + head_dim;
    T *out = static_cast<T *>(f.out) + row;
    angles(f, t, cosines, sines);
    for (int e = threadIdx.x; e < head_dim; e += blockDim.x) {
        const float *bias =
            f.k_bias ? f.k_bias + layer * outputs + static_cast<int64_t>(head) * head_dim : nullptr;
        x[e] = f.sums ? rounded<T>(__fadd_rn(f.sums[row + e], bias ? bias[e] : 0.0f)) : to_float(out[e]);
    }
    __syncthreads();
    if (f.k_norm) {
        for (int p = threadIdx.x; p < padded; p += blockDim.x)
            q[p] = p < half ? __fmaf_rn(x[half + p], x[half + p], __fmul_rn(x[p], x[p])) : 0.0f;
        for (int left = padded / 2; left >= 1; left /= 2) {
            float *from = q, *to = q + padded;
            __syncthreads();
            for (int i = threadIdx.x; i < left; i += blockDim.x)
                to[i] = __fadd_rn(from[2 * i], from[2 * i + 1]);
            __syncthreads();
            for (int i = threadIdx.x; i < left; i += blockDim.x) from[i] = to[i];
        }
        __syncthreads();
        const float r = rsqrtf(__fmaf_rn(q[0], __frcp_rn(static_cast<float>(head_dim)), f.eps[layer]));
        for (int e = threadIdx.x; e < head_dim; e += blockDim.x)
            x[e] = __fmul_rn(__fmul_rn(x[e], r), f.k_norm[static_cast<int64_t>(layer) * head_dim + e]);
        __syncthreads();
    }
    for (int e = threadIdx.x; e < head_dim; e += blockDim.x)
        out[e] = round_to<T>(rotate(g, x, cosines, sines, e));
}

template <typename T> __global__ void __launch_bounds__(256) finish_v(kv_cuda_products f)
{
    const kv_geometry &g = f.geometry;
    const int64_t outputs = static_cast<int64_t>(g.kv_heads) * g.head_dim, layer = blockIdx.y;
    const int64_t row = ((static_cast<int64_t>(g.layers) + layer) * f.rows + blockIdx.x) * outputs;
    T *out = static_cast<T *>(f.out) + row;
    for (int64_t e = threadIdx.x; e < outputs; e += blockDim.x) {
        float value =
            f.sums ? rounded<T>(__fadd_rn(f.sums[row + e], f.v_bias ? f.v_bias[layer * outputs + e] : 0.0f))
                   : to_float(out[e]);
        if (g.value_scale != 1.0f) value = __fmul_rn(value, g.value_scale);
        out[e] = round_to<T>(value);
    }
}

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

/* Turns of blockIdx.y: enough blocks to fill a large GPU when there are few tokens, else one block for a
 * token. */
unsigned splits_for(int64_t rows, int heads, int groups)
{
    int64_t turns = (heads + groups - 1) / groups, wanted = rows >= 512 ? 1 : (512 + rows - 1) / rows;
    return static_cast<unsigned>(wanted < turns ? wanted : turns);
}

template <typename T, int LANES> void launch_k(const kv_cuda_products &f, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    const int groups = kThreads / LANES, heads = g.layers * g.kv_heads;
    const dim3 grid(static_cast<unsigned>(f.rows), splits_for(f.rows, heads, groups));
    const bool plain = !g.interleaved && g.rotary_dim == g.head_dim;
    const size_t angles_bytes = static_cast<size_t>(g.rotary_dim) * sizeof(float);
    const size_t staged_bytes = static_cast<size_t>(groups) * g.head_dim * sizeof(float);
    if (plain)
        finish_k<T, LANES, true><<<grid, kThreads, angles_bytes, stream>>>(f);
    else
        finish_k<T, LANES, false><<<grid, kThreads, angles_bytes + staged_bytes, stream>>>(f);
}

template <typename T> cudaError_t finish(const kv_cuda_products &f, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    if (f.sums || g.value_scale != 1.0f)
        finish_v<T><<<dim3(static_cast<unsigned>(f.rows), g.layers), 256, 0, stream>>>(f);
    if (g.head_dim % 8 != 0 || g.head_dim > 256) {
        int padded = 8;
        while (padded < g.head_dim / 2) padded *= 2;
        const size_t bytes = (static_cast<size_t>(g.rotary_dim) + g.head_dim + 2 * padded) * sizeof(float);
        const dim3 grid(static_cast<unsigned>(f.rows), g.layers * g.kv_heads);
        finish_k_any<T><<<grid, kThreads, bytes, stream>>>(f, padded);
    } else if (g.head_dim <= 32) {
        launch_k<T, 4>(f, stream);
    } else if (g.head_dim <= 64) {
        launch_k<T, 8>(f, stream);
    } else if (g.head_dim <= 128) {
        launch_k<T, 16>(f, stream);
    } else {
        launch_k<T, 32>(f, stream);
    }
    return cudaGetLastError();
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

cudaError_t kv_cuda_finish(const struct kv_cuda_products *f, cudaStream_t stream)
{
    return f->geometry.dtype == KV_BF16 ? finish<__nv_bfloat16>(*f, stream) : finish<__half>(*f, stream);
}

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
