/* The table of faults is whole; errors keep the first failure, stay printable and always make valid JSON. */
#include "protocol/message.h"
#include "tests/suite.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static int status_of(enum kv_class kind)
{
    return kind == KV_CLASS_STARTUP ? 0 : 400 + (int)kind;
}

static bool is_lower_snake(const char *code)
{
    if (!islower((unsigned char)code[0]) || code[strlen(code) - 1] == '_') return false;
    for (const char *c = code; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_') return false;
    return true;
}

static bool is_sentence(const char *text)
{
    return strlen(text) > 10 && isgraph((unsigned char)text[0]) && text[strlen(text) - 1] == '.';
}

START_TEST(every_row_is_whole)
{
    const struct kv_fault_info *info = kv_fault_info((enum kv_fault)_i);
    ck_assert_int_eq(info->fault, _i);
    ck_assert_msg(is_lower_snake(info->code), "%s", info->code);
    ck_assert_int_eq(kv_fault_find(info->code), _i);
    for (int other = KV_OK + 1; other < KV_FAULT_COUNT; other++)
        if (other != _i) ck_assert_str_ne(kv_fault_info((enum kv_fault)other)->code, info->code);
    ck_assert_msg(strlen(info->title) > 5 && strlen(info->title) <= 60, "%s: title", info->code);
    ck_assert_msg(info->title[strlen(info->title) - 1] != '.', "%s: a title is no sentence", info->code);
    ck_assert_msg(is_sentence(info->meaning), "%s: meaning", info->code);
    ck_assert_msg(is_sentence(info->when), "%s: when", info->code);
    ck_assert_int_le(info->kind, KV_CLASS_STARTUP);
}
END_TEST

/* Takes a line off the front of *rest; false at the end. No line is empty. */
static bool next_line(const struct kv_fault_info *info, const char **rest, char line[KV_MESSAGE_BYTES])
{
    if (!**rest) return false;
    size_t bytes = strcspn(*rest, "\n");
    ck_assert_msg(bytes > 0 && bytes < KV_MESSAGE_BYTES, "%s: a line of %zu bytes", info->code, bytes);
    snprintf(line, KV_MESSAGE_BYTES, "%.*s", (int)bytes, *rest);
    *rest += bytes;
    ck_assert_msg(strcmp(*rest, "\n") != 0, "%s: an empty last line", info->code);
    if (**rest) ++*rest;
    return true;
}

START_TEST(every_line_is_a_sentence)
{
    const struct kv_fault_info *info = kv_fault_info((enum kv_fault)_i);
    const char *const texts[] = {info->situations, info->solutions, info->before};
    char line[KV_MESSAGE_BYTES];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *rest = texts[i];
        ck_assert_msg(*rest, "%s: nothing is said", info->code);
        while (next_line(info, &rest, line)) ck_assert_msg(is_sentence(line), "%s: '%s'", info->code, line);
    }
}
END_TEST

/* `kvmat explain` shows examples as they are, four blanks in, on 80 columns. */
START_TEST(every_example_fits_a_terminal)
{
    const struct kv_fault_info *info = kv_fault_info((enum kv_fault)_i);
    char line[KV_MESSAGE_BYTES];
    ck_assert_msg(info->example[0], "%s has no example", info->code);
    for (const char *rest = info->example; next_line(info, &rest, line);)
        ck_assert_msg(strlen(line) <= 76, "%s: %zu columns: %s", info->code, strlen(line), line);
}
END_TEST

START_TEST(every_related_code_exists)
{
    const struct kv_fault_info *info = kv_fault_info((enum kv_fault)_i);
    char related[512];
    ck_assert_msg(info->related[0], "%s is related to nothing", info->code);
    ck_assert_int_lt(snprintf(related, sizeof related, "%s", info->related), (int)sizeof related);
    int seen[KV_FAULT_COUNT] = {0};
    for (char *rest, *code = strtok_r(related, " ", &rest); code; code = strtok_r(NULL, " ", &rest)) {
        enum kv_fault fault = kv_fault_find(code);
        ck_assert_msg(fault != KV_OK, "%s is related to %s, which is no code", info->code, code);
        ck_assert_msg((int)fault != _i, "%s is related to itself", info->code);
        ck_assert_msg(!seen[fault]++, "%s names %s twice", info->code, code);
    }
}
END_TEST

START_TEST(every_row_has_its_json)
{
    const struct kv_fault_info *info = kv_fault_info((enum kv_fault)_i);
    char *text = kv_catalogue_row_encode((enum kv_fault)_i, status_of);
    ck_assert_ptr_nonnull(text);
    json_t *row = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(row);
    static const char *const members[] = {"code",       "status",    "title",   "meaning", "when",
                                          "situations", "solutions", "example", "before",  "related"};
    size_t at = 0;
    const char *key;
    json_t *value;
    json_object_foreach(row, key, value) ck_assert_str_eq(key, members[at++]);
    ck_assert_uint_eq(at, sizeof members / sizeof members[0]);
    ck_assert_str_eq(json_string_value(json_object_get(row, "code")), info->code);
    json_t *status = json_object_get(row, "status");
    if (info->kind == KV_CLASS_STARTUP)
        ck_assert(json_is_null(status));
    else
        ck_assert_int_eq(json_integer_value(status), 400 + (int)info->kind);
    size_t lines = 1;
    for (const char *c = info->solutions; *c; c++) lines += *c == '\n';
    ck_assert_uint_eq(json_array_size(json_object_get(row, "solutions")), lines);
    const char *first = json_string_value(json_array_get(json_object_get(row, "solutions"), 0));
    ck_assert_int_eq(strncmp(first, info->solutions, strlen(first)), 0);
    ck_assert_ptr_nonnull(json_string_value(json_array_get(json_object_get(row, "related"), 0)));
    json_decref(row);
    free(text);
}
END_TEST

START_TEST(the_catalogue_has_every_row_in_order)
{
    char *text = kv_catalogue_encode(status_of);
    json_t *catalogue = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *errors = json_object_get(catalogue, "errors");
    ck_assert_uint_eq(json_array_size(errors), KV_FAULT_COUNT - 1);
    for (int i = 1; i < KV_FAULT_COUNT; i++) {
        const char *code = json_string_value(json_object_get(json_array_get(errors, (size_t)i - 1), "code"));
        ck_assert_str_eq(code, kv_fault_info((enum kv_fault)i)->code);
    }
    json_decref(catalogue);
    free(text);
}
END_TEST

START_TEST(unknown_faults_are_internal)
{
    ck_assert_int_eq(kv_fault_info(KV_OK)->fault, KV_INTERNAL);
    ck_assert_int_eq(kv_fault_info(KV_FAULT_COUNT)->fault, KV_INTERNAL);
    ck_assert_int_eq(kv_fault_info((enum kv_fault)1000000)->fault, KV_INTERNAL);
    ck_assert_int_eq(kv_fault_find(NULL), KV_OK);
    ck_assert_int_eq(kv_fault_find(""), KV_OK);
    ck_assert_int_eq(kv_fault_find("Body_Malformed"), KV_OK);
}
END_TEST

START_TEST(the_first_failure_is_kept)
{
    struct kv_error err = {0};
    ck_assert(!kv_fail_values(&err, KV_HIDDEN_SHAPE_MISMATCH, "hidden_states", kv_shape2(-1, 4096),
                              kv_shape2(17, 2048), "the shape of %s is wrong", "hidden_states"));
    ck_assert(!kv_fail(&err, KV_INTERNAL, "later"));
    ck_assert_int_eq(err.fault, KV_HIDDEN_SHAPE_MISMATCH);
    ck_assert_str_eq(err.message,
                     "the shape of hidden_states is wrong: expected [any, 4096], got [17, 2048]");
    ck_assert_str_eq(err.param, "hidden_states");
    ck_assert_int_eq(err.expected.shape[0], -1);
    ck_assert_int_eq(err.got.shape[1], 2048);
    kv_error_hint(&err, "first %d", 1);
    kv_error_hint(&err, "second");
    ck_assert_str_eq(err.hint, "first 1");
    ck_assert(!kv_fail(NULL, KV_INTERNAL, "nobody listens"));
    kv_error_hint(NULL, "nobody listens");
    struct kv_error none = {0};
    kv_error_hint(&none, "no fault, no hint");
    ck_assert_str_eq(none.hint, "");
}
END_TEST

START_TEST(values_are_shown)
{
    struct kv_error err = {0};
    kv_fail_values(&err, KV_INTERNAL, NULL, kv_integer(INT64_MIN), kv_none(), "a");
    ck_assert_str_eq(err.message, "a: expected -9223372036854775808");
    ck_assert_str_eq(err.param, "");
    err = (struct kv_error){0};
    kv_fail_values(&err, KV_INTERNAL, "p", kv_text(NULL), kv_text("F64"), "a");
    ck_assert_str_eq(err.message, "a: got F64");
    char text[64];
    struct kv_value value = kv_real((double)1e-6f);
    ck_assert_str_eq(kv_value_print(&value, text, sizeof text), "1e-06");
    value = kv_real(0.1);
    ck_assert_str_eq(kv_value_print(&value, text, sizeof text), "0.1");
    value = kv_shape(0, NULL);
    ck_assert_str_eq(kv_value_print(&value, text, sizeof text), "[]");
    value = kv_shape1(3);
    ck_assert_str_eq(kv_value_print(&value, text, sizeof text), "[3]");
    ck_assert_str_eq(kv_value_print(&value, text, 3), "[3");
    ck_assert_str_eq(kv_value_print(&value, text, 1), "");
}
END_TEST

START_TEST(long_sentences_lose_their_middle_not_their_values)
{
    char name[600];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct kv_error err = {0};
    kv_fail_values(&err, KV_SIZE_MISMATCH, name, kv_integer(1), kv_integer(2), "tensor %s", name);
    ck_assert_uint_eq(strlen(err.message), KV_MESSAGE_BYTES - 1);
    const char *tail = ": expected 1, got 2";
    ck_assert_str_eq(err.message + strlen(err.message) - strlen(tail), tail);
    ck_assert_uint_eq(strlen(err.param), KV_PARAM_BYTES - 1);
    int64_t wide[KV_RANK_MAX];
    for (int i = 0; i < KV_RANK_MAX; i++) wide[i] = INT64_MAX;
    err = (struct kv_error){0};
    kv_fail_values(&err, KV_SIZE_MISMATCH, name, kv_shape(8, wide), kv_shape(8, wide), "tensor %s", name);
    ck_assert_uint_lt(strlen(err.message), KV_MESSAGE_BYTES);
    ck_assert_uint_eq(strlen(kv_text(name).text), KV_TEXT_BYTES - 1);
}
END_TEST

START_TEST(text_is_made_printable)
{
    static const char *const pairs[][2] = {
        {"plain text", "plain text"},
        {"tab\tline\nbell\a\x7f", "tab?line?bell??"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x85 next line", "? next line"},   /* C1 control */
        {"\xe2\x80\xae reversed", "? reversed"}, /* right-to-left override */
        {"\xc0\xaf", "??"},                      /* overlong */
        {"\xe0\x80\xaf", "???"},                 /* overlong */
        {"\xed\xa0\x80", "???"},                 /* surrogate */
        {"\xf4\x90\x80\x80", "????"},            /* past the last code point */
        {"\xf8\x88\x80\x80\x80", "?????"},       /* no such first byte */
        {"\xe2\x82", "??"},                      /* cut short */
        {"\xe2\x82z", "??z"},                    /* cut short, then text */
        {"\x80\xbf", "??"},                      /* continuations alone */
        {"\xef\xbf\xbf\xf4\x8f\xbf\xbf", "\xef\xbf\xbf\xf4\x8f\xbf\xbf"},
    };
    char text[64];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        ck_assert_str_eq(kv_text_print(pairs[i][0], text, sizeof text), pairs[i][1]);
    ck_assert_str_eq(kv_text_print("a\xe2\x82\xac", text, 4), "a"); /* no half of a character */
    ck_assert_str_eq(kv_text_print("a\xe2\x82\xac", text, 5), "a\xe2\x82\xac");
    ck_assert_str_eq(kv_text_print("abc", text, 1), "");
}
END_TEST

static json_t *encoded(const struct kv_error *err, const char *reason, const char *request_id)
{
    char *text = kv_error_encode(err, 400, reason, request_id);
    ck_assert_ptr_nonnull(text);
    json_error_t problem;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &problem);
    ck_assert_msg(json != NULL, "%s in %s", problem.text, text);
    ck_assert_ptr_null(strchr(text, '\n'));
    free(text);
    return json;
}

START_TEST(an_error_has_all_its_members)
{
    struct kv_error err = {0};
    kv_fail_values(&err, KV_HIDDEN_SHAPE_MISMATCH, "hidden_states", kv_shape2(-1, 64), kv_shape2(3, 65),
                   "wrong");
    json_t *json = encoded(&err, "Bad Request", "id-1"), *wanted;
    const char *hint = json_string_value(json_object_get(json, "hint"));
    ck_assert(hint && strlen(hint) > 10);
    ck_assert_int_eq(strncmp(hint, kv_fault_info(err.fault)->solutions, strlen(hint)), 0);
    wanted = json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:[i, i], s:[i, i], s:s, s:s}", "error",
                       "wrong: expected [any, 64], got [3, 65]", "code", "hidden_shape_mismatch", "status",
                       400, "title", "Bad Request", "type", "about:blank", "detail",
                       "wrong: expected [any, 64], got [3, 65]", "param", "hidden_states", "expected", -1, 64,
                       "got", 3, 65, "hint", hint, "request_id", "id-1");
    ck_assert(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
}
END_TEST

START_TEST(what_is_not_known_is_null)
{
    struct kv_error err = {0};
    kv_fail(&err, KV_INTERNAL, "x");
    kv_error_hint(&err, "own hint");
    json_t *json = encoded(&err, "Internal", NULL);
    static const char *const nulls[] = {"param", "expected", "got", "request_id"};
    for (size_t i = 0; i < 4; i++)
        ck_assert_msg(json_is_null(json_object_get(json, nulls[i])), "%s", nulls[i]);
    ck_assert_str_eq(json_string_value(json_object_get(json, "hint")), "own hint");
    json_decref(json);
}
END_TEST

/* Not through kv_fail, which cleans: an error is plain data that anyone may fill. */
START_TEST(hostile_errors_are_still_json)
{
    struct kv_error err = {.fault = KV_BODY_MALFORMED};
    memset(err.message, 0xff, sizeof err.message - 1);
    memset(err.hint, 0x01, sizeof err.hint - 1);
    snprintf(err.param, sizeof err.param, "%s", "\"\\\b\xc0\x80 </script>");
    err.expected = kv_real((double)NAN);
    err.got = kv_integer(INT64_MIN);
    json_t *json = encoded(&err, "\xff\"", "\xf0\x28\x8c\x28");
    ck_assert_str_eq(json_string_value(json_object_get(json, "expected")), "NaN");
    ck_assert(json_integer_value(json_object_get(json, "got")) == INT64_MIN);
    ck_assert_str_eq(json_string_value(json_object_get(json, "param")), "\"\\??? </script>");
    ck_assert_str_eq(json_string_value(json_object_get(json, "error")),
                     json_string_value(json_object_get(json, "detail")));
    json_decref(json);
    err.expected = kv_real(1.7976931348623157e308); /* would round to what cannot be read back */
    err.got = kv_real(-(double)INFINITY);
    json = encoded(&err, "", "");
    ck_assert_str_eq(json_string_value(json_object_get(json, "expected")), "1.7976931348623157e+308");
    ck_assert_str_eq(json_string_value(json_object_get(json, "got")), "-Infinity");
    json_decref(json);
    err.expected = kv_real(1.797e308);
    err.got = kv_integer(INT64_MAX);
    json = encoded(&err, "", "");
    ck_assert(json_real_value(json_object_get(json, "expected")) > 1.796e308);
    ck_assert(json_integer_value(json_object_get(json, "got")) == INT64_MAX);
    json_decref(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/error");
    TCase *tests = tcase_create("all");
    tcase_add_loop_test(tests, every_row_is_whole, KV_OK + 1, KV_FAULT_COUNT);
    tcase_add_loop_test(tests, every_line_is_a_sentence, KV_OK + 1, KV_FAULT_COUNT);
    tcase_add_loop_test(tests, every_example_fits_a_terminal, KV_OK + 1, KV_FAULT_COUNT);
    tcase_add_loop_test(tests, every_related_code_exists, KV_OK + 1, KV_FAULT_COUNT);
    tcase_add_loop_test(tests, every_row_has_its_json, KV_OK + 1, KV_FAULT_COUNT);
    tcase_add_test(tests, the_catalogue_has_every_row_in_order);
    tcase_add_test(tests, unknown_faults_are_internal);
    tcase_add_test(tests, the_first_failure_is_kept);
    tcase_add_test(tests, values_are_shown);
    tcase_add_test(tests, long_sentences_lose_their_middle_not_their_values);
    tcase_add_test(tests, text_is_made_printable);
    tcase_add_test(tests, an_error_has_all_its_members);
    tcase_add_test(tests, what_is_not_known_is_null);
    tcase_add_test(tests, hostile_errors_are_still_json);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
