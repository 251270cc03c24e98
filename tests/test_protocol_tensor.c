/* Sizes that must not overflow, and the 16-bit floats against arithmetic in double that shares nothing with
 * theirs. */
#include "protocol/tensor.h"

#include "tests/documents.h"
#include "tests/suite.h"

#include <math.h>

START_TEST(dtypes_have_names_and_sizes)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } known[] = {{"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                 {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                 {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"F8_E5M2FNUZ", 8},
                 {"I32", 32}, {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                 {"I64", 64}, {"U64", 64}};
    ck_assert_uint_eq(sizeof known / sizeof known[0], KV_DTYPE_COUNT);
    for (size_t i = 0; i < KV_DTYPE_COUNT; i++) {
        enum kv_dtype dtype = KV_DTYPE_COUNT;
        ck_assert(kv_dtype_find(known[i].name, &dtype));
        ck_assert_str_eq(kv_dtype_name(dtype), known[i].name);
        ck_assert_uint_eq(kv_dtype_bits(dtype), known[i].bits);
        if (known[i].bits >= 8) ck_assert_uint_eq(kv_dtype_bytes(dtype), known[i].bits / 8);
    }
    enum kv_dtype dtype = KV_I32;
    static const char *const unknown[] = {"", "bf16", "bfloat16", "BF16 ", "F8", "unknown"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        ck_assert(!kv_dtype_find(unknown[i], &dtype));
    ck_assert_int_eq(dtype, KV_I32);
    ck_assert_str_eq(kv_dtype_name(KV_DTYPE_COUNT), "unknown");
}
END_TEST

START_TEST(products_are_checked)
{
    uint64_t out = 7;
    ck_assert(kv_mul(0, UINT64_MAX, &out) && out == 0);
    ck_assert(kv_mul(1, UINT64_MAX, &out) && out == UINT64_MAX);
    ck_assert(kv_mul(UINT32_MAX, (uint64_t)UINT32_MAX + 2, &out) && out == UINT64_MAX);
    out = 7;
    ck_assert(!kv_mul((uint64_t)1 << 32, (uint64_t)1 << 32, &out) && out == 7);
    ck_assert(!kv_mul(UINT64_MAX, 2, &out) && out == 7);
}
END_TEST

static bool size_of(enum kv_dtype dtype, int32_t rank, const int64_t *dims, uint64_t wanted)
{
    uint64_t out = 12345;
    return kv_tensor_bytes(dtype, rank, dims, &out) && out == wanted;
}

static bool refused(enum kv_dtype dtype, int32_t rank, const int64_t *dims)
{
    uint64_t out = 12345;
    return !kv_tensor_bytes(dtype, rank, dims, &out) && out == 12345;
}

START_TEST(tensor_sizes_are_checked)
{
    const int64_t big = (int64_t)1 << 62;
    ck_assert(size_of(KV_F32, 0, NULL, 4)); /* a scalar */
    ck_assert(size_of(KV_BF16, 2, (int64_t[]){17, 64}, 2176));
    ck_assert(size_of(KV_I64, 1, (int64_t[]){0}, 0));
    ck_assert(size_of(KV_F32, 3, (int64_t[]){0, big, 4}, 0));
    ck_assert(refused(KV_F32, 3, (int64_t[]){big, 4, 0})); /* overflowed before the zero */
    ck_assert(refused(KV_U8, 1, (int64_t[]){-1}));
    ck_assert(refused(KV_U8, 2, (int64_t[]){0, -1}));
    ck_assert(refused(KV_U8, 1, (int64_t[]){INT64_MIN}));
    ck_assert(size_of(KV_U8, 1, (int64_t[]){((int64_t)1 << 61) - 1}, ((uint64_t)1 << 61) - 1));
    ck_assert(refused(KV_U8, 1, (int64_t[]){(int64_t)1 << 61})); /* 2^64 bits */
    ck_assert(refused(KV_F64, 1, (int64_t[]){(int64_t)1 << 58}));
    ck_assert(refused(KV_U8, 2, (int64_t[]){2, INT64_MAX}));
    ck_assert(size_of(KV_F4, 1, (int64_t[]){2}, 1));
    ck_assert(refused(KV_F4, 1, (int64_t[]){3}));
    ck_assert(size_of(KV_F6_E2M3, 2, (int64_t[]){2, 2}, 3));
    ck_assert(refused(KV_F6_E3M2, 1, (int64_t[]){3}));
    ck_assert(size_of(KV_U8, KV_RANK_MAX, (int64_t[]){2, 2, 2, 2, 2, 2, 2, 2}, 256));
    ck_assert(refused(KV_U8, KV_RANK_MAX + 1, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}));
    ck_assert(refused(KV_U8, -1, (int64_t[]){1}));
}
END_TEST

START_TEST(geometry_counts_elements)
{
    struct kv_geometry geometry = {.layers = 5, .kv_heads = 8, .head_dim = 128};
    ck_assert_int_eq(kv_geometry_token_elements(&geometry), 5120);
    geometry = (struct kv_geometry){.layers = 1024, .kv_heads = 1 << 20, .head_dim = 1 << 20};
    ck_assert(kv_geometry_token_elements(&geometry) == (int64_t)1 << 50);
}
END_TEST

/* The value of a 16-bit float with `mantissa` fraction bits, by the definition. */
static double value_of(uint16_t bits, int mantissa)
{
    int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits & 0x7fff) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - mantissa);
    return sign * ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}

/* The nearest 16-bit float, ties to even, by division and remainder in double, which holds every step
 * exactly. */
static uint16_t nearest(float value, int mantissa)
{
    int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa);
    double size = fabs((double)value);
    if (isinf(size)) return sign | infinity;
    int exponent = size > 0 ? ilogb(size) : 1 - bias;
    if (exponent < 1 - bias) exponent = 1 - bias;
    double steps = ldexp(size, mantissa - exponent), whole = floor(steps), rest = steps - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0)) whole += 1;
    double rounded = ldexp(whole, exponent - mantissa);
    if (rounded >= ldexp(1, bias + 1)) return sign | infinity;
    if (whole < (1 << mantissa)) return (uint16_t)(sign | (uint16_t)whole);
    if (whole >= (2 << mantissa)) {
        whole /= 2;
        exponent++;
    }
    return (uint16_t)(sign | ((exponent + bias) << mantissa) | ((int)whole - (1 << mantissa)));
}

static bool is_nan16(uint16_t bits, int mantissa)
{
    return (bits & 0x7fff) > (((1 << (15 - mantissa)) - 1) << mantissa);
}

static float widen(uint16_t bits, int mantissa)
{
    return mantissa == 10 ? kv_f16_to_f32(bits) : kv_bf16_to_f32(bits);
}

static uint16_t narrow(float value, int mantissa)
{
    return mantissa == 10 ? kv_f32_to_f16(value) : kv_f32_to_bf16(value);
}

static void check_nearest(float value, int mantissa)
{
    uint16_t got = narrow(value, mantissa), wanted = nearest(value, mantissa);
    if (got != wanted)
        ck_abort_msg("%a (%d fraction bits): %04x, wanted %04x", (double)value, mantissa, got, wanted);
}

/* All codes, and for each the points where rounding turns: the halfway to the next, and its neighbours. */
START_TEST(every_code_converts_both_ways)
{
    int mantissa = _i ? 7 : 10;
    for (int code = 0; code < 65536; code++) {
        uint16_t bits = (uint16_t)code;
        float value = widen(bits, mantissa);
        if (is_nan16(bits, mantissa)) {
            ck_assert(isnan(value) && !signbit(value) == !(bits >> 15));
            uint16_t back = narrow(value, mantissa);
            ck_assert(is_nan16(back, mantissa) && (back & 0x8000) == (bits & 0x8000));
            continue;
        }
        ck_assert((double)value == value_of(bits, mantissa));
        ck_assert_uint_eq(narrow(value, mantissa), bits); /* with the sign of zero */
        if (isinf(value)) continue;
        double next = value_of((uint16_t)(bits + 1), mantissa);
        if (isinf(next)) next = ldexp(value > 0 ? 1 : -1, mantissa == 10 ? 16 : 128);
        float half = (float)(((double)value + next) / 2);
        check_nearest(half, mantissa);
        check_nearest(nextafterf(half, 0), mantissa);
        check_nearest(nextafterf(half, value > 0 ? INFINITY : -INFINITY), mantissa);
    }
}
END_TEST

START_TEST(random_floats_round_to_nearest)
{
    uint64_t state = 20240229;
    for (int i = 0; i < 1000000; i++) {
        float value = kv_bits_to_f32((uint32_t)(random_next(&state) >> 32));
        if (isnan(value)) continue;
        check_nearest(value, 10);
        check_nearest(value, 7);
    }
}
END_TEST

START_TEST(known_values_convert)
{
    static const struct {
        float value;
        uint16_t f16, bf16;
    } known[] = {{0.0f, 0x0000, 0x0000},       {-0.0f, 0x8000, 0x8000},    {1.0f, 0x3c00, 0x3f80},
                 {-2.0f, 0xc000, 0xc000},      {65504.0f, 0x7bff, 0x4780}, {65519.996f, 0x7bff, 0x4780},
                 {65520.0f, 0x7c00, 0x4780},   {0x1p-24f, 0x0001, 0x3380}, {0x1p-25f, 0x0000, 0x3300},
                 {0x1.8p-25f, 0x0001, 0x3340}, {0x1p-14f, 0x0400, 0x3880}, {0x1p-149f, 0x0000, 0x0000},
                 {0x1p-133f, 0x0000, 0x0001},  {INFINITY, 0x7c00, 0x7f80}, {-INFINITY, 0xfc00, 0xff80}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        ck_assert_uint_eq(kv_f32_to_f16(known[i].value), known[i].f16);
        ck_assert_uint_eq(kv_f32_to_bf16(known[i].value), known[i].bf16);
    }
    /* A NaN whose payload lies only in the bits that are cut off must not become infinity. */
    ck_assert(is_nan16(kv_f32_to_f16(kv_bits_to_f32(0x7f800001u)), 10));
    ck_assert(is_nan16(kv_f32_to_bf16(kv_bits_to_f32(0xff800001u)), 7));
}
END_TEST

START_TEST(arrays_convert_at_any_alignment)
{
    static const enum kv_dtype dtypes[] = {KV_BF16, KV_F16, KV_F32};
    enum { COUNT = 37 };
    float wanted[COUNT], got[COUNT];
    for (int i = 0; i < COUNT; i++) wanted[i] = (float)(i - 18) * 0.25f;
    for (size_t d = 0; d < 3; d++) {
        size_t bytes = COUNT * kv_dtype_bytes(dtypes[d]);
        for (size_t shift = 0; shift < 4; shift++) {
            unsigned char *memory = allocate(shift + bytes);
            if (dtypes[d] == KV_F32)
                memcpy(memory + shift, wanted, bytes);
            else
                kv_from_f32(dtypes[d], wanted, COUNT, memory + shift);
            memset(got, 0xff, sizeof got);
            kv_to_f32(dtypes[d], memory + shift, COUNT, got);
            ck_assert_mem_eq(got, wanted, sizeof wanted);
            free(memory);
        }
        kv_to_f32(dtypes[d], NULL, 0, NULL);
    }
    kv_from_f32(KV_F16, NULL, 0, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/tensor");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, dtypes_have_names_and_sizes);
    tcase_add_test(tests, products_are_checked);
    tcase_add_test(tests, tensor_sizes_are_checked);
    tcase_add_test(tests, geometry_counts_elements);
    tcase_add_loop_test(tests, every_code_converts_both_ways, 0, 2);
    tcase_add_test(tests, random_floats_round_to_nearest);
    tcase_add_test(tests, known_values_convert);
    tcase_add_test(tests, arrays_convert_at_any_alignment);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
