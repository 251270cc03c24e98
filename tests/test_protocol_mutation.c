/* Golden requests, changed at random in ways that a parser dislikes: whatever comes, the promises of
 * tests/fuzz/bodies.h hold. KVMAT_SEED and KVMAT_ROUNDS choose other changes, and more of them. */
#include "tests/documents.h"
#include "tests/fuzz/bodies.h"
#include "tests/suite.h"

enum { BYTES_MAX = 1024, ROUNDS = 20000 };

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t number = text ? strtoull(text, NULL, 0) : 0;
    return number ? number : otherwise;
}

static const char *const tokens[] = {
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "0",
    "-1",
    "1.0",
    "1e3",
    "null",
    "9223372036854775807",
    "9223372036854775808",
    "2147483648",
    "4611686018427387904",
    "true",
    "{}",
    "[]",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"BF16\"",
    "\"F4\"",
    "\"I32\"",
    "\"F32\"",
    "\"positions\"",
    "\"hidden_states\"",
    "\"target_hidden\"",
    "\"__metadata__\"",
    "\"__metadata__\":{\"a\":\"b\"},",
    "\\u0061",
    "\\u0000",
    "\xff",
    "\xc3\xa9",
    " ",
    "\n",
    "\x1b",
};

/* Puts `count` bytes in the place of `gone` bytes at `at`; what no longer fits is dropped at the end. */
static void replace(struct bytes *body, size_t at, size_t gone, const void *with, size_t count)
{
    if (at > body->size) at = body->size;
    if (gone > body->size - at) gone = body->size - at;
    if (body->size - gone + count > BYTES_MAX) return;
    memmove(body->data + at + count, body->data + at + gone, body->size - at - gone);
    memcpy(body->data + at, with, count);
    body->size = body->size - gone + count;
}

static void put_length(struct bytes *body, uint64_t length)
{
    if (body->size >= 8) memcpy(body->data, &length, sizeof length);
}

static uint64_t length_of(const struct bytes *body)
{
    uint64_t length = 0;
    if (body->size >= 8) memcpy(&length, body->data, sizeof length);
    return length;
}

/* One change; most keep the prefix true to the header, so that they reach what lies behind it. */
static void mutate(struct bytes *body, uint64_t *state)
{
    uint64_t length = length_of(body);
    size_t end = length > body->size - 8 ? body->size : 8 + (size_t)length;
    size_t at = body->size > 8 ? 8 + (size_t)random_below(state, end - 7) : 0;
    if (body->size <= 8) return;
    switch (random_below(state, 8)) {
    case 0: { /* a word of the language, put in or put over */
        const char *token = tokens[random_below(state, sizeof tokens / sizeof tokens[0])];
        size_t before = body->size;
        replace(body, at, (size_t)random_below(state, 2) * strlen(token), token, strlen(token));
        put_length(body, length + body->size - before);
        break;
    }
    case 1: { /* a digit */
        while (at < end && (body->data[at] < '0' || body->data[at] > '9')) at++;
        if (at < end) body->data[at] = (unsigned char)('0' + random_below(state, 10));
        break;
    }
    case 2: { /* a piece of the header, taken out or doubled */
        size_t count = (size_t)random_below(state, 40), before = body->size;
        unsigned char piece[40];
        if (count > end - at) count = end - at;
        memcpy(piece, body->data + at, count);
        if (random_below(state, 2))
            replace(body, at, count, "", 0);
        else
            replace(body, at, 0, piece, count);
        put_length(body, length + body->size - before);
        break;
    }
    case 3:
        body->data[random_below(state, body->size)] ^= (unsigned char)(1u << random_below(state, 8));
        break;
    case 4: body->data[random_below(state, body->size)] = (unsigned char)random_next(state); break;
    case 5: put_length(body, length + random_below(state, 17) - 8); break;
    case 6: /* cut, or longer */
        if (random_below(state, 2))
            body->size = (size_t)random_below(state, body->size + 1);
        else
            replace(body, body->size, 0, "\0\0\0\0\0\0\0\0", (size_t)random_below(state, 9));
        break;
    default: /* data, that is positions and hidden states */
        if (end < body->size)
            body->data[end + random_below(state, body->size - end)] = (unsigned char)random_next(state);
    }
}

START_TEST(changed_requests_break_no_promise)
{
    glob_t files;
    ck_assert_int_eq(glob("tests/vectors/*/request.safetensors", 0, NULL, &files), 0);
    uint64_t seed = number_of("KVMAT_SEED", 8600), rounds = number_of("KVMAT_ROUNDS", ROUNDS), state = seed;
    printf("seed %llu, %llu rounds\n", (unsigned long long)seed, (unsigned long long)rounds);
    fflush(stdout);
    struct bytes work = {.data = allocate(BYTES_MAX)};
    int32_t used = 0;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct bytes golden = file_of(files.gl_pathv[i]);
        ck_assert_ptr_nonnull(golden.data);
        for (uint64_t round = 0; golden.size <= BYTES_MAX && round < rounds / 16; round++) {
            memcpy(work.data, golden.data, golden.size);
            work.size = golden.size;
            for (uint64_t changes = random_below(&state, 4); changes < 4; changes++) mutate(&work, &state);
            struct bytes exact = {.data = allocate(work.size), .size = work.size};
            memcpy(exact.data, work.data, work.size);
            fuzz_safetensors(exact.data, exact.size);
            fuzz_request(exact.data, exact.size);
            free(exact.data);
        }
        used += golden.size <= BYTES_MAX;
        free(golden.data);
    }
    ck_assert_int_ge(used, 16);
    free(work.data);
    globfree(&files);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/mutation");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 0);
    tcase_add_test(tests, changed_requests_break_no_promise);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
