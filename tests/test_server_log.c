/* The log: a line is one line, JSON is JSON, and a log that nobody reads stops nobody. */
#include "server/log.h"
#include "tests/suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text[1 << 16];
static int saved, ends[2];

static void capture(void)
{
    ck_assert_int_eq(pipe(ends), 0);
    saved = dup(2);
    ck_assert_int_eq(dup2(ends[1], 2), 2);
}

/* What was logged since. */
static const char *captured(void)
{
    dup2(saved, 2);
    close(ends[1]);
    size_t count = 0;
    ssize_t got;
    while ((got = read(ends[0], text + count, sizeof text - 1 - count)) > 0) count += (size_t)got;
    text[count] = '\0';
    close(ends[0]);
    close(saved);
    return text;
}

START_TEST(test_lines)
{
    const struct kv_log_request request = {.method = "POST",
                                           .route = "x",
                                           .id = "id",
                                           .code = "ok",
                                           .error = "a \"b\"\nc",
                                           .status = 200,
                                           .tokens = 3};
    for (int json = 0; json < 2; json++) {
        capture();
        kv_log_open(json ? KV_LOG_JSON : KV_LOG_TEXT);
        kv_log(KV_LOG_INFO, "a name with\na line feed, \"quotes\" and \xff");
        kv_log_finished(&request);
        const struct kv_log_field fields[] = {{"version", "1"}, {"path", "/a b/\"\n"}, {"device", ""}};
        kv_log_fields(KV_LOG_INFO, "starting", fields, 3);
        const char *log = captured();
        int lines = 0;
        for (const char *c = log; *c; c++) lines += *c == '\n';
        ck_assert_int_eq(lines, 3);
        ck_assert(
            strstr(log, json ? "\"path\":\"/a b/\\\"?\"" : " starting version=1 path=\"/a b/\\\"?\"\n"));
        if (!json) continue;
        char *rest = text;
        for (char *line = strtok_r(rest, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            json_t *parsed = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
            ck_assert_msg(parsed != NULL, "no JSON: %s", line);
            json_decref(parsed);
        }
    }
}
END_TEST

START_TEST(test_nobody_reads)
{
    kv_log_open(KV_LOG_TEXT);
    capture();
    for (int i = 0; i < 5000; i++)
        kv_log(KV_LOG_INFO, "line %d of more than a pipe holds, and it does not block", i);
    const char *log = captured();
    ck_assert(strstr(log, "line 0 of"));
    ck_assert(!strstr(log, "line 4999 of"));
    capture();
    kv_log(KV_LOG_INFO, "after");
    ck_assert(strstr(captured(), "dropped: nobody read them"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/log");
    TCase *cases = tcase_create("log");
    tcase_set_timeout(cases, 30);
    tcase_add_test(cases, test_lines);
    tcase_add_test(cases, test_nobody_reads);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
