/* Composes errors: the first one wins, its text is made printable, its values are shown in the sentence.
 * Knows the table of faults; knows no JSON, no status, no exit code. */
#include "protocol/error.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer than any text that is kept, so that a cut happens in kv_text_print, between two characters. */
enum { DRAFT_BYTES = 1024 };

static const struct kv_fault_info table[] = {
#define KV_ROW(name, code, class, ...) {KV_##name, KV_CLASS_##class, code, __VA_ARGS__},
#include "protocol/errors.def"
#undef KV_ROW
};

_Static_assert(sizeof table / sizeof table[0] == KV_FAULT_COUNT - 1, "a row for each fault but KV_OK");

const struct kv_fault_info *kv_fault_info(enum kv_fault fault)
{
    int index = (int)fault;
    if (index <= KV_OK || index >= KV_FAULT_COUNT) index = KV_INTERNAL;
    return &table[index - 1];
}

enum kv_fault kv_fault_find(const char *code)
{
    if (!code) return KV_OK;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].code, code) == 0) return table[i].fault;
    return KV_OK;
}

/* Code points that move, hide or reorder the text around them in a terminal. */
static bool is_control(uint32_t point)
{
    return point < 0x20 || (point >= 0x7f && point < 0xa0) || (point >= 0x2028 && point <= 0x202e) ||
           (point >= 0x2066 && point <= 0x2069);
}

/* Bytes that a UTF-8 character with this first byte has; 0 where none can begin so. */
static size_t utf8_bytes(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first < 0xc2) return 0;
    if (first < 0xe0) return 2;
    if (first < 0xf0) return 3;
    return first < 0xf5 ? 4 : 0;
}

/* Bytes of the well-formed UTF-8 character at `text` and its code point, or 0. Stops at a zero byte. */
static size_t decode_utf8(const unsigned char *text, uint32_t *point)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000}; /* shorter forms exist below these */
    unsigned char first = text[0];
    size_t bytes = utf8_bytes(first);
    if (bytes < 2) {
        *point = first;
        return bytes;
    }
    uint32_t value = first & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        value = (value << 6) | (text[i] & 0x3fu);
    }
    if (value < least[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
    *point = value;
    return bytes;
}

const char *kv_text_print(const char *text, char *to, size_t to_bytes)
{
    assert(to_bytes > 0);
    const unsigned char *from = (const unsigned char *)text;
    size_t used = 0;
    while (*from) {
        uint32_t point = 0;
        size_t bytes = decode_utf8(from, &point);
        bool shown = bytes > 0 && !is_control(point);
        size_t width = shown ? bytes : 1;
        if (used + width >= to_bytes) break;
        if (shown)
            memcpy(to + used, from, width);
        else
            to[used] = '?';
        used += width;
        from += bytes ? bytes : 1;
    }
    to[used] = '\0';
    return to;
}

bool kv_text_is_utf8(const char *text)
{
    const unsigned char *from = (const unsigned char *)text;
    while (*from) {
        uint32_t point;
        size_t bytes = decode_utf8(from, &point);
        if (bytes == 0) return false;
        from += bytes;
    }
    return true;
}

double kv_real_shorten(double real)
{
    if (!isfinite(real)) return real;
    float single = (float)real;
    if ((double)single != real) return real;
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, real);
        if (strtof(text, NULL) == single) return strtod(text, NULL);
    }
    return real;
}

const char *kv_value_print(const struct kv_value *value, char *to, size_t to_bytes)
{
    assert(to_bytes > 0);
    to[0] = '\0';
    switch (value->kind) {
    case KV_VALUE_NONE: break;
    case KV_VALUE_INTEGER: snprintf(to, to_bytes, "%" PRId64, value->integer); break;
    case KV_VALUE_REAL: snprintf(to, to_bytes, "%.15g", kv_real_shorten(value->real)); break;
    case KV_VALUE_TEXT: kv_text_print(value->text, to, to_bytes); break;
    case KV_VALUE_SHAPE: {
        size_t used = (size_t)snprintf(to, to_bytes, "[");
        for (int32_t i = 0; i < value->rank && used < to_bytes; i++) {
            const char *comma = i ? ", " : "";
            if (value->shape[i] == -1)
                used += (size_t)snprintf(to + used, to_bytes - used, "%sany", comma);
            else
                used += (size_t)snprintf(to + used, to_bytes - used, "%s%" PRId64, comma, value->shape[i]);
        }
        if (used < to_bytes) snprintf(to + used, to_bytes - used, "]");
        break;
    }
    }
    return to;
}

/* ": expected X, got Y", or the half of it that is known, or nothing. */
static void print_values(const struct kv_value *expected, const struct kv_value *got, char *to,
                         size_t to_bytes)
{
    char wanted[KV_TEXT_BYTES], found[KV_TEXT_BYTES];
    bool wants = expected->kind != KV_VALUE_NONE, finds = got->kind != KV_VALUE_NONE;
    kv_value_print(expected, wanted, sizeof wanted);
    kv_value_print(got, found, sizeof found);
    to[0] = '\0';
    if (wants && finds)
        snprintf(to, to_bytes, ": expected %s, got %s", wanted, found);
    else if (wants)
        snprintf(to, to_bytes, ": expected %s", wanted);
    else if (finds)
        snprintf(to, to_bytes, ": got %s", found);
}

/* The values are kept whole and the sentence before them is cut: the values are what a reader needs. */
static void compose(struct kv_error *err, enum kv_fault fault, const char *param, struct kv_value expected,
                    struct kv_value got, const char *format, va_list arguments) KV_PRINTF(6, 0);

static void compose(struct kv_error *err, enum kv_fault fault, const char *param, struct kv_value expected,
                    struct kv_value got, const char *format, va_list arguments)
{
    assert(fault > KV_OK && fault < KV_FAULT_COUNT);
    if (!err || err->fault != KV_OK) return;
    char draft[DRAFT_BYTES], values[2 * KV_TEXT_BYTES + 24];
    vsnprintf(draft, sizeof draft, format, arguments);
    print_values(&expected, &got, values, sizeof values);
    kv_text_print(draft, err->message, sizeof err->message - strlen(values));
    memcpy(err->message + strlen(err->message), values, strlen(values) + 1);
    kv_text_print(param ? param : "", err->param, sizeof err->param);
    err->hint[0] = '\0';
    err->expected = expected;
    err->got = got;
    err->fault = fault;
}

bool kv_fail(struct kv_error *err, enum kv_fault fault, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    compose(err, fault, NULL, kv_none(), kv_none(), format, arguments);
    va_end(arguments);
    return false;
}

bool kv_fail_param(struct kv_error *err, enum kv_fault fault, const char *param, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    compose(err, fault, param, kv_none(), kv_none(), format, arguments);
    va_end(arguments);
    return false;
}

bool kv_fail_values(struct kv_error *err, enum kv_fault fault, const char *param, struct kv_value expected,
                    struct kv_value got, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    compose(err, fault, param, expected, got, format, arguments);
    va_end(arguments);
    return false;
}

void kv_error_hint(struct kv_error *err, const char *format, ...)
{
    if (!err || err->fault == KV_OK || err->hint[0]) return;
    char draft[DRAFT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(draft, sizeof draft, format, arguments);
    va_end(arguments);
    kv_text_print(draft, err->hint, sizeof err->hint);
}

const char *kv_error_hint_print(const struct kv_error *err, char *to, size_t to_bytes)
{
    if (err->hint[0]) return kv_text_print(err->hint, to, to_bytes);
    const char *solutions = kv_fault_info(err->fault)->solutions;
    char line[DRAFT_BYTES];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(solutions, "\n"), solutions);
    return kv_text_print(line, to, to_bytes);
}

struct kv_value kv_none(void)
{
    return (struct kv_value){.kind = KV_VALUE_NONE};
}

struct kv_value kv_integer(int64_t integer)
{
    return (struct kv_value){.kind = KV_VALUE_INTEGER, .integer = integer};
}

struct kv_value kv_real(double real)
{
    return (struct kv_value){.kind = KV_VALUE_REAL, .real = real};
}

struct kv_value kv_text(const char *text)
{
    struct kv_value value = {.kind = text ? KV_VALUE_TEXT : KV_VALUE_NONE};
    if (text) kv_text_print(text, value.text, sizeof value.text);
    return value;
}

struct kv_value kv_shape(int32_t rank, const int64_t *dims)
{
    assert(rank >= 0 && rank <= KV_RANK_MAX);
    struct kv_value value = {.kind = KV_VALUE_SHAPE, .rank = rank};
    for (int32_t i = 0; i < rank; i++) value.shape[i] = dims[i];
    return value;
}

struct kv_value kv_shape1(int64_t a)
{
    return kv_shape(1, &a);
}

struct kv_value kv_shape2(int64_t a, int64_t b)
{
    return kv_shape(2, (const int64_t[]){a, b});
}
