/* Bodies whose container, tensors or sizes are wrong. See hostile.h. What a parser alone can be asked is in
 * tests/test_protocol_*.c; these are what a stranger would send. */
#include "tests/hostile.h"

#define TEXT(header) header, sizeof(header) - 1
#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define HIDDEN(dtype, shape, offsets) "\"hidden_states\":" ENTRY(dtype, shape, offsets)
#define POSITIONS(dtype, shape, offsets) "\"positions\":" ENTRY(dtype, shape, offsets)
/* One row of 8 in BF16, then its position. */
#define ROW HIDDEN("BF16", "[1,8]", "[0,16]")
#define PLACE POSITIONS("I64", "[1]", "[16,24]")

#define MALFORMED(header, bytes)                                                                             \
    {                                                                                                        \
        TEXT(header), bytes, 400, "body_malformed"                                                           \
    }
#define MISFIT(header, bytes)                                                                                \
    {                                                                                                        \
        TEXT(header), bytes, 400, "size_mismatch"                                                            \
    }
#define REFUSED(code, header, bytes)                                                                         \
    {                                                                                                        \
        TEXT(header), bytes, 400, code                                                                       \
    }
#define GOOD(header, bytes)                                                                                  \
    {                                                                                                        \
        TEXT(header), bytes, 200, NULL                                                                       \
    }

static const struct hostile_body bodies[] = {
    /* no header at all, or none that is one object */
    MALFORMED("", 0),
    MALFORMED("", 24),
    MALFORMED(" ", 0),
    MALFORMED("null", 0),
    MALFORMED("[]", 0),
    MALFORMED("{" ROW "," PLACE, 24),
    MALFORMED("{" ROW "," PLACE "}}", 24),
    MALFORMED("{" ROW "," PLACE "}\0", 24),
    MALFORMED("{" ROW "," PLACE "}\0{}", 24),
    MALFORMED("{" ROW "," PLACE ",}", 24),
    MALFORMED("\xef\xbb\xbf{" ROW "," PLACE "}", 24),
    MALFORMED("{" ROW "," PLACE "} // ", 24),
    GOOD("  {" ROW "," PLACE "}\r\n\t ", 24),
    GOOD("{" PLACE "," ROW "}", 24),

    /* one key twice, also where an escape hides it */
    MALFORMED("{" ROW "," ROW "," PLACE "}", 24),
    MALFORMED("{" ROW "," PLACE ",\"position\\u0073\":" ENTRY("I64", "[1]", "[16,24]") "}", 24),
    MALFORMED("{" PLACE ",\"hidden_states\":{\"dtype\":\"F32\",\"\\u0064type\":\"BF16\",\"shape\":[1,8],"
              "\"data_offsets\":[0,16]}}",
              24),
    MALFORMED("{" PLACE ",\"hidden_states\":{\"dtype\":\"BF16\",\"shape\":[2,8],\"sh\\u0061pe\":[1,8],"
              "\"data_offsets\":[0,16]}}",
              24),
    MALFORMED("{" PLACE ",\"hidden_states\":{\"dtype\":\"BF16\",\"shape\":[1,8],\"data_offsets\":[0,99],"
              "\"data\\u005foffsets\":[0,16]}}",
              24),
    MALFORMED("{\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"2\"}," ROW "," PLACE "}", 24),
    GOOD("{\"__metadata__\":{\"a\":\"1\",\"A\":\"{[\\\"\"},\"hidden_\\u0073tates\":" ENTRY(
             "BF16", "[1,8]", "[0,16]") "," PLACE "}",
         24),
    MALFORMED("{\"__metadata__\":{\"a\":1}," ROW "," PLACE "}", 24),
    MALFORMED("{\"__metadata__\":" ENTRY("U8", "[0]", "[0,0]") "," ROW "," PLACE "}", 24),

    /* members */
    MALFORMED("{" ROW ",\"positions\":{\"dtype\":\"I64\",\"shape\":[1]}}", 24),
    MALFORMED("{" ROW ",\"positions\":null}", 16),
    MALFORMED("{" ROW
              ",\"positions\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24],\"strides\":[8]}}",
              24),
    MALFORMED("{" HIDDEN("BF16", "\"[1,8]\"", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" PLACE ",\"hidden_states\":{\"dtype\":0,\"shape\":[1,8],\"data_offsets\":[0,16]}}", 24),

    /* numbers that are no integers, negative, or too large */
    MALFORMED("{" HIDDEN("BF16", "[1.0,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8e0]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[0,1.6e1]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[0.0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1e3,8]", "[0,16000]") "," POSITIONS("I64", "[1e3]", "[16000,24000]") "}",
              24000),
    MALFORMED("{" HIDDEN("BF16", "[true,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[+1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[01,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[-1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[-1,-8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[-16,0]") "," POSITIONS("I64", "[1]", "[0,8]") "}", 8),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[16,0]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[0,9223372036854775808]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[0,18446744073709551632]") "," PLACE "}", 24), /* 16, wrapped */
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[18446744073709551600,0]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[18446744073709551617,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[9223372036854775791,9223372036854775807]") "," PLACE "}", 24),
    MISFIT("{" HIDDEN("BF16", "[1,8]", "[0,9223372036854775807]") "," PLACE "}", 24),

    /* shapes whose product overflows, whichever way it is multiplied */
    MISFIT("{" HIDDEN("BF16", "[9223372036854775807,8]", "[0,16]") "," PLACE "}", 24),
    MISFIT("{" HIDDEN("BF16", "[2305843009213693953,8]", "[0,16]") "," PLACE "}", 24), /* 8 mod 2^64 */
    MISFIT("{" HIDDEN("BF16", "[8,2305843009213693953]", "[0,16]") "," PLACE "}", 24),
    MISFIT("{" HIDDEN("BF16", "[4294967296,4294967296]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}",
           0),
    MISFIT("{" HIDDEN("BF16", "[4294967296,4294967296,0]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}",
           0),
    MISFIT("{" HIDDEN("F32", "[1,4611686018427387908]", "[0,16]") "," PLACE "}", 24), /* 16 bytes, wrapped */
    MISFIT("{" HIDDEN("BF16", "[1152921504606846976,8]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}",
           0),
    MISFIT("{" ROW "," POSITIONS("I64", "[2305843009213693953]", "[16,24]") "}", 24),
    REFUSED("hidden_shape_mismatch",
            "{" HIDDEN("BF16", "[0,4294967296,4294967296]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}",
            0), /* nothing overflows from the left */
    MALFORMED("{" HIDDEN("BF16", "[1,1,1,1,1,1,1,1,8]", "[0,16]") "," PLACE "}", 24),

    /* bytes that do not fit, holes, overlaps, trailing bytes */
    MISFIT("{" HIDDEN("BF16", "[1,8]", "[0,15]") "," POSITIONS("I64", "[1]", "[15,23]") "}", 23),
    MISFIT("{" HIDDEN("BF16", "[1,8]", "[0,17]") "," POSITIONS("I64", "[1]", "[17,25]") "}", 25),
    MISFIT("{" HIDDEN("F4", "[1,7]", "[0,4]") "," POSITIONS("I64", "[1]", "[4,12]") "}", 12),
    MISFIT("{" ROW "," PLACE "}", 23),
    MISFIT("{" ROW "," PLACE "}", 25),
    MISFIT("{" ROW "," PLACE "}", 0),
    MALFORMED("{" ROW "," POSITIONS("I64", "[1]", "[17,25]") "}", 25),
    MALFORMED("{" ROW "," POSITIONS("I64", "[1]", "[8,16]") "}", 16),
    MALFORMED("{" ROW "," POSITIONS("I64", "[1]", "[0,8]") "}", 16),
    MALFORMED("{" HIDDEN("BF16", "[1,8]", "[8,24]") "," POSITIONS("I64", "[1]", "[24,32]") "}", 32),
    MALFORMED("{" ROW "," POSITIONS("I64", "[0]", "[8,8]") "}", 16),

    /* text that is none */
    MALFORMED("{\"hidden_states\xff\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"\xc0\xaf\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"\xed\xa0\x80\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"hidden_states\\u0000\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"hidden_states\0\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16\\u0000", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{" HIDDEN("BF16\0", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"\\ud800\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    MALFORMED("{\"hidden\nstates\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),

    /* a good container, and no request */
    REFUSED("tensor_missing", "{}", 0),
    REFUSED("tensor_missing", "{" ROW "}", 16),
    REFUSED("tensor_missing", "{" POSITIONS("I64", "[1]", "[0,8]") "}", 8),
    REFUSED("tensor_unexpected", "{" ROW "," PLACE ",\"\":" ENTRY("U8", "[1]", "[24,25]") "}", 25),
    REFUSED("tensor_unexpected", "{" ROW "," PLACE ",\"positions \":" ENTRY("I64", "[0]", "[24,24]") "}", 24),
    REFUSED("tensor_unexpected", "{" ROW "," PLACE ",\"\\u202e\\u0007\":" ENTRY("U8", "[0]", "[24,24]") "}",
            24),
    REFUSED("tensor_unexpected", "{\"target_hidden\":" ENTRY("BF16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("dtype_unsupported", "{" HIDDEN("bfloat16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("dtype_unsupported", "{" HIDDEN("", "[1,8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("dtype_unsupported", "{" HIDDEN("I16", "[1,8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("dtype_unsupported",
            "{" HIDDEN("F64", "[1,8]", "[0,64]") "," POSITIONS("I64", "[1]", "[64,72]") "}", 72),
    REFUSED("dtype_unsupported", "{" HIDDEN("F4", "[1,8]", "[0,4]") "," POSITIONS("I64", "[1]", "[4,12]") "}",
            12),
    REFUSED("dtype_unsupported", "{" ROW "," POSITIONS("U64", "[1]", "[16,24]") "}", 24),
    REFUSED("dtype_unsupported", "{" ROW "," POSITIONS("F64", "[1]", "[16,24]") "}", 24),
    REFUSED("hidden_shape_mismatch", "{" HIDDEN("BF16", "[8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("hidden_shape_mismatch", "{" HIDDEN("BF16", "[8,1]", "[0,16]") "," PLACE "}", 24),
    REFUSED("hidden_shape_mismatch", "{" HIDDEN("BF16", "[1,1,8]", "[0,16]") "," PLACE "}", 24),
    REFUSED("hidden_shape_mismatch",
            "{" HIDDEN("BF16", "[9223372036854775807,0]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}",
            0),
    REFUSED("positions_shape_mismatch", "{" ROW "," POSITIONS("I64", "[1,1]", "[16,24]") "}", 24),
    REFUSED("positions_shape_mismatch", "{" ROW "," POSITIONS("I64", "[]", "[16,24]") "}", 24),
    REFUSED("positions_shape_mismatch", "{" ROW "," POSITIONS("I32", "[2]", "[16,24]") "}", 24),
    REFUSED("positions_shape_mismatch", "{" ROW "," POSITIONS("I64", "[0]", "[16,16]") "}", 16),
    REFUSED("positions_shape_mismatch",
            "{" HIDDEN("BF16", "[0,8]", "[0,0]") "," POSITIONS("I64", "[1]", "[0,8]") "}", 8),

    /* no rows at all is a request */
    GOOD("{" HIDDEN("BF16", "[0,8]", "[0,0]") "," POSITIONS("I64", "[0]", "[0,0]") "}", 0),
    GOOD("{" POSITIONS("I32", "[0]", "[0,0]") "," HIDDEN("F32", "[0,8]", "[0,0]") "}", 0),
    GOOD("{" HIDDEN("F16", "[-0,8]", "[-0,0]") "," POSITIONS("I32", "[0]", "[0,0]") "}", 0),
};

const struct hostile_body *hostile_bodies(int32_t *count)
{
    *count = (int32_t)(sizeof bodies / sizeof bodies[0]);
    return bodies;
}
