/* Packing rows of 16-bit weights into the columns of a panel. Knows no parts and no layers. */
#ifndef KV_KERNELS_CPU_PANEL_H
#define KV_KERNELS_CPU_PANEL_H

#include "kernels/cpu_gemm.h"

/* Rounded up to a whole number of KV_PANEL_COLUMNS. */
int64_t kv_panel_columns(int64_t columns);

/* Up to KV_PANEL_COLUMNS rows of a weight become as many columns of a panel, padded with zeros: word j of
 * step k gets row j in its low and row 16 + j in its high half. `to` is the first of these words at k = 0,
 * and `words` is the panel's words for each k. `rows` [count][depth]; `zeros` [depth] holds zeros. */
void kv_panel_pack(const uint16_t *rows, int64_t count, int64_t depth, const uint16_t *zeros, uint32_t *to,
                   int64_t words);

#endif
