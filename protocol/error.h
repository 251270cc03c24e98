/* Errors: one fault from the table in errors.def, one sentence, and the values that disagree.
 * Knows no HTTP status and no exit code; those who face the outside map a fault's class to theirs. */
#ifndef KV_PROTOCOL_ERROR_H
#define KV_PROTOCOL_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KV_MUST_CHECK __attribute__((warn_unused_result))
#define KV_PRINTF(at, first) __attribute__((format(printf, at, first)))

enum kv_fault {
    KV_OK = 0,
#define KV_ROW(name, ...) KV_##name,
#include "protocol/errors.def"
#undef KV_ROW
    KV_FAULT_COUNT
};

/* What kind of trouble a fault is. server/http.c turns a class into a status, and nothing else does. */
enum kv_class {
    KV_CLASS_CALLER,      /* the request is wrong */
    KV_CLASS_CREDENTIALS, /* who is asking is not known */
    KV_CLASS_FORBIDDEN,   /* who is asking may not */
    KV_CLASS_ABSENT,      /* no such thing */
    KV_CLASS_METHOD,      /* the thing is there, the verb is not */
    KV_CLASS_SLOW,        /* the caller took too long to send */
    KV_CLASS_LENGTH,      /* the body's length was not announced */
    KV_CLASS_LARGE,       /* over a limit of size */
    KV_CLASS_MEDIA,       /* an encoding that is not read */
    KV_CLASS_EXPECTATION, /* an Expect header that cannot be met */
    KV_CLASS_BUSY,        /* try again soon */
    KV_CLASS_INTERNAL,    /* our own bug */
    KV_CLASS_UNSUPPORTED, /* valid, but not built */
    KV_CLASS_UNAVAILABLE, /* not now: starting, stopping, or the device is out */
    KV_CLASS_DEADLINE,    /* the caller's own deadline passed */
    KV_CLASS_STARTUP      /* found at start-up; never the answer to a request */
};

enum { KV_RANK_MAX = 8, KV_MESSAGE_BYTES = 320, KV_PARAM_BYTES = 128, KV_TEXT_BYTES = 96 };

/* A value that was expected or got: a number, a word, or a shape. In a shape, -1 stands for "any". */
enum kv_value_kind { KV_VALUE_NONE = 0, KV_VALUE_INTEGER, KV_VALUE_REAL, KV_VALUE_TEXT, KV_VALUE_SHAPE };
struct kv_value {
    enum kv_value_kind kind;
    int32_t rank; /* of a shape */
    union {
        int64_t integer;
        double real;
        int64_t shape[KV_RANK_MAX];
        char text[KV_TEXT_BYTES]; /* cut to fit, always terminated */
    };
};

/* Zero-initialise; the first failure is kept, later ones are ignored. Plain data: copy it freely. */
struct kv_error {
    enum kv_fault fault;
    char message[KV_MESSAGE_BYTES]; /* one sentence, with expected and got where they are known */
    char param[KV_PARAM_BYTES];     /* the tensor, header, key or option at fault; "" if none */
    char hint[KV_MESSAGE_BYTES];    /* "" means: the first solution of the fault's row */
    struct kv_value expected, got;
};

/* One row of errors.def, which says what each text is. situations, solutions and example hold one a line,
 * related codes separated by spaces. */
struct kv_fault_info {
    enum kv_fault fault;
    enum kv_class kind;
    const char *code, *title, *meaning, *when, *situations, *solutions, *example, *before, *related;
};

/* All three always return false, so that a failing line is `return kv_fail(...)`. `err` may be NULL.
 * kv_fail_values appends ": expected X, got Y" to the sentence (either part left out when its kind is NONE)
 * and fills param, expected and got. The text is made printable by kv_text_print. */
bool kv_fail(struct kv_error *err, enum kv_fault fault, const char *format, ...) KV_PRINTF(3, 4);
bool kv_fail_param(struct kv_error *err, enum kv_fault fault, const char *param, const char *format, ...)
    KV_PRINTF(4, 5);
bool kv_fail_values(struct kv_error *err, enum kv_fault fault, const char *param, struct kv_value expected,
                    struct kv_value got, const char *format, ...) KV_PRINTF(6, 7);

/* Sets the hint of an error that has a fault and no hint yet. `err` may be NULL. */
void kv_error_hint(struct kv_error *err, const char *format, ...) KV_PRINTF(2, 3);

struct kv_value kv_none(void);
struct kv_value kv_integer(int64_t integer);
struct kv_value kv_real(double real);
struct kv_value kv_text(const char *text); /* NULL gives NONE */
struct kv_value kv_shape(int32_t rank, const int64_t *dims /* [rank] */);
struct kv_value kv_shape1(int64_t a);
struct kv_value kv_shape2(int64_t a, int64_t b);

/* A printable copy of any text, cut between two characters to fit: control bytes, code points that reorder a
 * line, and broken UTF-8 become '?'. Returns `to`; to_bytes is at least 1. */
const char *kv_text_print(const char *text, char *to, size_t to_bytes);
/* Is all of it well-formed UTF-8? */
bool kv_text_is_utf8(const char *text);

/* A float32 that was widened, as the double of its shortest decimal form (1e-06, not 9.99999997e-07); other
 * values unchanged. Only for showing. */
double kv_real_shorten(double real);

/* Writes the value as a sentence shows it ("[17, 4096]", "[any, 4096]", "BF16", "3") and returns `to`. */
const char *kv_value_print(const struct kv_value *value, char *to, size_t to_bytes);

/* The row of a fault; of KV_OK and of numbers outside the table: the row of KV_INTERNAL. Never NULL. */
const struct kv_fault_info *kv_fault_info(enum kv_fault fault);

/* The fault with this wire name, or KV_OK. `code` may be NULL. */
enum kv_fault kv_fault_find(const char *code);

/* The hint to show: the error's own, or the first line of its row's solutions. Never NULL. Writes to `to`. */
const char *kv_error_hint_print(const struct kv_error *err, char *to, size_t to_bytes);

#ifdef __cplusplus
}
#endif
#endif
