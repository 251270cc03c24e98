/* The limit of connections: whoever holds them, /health and /ready answer on one more, and nothing else does.
 */
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static struct http_rig rig;

enum { PLACES = 4, SPARES = 16, AT_ONCE_US = 1000000 };

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.limits = {.connections_max = PLACES}});
}

static void setup_short(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.limits = {.idle_seconds = 1}});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

static void assert_probes(void)
{
    static const char *const texts[] = {GET("/health"), GET("/ready")};
    for (int i = 0; i < 2; i++) {
        int64_t began_us = kv_now_us();
        struct http_reply reply = http_rig_ask(&rig, texts[i]);
        ck_assert_int_eq(reply.status, 200);
        ck_assert_int_lt(kv_now_us() - began_us, AT_ONCE_US);
        http_reply_free(&reply);
    }
}

/* Everything but a probe is told to come again, and its connection is closed. */
static void assert_turned_away(void)
{
    static const char *const texts[] = {
        GET("/v1/model"), GET("/metrics"),
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"};
    for (int i = 0; i < 3; i++) {
        int fd = http_rig_connect(&rig, i % 2);
        ck_assert(http_rig_say(fd, texts[i]));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 429);
        ck_assert(http_reply_has_code(&reply, "queue_full"));
        ck_assert(strstr(reply.body, "--max-connections") && strstr(reply.body, "\"expected\""));
        ck_assert(strcasestr(reply.head, "\r\nRetry-After: "));
        ck_assert(strcasestr(reply.head, "\r\nConnection: close"));
        ck_assert(http_rig_closed(fd));
        http_reply_free(&reply);
        close(fd);
    }
}

static void close_all(const int *fd, int count)
{
    for (int i = 0; i < count; i++) close(fd[i]);
}

START_TEST(test_idle_hold_all)
{
    enum { IDLE = PLACES + 50 };
    int fd[IDLE];
    /* One listener takes them in their order; two would take them as their threads happen to run. */
    for (int i = 0; i < IDLE; i++) fd[i] = http_rig_connect(&rig, false);
    assert_probes();
    for (int i = 0; i < IDLE - PLACES; i++) ck_assert(http_rig_closed(fd[i])); /* those that came first */
    ck_assert(http_rig_say(fd[IDLE - 1], GET("/v1/model")));
    struct http_reply reply = http_rig_read(fd[IDLE - 1]);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    close_all(fd, IDLE);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* Bodies that do not go on. */
START_TEST(test_stuck_hold_all)
{
    int fd[PLACES];
    for (int i = 0; i < PLACES; i++) {
        fd[i] = http_rig_connect(&rig, i % 2);
        ck_assert(http_rig_say(fd[i],
                               "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\nabc"));
    }
    struct kv_engine_stats stats = {.jobs = 0};
    while (stats.jobs < PLACES) kv_engine_stats(rig.engine, &stats);
    assert_probes();
    assert_turned_away();
    assert_probes();
    close_all(fd, PLACES);
}
END_TEST

/* Requests that the device does not answer; when it does, the spare connection is as good as any. */
START_TEST(test_busy_hold_all)
{
    int fd[PLACES];
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    fake.held = 1;
    for (int i = 0; i < PLACES; i++) {
        fd[i] = http_rig_connect(&rig, i % 2);
        ck_assert(http_rig_send(fd[i], wire, bytes));
    }
    ck_assert(engine_rig_await_waiting(rig.engine, PLACES - 1));
    assert_probes();
    assert_turned_away();
    int spare = http_rig_connect(&rig, false);
    ck_assert(http_rig_say(spare, GET("/health")));
    struct http_reply reply = http_rig_read(spare);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    fake.held = 0;
    for (int i = 0; i < PLACES; i++) {
        reply = http_rig_read(fd[i]);
        ck_assert(http_rig_is_right(&reply, 3, 1));
        http_reply_free(&reply);
    }
    close_all(fd, PLACES);
    while (!http_rig_alive(&rig)) usleep(1000); /* until the server has seen them close */
    ck_assert(http_rig_send(spare, wire, bytes));
    reply = http_rig_read(spare);
    ck_assert(http_rig_is_right(&reply, 3, 1));
    http_reply_free(&reply);
    close(spare);
    free(wire);
}
END_TEST

/* Beyond the limit, too, somebody sits on every connection: silent, or with a body that does not go on. */
START_TEST(test_spares_are_held)
{
    enum { MORE = 2 * SPARES };
    static const char head[] = "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\nabc";
    int fd[PLACES + MORE];
    struct kv_engine_stats stats = {.jobs = 0};
    for (int i = 0; i < PLACES; i++) {
        fd[i] = http_rig_connect(&rig, i % 2);
        ck_assert(http_rig_say(fd[i], head));
    }
    while (stats.jobs < PLACES) kv_engine_stats(rig.engine, &stats);
    for (int i = PLACES; i < PLACES + MORE; i++) {
        fd[i] = http_rig_connect(&rig, i % 2);
        if (_i) ck_assert(http_rig_say(fd[i], head));
        usleep(2000);
    }
    assert_probes();
    struct http_reply reply = {0};
    if (_i) { /* cut to make room, it was told why */
        reply = http_rig_read(fd[PLACES]);
        ck_assert_int_eq(reply.status, 429);
        ck_assert(http_reply_has_code(&reply, "queue_full"));
    }
    ck_assert(http_rig_closed(fd[PLACES]));
    http_reply_free(&reply);
    close_all(fd, PLACES + MORE);
}
END_TEST

/* A kept connection that falls silent is closed, after a request as before one. */
START_TEST(test_idle_are_closed)
{
    int fd = http_rig_connect(&rig, _i & 1);
    int64_t began_us = kv_now_us();
    if (_i & 2) {
        ck_assert(http_rig_say(fd, GET("/health")));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 200);
        http_reply_free(&reply);
    }
    ck_assert(http_rig_closed(fd));
    ck_assert_int_ge(kv_now_us() - began_us, 500000);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/places");
    TCase *cases = tcase_create("crowded");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_idle_hold_all);
    tcase_add_test(cases, test_stuck_hold_all);
    tcase_add_test(cases, test_busy_hold_all);
    tcase_add_loop_test(cases, test_spares_are_held, 0, 2);
    suite_add_tcase(suite, cases);
    TCase *idle = tcase_create("idle");
    tcase_set_timeout(idle, 60);
    tcase_add_checked_fixture(idle, setup_short, teardown);
    tcase_add_loop_test(idle, test_idle_are_closed, 0, 4);
    suite_add_tcase(suite, idle);
    return suite_run(suite);
}
