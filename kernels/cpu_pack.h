/* The resident weights of the CPU backend: pulled piece by piece from their source and packed into panels,
 * one for each head and one for each group of columns of fc. Knows no batches; runs on the crew's threads. */
#ifndef KV_KERNELS_CPU_PACK_H
#define KV_KERNELS_CPU_PACK_H

#include "kernels/backend.h"
#include "kernels/cpu_crew.h"
#include "kernels/cpu_gemm.h"
#include "kernels/cpu_host.h"

enum { KV_FC_COLUMNS = 128 }; /* outputs of fc in one panel */

/* Zero-initialise; close accepts that. Arrays that the geometry does not have are NULL. */
struct kv_resident {
    struct kv_geometry geometry;
    struct kv_region region;
    int64_t head_columns; /* head_dim, rounded up to whole groups of a panel */
    uint32_t *heads;      /* panels [layers][K, V][kv_heads], each [hidden][head_columns / 2] */
    uint32_t *fc; /* panels of KV_FC_COLUMNS columns, the last one of what is left, each [taps * hidden][..]
                   */
    float *k_bias, *v_bias; /* [layers][kv_heads * head_dim] */
    float *k_norm;          /* [layers][head_dim] */
    float *eps;             /* [layers] */
    float *hidden_norm;     /* [hidden] */
    float *inv_freq;        /* [rotary_dim / 2] */
};

/* Reserves memory, then pulls every part once, several (part, layer) at a time. */
bool kv_resident_open(struct kv_resident *resident, const struct kv_weights *weights, struct kv_crew *crew,
                      int32_t threads, struct kv_error *err) KV_MUST_CHECK;
void kv_resident_close(struct kv_resident *resident);

/* The panel of a head of K (v false) or V; and of a group of fc, with panels = kv_resident_fc_panels. */
struct kv_panel kv_resident_head(const struct kv_resident *resident, int32_t layer, bool v, int32_t head);
int64_t kv_resident_fc_panels(const struct kv_resident *resident);
struct kv_panel kv_resident_fc(const struct kv_resident *resident, int64_t panel);

#endif
