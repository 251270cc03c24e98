/* Clients that vanish in every phase of a request, fall silent, or close one half of their connection:
 * nothing is kept for them, and the others are served. */
#include "tests/hostile.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_rig rig;

enum { PATIENCE_MS = 60000 };

/* A text with its size: some hold NUL. */
#define BYTES(text) text, sizeof(text) - 1

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
}

static void setup_short(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.limits = {.idle_seconds = 2}});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

/* Is all memory back, and no request in flight? */
static bool await_idle(void)
{
    struct kv_engine_stats stats;
    for (int waited = 0; waited < PATIENCE_MS; waited++) {
        kv_engine_stats(rig.engine, &stats);
        if (stats.jobs == 0 && stats.waiting == 0 && stats.pool_used_bytes == 0 && kv_http_idle(rig.http))
            return true;
        usleep(1000);
    }
    return false;
}

static int connect_patiently(bool over_unix)
{
    const struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    int fd = http_rig_connect(&rig, over_unix);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* Gone without a word, or with a reset where the socket knows one. */
static void vanish(int fd, bool reset)
{
    const struct linger at_once = {.l_onoff = 1};
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

START_TEST(test_vanish_while_sending)
{
    bool over_unix = _i & 1, reset = _i & 2;
    size_t bytes, head;
    unsigned char *wire = http_rig_request(8000, 1, "", &bytes, &head); /* more than the library buffers */
    const size_t cuts[] = {0, 1, 20, head - 2, head - 1, head, head + 1, head + 8, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        int fd = http_rig_connect(&rig, over_unix);
        ck_assert(http_rig_send(fd, wire, cuts[i]));
        vanish(fd, reset);
        ck_assert(http_rig_alive(&rig));
    }
    ck_assert(await_idle());
    free(wire);
}
END_TEST

/* In the middle of one batch, or of several. */
START_TEST(test_vanish_while_computing)
{
    static const int64_t tokens[] = {3, 64, 1000};
    bool over_unix = _i & 1, reset = _i & 2;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        size_t bytes;
        unsigned char *wire = http_rig_request(tokens[i], 1, "", &bytes, NULL);
        int32_t before = fake.batches;
        int fd = http_rig_connect(&rig, over_unix);
        fake.held = 1;
        ck_assert(http_rig_send(fd, wire, bytes));
        while (fake.batches == before) usleep(1000);
        vanish(fd, reset);
        usleep(5000);
        fake.held = 0;
        ck_assert(await_idle());
        ck_assert(http_rig_alive(&rig));
        free(wire);
    }
}
END_TEST

START_TEST(test_vanish_while_the_reply_comes)
{
    enum { TOKENS = 16384, TIMES = 5 }; /* 786 KB of reply: more than the sockets hold */
    bool over_unix = _i & 1, reset = _i & 2;
    size_t bytes;
    unsigned char *wire = http_rig_request(TOKENS, 1, "", &bytes, NULL);
    for (int i = 0; i < TIMES; i++) {
        int little = 4096;
        char first[1000];
        int fd = connect_patiently(over_unix);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
        ck_assert(http_rig_send(fd, wire, bytes));
        ck_assert_int_eq(recv(fd, first, sizeof first, MSG_WAITALL), (ssize_t)sizeof first);
        ck_assert_int_eq(memcmp(first, "HTTP/1.1 200", 12), 0);
        vanish(fd, reset);
        ck_assert(await_idle());
        ck_assert(http_rig_alive(&rig));
    }
    free(wire);
}
END_TEST

/* Its own side is closed, and it listens: what is complete is answered, what is not ends. */
START_TEST(test_half_closed)
{
    size_t bytes, head;
    unsigned char *wire = http_rig_request(3, 7, "", &bytes, &head);
    const size_t sent[] = {0, 5, head - 2, head, head + 5, bytes - 1, bytes};
    for (size_t i = 0; i < sizeof sent / sizeof sent[0]; i++) {
        int fd = connect_patiently(_i);
        ck_assert(http_rig_send(fd, wire, sent[i]));
        ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
        if (sent[i] == bytes) {
            struct http_reply reply = http_rig_read(fd);
            ck_assert(http_rig_is_right(&reply, 3, 7));
            http_reply_free(&reply);
        }
        ck_assert(http_rig_closed(fd));
        close(fd);
        ck_assert(http_rig_alive(&rig));
    }
    ck_assert(await_idle());
    free(wire);
}
END_TEST

/* Half closed while the device is busy: taken for gone, or answered rightly, and never left hanging. */
START_TEST(test_half_closed_while_waiting)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 7, "", &bytes, NULL);
    int busy = connect_patiently(_i), half = connect_patiently(_i);
    fake.held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    ck_assert(http_rig_send(half, wire, bytes));
    ck_assert_int_eq(shutdown(half, SHUT_WR), 0);
    usleep(50000);
    fake.held = 0;
    struct http_reply reply = http_rig_read(half);
    ck_assert(reply.status == 0 || http_rig_is_right(&reply, 3, 7));
    ck_assert(http_rig_closed(half));
    http_reply_free(&reply);
    reply = http_rig_read(busy);
    ck_assert(http_rig_is_right(&reply, 3, 7));
    http_reply_free(&reply);
    close(busy);
    close(half);
    free(wire);
    ck_assert(await_idle());
}
END_TEST

/* What never becomes a request is closed after a while: TLS, HTTP/2 with a request's beginning, nothing at
 * all. */
START_TEST(test_silence)
{
    static const struct {
        const char *bytes;
        size_t count;
    } rows[] = {
        {BYTES("")},
        {BYTES("\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03\x41\x42\x43\x44\x45\x46\x47\x48\x49")},
        {BYTES("\0\0\0\0")},
        {BYTES("GET /health")},
        {BYTES("GET /health HTTP/1.1")},
        {BYTES("GET /health HTTP/1.1\r\nHost: x")},
        {BYTES("GET /health HTTP/1.1\r\nHost: x\r\n")},
        {BYTES("GET /health HTTP/1.1\r\nHost: x\r\n\r")},
        {BYTES("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")},
        {BYTES("POST /v1/materialize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
               "100\r\n\r\n")},
        {BYTES(
            "POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab")},
        {BYTES("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n")},
        {BYTES("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n")},
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    int fd[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        fd[i] = connect_patiently(_i);
        ck_assert(http_rig_send(fd[i], rows[i].bytes, rows[i].count));
    }
    ck_assert(http_rig_alive(&rig));
    for (size_t i = 0; i < ROWS; i++) {
        ck_assert_msg(http_rig_closed(fd[i]), "row %zu", i);
        close(fd[i]);
    }
    ck_assert(await_idle());
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* A head that never falls silent and never ends. */
START_TEST(test_trickled_head)
{
    static const char text[] = "GET /health HTTP/1.1\r\nHost: x\r\nX: ";
    int fd = connect_patiently(_i);
    size_t sent = 0;
    bool open = http_rig_say(fd, text);
    for (; open && sent < PATIENCE_MS / 50; sent++) {
        open = http_rig_send(fd, "y", 1);
        usleep(50000);
    }
    ck_assert(!open);
    close(fd);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/peers");
    TCase *cases = tcase_create("vanishing");
    tcase_set_timeout(cases, 240);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, test_vanish_while_sending, 0, 4);
    tcase_add_loop_test(cases, test_vanish_while_computing, 0, 4);
    tcase_add_loop_test(cases, test_vanish_while_the_reply_comes, 0, 4);
    tcase_add_loop_test(cases, test_half_closed, 0, 2);
    tcase_add_loop_test(cases, test_half_closed_while_waiting, 0, 2);
    suite_add_tcase(suite, cases);
    TCase *slow = tcase_create("silence");
    tcase_set_timeout(slow, 240);
    tcase_add_checked_fixture(slow, setup_short, teardown);
    tcase_add_loop_test(slow, test_silence, 0, 2);
    tcase_add_loop_test(slow, test_trickled_head, 0, 2);
    suite_add_tcase(suite, slow);
    return suite_run(suite);
}
