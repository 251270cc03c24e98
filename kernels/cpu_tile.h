/* A template: the inner kernels for one instruction set, included by cpu_gemm.c once for each with
 *   NAME(x)    the name x of this set's own copy
 *   TARGET     the function attribute that allows its instructions
 *   FUSED      whether a + b * c is one operation
 *   LANES      float32 numbers in a register: 4, 8 or 16
 *   ROWS_MAX, EACH_ROWS(X)   the most rows of a tile, and X(rows, wide) for each number of rows: `wide`
 * groups of 2 * LANES columns are computed at once, so that accumulators and operands just fit the registers.
 * Accumulators are kept where the compiler can see them as registers: arrays of constant size, loops fully
 * unrolled. a + b * c on these vectors becomes one fused operation: this file's user is compiled with
 * -ffp-contract=fast. */

typedef float NAME(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Two vectors of weights from one vector of words: the low halves are columns c.., the high halves columns c
 * + 16... */
static inline __attribute__((always_inline)) TARGET void
NAME(widen)(enum kv_dtype dtype, const uint32_t *from, NAME(floats) * low, NAME(floats) * high)
{
    NAME(words) word = *(const NAME(words) *)from;
    if (dtype == KV_BF16) {
        *low = (NAME(floats))(word << 16);
        *high = (NAME(floats))(word & 0xffff0000u);
    } else {
        /* The exponent's bias grows by 112: exact for every finite F16, subnormals included. */
        NAME(words) low_sign = (word & 0x8000u) << 16, high_sign = word & 0x80000000u;
        NAME(floats) low_size = (NAME(floats))((word & 0x7fffu) << 13) * 0x1p112f;
        NAME(floats) high_size = (NAME(floats))((word >> 3) & 0x0fffe000u) * 0x1p112f;
        *low = (NAME(floats))((NAME(words))low_size | low_sign);
        *high = (NAME(floats))((NAME(words))high_size | high_sign);
    }
}

/* One tile: `rows` x (wide * 2 * LANES) accumulators over `depth` steps of k, strictly increasing. */
static inline __attribute__((always_inline)) TARGET void NAME(tile)(const int rows, const int wide,
                                                                    const enum kv_dtype dtype,
                                                                    const struct kv_strip *strip,
                                                                    int64_t word)
{
    NAME(floats) low[ROWS_MAX][4], high[ROWS_MAX][4];
    const float *x = strip->x;
    int64_t column[4];
    UNROLL
    for (int i = 0; i < wide; i++) column[i] = (word + i * LANES) / 16 * 32 + (word + i * LANES) % 16;
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int i = 0; i < wide; i++) {
            const float *from = strip->sums + r * strip->columns + column[i];
            low[r][i] = strip->begin ? (NAME(floats)){0} : *(const NAME(floats) *)from;
            high[r][i] = strip->begin ? (NAME(floats)){0} : *(const NAME(floats) *)(from + 16);
        }
    }
    const uint32_t *packed = strip->packed + word;
    for (int64_t k = 0; k < strip->depth; k++) {
        NAME(floats) w_low[4], w_high[4];
        UNROLL
        for (int i = 0; i < wide; i++) {
            NAME(widen)(dtype, packed + i * LANES, &w_low[i], &w_high[i]);
            __builtin_prefetch((const char *)(packed + i * LANES) + KV_PREFETCH_BYTES);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int i = 0; i < wide; i++) {
                low[r][i] += w_low[i] * x[r];
                high[r][i] += w_high[i] * x[r];
            }
        }
        x += rows;
        packed += strip->columns / 2;
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int i = 0; i < wide; i++) {
            float *to = strip->sums + r * strip->columns + column[i];
            *(NAME(floats) *)to = low[r][i];
            *(NAME(floats) *)(to + 16) = high[r][i];
        }
    }
}

/* All columns of one tile's rows: `wide` groups at once, then what is left. */
static inline __attribute__((always_inline)) TARGET void
NAME(strip)(const int rows, const int wide, const enum kv_dtype dtype, const struct kv_strip *strip)
{
    int64_t word = 0, words = strip->columns / 2;
    for (; word + wide * LANES <= words; word += wide * LANES) NAME(tile)(rows, wide, dtype, strip, word);
    if (wide == 4 && word + 2 * LANES <= words) {
        NAME(tile)(rows, 2, dtype, strip, word);
        word += 2 * LANES;
    }
    if (wide > 1 && word < words) NAME(tile)(rows, 1, dtype, strip, word);
}

#define DEFINE(rows, wide)                                                                                   \
    static TARGET void NAME(bf16_##rows)(const struct kv_strip *strip)                                       \
    {                                                                                                        \
        NAME(strip)(rows, wide, KV_BF16, strip);                                                             \
    }                                                                                                        \
    static TARGET void NAME(f16_##rows)(const struct kv_strip *strip)                                        \
    {                                                                                                        \
        NAME(strip)(rows, wide, KV_F16, strip);                                                              \
    }
EACH_ROWS(DEFINE)
#undef DEFINE

static const struct kv_isa NAME(isa) = {
    .name = ISA,
    .rows_max = ROWS_MAX,
    .fused = FUSED,
    .available = NAME(available),
    .strip =
        {
#define ENTRY(rows, wide) [KV_BF16][rows] = NAME(bf16_##rows), [KV_F16][rows] = NAME(f16_##rows),
            EACH_ROWS(ENTRY)
#undef ENTRY
        },
};
