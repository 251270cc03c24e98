/* The matrix product of the CPU backend: float32 sums of 16-bit weights times float32 inputs, one accumulator
 * for each output, k strictly increasing, so that a row's bits depend on that row alone. Knows tiles and
 * panels, and neither layers, heads nor requests. Thread-safe: all state is the caller's.
 *
 * A panel is the weights of some columns (outputs) over the whole depth: [depth][columns / 2] words of 32
 * bits, `columns` a multiple of 32; in each group of 16 words, word j holds column j in its low and column 16
 * + j in its high half. Inputs come as tiles of at most rows_max rows: [depth][rows of the tile] float32. */
#ifndef KV_KERNELS_CPU_GEMM_H
#define KV_KERNELS_CPU_GEMM_H

#include "protocol/tensor.h"

enum {
    KV_PANEL_COLUMNS = 32,    /* a panel's columns are a multiple of it */
    KV_TILE_ROWS_MAX = 14,    /* over all instruction sets */
    KV_DEPTH_BLOCK = 128,     /* k is walked in blocks; the sums wait in memory, bit for bit */
    KV_PREFETCH_BYTES = 16384 /* how far ahead packed weights are asked for */
};

/* One tile of rows times all columns of a panel, over one block of k. */
struct kv_strip {
    const float *x;         /* [depth][rows] */
    const uint32_t *packed; /* [depth][columns / 2] */
    int64_t columns, depth;
    float *sums; /* [rows][columns] */
    bool begin;  /* sums start at 0 and not from memory */
};

struct kv_isa {
    const char *name;
    int32_t rows_max; /* of a tile */
    bool fused;       /* sum = fma(weight, x, sum); otherwise the product is rounded before it is added */
    bool (*available)(void);
    /* [dtype of the weights: KV_BF16 or KV_F16][rows of the tile] */
    void (*strip[KV_F16 + 1][KV_TILE_ROWS_MAX + 1])(const struct kv_strip *strip);
};

/* The instruction sets of this build, best first; NULL past the last. */
const struct kv_isa *kv_isa_at(int32_t index);
/* The best one that this processor has. */
const struct kv_isa *kv_isa_best(void);

/* How n rows are cut into tiles of nearly equal size. */
struct kv_tiling {
    int64_t rows, tiles;
};
struct kv_tiling kv_tiling_make(int64_t rows, int32_t rows_max);
/* The first row of a tile; of tile `tiles`: the number of rows. */
int64_t kv_tiling_row(const struct kv_tiling *tiling, int64_t tile);

struct kv_panel {
    enum kv_dtype dtype;
    int64_t depth, columns;
    uint32_t *packed;
};

/* sums[row - first row of tile_begin][columns] = x times the panel, for the tiles [tile_begin, tile_end).
 * x: all tiles, one after the other. */
void kv_gemm(const struct kv_isa *isa, const struct kv_panel *panel, const float *x,
             const struct kv_tiling *tiling, int64_t tile_begin, int64_t tile_end, float *sums);

#endif
