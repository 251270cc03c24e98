/* The table of backends, and the sizes of the parts that every backend pulls. The one place that knows which
 * exist. */
#include "kernels/backend.h"

#include "kernels/backend_list.h"

#include <string.h>

static const struct kv_backend_ops *const backends[] = {
#ifdef KV_WITH_CUDA
    &kv_cuda_ops,
#endif
    &kv_cpu_ops,
    NULL,
};

const struct kv_backend_ops *const *kv_backends(void)
{
    return backends;
}

const struct kv_backend_ops *kv_backend_find(const char *name)
{
    for (const struct kv_backend_ops *const *ops = backends; *ops; ops++)
        if (strcmp((*ops)->name, name) == 0) return *ops;
    return NULL;
}

/* a * b * c * bytes, UINT64_MAX where that overflows. */
static uint64_t product(int64_t a, int64_t b, int64_t c, uint64_t bytes)
{
    uint64_t out;
    if (!kv_mul((uint64_t)a, (uint64_t)b, &out) || !kv_mul(out, (uint64_t)c, &out)) return UINT64_MAX;
    return kv_mul(out, bytes, &out) ? out : UINT64_MAX;
}

uint64_t kv_part_bytes(const struct kv_geometry *geometry, enum kv_part part)
{
    const struct kv_geometry *g = geometry;
    switch (part) {
    case KV_PART_K_WEIGHT:
    case KV_PART_V_WEIGHT: return product(g->kv_heads, g->head_dim, g->hidden, kv_dtype_bytes(g->dtype));
    case KV_PART_K_BIAS: return g->k_bias ? product(g->kv_heads, g->head_dim, 1, sizeof(float)) : 0;
    case KV_PART_V_BIAS: return g->v_bias ? product(g->kv_heads, g->head_dim, 1, sizeof(float)) : 0;
    case KV_PART_K_NORM: return g->k_norm ? product(g->head_dim, 1, 1, sizeof(float)) : 0;
    case KV_PART_EPS: return sizeof(float);
    case KV_PART_FC: return product(g->hidden, g->taps, g->hidden, kv_dtype_bytes(g->dtype));
    case KV_PART_HIDDEN_NORM: return g->taps > 0 ? product(g->hidden, 1, 1, sizeof(float)) : 0;
    case KV_PART_INV_FREQ: return product(g->rotary_dim / 2, 1, 1, sizeof(float));
    case KV_PART_COUNT: break;
    }
    return 0;
}
