/* What a service manager is told, seen from its socket; and when the watchdog hears nothing. */
#include "server/notify.h"
#include "server/pulse.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int manager = -1;
static char path[108];

/* A manager's socket under a path, or an abstract name; NOTIFY_SOCKET names it. */
static void open_manager(bool abstract)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "%s/tmp/kvmat_notify_%d", abstract ? "@" : "", (int)getpid());
    memcpy(address.sun_path, path, sizeof path);
    if (abstract)
        address.sun_path[0] = '\0';
    else
        unlink(path);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(manager, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))),
                     0);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", path, 1), 0);
}

static void close_manager(void)
{
    close(manager);
    if (path[0] == '/') unlink(path);
}

/* The next datagram, or "" when none comes within this time. */
static const char *heard(int ms)
{
    static char text[1024];
    struct pollfd wait = {.fd = manager, .events = POLLIN};
    text[0] = '\0';
    if (poll(&wait, 1, ms) != 1) return text;
    ssize_t got = recv(manager, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return text;
}

START_TEST(test_sends)
{
    struct kv_notify notify;
    open_manager(_i);
    kv_notify_open(&notify);
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET")); /* no child is to speak for us */
    ck_assert(kv_notify_send(&notify, "READY=1\nSTATUS=serving %s", "it"));
    ck_assert_str_eq(heard(1000), "READY=1\nSTATUS=serving it");
    close(manager);
    ck_assert(!kv_notify_send(&notify, "READY=1")); /* to be said again */
    kv_notify_close(&notify);
    if (path[0] == '/') unlink(path);
}
END_TEST

START_TEST(test_nobody_listens)
{
    static const char *const wrong[] = {
        NULL,
        "",
        "/",
        "@",
        "relative",
        "vsock:2:1",
        "/a/path/that/is/longer/than/the/address/of/a/unix/socket/can/be/which/"
        "is/one/hundred/and/eight/bytes/with/the/one/that/ends/it"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct kv_notify notify;
        if (wrong[i]) ck_assert_int_eq(setenv("NOTIFY_SOCKET", wrong[i], 1), 0);
        ck_assert_int_eq(setenv("WATCHDOG_USEC", "1000000", 1), 0);
        kv_notify_open(&notify);
        ck_assert_int_eq(notify.fd, -1);
        ck_assert_int_eq(notify.watchdog_us, 0);
        ck_assert(kv_notify_send(&notify, "READY=1"));
        kv_notify_close(&notify);
    }
}
END_TEST

START_TEST(test_watchdog_environment)
{
    char ours[32];
    snprintf(ours, sizeof ours, "%d", (int)getpid());
    const struct {
        const char *usec, *pid;
        int64_t us;
    } rows[] = {{"3000000", NULL, 3000000},
                {"3000000", ours, 3000000},
                {"3000000", "1", 0},
                {NULL, ours, 0},
                {"soon", NULL, 0},
                {"-1", NULL, 0},
                {"5s", NULL, 0},
                {"0", NULL, 0},
                {"3000000", "x", 0},
                {"99999999999999999999", NULL, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kv_notify notify;
        open_manager(true);
        if (rows[i].usec) ck_assert_int_eq(setenv("WATCHDOG_USEC", rows[i].usec, 1), 0);
        if (rows[i].pid) ck_assert_int_eq(setenv("WATCHDOG_PID", rows[i].pid, 1), 0);
        kv_notify_open(&notify);
        ck_assert_msg(notify.watchdog_us == rows[i].us, "row %zu: %lld", i, (long long)notify.watchdog_us);
        kv_notify_close(&notify);
        close_manager();
    }
}
END_TEST

/* A pulse over a whole HTTP server, with a watchdog of 200 ms. */
static struct http_rig rig;
static struct kv_notify notify;
static struct kv_pulse pulse;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
    open_manager(true);
    setenv("WATCHDOG_USEC", "200000", 1);
    kv_notify_open(&notify);
}

static void teardown(void)
{
    kv_pulse_close(&pulse);
    kv_notify_close(&notify);
    close_manager();
    http_rig_close(&rig);
}

/* Beats for this long; how often was WATCHDOG=1 said? */
static int beat(int ms)
{
    int said = 0;
    for (int64_t until_us = kv_now_us() + ms * 1000; kv_now_us() < until_us;) {
        kv_pulse_beat(&pulse);
        said += strcmp(heard(10), "WATCHDOG=1") == 0;
    }
    return said;
}

/* Over TCP, then over the unix socket. A knock is no request, and leaves no connection behind. */
START_TEST(test_alive)
{
    kv_pulse_open(&pulse, &notify, rig.engine, rig.listener[_i].fd);
    ck_assert_int_ge(beat(2000), 3);
    ck_assert(pulse.well);
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert(strstr(reply.body, "kvmat_requests_total{route=\"none\",code=\"ok\"} 0\n"));
    ck_assert(strstr(reply.body, "kvmat_requests_total{route=\"health\",code=\"ok\"} 0\n"));
    ck_assert(!strstr(reply.body, "client_gone"));
    http_reply_free(&reply);
}
END_TEST

START_TEST(test_no_listener_any_more)
{
    kv_pulse_open(&pulse, &notify, rig.engine, rig.listener[0].fd);
    ck_assert_int_ge(beat(1000), 1);
    kv_http_quiesce(rig.http);
    kv_pulse_forget_listener(&pulse);
    ck_assert_int_ge(beat(2000), 3); /* it drains, which is being alive */
}
END_TEST

/* A listener whose connections nobody takes. */
START_TEST(test_http_is_stuck)
{
    struct kv_listener deaf;
    struct kv_error err = {0};
    ck_assert(kv_listener_open(&deaf, "127.0.0.1:0", NULL, &err));
    kv_pulse_open(&pulse, &notify, rig.engine, deaf.fd);
    beat(600);
    ck_assert_int_eq(beat(800), 0);
    ck_assert(!pulse.well);
    kv_listener_close(&deaf);
}
END_TEST

/* A batch that does not come back, then a submit that does not: the first holds nothing, the second the
 * engine's lock. Signs of life come back with the device. */
START_TEST(test_device_is_stuck)
{
    struct engine_rig_request request = {.engine = rig.engine, .tokens = 3, .seed = 1};
    _Atomic int32_t *stuck = _i ? &fake.hang : &fake.held;
    kv_pulse_open(&pulse, &notify, rig.engine, rig.listener[0].fd);
    *stuck = 1;
    engine_rig_start(&request);
    while (kv_engine_busy_us(rig.engine) == 0) usleep(1000);
    beat(600);
    ck_assert_int_eq(beat(800), 0);
    *stuck = 0;
    engine_rig_join(&request);
    ck_assert(request.ok && request.right);
    ck_assert_int_ge(beat(2000), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/notify");
    TCase *cases = tcase_create("notify");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, test_sends, 0, 2);
    tcase_add_test(cases, test_nobody_listens);
    tcase_add_test(cases, test_watchdog_environment);
    suite_add_tcase(suite, cases);
    TCase *alive = tcase_create("pulse");
    tcase_set_timeout(alive, 60);
    tcase_add_checked_fixture(alive, setup, teardown);
    tcase_add_loop_test(alive, test_alive, 0, 2);
    tcase_add_test(alive, test_no_listener_any_more);
    tcase_add_test(alive, test_http_is_stuck);
    tcase_add_loop_test(alive, test_device_is_stuck, 0, 2);
    suite_add_tcase(suite, alive);
    return suite_run(suite);
}
