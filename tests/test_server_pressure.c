/* More than the device can serve: refusals at once, deadlines by the clock, callers that leave, bodies and
 * replies that move too slowly. The device is held where it must not come to the rescue. */
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_rig rig;

enum { TOKENS = 100, AT_ONCE_US = 20000, CLOCK_US = 50000, TIMES = 10 };

static void open_rig(struct kv_limits limits)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20, .limits = limits});
}

static void setup(void)
{
    open_rig((struct kv_limits){.queue_max = 8});
}

/* Memory for one request of TOKENS at a time. */
static void setup_narrow(void)
{
    open_rig((struct kv_limits){.pool_bytes = engine_rig_request_bytes(TOKENS) + 640});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

/* Is all memory back? */
static bool await_memory(void)
{
    struct kv_engine_stats stats;
    for (int waited = 0; waited < 20000; waited++) {
        kv_engine_stats(rig.engine, &stats);
        if (stats.jobs == 0 && stats.waiting == 0 && stats.pool_used_bytes == 0 && kv_http_idle(rig.http))
            return true;
        usleep(1000);
    }
    return false;
}

/* Sends a request of so many tokens on a fresh connection. */
static int send_request(int64_t tokens, const char *extra)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(tokens, 1, extra, &bytes, NULL);
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_send(fd, wire, bytes));
    free(wire);
    return fd;
}

static void assert_right(int fd, int64_t tokens)
{
    struct http_reply reply = http_rig_read(fd);
    ck_assert_msg(http_rig_is_right(&reply, tokens, 1), "%d %s", reply.status, reply.body ? reply.body : "");
    http_reply_free(&reply);
    close(fd);
}

/* One request on its way through the device, which stays there. */
static int send_and_hold(void)
{
    fake.held = 1;
    int fd = send_request(TOKENS, "");
    while (fake.batches == 0) usleep(1000);
    return fd;
}

/* Sends small requests that must be refused; the quickest refusal says whether one waits for anything. */
static void assert_refused_at_once(const char *named)
{
    int64_t best_us = INT64_MAX;
    for (int i = 0; i < TIMES; i++) {
        int64_t began_us = kv_now_us();
        int fd = send_request(1, "");
        struct http_reply reply = http_rig_read(fd);
        int64_t took_us = kv_now_us() - began_us;
        if (took_us < best_us) best_us = took_us;
        ck_assert_int_eq(reply.status, 429);
        ck_assert(http_reply_has_code(&reply, "queue_full"));
        ck_assert(strcasestr(reply.head, "\r\nRetry-After: 1\r\n"));
        ck_assert_msg(strstr(reply.body, named) && strstr(reply.body, "\"expected\"") &&
                          strstr(reply.body, "\"got\"") && strstr(reply.body, "\"hint\""),
                      "%s", reply.body);
        http_reply_free(&reply);
        close(fd);
    }
    ck_assert_msg(best_us < AT_ONCE_US, "the quickest of %d refusals took %d us", TIMES, (int)best_us);
}

START_TEST(test_refused_at_once_by_number)
{
    enum { WAITING = 7 }; /* with the held one's second span: 8 */
    int fd[WAITING], busy = send_and_hold();
    for (int i = 0; i < WAITING; i++) fd[i] = send_request(2, "");
    ck_assert(engine_rig_await_waiting(rig.engine, WAITING + 1));
    assert_refused_at_once("--max-queue");
    fake.held = 0;
    assert_right(busy, TOKENS);
    for (int i = 0; i < WAITING; i++) assert_right(fd[i], 2);
    ck_assert(await_memory());
}
END_TEST

START_TEST(test_refused_at_once_by_bytes)
{
    int busy = send_and_hold(), waits = send_request(TOKENS, "");
    ck_assert(engine_rig_await_waiting(rig.engine, 2));
    assert_refused_at_once("Content-Length");
    fake.held = 0;
    assert_right(busy, TOKENS);
    assert_right(waits, TOKENS);
    ck_assert(await_memory());
}
END_TEST

/* In the queue for the device, and (narrow) in the line for memory, while the device says nothing. */
START_TEST(test_deadline_by_the_clock)
{
    enum { DEADLINE_US = 150000 };
    int64_t best_us = INT64_MAX;
    int busy = send_and_hold();
    for (int i = 0; i < TIMES; i++) {
        int64_t began_us = kv_now_us();
        int fd = send_request(TOKENS, "X-Request-Timeout-Ms: 150\r\n");
        struct http_reply reply = http_rig_read(fd);
        int64_t late_us = kv_now_us() - began_us - DEADLINE_US;
        if (late_us < best_us) best_us = late_us;
        ck_assert_int_eq(reply.status, 504);
        ck_assert(http_reply_has_code(&reply, "deadline_exceeded"));
        ck_assert_int_ge(late_us, 0);
        http_reply_free(&reply);
        close(fd);
    }
    ck_assert_msg(best_us < CLOCK_US, "504 came %d us after the deadline at best", (int)best_us);
    int32_t batches = fake.batches;
    ck_assert_int_eq(batches, 1);
    fake.held = 0;
    assert_right(busy, TOKENS);
    ck_assert_int_eq(fake.batches, 2); /* its own second span; none of the late */
    ck_assert(await_memory());
}
END_TEST

START_TEST(test_gone_are_counted)
{
    enum { GONE = 3 };
    int fd[GONE], busy = send_and_hold();
    for (int i = 0; i < GONE; i++) fd[i] = send_request(2, "");
    ck_assert(engine_rig_await_waiting(rig.engine, GONE + 1));
    for (int i = 0; i < GONE; i++) close(fd[i]);
    ck_assert(engine_rig_await_waiting(rig.engine, 1));
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert(strstr(reply.body, "\nkvmat_requests_gone_total 3\n"));
    http_reply_free(&reply);
    fake.held = 0;
    assert_right(busy, TOKENS);
    ck_assert_int_eq(fake.rows, TOKENS);
    ck_assert(await_memory());
}
END_TEST

/* Deadlines are far, the rate is near: 8 KiB in every second. */
static void setup_rate(void)
{
    open_rig((struct kv_limits){.tokens_max = 200000,
                                .pool_bytes = 64 << 20,
                                .upload_seconds = 600,
                                .reply_seconds = 600,
                                .idle_seconds = 600,
                                .rate_seconds = 1,
                                .rate_bytes = 8192});
}

/* 20 bytes every 50 ms: never silent, never done. */
START_TEST(test_slow_upload)
{
    size_t bytes, head_bytes;
    unsigned char *wire = http_rig_request(1000, 1, "X-Request-Id: slow\r\n", &bytes, &head_bytes);
    int fd = http_rig_connect(&rig, _i);
    ck_assert(http_rig_send(fd, wire, head_bytes));
    for (size_t at = head_bytes; at + 20 < bytes && http_rig_send(fd, wire + at, 20); at += 20) usleep(50000);
    struct http_reply reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 408);
    ck_assert(http_reply_has_code(&reply, "upload_timeout"));
    ck_assert(strstr(reply.body, "\"slow\"") && strstr(reply.body, "\"expected\"") &&
              strstr(reply.body, "\"got\""));
    ck_assert(http_rig_closed(fd));
    http_reply_free(&reply);
    close(fd);
    free(wire);
    ck_assert(await_memory());
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* Slow, with pauses, and above the rate. */
START_TEST(test_upload_above_the_rate)
{
    enum { PIECE = 12000 }; /* every 400 ms */
    size_t bytes;
    unsigned char *wire = http_rig_request(4000, 1, "", &bytes, NULL);
    int fd = http_rig_connect(&rig, _i);
    for (size_t at = 0; at < bytes; at += PIECE) {
        ck_assert(http_rig_send(fd, wire + at, bytes - at < PIECE ? bytes - at : PIECE));
        usleep(400000);
    }
    free(wire);
    assert_right(fd, 4000);
    ck_assert(await_memory());
}
END_TEST

enum { LARGE_TOKENS = 190000 }; /* 9 MB of reply: more than the kernel buffers */

static int ask_for_much(int receive_bytes)
{
    int fd = http_rig_connect(&rig, false);
    size_t bytes;
    unsigned char *wire = http_rig_request(LARGE_TOKENS, 1, "", &bytes, NULL);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    ck_assert(http_rig_send(fd, wire, bytes));
    free(wire);
    return fd;
}

/* A reader below the rate is cut off, and the memory of its reply is back, though its deadline is far. */
START_TEST(test_slow_reader)
{
    char piece[64];
    int fd = ask_for_much(4096);
    ck_assert_int_eq(recv(fd, piece, sizeof piece, MSG_WAITALL), (ssize_t)sizeof piece);
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    ck_assert_uint_gt(stats.pool_used_bytes, 0);
    ck_assert(await_memory());
    close(fd);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* A slow network: a tenth of what memory could do, for several windows; all of it arrives. */
START_TEST(test_reader_above_the_rate)
{
    enum { SECONDS_LEAST = 3, NAP_US = 10000 };
    int fd = ask_for_much(1 << 17);
    struct http_reply reply = http_rig_read_head(fd);
    ck_assert_int_eq(reply.status, 200);
    size_t wanted = strtoull(strcasestr(reply.head, "\r\nContent-Length:") + 17, NULL, 10), have = 0;
    size_t piece = wanted / (SECONDS_LEAST * 1000000 / NAP_US) + 1;
    char *room = malloc(piece);
    int64_t began_us = kv_now_us();
    while (have < wanted) {
        ssize_t got = recv(fd, room, piece < wanted - have ? piece : wanted - have, MSG_WAITALL);
        ck_assert_msg(got > 0, "cut after %zu of %zu bytes", have, wanted);
        have += (size_t)got;
        usleep(NAP_US);
    }
    ck_assert_int_ge(kv_now_us() - began_us, (SECONDS_LEAST - 1) * 1000000LL);
    free(room);
    close(fd);
    ck_assert(await_memory());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/pressure");
    TCase *cases = tcase_create("pressure");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_refused_at_once_by_number);
    tcase_add_test(cases, test_deadline_by_the_clock);
    tcase_add_test(cases, test_gone_are_counted);
    suite_add_tcase(suite, cases);
    TCase *narrow = tcase_create("narrow");
    tcase_set_timeout(narrow, 60);
    tcase_add_checked_fixture(narrow, setup_narrow, teardown);
    tcase_add_test(narrow, test_refused_at_once_by_bytes);
    tcase_add_test(narrow, test_deadline_by_the_clock);
    suite_add_tcase(suite, narrow);
    TCase *rate = tcase_create("rate");
    tcase_set_timeout(rate, 120);
    tcase_add_checked_fixture(rate, setup_rate, teardown);
    tcase_add_loop_test(rate, test_slow_upload, 0, 2);
    tcase_add_loop_test(rate, test_upload_above_the_rate, 0, 2);
    tcase_add_test(rate, test_slow_reader);
    tcase_add_test(rate, test_reader_above_the_rate);
    suite_add_tcase(suite, rate);
    return suite_run(suite);
}
