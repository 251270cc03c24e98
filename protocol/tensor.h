/* Tensors: dtypes, borrowed views with checked sizes, the geometry of a model, and the two 16-bit float
 * formats. Knows no container format and owns no memory. */
#ifndef KV_PROTOCOL_TENSOR_H
#define KV_PROTOCOL_TENSOR_H

#include "protocol/error.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every dtype that a safetensors file may name; the service computes with the first three. */
enum kv_dtype {
    KV_BF16 = 0,
    KV_F16,
    KV_F32,
    KV_I64,
    KV_I32,
    KV_F64,
    KV_BOOL,
    KV_U8,
    KV_I8,
    KV_U16,
    KV_I16,
    KV_U32,
    KV_U64,
    KV_C64,
    KV_F8_E4M3,
    KV_F8_E5M2,
    KV_F8_E8M0,
    KV_F8_E4M3FNUZ,
    KV_F8_E5M2FNUZ,
    KV_F6_E2M3,
    KV_F6_E3M2,
    KV_F4,
    KV_DTYPE_COUNT
};

/* What a request brings, and so where its computation begins. */
enum kv_input_kind {
    KV_HIDDEN_STATES, /* [T, hidden], already normalised by the caller */
    KV_TARGET_HIDDEN  /* [T, taps * hidden]: fc and hidden_norm come first */
};

/* A borrowed, dense, row-major, little-endian tensor. `data` may be unaligned. */
struct kv_view {
    enum kv_dtype dtype;
    int32_t rank;
    int64_t dims[KV_RANK_MAX];
    const void *data;
    uint64_t bytes;
};

/* The shape of a model and the constants of its arithmetic, fixed at start-up.
 * Everything that is an array (weights, norms, eps, inverse frequencies) is pulled as a part:
 * kernels/backend.h. */
struct kv_geometry {
    int32_t layers, kv_heads, head_dim;
    int32_t rotary_dim;  /* even, 2..head_dim: the first rotary_dim of a head are rotated */
    int32_t taps;        /* target hidden states concatenated by fc; 0: the checkpoint has no fc */
    int64_t hidden;      /* columns of a K or V weight */
    int64_t positions;   /* positions are valid in [0, positions) */
    enum kv_dtype dtype; /* of the weights and of K and V: KV_BF16 or KV_F16 */
    bool k_norm, k_bias, v_bias;
    bool interleaved;       /* rotation pairs are (2i, 2i+1); otherwise (i, i + rotary_dim/2) */
    float value_scale;      /* V is multiplied by it and rounded once more, unless it is 1 */
    float attention_factor; /* multiplies cos and sin */
    float hidden_norm_eps;  /* of hidden_norm; used only where taps > 0 */
};

/* "BF16", "I64", ...; never NULL. */
const char *kv_dtype_name(enum kv_dtype dtype);
/* False when no dtype has this name. */
bool kv_dtype_find(const char *name, enum kv_dtype *out) KV_MUST_CHECK;
/* Bits of one element: 4 to 64. */
uint32_t kv_dtype_bits(enum kv_dtype dtype);
/* Bytes of one element of a dtype of whole bytes; asserts that it is one. */
size_t kv_dtype_bytes(enum kv_dtype dtype);

/* a * b, false on overflow (then *out is not written). The one place for products of sizes. */
bool kv_mul(uint64_t a, uint64_t b, uint64_t *out) KV_MUST_CHECK;
/* Bytes of a dense tensor, multiplied from the left: false when a product overflows, a dim is negative, or
 * the bits do not fill whole bytes. */
bool kv_tensor_bytes(enum kv_dtype dtype, int32_t rank, const int64_t *dims /* [rank] */,
                     uint64_t *out) KV_MUST_CHECK;

/* Elements of K, or of V, of one token over all layers: layers * kv_heads * head_dim. */
int64_t kv_geometry_token_elements(const struct kv_geometry *geometry);

static inline float kv_bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t kv_f32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float kv_bf16_to_f32(uint16_t bits)
{
    return kv_bits_to_f32((uint32_t)bits << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quiet, sign kept). */
static inline uint16_t kv_f32_to_bf16(float value)
{
    uint32_t bits = kv_f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float kv_f16_to_f32(uint16_t bits);
/* Round to nearest, ties to even, with subnormals; overflow gives infinity; NaN stays NaN. */
uint16_t kv_f32_to_f16(float value);

/* `count` elements of a BF16, F16 or F32 array at any alignment to float32; from float32 to BF16 or F16. */
void kv_to_f32(enum kv_dtype dtype, const void *from, int64_t count, float *to);
void kv_from_f32(enum kv_dtype dtype, const float *from, int64_t count, void *to);

#ifdef __cplusplus
}
#endif
#endif
