/* The instruction sets' kernels, and the walk over k around them. Knows neither layers, heads nor requests.
 */
#include "kernels/cpu_gemm.h"

#include <assert.h>

/* Loops over the registers of a tile vanish: what is left must be registers only. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define PASTE(a, b) a##_##b
#define PASTE_EXPANDED(a, b) PASTE(a, b)

#if defined(__x86_64__) || defined(__i386__)
#define PREFIX avx512
#define NAME(x) PASTE_EXPANDED(PREFIX, x)
#define ISA "avx512"
#define TARGET __attribute__((target("avx512f")))
#define FUSED true
#define LANES 16
#define ROWS_MAX 14
#define EACH_ROWS(X)                                                                                         \
    X(1, 4)                                                                                                  \
    X(2, 4)                                                                                                  \
    X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 1) X(9, 1) X(10, 1) X(11, 1) X(12, 1) X(13, 1) X(14, 1)
static bool avx512_available(void)
{
    return __builtin_cpu_supports("avx512f");
}
#include "kernels/cpu_tile.h"
#undef PREFIX
#undef ISA
#undef TARGET
#undef FUSED
#undef LANES
#undef ROWS_MAX
#undef EACH_ROWS

#define PREFIX avx2
#define ISA "avx2"
#define TARGET __attribute__((target("avx2,fma")))
#define FUSED true
#define LANES 8
#define ROWS_MAX 6
#define EACH_ROWS(X) X(1, 4) X(2, 2) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
static bool avx2_available(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#include "kernels/cpu_tile.h"
#undef PREFIX
#undef NAME
#undef ISA
#undef TARGET
#undef FUSED
#undef LANES
#undef ROWS_MAX
#undef EACH_ROWS
#endif

#define PREFIX plain
#define NAME(x) PASTE_EXPANDED(PREFIX, x)
#define ISA "plain"
#define TARGET
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSED true
#else
#define FUSED false
#endif
#define LANES 4
#define ROWS_MAX 6
#define EACH_ROWS(X) X(1, 4) X(2, 2) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
static bool plain_available(void)
{
    return true;
}
#include "kernels/cpu_tile.h"

static const struct kv_isa *const isas[] = {
#if defined(__x86_64__) || defined(__i386__)
    &avx512_isa,
    &avx2_isa,
#endif
    &plain_isa,
    NULL,
};

const struct kv_isa *kv_isa_at(int32_t index)
{
    return isas[index];
}

const struct kv_isa *kv_isa_best(void)
{
    for (int32_t i = 0; isas[i]; i++)
        if (isas[i]->available()) return isas[i];
    return &plain_isa;
}

struct kv_tiling kv_tiling_make(int64_t rows, int32_t rows_max)
{
    return (struct kv_tiling){.rows = rows, .tiles = (rows + rows_max - 1) / rows_max};
}

int64_t kv_tiling_row(const struct kv_tiling *tiling, int64_t tile)
{
    if (tiling->tiles == 0) return 0;
    int64_t each = tiling->rows / tiling->tiles, longer = tiling->rows % tiling->tiles;
    return tile * each + (tile < longer ? tile : longer);
}

void kv_gemm(const struct kv_isa *isa, const struct kv_panel *panel, const float *x,
             const struct kv_tiling *tiling, int64_t tile_begin, int64_t tile_end, float *sums)
{
    int64_t first_row = kv_tiling_row(tiling, tile_begin);
    struct kv_strip strip = {.columns = panel->columns};
    for (int64_t k = 0; k < panel->depth; k += KV_DEPTH_BLOCK) {
        strip.depth = panel->depth - k < KV_DEPTH_BLOCK ? panel->depth - k : KV_DEPTH_BLOCK;
        strip.packed = panel->packed + k * (panel->columns / 2);
        strip.begin = k == 0;
        for (int64_t tile = tile_begin; tile < tile_end; tile++) {
            int64_t row = kv_tiling_row(tiling, tile), rows = kv_tiling_row(tiling, tile + 1) - row;
            assert(rows >= 1 && rows <= isa->rows_max);
            strip.x = x + row * panel->depth + k * rows;
            strip.sums = sums + (row - first_row) * panel->columns;
            isa->strip[panel->dtype][rows](&strip);
        }
    }
}
