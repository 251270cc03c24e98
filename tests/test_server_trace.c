/* traceparent: what is valid is read, what is not is as if it were not there; and what the log says of a
 * request. */
#include "server/log.h"
#include "server/trace.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"
#define ZEROS "00000000000000000000000000000000"

START_TEST(test_read)
{
    static const struct {
        const char *text;
        bool valid;
    } rows[] = {
        {"00-" TRACE "-" SPAN "-01", true},
        {"00-" TRACE "-" SPAN "-00", true},
        {"cc-" TRACE "-" SPAN "-01", true},
        {"cc-" TRACE "-" SPAN "-01-what-comes-later", true},
        {"cc-" TRACE "-" SPAN "-01.x", false},
        {"00-" TRACE "-" SPAN "-01-more", false},
        {"ff-" TRACE "-" SPAN "-01", false},
        {"00-" ZEROS "-" SPAN "-01", false},
        {"00-" TRACE "-0000000000000000-01", false},
        {"00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01", false},
        {"00-" TRACE "-" SPAN "-0", false},
        {"00-" TRACE "-" SPAN "-0g", false},
        {"0-0" TRACE "-" SPAN "-01", false},
        {"00_" TRACE "-" SPAN "-01", false},
        {"00-" TRACE "\"" SPAN "-01", false},
        {" 00-" TRACE "-" SPAN "-01", false},
        {"00-" TRACE "-" SPAN, false},
        {"00", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kv_trace trace;
        ck_assert_msg(kv_trace_read(rows[i].text, &trace) == rows[i].valid, "%s", rows[i].text);
        ck_assert_str_eq(trace.trace_id, rows[i].valid ? TRACE : "");
        ck_assert_str_eq(trace.span_id, rows[i].valid ? SPAN : "");
    }
}
END_TEST

static struct http_rig rig;
static int saved_log;
static char log_path[64];

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    snprintf(log_path, sizeof log_path, "/tmp/kvmat_trace_%d.log", (int)getpid());
    int file = open(log_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    saved_log = dup(2);
    ck_assert(file >= 0 && saved_log >= 0 && dup2(file, 2) == 2);
    close(file);
    kv_log_open(KV_LOG_JSON);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
}

static void teardown(void)
{
    http_rig_close(&rig);
    unlink(log_path);
}

/* The log so far, after all requests; standard error is itself again. free() it. */
static char *logged(void)
{
    char *text = calloc(1, 1 << 20);
    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < 2000 && !kv_http_idle(rig.http); i++) usleep(5000);
    ck_assert_int_ge(lseek(2, 0, SEEK_SET), 0);
    ck_assert_int_gt(read(2, text, (1 << 20) - 1), 0);
    dup2(saved_log, 2);
    close(saved_log);
    return text;
}

/* The member of the line of the request with this id; NULL: none. The line is held until the next call. */
static const char *member(const char *log, const char *id, const char *name)
{
    static json_t *line;
    for (const char *at = log; *at; at = strchr(at, '\n') + 1) {
        json_decref(line);
        line = json_loadb(at, strcspn(at, "\n"), JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(line != NULL, "no JSON: %.*s", (int)strcspn(at, "\n"), at);
        const char *its = json_string_value(json_object_get(line, "id"));
        if (its && strcmp(its, id) == 0) return json_string_value(json_object_get(line, name));
    }
    ck_abort_msg("no line of %s in %s", id, log);
}

static void ask(const char *id, const char *headers)
{
    char text[4096];
    snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n%s\r\n", id, headers);
    struct http_reply reply = http_rig_ask(&rig, text);
    ck_assert_msg(reply.status == 200, "%s: %d", id, reply.status); /* a bad traceparent is no error */
    http_reply_free(&reply);
}

START_TEST(test_logged)
{
    ask("valid", "TraceParent: 00-" TRACE "-" SPAN "-01\r\ntracestate: a=b\r\n");
    ask("invalid", "traceparent: 00-" TRACE "-" SPAN "-01-\r\n");
    ask("twice", "traceparent: 00-" TRACE "-" SPAN "-01\r\ntraceparent: 00-" TRACE "-" SPAN "-01\r\n");
    ask("none", "");
    char *log = logged();
    ck_assert_str_eq(member(log, "valid", "trace_id"), TRACE);
    ck_assert_str_eq(member(log, "valid", "span_id"), SPAN);
    ck_assert_ptr_null(member(log, "invalid", "trace_id"));
    ck_assert_ptr_null(member(log, "twice", "trace_id"));
    ck_assert_ptr_null(member(log, "none", "span_id"));
    free(log);
}
END_TEST

/* Whatever a caller sends, each line is JSON, and neither a header's value nor a body stands in it. */
START_TEST(test_hostile)
{
    static const char *const headers[] = {
        "X-Request-Id: \"},{\"secret\":\"\r\n",
        "X-Request-Id: \x1b[31msecret\x7f\xff\xfe\r\n",
        "traceparent: 00-secret\"}\\\r\n",
        "Authorization: Bearer secret\r\n",
        "User-Agent: secret\r\n",
        "X-Other: secret\\\"\r\n",
    };
    char text[1024];
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: x\r\n%s\r\n", headers[i]);
        struct http_reply reply = http_rig_ask(&rig, text);
        ck_assert_int_gt(reply.status, 0);
        http_reply_free(&reply);
    }
    snprintf(text, sizeof text, "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n%s",
             "secret secret secret secret se");
    struct http_reply reply = http_rig_ask(&rig, text);
    ck_assert_int_eq(reply.status, 400);
    http_reply_free(&reply);
    ask("last", "");
    char *log = logged();
    ck_assert_str_eq(member(log, "last", "route"), "health"); /* reads every line before it */
    ck_assert_msg(!strstr(log, "secret"), "%s", log);
    free(log);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/trace");
    TCase *alone = tcase_create("header");
    tcase_add_test(alone, test_read);
    suite_add_tcase(suite, alone);
    TCase *cases = tcase_create("log");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_logged);
    tcase_add_test(cases, test_hostile);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
