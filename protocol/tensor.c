/* The dtypes' names and sizes, checked products of sizes, and conversion between float32 and the 16-bit
 * floats. Knows no container format. Memory is little-endian, on the wire and here. */
#include "protocol/tensor.h"

#include <assert.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are used as they arrive: little-endian");
_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE 754 floats");

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[KV_DTYPE_COUNT] = {
    [KV_BF16] = {"BF16", 16},
    [KV_F16] = {"F16", 16},
    [KV_F32] = {"F32", 32},
    [KV_I64] = {"I64", 64},
    [KV_I32] = {"I32", 32},
    [KV_F64] = {"F64", 64},
    [KV_BOOL] = {"BOOL", 8},
    [KV_U8] = {"U8", 8},
    [KV_I8] = {"I8", 8},
    [KV_U16] = {"U16", 16},
    [KV_I16] = {"I16", 16},
    [KV_U32] = {"U32", 32},
    [KV_U64] = {"U64", 64},
    [KV_C64] = {"C64", 64},
    [KV_F8_E4M3] = {"F8_E4M3", 8},
    [KV_F8_E5M2] = {"F8_E5M2", 8},
    [KV_F8_E8M0] = {"F8_E8M0", 8},
    [KV_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [KV_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [KV_F6_E2M3] = {"F6_E2M3", 6},
    [KV_F6_E3M2] = {"F6_E3M2", 6},
    [KV_F4] = {"F4", 4},
};

const char *kv_dtype_name(enum kv_dtype dtype)
{
    return (unsigned)dtype < KV_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

bool kv_dtype_find(const char *name, enum kv_dtype *out)
{
    for (int i = 0; i < KV_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        *out = (enum kv_dtype)i;
        return true;
    }
    return false;
}

uint32_t kv_dtype_bits(enum kv_dtype dtype)
{
    assert((unsigned)dtype < KV_DTYPE_COUNT);
    return dtypes[dtype].bits;
}

size_t kv_dtype_bytes(enum kv_dtype dtype)
{
    uint32_t bits = kv_dtype_bits(dtype);
    assert(bits % 8 == 0);
    return bits / 8;
}

bool kv_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

/* Bits, not bytes, are what must not overflow, and a zero that comes after an overflow does not mend it: so
 * say other readers of the format, and two readers that disagree on what is valid are an attack waiting. */
bool kv_tensor_bytes(enum kv_dtype dtype, int32_t rank, const int64_t *dims, uint64_t *out)
{
    if (rank < 0 || rank > KV_RANK_MAX) return false;
    uint64_t elements = 1, bits;
    for (int32_t i = 0; i < rank; i++)
        if (dims[i] < 0 || !kv_mul(elements, (uint64_t)dims[i], &elements)) return false;
    if (!kv_mul(elements, kv_dtype_bits(dtype), &bits) || bits % 8 != 0) return false;
    *out = bits / 8;
    return true;
}

int64_t kv_geometry_token_elements(const struct kv_geometry *geometry)
{
    uint64_t head_elements, elements = 0;
    bool fits = kv_mul((uint64_t)geometry->layers, (uint64_t)geometry->kv_heads, &head_elements) &&
                kv_mul(head_elements, (uint64_t)geometry->head_dim, &elements) && elements <= INT64_MAX;
    assert(fits);
    return fits ? (int64_t)elements : 0;
}

/* Both directions select instead of branching, so that a loop over them can be vectorised. */
static inline float f16_to_f32(uint16_t bits)
{
    uint32_t magnitude = bits & 0x7fffu;
    uint32_t rebias = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23; /* to all ones for infinity and NaN */
    float normal = kv_bits_to_f32((magnitude << 13) + rebias);
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f;
    uint32_t chosen = kv_f32_to_bits(magnitude < 0x0400u ? subnormal : normal);
    return kv_bits_to_f32(chosen | ((uint32_t)(bits & 0x8000u) << 16));
}

static inline uint16_t f32_to_f16(float value)
{
    uint32_t bits = kv_f32_to_bits(value), magnitude = bits & 0x7fffffffu;
    /* 0.5's last bit weighs 2^-24, a subnormal's step: the adder rounds to it, ties to even. */
    uint32_t half = kv_f32_to_bits(0.5f);
    uint32_t subnormal =
        kv_f32_to_bits(kv_bits_to_f32(magnitude < 0x38800000u ? magnitude : 0) + 0.5f) - half;
    uint32_t normal = ((magnitude + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
    uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x03ffu) : 0x7c00u;
    uint32_t chosen = magnitude >= 0x477ff000u ? special : finite; /* 65520 and more round to infinity */
    return (uint16_t)(chosen | ((bits >> 16) & 0x8000u));
}

float kv_f16_to_f32(uint16_t bits)
{
    return f16_to_f32(bits);
}

uint16_t kv_f32_to_f16(float value)
{
    return f32_to_f16(value);
}

void kv_to_f32(enum kv_dtype dtype, const void *from, int64_t count, float *to)
{
    const unsigned char *bytes = from;
    uint16_t half;
    assert(dtype == KV_BF16 || dtype == KV_F16 || dtype == KV_F32);
    if (count <= 0) return;
    if (dtype == KV_F32) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (dtype == KV_BF16) {
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, bytes + 2 * i, sizeof half);
            to[i] = kv_bf16_to_f32(half);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, bytes + 2 * i, sizeof half);
            to[i] = f16_to_f32(half);
        }
    }
}

void kv_from_f32(enum kv_dtype dtype, const float *from, int64_t count, void *to)
{
    unsigned char *bytes = to;
    assert(dtype == KV_BF16 || dtype == KV_F16);
    for (int64_t i = 0; i < count; i++) {
        uint16_t half = dtype == KV_BF16 ? kv_f32_to_bf16(from[i]) : f32_to_f16(from[i]);
        memcpy(bytes + 2 * i, &half, sizeof half);
    }
}
