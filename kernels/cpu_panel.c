/* A transpose: rows of a weight become columns of a panel, four words of eight k at a time. Knows no parts.
 */
#include "kernels/cpu_panel.h"

#include <assert.h>

enum { GROUP_WORDS = KV_PANEL_COLUMNS / 2, WORDS_AT_ONCE = 4, STEPS_AT_ONCE = 8, STEPS_IN_LINE = 32 };

typedef uint16_t halves __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t words4 __attribute__((vector_size(16), aligned(4), may_alias));

int64_t kv_panel_columns(int64_t columns)
{
    return (columns + KV_PANEL_COLUMNS - 1) / KV_PANEL_COLUMNS * KV_PANEL_COLUMNS;
}

/* Four vectors of one word at four steps each, to four steps of four words each. */
static inline void store_transposed(words4 a, words4 b, words4 c, words4 d, uint32_t *to, int64_t words)
{
    words4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
           ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    words4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
           cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(words4 *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(words4 *)(to + words) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(words4 *)(to + 2 * words) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(words4 *)(to + 3 * words) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* Words j .. j + 3 of the steps k .. k + 7. */
static inline void pack_block(const uint16_t *const *row, int64_t j, int64_t k, uint32_t *to, int64_t words)
{
    words4 early[WORDS_AT_ONCE], late[WORDS_AT_ONCE];
    for (int64_t i = 0; i < WORDS_AT_ONCE; i++) {
        halves low = *(const halves *)(row[j + i] + k);
        halves high = *(const halves *)(row[GROUP_WORDS + j + i] + k);
        early[i] = (words4)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
        late[i] = (words4)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    store_transposed(early[0], early[1], early[2], early[3], to + k * words + j, words);
    store_transposed(late[0], late[1], late[2], late[3], to + (k + 4) * words + j, words);
}

void kv_panel_pack(const uint16_t *rows, int64_t count, int64_t depth, const uint16_t *zeros, uint32_t *to,
                   int64_t words)
{
    assert(count >= 1 && count <= KV_PANEL_COLUMNS);
    const uint16_t *row[KV_PANEL_COLUMNS];
    for (int64_t i = 0; i < KV_PANEL_COLUMNS; i++) row[i] = i < count ? rows + i * depth : zeros;
    /* Rows are often a power of two apart, hence in one set of the cache: few of them are read at once, a
     * line each. */
    int64_t whole = depth / STEPS_IN_LINE * STEPS_IN_LINE;
    for (int64_t line = 0; line < whole; line += STEPS_IN_LINE)
        for (int64_t j = 0; j < GROUP_WORDS; j += WORDS_AT_ONCE)
            for (int64_t k = line; k < line + STEPS_IN_LINE; k += STEPS_AT_ONCE)
                pack_block(row, j, k, to, words);
    for (int64_t k = whole; k < depth; k++)
        for (int64_t j = 0; j < GROUP_WORDS; j++)
            to[k * words + j] = row[j][k] | (uint32_t)row[GROUP_WORDS + j][k] << 16;
}
