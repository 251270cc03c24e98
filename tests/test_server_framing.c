/* Bytes that are no request, or not the same one for every reader: each is answered or the connection ends,
 * what stands behind it is never mistaken, and the service serves on. */
#include "tests/hostile.h"
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

/* All rows are looked at before the first that is wrong fails the test. */
static int check_promise(const struct hostile *promise, const struct talk *talk, const char *how)
{
    char text[400];
    const char *wrong = hostile_verdict(promise, talk);
    if (!wrong) return 0;
    fprintf(stderr, "%s: %s, expected %d %s: %s\n", how, wrong, promise->status,
            promise->code ? promise->code : "",
            hostile_print(promise->bytes, promise->count, text, sizeof text));
    return 1;
}

static void assert_heads(enum talk_pieces pieces, bool over_unix, const char *how)
{
    int32_t count;
    int wrong = 0;
    const struct hostile *heads = hostile_heads(&count);
    for (int32_t i = 0; i < count; i++) {
        struct talk talk = talk_with(&rig, over_unix, heads[i].bytes, heads[i].count, pieces);
        wrong += check_promise(&heads[i], &talk, how);
        ck_assert(http_rig_alive(&rig));
    }
    ck_assert_msg(wrong == 0, "%d of %d requests, %s", wrong, count, how);
}

START_TEST(test_heads)
{
    assert_heads(TALK_WHOLE, _i, _i ? "unix socket" : "TCP");
}
END_TEST

START_TEST(test_heads_a_byte_at_a_time)
{
    assert_heads(TALK_BYTES, _i, _i ? "unix socket, a byte at a time" : "TCP, a byte at a time");
}
END_TEST

/* A request with a part of `count` pieces between two others. */
static void assert_long(const char *before, const char *piece, size_t count, const char *behind, int status,
                        enum hostile_after after)
{
    size_t step = strlen(piece), begin = strlen(before);
    char *text = malloc(begin + count * step + strlen(behind) + 1), *end = text;
    ck_assert(text);
    end = stpcpy(end, before);
    for (size_t i = 0; i < count; i++) end = stpcpy(end, piece);
    end = stpcpy(end, behind);
    const struct hostile promise = {text, (size_t)(end - text), status, NULL, after};
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        struct talk talk = talk_with(&rig, over_unix, text, promise.count, TALK_WHOLE);
        ck_assert_int_eq(check_promise(&promise, &talk, "a long one"), 0);
        ck_assert(http_rig_alive(&rig));
    }
    free(text);
}

/* What a connection may make the server keep before its head is through is bounded: a short part of it is
 * taken, a long one refused. */
START_TEST(test_long_heads)
{
    static const char rest[] = " HTTP/1.1\r\nHost: x\r\n\r\n",
                      health[] = "GET /health HTTP/1.1\r\nHost: x\r\n";
    enum { LONG = 200000, ENDLESS = 3000000 };
    assert_long("GET /", "a", 8000, rest, 404, HOSTILE_KEPT);
    assert_long("GET /", "a", LONG, rest, HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("GET /", "a", ENDLESS, rest, HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("GET /health?", "a=b&", LONG, rest, HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("", "A", LONG, " /health HTTP/1.1\r\nHost: x\r\n\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("", "A", 1000, " /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, HOSTILE_KEPT);
    assert_long("GET /v1/errors/", "size_mismatch", 100, rest, 404, HOSTILE_KEPT);
    assert_long("GET /health HTTP/1.1\r\nHost: x\r\nX: ", "a", 16000, "\r\n\r\n", 200, HOSTILE_KEPT);
    assert_long("GET /health HTTP/1.1\r\nHost: x\r\nX: ", "a", LONG, "\r\n\r\n", HOSTILE_REFUSED,
                HOSTILE_ENDED);
    assert_long(health, "X", LONG, ": y\r\n\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long(health, "X: y\r\n", 100, "\r\n", 200, HOSTILE_KEPT);
    assert_long(health, "X: y\r\n", LONG, "\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long(health, "Y:\r\n", ENDLESS / 4, "\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 5000,
                "0\r\n\r\n", 200, HOSTILE_KEPT);
    assert_long("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n",
                LONG, "\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
    assert_long("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "0", LONG,
                "\r\n\r\n", HOSTILE_REFUSED, HOSTILE_ENDED);
}
END_TEST

/* Several requests in one piece, each with an id; what is wrong with one is not held against the next. */
START_TEST(test_pipelines)
{
    enum { ROUNDS = 5 };
    char extra[64];
    int fd = http_rig_connect(&rig, _i);
    for (int round = 0; round < ROUNDS; round++) {
        size_t good_bytes, bad_bytes, small_bytes;
        snprintf(extra, sizeof extra, "X-Request-Id: good-%d\r\n", round);
        unsigned char *good = http_rig_request(70, (uint32_t)round, extra, &good_bytes, NULL);
        unsigned char *bad = hostile_post("12345678", 8, "X-Request-Id: bad\r\n", &bad_bytes);
        unsigned char *small = http_rig_request(1, (uint32_t)round + 100, "", &small_bytes, NULL);
        unsigned char *all = malloc(good_bytes + bad_bytes + small_bytes), *end = all;
        end = mempcpy(end, good, good_bytes);
        end = mempcpy(end, bad, bad_bytes);
        end = mempcpy(end, small, small_bytes);
        ck_assert(http_rig_send(fd, all, (size_t)(end - all)));

        struct http_reply reply = http_rig_read(fd);
        ck_assert(http_rig_is_right(&reply, 70, (uint32_t)round));
        ck_assert(strcasestr(reply.head, extra));
        http_reply_free(&reply);
        reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 400);
        ck_assert(http_reply_has_code(&reply, "body_malformed"));
        ck_assert(strcasestr(reply.head, "X-Request-Id: bad\r\n"));
        http_reply_free(&reply);
        reply = http_rig_read(fd);
        ck_assert(http_rig_is_right(&reply, 1, (uint32_t)round + 100));
        ck_assert(!strcasestr(reply.head, "bad\r\n") && !strcasestr(reply.head, "good-"));
        http_reply_free(&reply);
        free(good);
        free(bad);
        free(small);
        free(all);
    }
    close(fd);
}
END_TEST

/* The answer to HEAD has no body, whatever it announces: the next answer follows at once. */
START_TEST(test_head_has_no_body)
{
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        {"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", 200},
        {"HEAD /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404},
        {"HEAD /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n", 405},
        {"HEAD /v1/errors/none HTTP/1.1\r\nHost: x\r\n\r\n", 404},
        {"HEAD /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 200},
    };
    int fd = http_rig_connect(&rig, _i);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert(http_rig_say(fd, rows[i].text));
        ck_assert(http_rig_say(fd, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n"));
        struct http_reply head = http_rig_read_head(fd), next = http_rig_read(fd);
        ck_assert_int_eq(head.status, rows[i].status);
        ck_assert_int_eq(next.status, 200);
        ck_assert(strstr(next.body, "\"ready\""));
        http_reply_free(&next);
    }
    close(fd);
}
END_TEST

/* A body is swallowed for 5 s, and not longer. */
enum { LARGE_BYTES = 50 << 20, PIECE_BYTES = 1 << 20, SWALLOWED_US = 4900 * 1000 };

static bool send_large(int fd, const unsigned char *piece, bool chunked)
{
    for (int sent = 0; sent < LARGE_BYTES; sent += PIECE_BYTES) {
        if (chunked && !http_rig_say(fd, "100000\r\n")) return false;
        if (!http_rig_send(fd, piece, PIECE_BYTES)) return false;
        if (chunked && !http_rig_say(fd, "\r\n")) return false;
    }
    return !chunked || http_rig_say(fd, "0\r\n\r\n");
}

/* A client that sends all of a large body before it looks for an answer can read it, and goes on. */
START_TEST(test_refusal_of_a_large_body)
{
    static const struct {
        const char *head;
        int status;
        const char *code;
    } rows[] = {
        {"POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n", 413,
         "payload_too_large"},
        {"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n", 404, "not_found"},
        {"PUT /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n", 405,
         "method_not_allowed"},
        {"POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Encoding: zstd\r\nContent-Length: "
         "52428800\r\n\r\n",
         415, "media_type_unsupported"},
        {"POST /v1/materialize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411,
         "length_required"},
    };
    unsigned char *piece = malloc(PIECE_BYTES);
    size_t good_bytes;
    unsigned char *good = http_rig_request(3, 9, "", &good_bytes, NULL);
    static const char inside[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Request-Id: smuggled\r\n\r\n";
    ck_assert(piece);
    for (size_t i = 0; i < PIECE_BYTES; i++) piece[i] = (unsigned char)inside[i % (sizeof inside - 1)];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int fd = http_rig_connect(&rig, _i);
        int64_t began_us = kv_now_us();
        ck_assert(http_rig_say(fd, rows[i].head));
        bool sent = send_large(fd, piece, strstr(rows[i].head, "chunked") != NULL);
        struct http_reply reply = http_rig_read(fd);
        if (kv_now_us() - began_us > SWALLOWED_US) { /* on a machine this busy nothing is promised */
            http_reply_free(&reply);
            close(fd);
            continue;
        }
        ck_assert(sent);
        ck_assert_int_eq(reply.status, rows[i].status);
        ck_assert(http_reply_has_code(&reply, rows[i].code));
        http_reply_free(&reply);
        ck_assert(http_rig_send(fd, good, good_bytes));
        reply = http_rig_read(fd);
        ck_assert(http_rig_is_right(&reply, 3, 9));
        http_reply_free(&reply);
        close(fd);
    }
    free(good);
    free(piece);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/framing");
    TCase *cases = tcase_create("framing");
    tcase_set_timeout(cases, 240);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, test_heads, 0, 2);
    tcase_add_loop_test(cases, test_heads_a_byte_at_a_time, 0, 2);
    tcase_add_test(cases, test_long_heads);
    tcase_add_loop_test(cases, test_pipelines, 0, 2);
    tcase_add_loop_test(cases, test_head_has_no_body, 0, 2);
    tcase_add_loop_test(cases, test_refusal_of_a_large_body, 0, 2);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
