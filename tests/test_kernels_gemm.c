/* The matrix product and its packing: every float32 sum, bit for bit, is the chain that defines it. (Behind a
 * rounding to 16 bits another order of k would hardly ever show.) */
#include "kernels/cpu_gemm.h"
#include "kernels/cpu_panel.h"
#include "tests/exact_kv.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>

static uint64_t seed;

struct product {
    enum kv_dtype dtype;
    int64_t rows, columns, depth, padded; /* columns, and a panel's columns */
    uint16_t *weight;                     /* [columns][depth] */
    float *x;                             /* [rows][depth] */
    uint32_t *packed;
    float *tiles, *sums; /* [rows][padded], and one row more that must stay as it is */
};

static void *make(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 16, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void make_product(struct product *p, uint64_t *state)
{
    p->padded = kv_panel_columns(p->columns);
    p->weight = make(p->columns * p->depth, sizeof *p->weight);
    p->x = make(p->rows * p->depth, sizeof *p->x);
    p->packed = make(p->padded / 2 * p->depth, sizeof *p->packed);
    p->tiles = make(p->rows * p->depth, sizeof *p->tiles);
    p->sums = make((p->rows + 1) * p->padded, sizeof *p->sums);
    random_fill(state, p->dtype, 0.1f, p->columns * p->depth, p->weight);
    random_fill(state, KV_F32, 1.0f, p->rows * p->depth, p->x);
    /* The smallest numbers of the dtype are exact too, and zeros keep their sign. */
    for (int64_t i = 0; i < p->columns * p->depth; i += 7)
        p->weight[i] = (uint16_t)(random_bits(state) & (p->dtype == KV_F16 ? 0x83ffu : 0x8000u));
    uint16_t *zeros = make(p->depth, sizeof *zeros);
    for (int64_t column = 0; column < p->columns; column += KV_PANEL_COLUMNS) {
        int64_t count = p->columns - column < KV_PANEL_COLUMNS ? p->columns - column : KV_PANEL_COLUMNS;
        kv_panel_pack(p->weight + column * p->depth, count, p->depth, zeros, p->packed + column / 2,
                      p->padded / 2);
    }
    free(zeros);
}

static void free_product(struct product *p)
{
    free(p->weight);
    free(p->x);
    free(p->packed);
    free(p->tiles);
    free(p->sums);
}

static float defined_sum(const struct product *p, bool fused, int64_t row, int64_t column)
{
    float sum = 0;
    for (int64_t k = 0; k < p->depth; k++) {
        float weight = (float)exact_from_bits(p->dtype, p->weight[column * p->depth + k]);
        float x = p->x[row * p->depth + k];
        sum = fused ? fmaf(weight, x, sum) : sum + weight * x;
    }
    return sum;
}

static void pack_tiles(const struct product *p, const struct kv_tiling *tiling)
{
    for (int64_t tile = 0; tile < tiling->tiles; tile++) {
        int64_t begin = kv_tiling_row(tiling, tile), rows = kv_tiling_row(tiling, tile + 1) - begin;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < p->depth; k++)
                p->tiles[begin * p->depth + k * rows + r] = p->x[(begin + r) * p->depth + k];
    }
}

static void check_product(struct product *p, const struct kv_isa *isa)
{
    struct kv_tiling tiling = kv_tiling_make(p->rows, isa->rows_max);
    struct kv_panel panel = {.dtype = p->dtype, .depth = p->depth, .columns = p->padded, .packed = p->packed};
    pack_tiles(p, &tiling);
    memset(p->sums, 0xff, (size_t)((p->rows + 1) * p->padded) * sizeof *p->sums);
    /* In two calls, as blocks of rows are. */
    int64_t half = tiling.tiles / 2, half_row = kv_tiling_row(&tiling, half);
    kv_gemm(isa, &panel, p->tiles, &tiling, 0, half, p->sums);
    kv_gemm(isa, &panel, p->tiles, &tiling, half, tiling.tiles, p->sums + half_row * p->padded);
    int64_t wrong = 0;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t column = 0; column < p->padded; column++) {
            float want = column < p->columns ? defined_sum(p, isa->fused, row, column) : 0.0f;
            wrong += kv_f32_to_bits(p->sums[row * p->padded + column]) != kv_f32_to_bits(want);
        }
    for (int64_t column = 0; column < p->padded; column++)
        wrong += kv_f32_to_bits(p->sums[p->rows * p->padded + column]) != 0xffffffffu;
    ck_assert_msg(wrong == 0, "%lld sums differ: %s, %s, %lld x %lld x %lld", (long long)wrong, isa->name,
                  kv_dtype_name(p->dtype), (long long)p->rows, (long long)p->columns, (long long)p->depth);
}

static void check_everywhere(enum kv_dtype dtype, int64_t rows, int64_t columns, int64_t depth,
                             uint64_t *state)
{
    struct product product = {.dtype = dtype, .rows = rows, .columns = columns, .depth = depth};
    make_product(&product, state);
    for (int32_t i = 0; kv_isa_at(i); i++)
        if (kv_isa_at(i)->available()) check_product(&product, kv_isa_at(i));
    free_product(&product);
}

START_TEST(sums_are_the_defined_chain)
{
    uint64_t state = seed + (uint64_t)_i;
    enum kv_dtype dtype = _i % 2 ? KV_F16 : KV_BF16;
    for (int32_t i = 0; i < 10; i++)
        check_everywhere(dtype, 1 + random_below(&state, 40), 2 + random_below(&state, 200),
                         1 + random_below(&state, 400), &state);
}
END_TEST

/* Every number of rows that a tile can have, against every way in which columns are grouped. */
START_TEST(every_tile_is_right)
{
    uint64_t state = seed + 100;
    enum kv_dtype dtype = _i % 2 ? KV_F16 : KV_BF16;
    for (int64_t rows = 1; rows <= KV_TILE_ROWS_MAX; rows++)
        for (int64_t columns = 32; columns <= 7 * 32; columns += 32)
            check_everywhere(dtype, rows, columns, 130, &state);
}
END_TEST

START_TEST(tiles_cover_all_rows)
{
    for (int32_t rows_max = 1; rows_max <= KV_TILE_ROWS_MAX; rows_max++)
        for (int64_t rows = 0; rows < 200; rows++) {
            struct kv_tiling tiling = kv_tiling_make(rows, rows_max);
            bool right = kv_tiling_row(&tiling, 0) == 0 && kv_tiling_row(&tiling, tiling.tiles) == rows;
            for (int64_t tile = 0; tile < tiling.tiles; tile++) {
                int64_t count = kv_tiling_row(&tiling, tile + 1) - kv_tiling_row(&tiling, tile);
                right = right && count >= 1 && count <= rows_max;
            }
            ck_assert_msg(right, "%lld rows in tiles of at most %d", (long long)rows, (int)rows_max);
        }
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: the matrix product");
    TCase *sums = tcase_create("sums");
    tcase_set_timeout(sums, 300);
    tcase_add_loop_test(sums, sums_are_the_defined_chain, 0, 4);
    tcase_add_loop_test(sums, every_tile_is_right, 0, 2);
    tcase_add_test(sums, tiles_cover_all_rows);
    suite_add_tcase(suite, sums);
    return suite_run(suite);
}
