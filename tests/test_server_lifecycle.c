/* The daemon's life as a supervisor sees it: what it is told, what a signal does to requests in every phase,
 * and a device that does not come back. The device is the CPU, which can be held up. */
#include "server/log.h"
#include "server/service.h"
#include "tests/daemon_rig.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MODEL "tests/vectors/dflash_default"

enum { HIDDEN = 64 };

/* Shared with the daemon's process. */
static struct {
    _Atomic int32_t held;    /* batches stay with the device */
    _Atomic int32_t deaf;    /* and waiting for one does not end in time, as in a driver that hangs */
    _Atomic int32_t batches; /* begun */
} * device;

static const struct kv_backend_ops *cpu;

/* One batch at a time, so that a second request has to wait. */
static void describe(const struct kv_backend *backend, struct kv_backend_description *out)
{
    cpu->describe(backend, out);
    out->batches_max = 1;
}

static bool submit(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err)
{
    device->batches++;
    return cpu->submit(backend, batch, err);
}

static enum kv_wait wait_held(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                              struct kv_error *err)
{
    int64_t until_us = kv_now_us() + timeout_us;
    while (device->held) {
        if (!device->deaf && timeout_us >= 0 && kv_now_us() >= until_us) return KV_WAIT_PENDING;
        usleep(500);
    }
    return cpu->wait(backend, batch, timeout_us, err);
}

static int run(int argc, char *const *argv)
{
    struct kv_options options;
    struct kv_error err = {0};
    bool left_behind = false;
    static struct kv_backend_ops ops; /* a thread that is left behind still has them */
    ops = *cpu;
    ops.describe = describe;
    ops.submit = submit;
    ops.wait = wait_held;
    const struct kv_backend_ops *const backends[] = {&ops, NULL};
    if (!kv_options_parse(&options, argc, argv, &err)) return KV_EXIT_USAGE;
    return (int)kv_service_run(&options, backends, &left_behind);
}

static struct daemon served;
static struct http_rig rig; /* only the addresses of the daemon are in it */

static void start(const char *const *arguments)
{
    cpu = kv_backend_find("cpu");
    device = mmap(NULL, sizeof *device, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(device, MAP_FAILED);
    daemon_start_with(&served, run, MODEL, arguments);
    snprintf(rig.listener[0].url, sizeof rig.listener[0].url, "%s", served.url);
    snprintf(rig.listener[1].unlink_path, sizeof rig.listener[1].unlink_path, "%.150s",
             served.unix_url + strlen("unix:"));
    ck_assert(daemon_await_ready(&served));
    device->batches = 0;
}

static int connect_patiently(void)
{
    const struct timeval patience = {.tv_sec = 60};
    int fd = http_rig_connect(&rig, false);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* A whole request of zeros; free() it. */
static unsigned char *make_request(int64_t tokens, size_t *bytes, size_t *head_bytes)
{
    const struct kv_geometry geometry = {.hidden = HIDDEN};
    unsigned char head[1024];
    size_t document = 0, rows = (size_t)tokens * (HIDDEN * 2 + 8);
    struct kv_error err = {0};
    ck_assert_msg(kv_request_encode(head, sizeof head, &geometry, KV_HIDDEN_STATES, KV_BF16, KV_I64, tokens,
                                    &document, &err),
                  "%s", err.message);
    unsigned char *wire = calloc(1, 1024 + document + rows);
    ck_assert_ptr_nonnull(wire);
    int at =
        snprintf((char *)wire, 1024,
                 "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", document + rows);
    memcpy(wire + at, head, document);
    *head_bytes = (size_t)at;
    *bytes = (size_t)at + document + rows;
    return wire;
}

static void await_batch(void)
{
    while (device->batches == 0) usleep(1000);
}

/* The value of a series of /metrics, as a number. */
static long metric(const char *name)
{
    char line[128];
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = reply.body ? strstr(reply.body, line) : NULL;
    long value = at ? strtol(at + strlen(line), NULL, 10) : -1;
    http_reply_free(&reply);
    return value;
}

/* Is a new connection refused, at most 10 s from now? */
static bool new_ones_are_refused(bool over_unix)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    snprintf(un.sun_path, sizeof un.sun_path, "%.107s", rig.listener[1].unlink_path);
    in.sin_port = htons((uint16_t)strtoul(strrchr(rig.listener[0].url, ':') + 1, NULL, 10));
    for (int i = 0; i < 1000; i++) {
        int fd = socket(over_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        int failed = over_unix ? connect(fd, (const struct sockaddr *)&un, sizeof un)
                               : connect(fd, (const struct sockaddr *)&in, sizeof in);
        int cause = errno;
        close(fd);
        if (failed && cause == ECONNREFUSED)
            return true; /* a reset is one that the end caught on its way in */
        usleep(10000);
    }
    return false;
}

static void assert_whole_reply(int fd, int64_t tokens)
{
    struct http_reply reply = http_rig_read(fd);
    ck_assert_msg(reply.status == 200, "%d %s", reply.status, reply.body ? reply.body : "");
    ck_assert_uint_gt(reply.bytes, (size_t)tokens * 5000); /* 5 layers, 2 heads of 128, K and V */
    http_reply_free(&reply);
    close(fd);
}

/* One request in each phase when SIGTERM comes: its body on its way in, in the queue, with the device, its
 * reply on its way out. All are answered in full, new ones are refused, and the exit status is 0. */
START_TEST(test_nothing_is_lost)
{
    enum { LARGE = 4096, SMALL = 100 };
    size_t bytes, head, large_bytes;
    start((const char *const[]){"--drain-timeout", "60", "--tune", "off", NULL});
    unsigned char *wire = make_request(SMALL, &bytes, &head),
                  *large = make_request(LARGE, &large_bytes, &head);
    int download = connect_patiently(), upload = connect_patiently(), busy = connect_patiently();
    ck_assert(http_rig_send(download, large, large_bytes)); /* 20 MB of reply, more than sockets hold */
    char first[16];
    ck_assert_int_eq(recv(download, first, sizeof first, MSG_WAITALL | MSG_PEEK), (ssize_t)sizeof first);
    ck_assert(http_rig_send(upload, wire, bytes / 2));
    device->batches = 0;
    device->held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    await_batch();
    int queued = connect_patiently();
    ck_assert(http_rig_send(queued, wire, bytes));
    while (metric("kvmat_requests_waiting") != 1 || metric("kvmat_requests_in_flight") != 4) usleep(1000);

    ck_assert_int_eq(kill(served.pid, SIGTERM), 0);
    ck_assert(new_ones_are_refused(false) && new_ones_are_refused(true));
    device->held = 0;
    ck_assert(http_rig_send(upload, wire + bytes / 2, bytes - bytes / 2));
    assert_whole_reply(busy, SMALL);
    assert_whole_reply(queued, SMALL);
    assert_whole_reply(upload, SMALL);
    assert_whole_reply(download, LARGE);
    ck_assert_int_eq(daemon_reap(&served), 0);
    ck_assert(daemon_logged(&served, "stopped"));
    ck_assert(!daemon_logged(&served, "in flight"));
    unlink(served.log_path);
    free(wire);
    free(large);
}
END_TEST

/* A second SIGTERM ends it at once, whatever is on its way: the upload hears why. */
START_TEST(test_second_signal)
{
    size_t bytes, head;
    start((const char *const[]){"--drain-timeout", "600", "--device-timeout", "0", NULL});
    unsigned char *wire = make_request(100, &bytes, &head);
    int upload = connect_patiently(), busy = connect_patiently();
    device->held = 1;
    device->deaf = _i;
    ck_assert(http_rig_send(upload, wire, bytes / 2));
    ck_assert(http_rig_send(busy, wire, bytes));
    await_batch();
    while (metric("kvmat_requests_in_flight") != 2) usleep(1000);
    kill(served.pid, SIGTERM);
    ck_assert(new_ones_are_refused(false));
    int64_t began_us = kv_now_us();
    ck_assert_int_eq(daemon_stop(&served, SIGTERM), 0);
    ck_assert_int_lt(kv_now_us() - began_us, 30000000);
    struct http_reply reply = http_rig_read(upload);
    ck_assert_int_eq(reply.status, 503);
    ck_assert(http_reply_has_code(&reply, "draining"));
    http_reply_free(&reply);
    ck_assert(http_rig_closed(busy));
    close(upload);
    close(busy);
    free(wire);
}
END_TEST

/* A device that keeps a batch: callers hear device_lost, /ready says no, and the exit status is 4, though a
 * thread is in the device. One that does not even come back from a wait cannot answer those aboard. */
START_TEST(test_stuck_device)
{
    size_t bytes, head;
    start((const char *const[]){"--device-timeout", "1", "--drain-timeout", "600", NULL});
    unsigned char *wire = make_request(100, &bytes, &head);
    int aboard = connect_patiently(), queued = connect_patiently();
    device->deaf = _i;
    device->held = 1;
    ck_assert(http_rig_send(aboard, wire, bytes));
    await_batch();
    ck_assert(http_rig_send(queued, wire, bytes));
    struct http_reply reply = http_rig_read(queued);
    if (_i == 0) {
        ck_assert_int_eq(reply.status, 503);
        ck_assert(http_reply_has_code(&reply, "device_lost"));
        http_reply_free(&reply);
        reply = http_rig_read(aboard);
        ck_assert_int_eq(reply.status, 503);
        ck_assert(http_reply_has_code(&reply, "device_lost"));
    }
    http_reply_free(&reply);
    ck_assert_int_eq(daemon_reap(&served), 4);
    ck_assert(daemon_logged(&served, "longer than --device-timeout 1"));
    ck_assert(daemon_logged(&served, "the process ends without it"));
    unlink(served.log_path);
    close(aboard);
    close(queued);
    free(wire);
}
END_TEST

static int open_manager(char path[64])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = 60};
    snprintf(path, 64, "/tmp/kvmat_manager_%d", (int)getpid());
    unlink(path);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* Reads on until a message holds this; the one that does is in `text`. */
static void await_message(int manager, const char *wanted, char text[1024])
{
    do {
        ssize_t got = recv(manager, text, 1023, 0);
        ck_assert_msg(got > 0, "nothing of %s came", wanted);
        text[got] = '\0';
    } while (!strstr(text, wanted));
}

/* The real daemon under a service manager. */
START_TEST(test_service_manager)
{
    char path[64], text[1024];
    int manager = open_manager(path);
    setenv("NOTIFY_SOCKET", path, 1);
    setenv("WATCHDOG_USEC", "400000", 1);
    daemon_start(&served, MODEL, (const char *const[]){"--drain-grace", "1", NULL});
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    await_message(manager, "STATUS=", text);
    ck_assert_msg(strstr(text, "EXTEND_TIMEOUT_USEC=") && !strstr(text, "READY=1"), "%s", text);
    await_message(manager, "READY=1", text);
    ck_assert_msg(strstr(text, "STATUS=serving dflash_default"), "%s", text);
    ck_assert(daemon_await_ready(&served));
    for (int i = 0; i < 3; i++) await_message(manager, "WATCHDOG=1", text);
    kill(served.pid, SIGTERM);
    await_message(manager, "STOPPING=1", text);
    ck_assert_msg(strstr(text, "EXTEND_TIMEOUT_USEC=41000000"), "%s", text);
    await_message(manager, "WATCHDOG=1", text); /* also while it drains */
    ck_assert_int_eq(daemon_reap(&served), 0);
    ck_assert(!daemon_logged(&served, "no sign of life"));
    unlink(served.log_path);
    close(manager);
    unlink(path);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    Suite *suite = suite_create("server/lifecycle");
    TCase *cases = tcase_create("lifecycle");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_nothing_is_lost);
    tcase_add_loop_test(cases, test_second_signal, 0, 2);
    tcase_add_loop_test(cases, test_stuck_device, 0, 2);
    tcase_add_test(cases, test_service_manager);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
