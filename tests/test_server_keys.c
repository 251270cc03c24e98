/* API keys: what a file of them may hold, what is said of a bad one, and which keys are taken. */
#include "server/keys.h"
#include "tests/suite.h"

#include <stdio.h>
#include <string.h>

#define SHORTEST "abcdefghijklmnop"

static bool parse(struct kv_keys **keys, const char *text, struct kv_error *err)
{
    return kv_keys_parse(keys, text, strlen(text), "--api-key-file", "the-file", err);
}

static bool holds(const struct kv_keys *keys, const char *key)
{
    return kv_keys_hold(keys, key, strlen(key));
}

START_TEST(test_good)
{
    char longest[KV_KEY_BYTES_MAX + 1];
    char text[1024];
    struct kv_keys *keys;
    struct kv_error err = {0};
    memset(longest, '~', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    snprintf(text, sizeof text, "# who has which\n\n%s\n \t \n!\"#$%%&'()*+,-./:;\n#%s2\n%s", SHORTEST,
             SHORTEST, longest); /* the last line has no end */
    ck_assert_msg(parse(&keys, text, &err), "%s", err.message);
    ck_assert_int_eq(kv_keys_count(keys), 3);
    ck_assert(holds(keys, SHORTEST));
    ck_assert(holds(keys, "!\"#$%&'()*+,-./:;"));
    ck_assert(holds(keys, longest));
    ck_assert(!holds(keys, "#" SHORTEST "2"));
    kv_keys_close(keys);
}
END_TEST

/* What is one byte off, shorter or longer is another key, wherever the byte is and whichever key it is near.
 */
START_TEST(test_near)
{
    static const char *const known[] = {SHORTEST, "0123456789abcdef0123456789abcdef", "zyxwvutsrqponmlkji"};
    char text[256];
    struct kv_keys *keys;
    snprintf(text, sizeof text, "%s\n%s\n%s\n", known[0], known[1], known[2]);
    ck_assert(parse(&keys, text, NULL));
    for (size_t k = 0; k < 3; k++) {
        char near[KV_KEY_BYTES_MAX + 2];
        size_t bytes = strlen(known[k]);
        ck_assert(holds(keys, known[k]));
        for (size_t at = 0; at < bytes; at++) {
            for (int bit = 0; bit < 8; bit++) {
                memcpy(near, known[k], bytes);
                near[at] = (char)(near[at] ^ 1 << bit);
                ck_assert_msg(!kv_keys_hold(keys, near, bytes), "bit %d of byte %zu", bit, at);
            }
            ck_assert(!kv_keys_hold(keys, known[k], at));
        }
        memset(near, 0, sizeof near); /* padded as keys are kept */
        memcpy(near, known[k], bytes);
        for (size_t more = bytes + 1; more <= sizeof near; more++) ck_assert(!kv_keys_hold(keys, near, more));
    }
    ck_assert(!holds(keys, ""));
    kv_keys_close(keys);
    kv_keys_close(NULL);
}
END_TEST

/* The line is named, and nothing of it is said. */
START_TEST(test_bad)
{
#define SECRET "Sesame" /* stands in every bad line */
    static const struct {
        const char *text, *said;
    } bad[] = {
        {SECRET "ninechars", "line 1 of the-file is too short"},
        {"# keys\n\n" SHORTEST "\n" SECRET "\n" SHORTEST "\n", "line 4 of the-file is too short"},
        {SHORTEST "\n" SECRET "456789 1234567890\n", "line 2 of the-file holds a character"},
        {SHORTEST "\n " SECRET "4567890123456\n", "line 2 of the-file holds a character"},
        {SHORTEST "\n" SECRET "4567890123456\r\n", "line 2 of the-file holds a character"},
        {SECRET "4567890123456\t", "line 1 of the-file holds a character"},
        {SECRET "456789\x7f"
                "0123456",
         "line 1 of the-file holds a character"},
        {SECRET "456789\xc3\xa4"
                "0123456",
         "line 1 of the-file holds a character"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_keys *keys;
        struct kv_error err = {0};
        char value[KV_MESSAGE_BYTES];
        ck_assert_msg(!parse(&keys, bad[i].text, &err), "%zu is taken", i);
        ck_assert_ptr_null(keys);
        ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
        ck_assert_str_eq(err.param, "--api-key-file");
        ck_assert_msg(strstr(err.message, bad[i].said), "%zu: %s", i, err.message);
        ck_assert(!strstr(err.message, SECRET) && !strstr(err.hint, SECRET));
        ck_assert(!strstr(kv_value_print(&err.got, value, sizeof value), SECRET));
    }
    struct kv_keys *keys;
    struct kv_error err = {0};
    static const char with_nul[] = SHORTEST "\0" SHORTEST;
    ck_assert(!kv_keys_parse(&keys, with_nul, sizeof with_nul - 1, "--api-key-file", "the-file", &err));
}
END_TEST

START_TEST(test_how_many)
{
    static const char *const none[] = {"", "\n", "# a comment\n", "  \n\t\n"};
    static char text[(KV_KEYS_MAX + 1) * (KV_KEY_BYTES_MIN + 1) + 1];
    struct kv_keys *keys;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        struct kv_error err = {0};
        ck_assert(!parse(&keys, none[i], &err));
        ck_assert(strstr(err.message, "the-file holds no key"));
    }
    char last[KV_KEY_BYTES_MIN + 1] = "";
    for (int i = 0; i <= KV_KEYS_MAX; i++) {
        struct kv_error err = {0};
        bool ok = i == 0 || parse(&keys, text, &err);
        ck_assert_msg(ok, "%d keys: %s", i, err.message);
        if (i > 0) {
            ck_assert_int_eq(kv_keys_count(keys), i);
            ck_assert(holds(keys, last) && holds(keys, "0000000000000000"));
            kv_keys_close(keys);
        }
        snprintf(last, sizeof last, "%016d", i);
        memcpy(text + i * (KV_KEY_BYTES_MIN + 1), last, KV_KEY_BYTES_MIN);
        text[(i + 1) * (KV_KEY_BYTES_MIN + 1) - 1] = '\n';
    }
    struct kv_error err = {0};
    ck_assert(!parse(&keys, text, &err));
    ck_assert_msg(strstr(err.message, "line 257 "), "%s", err.message);
}
END_TEST

START_TEST(test_bearer)
{
    static const struct {
        const char *value, *key; /* NULL: no such value */
    } cases[] = {
        {"Bearer " SHORTEST, SHORTEST},
        {"bearer " SHORTEST, SHORTEST},
        {"BEARER   " SHORTEST " \t", SHORTEST},
        {"Bearer x", "x"}, /* that it is no key is not for here */
        {"", NULL},
        {"Bearer", NULL},
        {"Bearer ", NULL},
        {"Bearer\t" SHORTEST, NULL},
        {"Bearer" SHORTEST, NULL},
        {"Basic " SHORTEST, NULL},
        {SHORTEST, NULL},
        {" Bearer " SHORTEST, NULL},
        {"Bearer " SHORTEST " " SHORTEST, NULL},
        {"Bearer " SHORTEST ", Bearer " SHORTEST, NULL},
        {"Bearer " SHORTEST "\xe4", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = 0;
        const char *key = kv_bearer_find(cases[i].value, &bytes);
        ck_assert_msg(!key == !cases[i].key, "%s", cases[i].value);
        if (!key) continue;
        ck_assert_uint_eq(bytes, strlen(cases[i].key));
        ck_assert_int_eq(memcmp(key, cases[i].key, bytes), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/keys");
    TCase *cases = tcase_create("keys");
    tcase_add_test(cases, test_good);
    tcase_add_test(cases, test_near);
    tcase_add_test(cases, test_bad);
    tcase_add_test(cases, test_how_many);
    tcase_add_test(cases, test_bearer);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
