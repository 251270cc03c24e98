/* The HTTP server when things go wrong around it: peers that leave, trickle or do not read, a lost device, a
 * drain. */
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_rig rig;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

/* Sends a text on a fresh connection; the answer must be this status and code. */
static void assert_refused(const char *text, int status, const char *code)
{
    struct http_reply reply = http_rig_ask(&rig, text);
    ck_assert_int_eq(reply.status, status);
    ck_assert(http_reply_has_code(&reply, code));
    http_reply_free(&reply);
}

START_TEST(test_client_leaves_while_waiting)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    int busy = http_rig_connect(&rig, false), leaves = http_rig_connect(&rig, false);
    fake.held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    ck_assert(http_rig_send(leaves, wire, bytes));
    ck_assert(engine_rig_await_waiting(rig.engine, 1));
    close(leaves);
    ck_assert(engine_rig_await_waiting(rig.engine, 0)); /* it left the queue without having reached the device
                                                         */
    fake.held = 0;
    struct http_reply reply = http_rig_read(busy);
    ck_assert(http_rig_is_right(&reply, 3, 1));
    ck_assert_int_eq(fake.batches, 1);
    http_reply_free(&reply);
    close(busy);
    free(wire);
}
END_TEST

START_TEST(test_deadline)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    int busy = http_rig_connect(&rig, false), late = http_rig_connect(&rig, false);
    fake.held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    free(wire);
    wire = http_rig_request(3, 1, "X-Request-Timeout-Ms: 50\r\n", &bytes, NULL);
    ck_assert(http_rig_send(late, wire, bytes));
    struct http_reply reply = http_rig_read(late);
    ck_assert_int_eq(reply.status, 504);
    ck_assert(http_reply_has_code(&reply, "deadline_exceeded"));
    http_reply_free(&reply);
    fake.held = 0;
    reply = http_rig_read(busy);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    free(wire);
    close(busy);
    close(late);
}
END_TEST

/* These have limits of their own, and wait for seconds. */
static void setup_short(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){
                            .limits = {.pool_bytes = 64 << 20, .upload_seconds = 1, .reply_seconds = 1}});
}

START_TEST(test_trickled_upload)
{
    size_t bytes, head_bytes;
    unsigned char *wire = http_rig_request(100, 1, "X-Request-Id: slow\r\n", &bytes, &head_bytes);
    int fd = http_rig_connect(&rig, _i);
    int64_t began_us = kv_now_us();
    ck_assert(http_rig_send(fd, wire, head_bytes));
    for (size_t at = head_bytes; at < head_bytes + 60 && http_rig_send(fd, wire + at, 1); at++) usleep(50000);
    struct http_reply reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 408);
    ck_assert(http_reply_has_code(&reply, "upload_timeout"));
    ck_assert(strstr(reply.body, "\"slow\""));
    ck_assert(http_rig_closed(fd));
    ck_assert_int_lt(kv_now_us() - began_us, 6000000);
    http_reply_free(&reply);
    close(fd);
    free(wire);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

START_TEST(test_reader_too_slow)
{
    enum { CONNECTIONS = 3 };
    size_t bytes;
    unsigned char *wire = http_rig_request(16384, 1, "", &bytes, NULL); /* 786 KB of reply each */
    int fd[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        int little = 4096;
        fd[i] = http_rig_connect(&rig, false);
        setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
        for (int times = 0; times < 16; times++)
            if (!http_rig_send(fd[i], wire, bytes)) break; /* pipelined, never read: some reply gets stuck */
    }
    struct kv_engine_stats stats;
    for (int i = 0; i < 100; i++) { /* all memory comes back, though nobody reads */
        usleep(100000);
        kv_engine_stats(rig.engine, &stats);
        if (stats.jobs == 0 && kv_http_idle(rig.http)) break;
    }
    ck_assert_int_eq(stats.jobs, 0);
    for (int i = 0; i < CONNECTIONS; i++) close(fd[i]);
    free(wire);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* Waiting for memory is no silence of the peer's, however long: the body is read when its turn comes. */
START_TEST(test_long_wait_for_memory)
{
    enum { TOKENS = 8000 }; /* a body of 192 KB: more than the library buffers */
    size_t bytes;
    unsigned char *wire = http_rig_request(TOKENS, 1, "", &bytes, NULL);
    int first = http_rig_connect(&rig, false), second = http_rig_connect(&rig, _i);
    struct kv_error none = {0};
    ck_assert(kv_engine_accepts(rig.engine, bytes, &none));
    fake.held = 1;
    ck_assert(http_rig_send(first, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    ck_assert(http_rig_send(second, wire, 4096));
    ck_assert(engine_rig_await_waiting(rig.engine, 2)); /* the first's other spans, and the second */
    sleep(3);
    fake.held = 0;
    struct http_reply reply = http_rig_read(first);
    ck_assert(http_rig_is_right(&reply, TOKENS, 1));
    http_reply_free(&reply);
    ck_assert(http_rig_send(second, wire + 4096, bytes - 4096));
    reply = http_rig_read(second);
    ck_assert_msg(http_rig_is_right(&reply, TOKENS, 1), "%d %s", reply.status, reply.body ? reply.body : "");
    http_reply_free(&reply);
    close(first);
    close(second);
    free(wire);
}
END_TEST

/* A caller that leaves while it waits for memory leaves the line, though its body was never read. */
START_TEST(test_client_leaves_the_line)
{
    enum { TOKENS = 8000 };
    size_t bytes;
    unsigned char *wire = http_rig_request(TOKENS, 1, "", &bytes, NULL);
    int first = http_rig_connect(&rig, false), leaves = http_rig_connect(&rig, true);
    fake.held = 1;
    ck_assert(http_rig_send(first, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    ck_assert(http_rig_send(leaves, wire, 60000));
    ck_assert(engine_rig_await_waiting(rig.engine, 2));
    close(leaves);
    ck_assert(engine_rig_await_waiting(rig.engine, 1));
    fake.held = 0;
    struct http_reply reply = http_rig_read(first);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    close(first);
    free(wire);
}
END_TEST

/* Memory for one request of 8000 tokens, and a short patience with silence. */
static void setup_narrow(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig,
                  (struct kv_engine_options){
                      .limits = {.pool_bytes = 3 * engine_rig_request_bytes(8000) / 2, .idle_seconds = 1}});
}

/* A refusal that waits for a body's end is not lost when the body does not end. */
START_TEST(test_refusal_of_a_trickle)
{
    int fd = http_rig_connect(&rig, _i);
    ck_assert(http_rig_say(fd, "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"));
    for (int i = 0; i < 140 && http_rig_send(fd, "x", 1); i++) usleep(50000);
    struct http_reply reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 404);
    ck_assert(http_reply_has_code(&reply, "not_found"));
    ck_assert(http_rig_closed(fd));
    http_reply_free(&reply);
    close(fd);
}
END_TEST

static void setup_crowded(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.limits = {.connections_max = 4}});
}

/* At the limit a new connection takes the place of the one that has been idle longest: probes are always
 * answered. */
START_TEST(test_idle_make_room)
{
    enum { IDLE = 9 };
    int idle[IDLE];
    for (int i = 0; i < IDLE; i++) idle[i] = http_rig_connect(&rig, false); /* one listener: in this order */
    ck_assert(http_rig_alive(&rig));
    ck_assert(http_rig_closed(idle[0]));
    for (int i = 0; i < IDLE; i++) close(idle[i]);
}
END_TEST

START_TEST(test_lost_device)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    fake.lost = 1;
    for (int i = 0; i < 2; i++) {
        int fd = http_rig_connect(&rig, false);
        ck_assert(http_rig_send(fd, wire, bytes));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 503);
        ck_assert(http_reply_has_code(&reply, "device_lost"));
        ck_assert(http_rig_closed(fd));
        http_reply_free(&reply);
        close(fd);
    }
    assert_refused("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n", 503, "device_lost");
    free(wire);
}
END_TEST

START_TEST(test_drain)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    int busy = http_rig_connect(&rig, false), kept = http_rig_connect(&rig, false);
    ck_assert(http_rig_say(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
    struct http_reply reply = http_rig_read(kept);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    fake.held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    while (fake.batches == 0) usleep(1000);

    kv_http_retire(rig.http);
    assert_refused("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n", 503, "draining");
    kv_engine_drain(rig.engine);
    kv_http_quiesce(rig.http);
    ck_assert(!kv_http_idle(rig.http));
    ck_assert(http_rig_send(kept, wire, bytes)); /* a kept connection is refused in words, then closed */
    reply = http_rig_read(kept);
    ck_assert_int_eq(reply.status, 503);
    ck_assert(http_reply_has_code(&reply, "draining"));
    ck_assert(http_rig_closed(kept));
    http_reply_free(&reply);

    fake.held = 0;
    reply = http_rig_read(busy); /* what was in flight is finished */
    ck_assert(http_rig_is_right(&reply, 3, 1));
    http_reply_free(&reply);
    free(wire);
    close(busy);
    close(kept);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/http_failures");
    TCase *cases = tcase_create("failures");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_client_leaves_while_waiting);
    tcase_add_test(cases, test_deadline);
    tcase_add_test(cases, test_lost_device);
    tcase_add_test(cases, test_drain);
    suite_add_tcase(suite, cases);
    TCase *slow = tcase_create("slow peers");
    tcase_set_timeout(slow, 60);
    tcase_add_checked_fixture(slow, setup_short, teardown);
    tcase_add_loop_test(slow, test_trickled_upload, 0, 2);
    tcase_add_test(slow, test_reader_too_slow);
    tcase_add_loop_test(slow, test_refusal_of_a_trickle, 0, 2);
    suite_add_tcase(suite, slow);
    TCase *narrow = tcase_create("narrow");
    tcase_set_timeout(narrow, 60);
    tcase_add_checked_fixture(narrow, setup_narrow, teardown);
    tcase_add_loop_test(narrow, test_long_wait_for_memory, 0, 2);
    tcase_add_test(narrow, test_client_leaves_the_line);
    suite_add_tcase(suite, narrow);
    TCase *crowded = tcase_create("crowded");
    tcase_set_timeout(crowded, 60);
    tcase_add_checked_fixture(crowded, setup_crowded, teardown);
    tcase_add_test(crowded, test_idle_make_room);
    suite_add_tcase(suite, crowded);
    return suite_run(suite);
}
