/* From products to K and V: bias, rounding, norm, rotation. Every rounding and every order is written out
 * with _rn operations. */
#include "kernels/cuda_kernels.h"
#include "kernels/cuda_values.cuh"

namespace
{

constexpr int kPairs = 8; /* of a head, in one thread: 16-byte loads of the low and of the high half */
constexpr int kThreadsMax = 256, kThreadsAny = 128;

/* Which elements of a head are rotated together. */
enum class turn {
    halves,     /* p and p + head_dim / 2: partners are in one thread */
    neighbours, /* 2p and 2p + 1: the same */
    some        /* p and p + rotary_dim / 2, where rotary_dim < head_dim */
};

/* Two neighbours, as 32 bits hold them. */
__device__ __forceinline__ float2 unpack(uint32_t two, __nv_bfloat16)
{
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack(uint32_t two, __half)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&two));
}
template <typename T> __device__ __forceinline__ uint32_t pack(float first, float second);
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float first, float second)
{
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&two);
}
template <> __device__ __forceinline__ uint32_t pack<__half>(float first, float second)
{
    const __half2 two = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&two);
}

template <typename T> __device__ __forceinline__ void load_values(const T *from, float *to)
{
    const uint4 raw = *reinterpret_cast<const uint4 *>(from);
    const uint32_t twos[kPairs / 2] = {raw.x, raw.y, raw.z, raw.w};
    for (int i = 0; i < kPairs / 2; i++) {
        const float2 two = unpack(twos[i], T());
        to[2 * i] = two.x;
        to[2 * i + 1] = two.y;
    }
}
template <typename T> __device__ __forceinline__ void store_values(const float *from, T *to)
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(pack<T>(from[0], from[1]), pack<T>(from[2], from[3]),
                                                pack<T>(from[4], from[5]), pack<T>(from[6], from[7]));
}
__device__ __forceinline__ void load_floats(const float *from, float *to)
{
    for (int i = 0; i < kPairs; i += 4) {
        const float4 part = *reinterpret_cast<const float4 *>(from + i);
        to[i] = part.x;
        to[i + 1] = part.y;
        to[i + 2] = part.z;
        to[i + 3] = part.w;
    }
}

/* cos and sin of tokens [first, first + count), times the attention factor, to [count][rotary_dim / 2] of
 * shared memory: once for all heads of a block. The block must meet before they are read. */
__device__ void angles(const kv_cuda_products &f, int64_t first, int count, float *cosines, float *sines)
{
    const unsigned half = f.geometry.rotary_dim / 2;
    const int64_t last = f.geometry.positions - 1;
    for (unsigned i = threadIdx.x; i < count * half; i += blockDim.x) {
        int64_t position = f.positions[first + i / half];
        if (position < 0) position = 0;
        if (position > last) position = last;
        const float angle = __fmul_rn(static_cast<float>(position), f.inv_freq[i % half]);
        cosines[i] = __fmul_rn(cosf(angle), f.geometry.attention_factor);
        sines[i] = __fmul_rn(sinf(angle), f.geometry.attention_factor);
    }
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

/* Eight values of a sum and its bias, rounded. */
template <typename T>
__device__ __forceinline__ void load_sums(const float *sums, const float *bias, float *to)
{
    float add[kPairs] = {};
    load_floats(sums, to);
    if (bias) load_floats(bias, add);
    for (int i = 0; i < kPairs; i++) to[i] = rounded<T>(__fadd_rn(to[i], add[i]));
}

/* 1 / RMS of the head that LANES threads hold; all of a warp take part. */
template <int LANES>
__device__ __forceinline__ float inverse_rms(const float *lo, const float *hi, float inverse_dim, float eps)
{
    float q[kPairs];
    for (int i = 0; i < kPairs; i++) q[i] = __fmaf_rn(hi[i], hi[i], __fmul_rn(lo[i], lo[i]));
    for (int apart = 1; apart < kPairs; apart *= 2)
        for (int i = 0; i < kPairs; i += 2 * apart) q[i] = __fadd_rn(q[i], q[i + apart]);
    float sum = q[0];
    for (int apart = 1; apart < LANES; apart *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart, LANES));
    return rsqrtf(__fmaf_rn(sum, inverse_dim, eps));
}

__device__ __forceinline__ void rotate_pair(float &x, float &y, float c, float s)
{
    const float was = x;
    x = __fmaf_rn(was, c, -__fmul_rn(y, s));
    y = __fmaf_rn(y, c, __fmul_rn(was, s));
}

/* Rotates the pairs of one thread. `staged`: room for a head, shared by the threads that hold it; all of a
 * warp take part. */
template <turn kTurn>
__device__ __forceinline__ void rotate_pairs(const kv_geometry &g, int pair, bool mine, const float *cosines,
                                             const float *sines, float *staged, float *lo, float *hi)
{
    const int half = g.head_dim / 2;
    if (kTurn == turn::halves && mine) {
        float c[kPairs], s[kPairs];
        load_floats(cosines + pair, c);
        load_floats(sines + pair, s);
        for (int i = 0; i < kPairs; i++) rotate_pair(lo[i], hi[i], c[i], s[i]);
    }
    if (kTurn == turn::neighbours && mine) {
        for (int i = 0; i < kPairs; i += 2) {
            const int low = (pair + i) / 2, high = (half + pair + i) / 2;
            if (2 * low < g.rotary_dim) rotate_pair(lo[i], lo[i + 1], cosines[low], sines[low]);
            if (2 * high < g.rotary_dim) rotate_pair(hi[i], hi[i + 1], cosines[high], sines[high]);
        }
    }
    if (kTurn == turn::some) {
        __syncwarp();
        for (int i = 0; mine && i < kPairs; i++) {
            staged[pair + i] = lo[i];
            staged[half + pair + i] = hi[i];
        }
        __syncwarp();
        for (int i = 0; mine && i < kPairs; i++) {
            lo[i] = rotate(g, staged, cosines, sines, pair + i);
            hi[i] = rotate(g, staged, cosines, sines, half + pair + i);
        }
    }
}

/* LANES threads hold a head of at most 16 * LANES elements; a block holds the heads [blockIdx.y *
 * heads_at_once,
 * ...) of each of its tokens in turn. */
template <typename T, int LANES, turn kTurn, bool kSums>
__global__ void __launch_bounds__(kThreadsMax, 4)
    finish_k(kv_cuda_products f, int tokens_at_once, int heads_at_once, float inverse_dim)
{
    extern __shared__ __align__(16) float shared[];
    const kv_geometry &g = f.geometry;
    const int head_dim = g.head_dim, half = head_dim / 2, turned = g.rotary_dim / 2;
    const int pair = threadIdx.x % LANES * kPairs;
    const unsigned group = threadIdx.x / LANES, at = blockIdx.y * heads_at_once + group,
                   kv_heads = g.kv_heads;
    const unsigned layer = at / kv_heads, head = at % kv_heads;
    const bool mine = pair < half && group < heads_at_once && layer < g.layers;
    const unsigned outputs = kv_heads * head_dim;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * tokens_at_once;
    const int tokens = f.rows - first < tokens_at_once ? f.rows - first : tokens_at_once;
    int64_t lo_at = (layer * f.rows + first) * outputs + head * head_dim + pair;
    float *cosines = shared, *sines = cosines + tokens_at_once * turned;
    float *staged = sines + tokens_at_once * turned + group * head_dim;
    float lo[kPairs] = {}, hi[kPairs] = {}, w_lo[kPairs], w_hi[kPairs], eps = 0.0f;
    if (f.k_norm && mine) {
        const float *w = f.k_norm + layer * head_dim + pair;
        load_floats(w, w_lo);
        load_floats(w + half, w_hi);
        eps = f.eps[layer];
    }
    angles(f, first, tokens, cosines, sines);
    for (int t = 0; t < tokens; t++, lo_at += outputs) {
        T *out = static_cast<T *>(f.out) + lo_at;
        if (kSums && mine) {
            const float *bias = f.k_bias ? f.k_bias + layer * outputs + head * head_dim + pair : nullptr;
            load_sums<T>(f.sums + lo_at, bias, lo);
            load_sums<T>(f.sums + lo_at + half, bias ? bias + half : nullptr, hi);
        } else if (mine) {
            load_values(out, lo);
            load_values(out + half, hi);
        }
        if (f.k_norm) {
            const float r = inverse_rms<LANES>(lo, hi, inverse_dim, eps);
            for (int i = 0; mine && i < kPairs; i++) {
                lo[i] = __fmul_rn(__fmul_rn(lo[i], r), w_lo[i]);
                hi[i] = __fmul_rn(__fmul_rn(hi[i], r), w_hi[i]);
            }
        }
        if (t == 0) __syncthreads();
        rotate_pairs<kTurn>(g, pair, mine, cosines + t * turned, sines + t * turned, staged, lo, hi);
        if (!mine) continue;
        store_values(lo, out);
        store_values(hi, out + half);
    }
}

/* Any even head size: a block for a head, the same tree in shared memory. */
template <typename T>
__global__ void __launch_bounds__(kThreadsAny) finish_k_any(kv_cuda_products f, int padded)
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
    angles(f, t, 1, cosines, sines);
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

/* Tokens of a block: each repeats what does not depend on the token, which counts where there are many. */
int tokens_for(int64_t rows, int blocks)
{
    return rows * blocks >= 1024 ? 2 : 1;
}

template <typename T, int LANES, turn kTurn>
void launch_turn(const kv_cuda_products &f, size_t staged_bytes_of_head, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    const int heads = g.layers * g.kv_heads, heads_max = kThreadsMax / LANES;
    const int blocks = (heads + heads_max - 1) / heads_max, heads_at_once = (heads + blocks - 1) / blocks;
    const int threads = (heads_at_once * LANES + 31) / 32 * 32, tokens_at_once = tokens_for(f.rows, blocks);
    const dim3 grid(static_cast<unsigned>((f.rows + tokens_at_once - 1) / tokens_at_once),
                    static_cast<unsigned>(blocks));
    const size_t shared_bytes = static_cast<size_t>(tokens_at_once) * g.rotary_dim * sizeof(float) +
                                static_cast<size_t>(threads / LANES) * staged_bytes_of_head;
    const float inverse_dim = 1.0f / static_cast<float>(g.head_dim);
    if (f.sums)
        finish_k<T, LANES, kTurn, true>
            <<<grid, threads, shared_bytes, stream>>>(f, tokens_at_once, heads_at_once, inverse_dim);
    else
        finish_k<T, LANES, kTurn, false>
            <<<grid, threads, shared_bytes, stream>>>(f, tokens_at_once, heads_at_once, inverse_dim);
}

template <typename T, int LANES> void launch_k(const kv_cuda_products &f, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    if (g.interleaved)
        launch_turn<T, LANES, turn::neighbours>(f, 0, stream);
    else if (g.rotary_dim == g.head_dim)
        launch_turn<T, LANES, turn::halves>(f, 0, stream);
    else
        launch_turn<T, LANES, turn::some>(f, g.head_dim * sizeof(float), stream);
}

template <typename T> void launch_any(const kv_cuda_products &f, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    int padded = 8;
    while (padded < g.head_dim / 2) padded *= 2;
    const size_t bytes = (static_cast<size_t>(g.rotary_dim) + g.head_dim + 2 * padded) * sizeof(float);
    const dim3 grid(static_cast<unsigned>(f.rows), g.layers * g.kv_heads);
    finish_k_any<T><<<grid, kThreadsAny, bytes, stream>>>(f, padded);
}

template <typename T> cudaError_t finish(const kv_cuda_products &f, cudaStream_t stream)
{
    const kv_geometry &g = f.geometry;
    if (f.sums || g.value_scale != 1.0f)
        finish_v<T><<<dim3(static_cast<unsigned>(f.rows), g.layers), 256, 0, stream>>>(f);
    if (g.head_dim % 16 != 0 || g.head_dim > 256)
        launch_any<T>(f, stream);
    else if (g.head_dim <= 32)
        launch_k<T, 2>(f, stream);
    else if (g.head_dim <= 64)
        launch_k<T, 4>(f, stream);
    else if (g.head_dim <= 128)
        launch_k<T, 8>(f, stream);
    else
        launch_k<T, 16>(f, stream);
    return cudaGetLastError();
}

} // namespace

cudaError_t kv_cuda_finish(const struct kv_cuda_products *f, cudaStream_t stream)
{
    return f->geometry.dtype == KV_BF16 ? finish<__nv_bfloat16>(*f, stream) : finish<__half>(*f, stream);
}
