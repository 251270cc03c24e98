/* The HTTP server over raw sockets: routes, framing, refusals, keep-alive. */
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_rig rig;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20, .limits = {.body_bytes_max = 8 << 20}});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

static void assert_refused(const char *text, int status, const char *code)
{
    struct http_reply reply = http_rig_ask(&rig, text);
    ck_assert_msg(reply.status == status, "got %d, expected %d, for %.200s: %s", reply.status, status, text,
                  reply.body ? reply.body : "");
    ck_assert_msg(http_reply_has_code(&reply, code), "no code %s in %s", code, reply.body);
    ck_assert(strcasestr(reply.head, "Content-Type: application/json"));
    ck_assert(strcasestr(reply.head, "X-Request-Id: "));
    ck_assert(strstr(reply.body, "\"request_id\""));
    http_reply_free(&reply);
}

/* Newer libraries refuse some of these themselves, in words of their own. */
static void assert_status(const char *text, int status)
{
    struct http_reply reply = http_rig_ask(&rig, text);
    ck_assert_msg(reply.status == status, "got %d, expected %d, for %.200s", reply.status, status, text);
    http_reply_free(&reply);
}

START_TEST(test_get_routes)
{
    static const struct {
        const char *path, *type, *text;
    } routes[] = {
        {"/health", "application/json", "\"live\":true"},
        {"/ready", "application/json", "\"ready\":true"},
        {"/v1/model", "application/json", "\"fingerprint\""},
        {"/v1/errors", "application/json", "size_mismatch"},
        {"/v1/errors/size_mismatch", "application/json", "\"solutions\""},
        {"/metrics", "text/plain; version=0.0.4", "kvmat_ready 1\n"},
    };
    char text[256];
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: my.id-1\r\n\r\n",
                 routes[i].path);
        struct http_reply reply = http_rig_ask(&rig, text);
        ck_assert_int_eq(reply.status, 200);
        ck_assert_msg(strstr(reply.body, routes[i].text), "%s: %s", routes[i].path, reply.body);
        ck_assert(strcasestr(reply.head, routes[i].type));
        ck_assert(strcasestr(reply.head, "X-Request-Id: my.id-1\r\n"));
        http_reply_free(&reply);

        snprintf(text, sizeof text, "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n", routes[i].path);
        int fd = http_rig_connect(&rig, false);
        ck_assert(http_rig_say(fd, text));
        reply = http_rig_read_head(fd);
        ck_assert_int_eq(reply.status, 200);
        close(fd);
    }
}
END_TEST

START_TEST(test_refused_heads)
{
    assert_refused("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    assert_refused("GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    assert_refused("GET /he%61lth HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    assert_refused("GET /v1/errors/no_such HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    assert_refused("GET /v1/errors/a/b HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    assert_refused("DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed");
    assert_refused("GET /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed");
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n", 411, "length_required");
    assert_refused(
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc", 400,
        "header_invalid");
    assert_refused(
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400,
        "header_invalid");
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                   400, "header_invalid");
    assert_status("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc", 400);
    assert_status(
        "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200);
    assert_status("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400);
    assert_status("GET /health HTTP/1.1\r\n\r\n", 400);
    assert_status("GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400);
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "3\r\nabc\r\n0\r\n\r\n",
                   411, "length_required");
    assert_refused(
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        415, "media_type_unsupported");
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\nContent-Length: 3\r\n\r\n",
                   417, "expectation_failed");
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: soon\r\n"
                   "Content-Length: 3\r\n\r\nabc",
                   400, "parameter_invalid");
    assert_refused("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400,
                   "body_malformed");
    assert_refused("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 404, "not_found");
    ck_assert(http_rig_alive(&rig));
}
END_TEST

START_TEST(test_sizes_that_cannot_be)
{
    static const char *const lengths[] = {"8388609", "1099511627776", "9223372036854775807",
                                          "18446744073709551614"};
    char text[256];
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int fd = http_rig_connect(&rig, false);
        /* Large announcements are refused at once; the first is small enough to be read to its end. */
        snprintf(text, sizeof text,
                 "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n%s\r\n", lengths[i],
                 i == 0 ? "Expect: 100-continue\r\n" : "");
        ck_assert(http_rig_say(fd, text));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 413);
        ck_assert(http_reply_has_code(&reply, "payload_too_large"));
        ck_assert(strcasestr(reply.head, "Connection: close"));
        ck_assert(http_rig_closed(fd));
        http_reply_free(&reply);
        close(fd);
    }
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* A client that sends all before it reads must still be able to read the refusal. */
START_TEST(test_refusal_after_a_body)
{
    size_t count = 9 << 20;
    char *zeros = calloc(1, count), head[256];
    for (int i = 0; i < 5; i++) {
        int fd = http_rig_connect(&rig, i % 2);
        snprintf(head, sizeof head, "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                 count);
        ck_assert(http_rig_say(fd, head));
        ck_assert(http_rig_send(fd, zeros, count));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 413);
        ck_assert(http_reply_has_code(&reply, "payload_too_large"));
        http_reply_free(&reply);
        /* The body was read to its end: the connection goes on, and none of it is taken for a request. */
        ck_assert(http_rig_say(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
        reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 200);
        http_reply_free(&reply);
        close(fd);
    }
    free(zeros);
}
END_TEST

START_TEST(test_a_body_is_never_a_request)
{
    static const char text[] = "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 35\r\n\r\n"
                               "GET /health HTTP/1.1\r\nHost: smug\r\n\r"
                               "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_say(fd, text));
    struct http_reply first = http_rig_read(fd), second = http_rig_read(fd);
    ck_assert_int_eq(first.status, 404);
    ck_assert_int_eq(second.status, 200);
    ck_assert(strstr(second.body, "kvmat_ready")); /* /metrics, not /health */
    http_reply_free(&first);
    http_reply_free(&second);
    close(fd);
}
END_TEST

START_TEST(test_materialize)
{
    static const int64_t tokens[] = {0, 1, 2, 64, 65, 1000, 16384};
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        int fd = http_rig_connect(&rig, over_unix);
        for (uint32_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
            size_t bytes;
            unsigned char *wire = http_rig_request(tokens[i], i, "X-Request-Id: r_1\r\n", &bytes, NULL);
            ck_assert(http_rig_send(fd, wire, bytes));
            struct http_reply reply = http_rig_read(fd);
            ck_assert_msg(http_rig_is_right(&reply, tokens[i], i), "T=%d: %d %s", (int)tokens[i],
                          reply.status, reply.status == 200 ? "wrong bits" : reply.body);
            ck_assert(strcasestr(reply.head, "Content-Type: application/octet-stream"));
            ck_assert(strcasestr(reply.head, "Server-Timing: queue;dur="));
            ck_assert(strcasestr(reply.head, "X-Request-Id: r_1\r\n"));
            http_reply_free(&reply);
            free(wire);
        }
        close(fd);
    }
}
END_TEST

START_TEST(test_too_many_tokens)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(16385, 1, "", &bytes, NULL);
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_send(fd, wire, bytes));
    struct http_reply reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 413);
    ck_assert(http_reply_has_code(&reply, "tokens_limit_exceeded"));
    http_reply_free(&reply);
    free(wire);
    close(fd);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

START_TEST(test_expect_continue)
{
    size_t bytes, head_bytes;
    unsigned char *wire = http_rig_request(100, 3, "Expect: 100-continue\r\n", &bytes, &head_bytes);
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_send(fd, wire, head_bytes));
    struct http_reply interim = http_rig_read_head(fd);
    ck_assert_int_eq(interim.status, 100);
    ck_assert(http_rig_send(fd, wire + head_bytes, bytes - head_bytes));
    struct http_reply reply = http_rig_read(fd);
    ck_assert(http_rig_is_right(&reply, 100, 3));
    http_reply_free(&reply);
    free(wire);
    close(fd);
}
END_TEST

START_TEST(test_request_ids)
{
    static const char *const bad[] = {"with blank", "caf\xc3\xa9", "a\tb", "\"quoted\""};
    char text[512];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n\r\n", bad[i]);
        struct http_reply reply = http_rig_ask(&rig, text);
        ck_assert_int_eq(reply.status, 200);
        const char *id = strcasestr(reply.head, "X-Request-Id: ");
        ck_assert(id && strspn(id + 14, "0123456789abcdef") == 32);
        http_reply_free(&reply);
    }
}
END_TEST

/* Cut at every stage of an upload: nothing is kept, and the next request is served. */
START_TEST(test_cut_uploads)
{
    size_t bytes, head_bytes;
    unsigned char *wire = http_rig_request(500, 3, "", &bytes, &head_bytes);
    for (size_t cut = 1; cut < bytes; cut += cut < head_bytes + 40 ? 7 : 2011) {
        int fd = http_rig_connect(&rig, cut % 2);
        ck_assert(http_rig_send(fd, wire, cut));
        close(fd);
    }
    free(wire);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/http");
    TCase *cases = tcase_create("http");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_get_routes);
    tcase_add_test(cases, test_refused_heads);
    tcase_add_test(cases, test_sizes_that_cannot_be);
    tcase_add_test(cases, test_refusal_after_a_body);
    tcase_add_test(cases, test_a_body_is_never_a_request);
    tcase_add_test(cases, test_materialize);
    tcase_add_test(cases, test_too_many_tokens);
    tcase_add_test(cases, test_expect_continue);
    tcase_add_test(cases, test_request_ids);
    tcase_add_test(cases, test_cut_uploads);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
