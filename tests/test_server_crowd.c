/* A real daemon with many connections: what an idle one costs, and the options that bound them. */
#include "tests/daemon_rig.h"
#include "tests/suite.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MODEL "tests/vectors/one_token"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IDLE = 50, KIB_EACH_MAX = 4096 }; /* sanitizers keep shadows of every stack */
#else
enum { IDLE = 1000, KIB_EACH_MAX = 200 };
#endif

static int connect_to(const struct daemon *daemon)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct timeval patience = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    in.sin_port = htons((uint16_t)strtoul(strrchr(daemon->url, ':') + 1, NULL, 10));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

/* Is /health answered with 200 on this connection? Reads until the answer's last line. */
static bool is_healthy(int fd)
{
    static const char text[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    char answer[2048] = "";
    size_t have = 0;
    if (send(fd, text, sizeof text - 1, MSG_NOSIGNAL) != (ssize_t)sizeof text - 1) return false;
    while (have < sizeof answer - 1 && !strstr(answer, "{\"live\":true}\n")) {
        ssize_t got = recv(fd, answer + have, sizeof answer - 1 - have, 0);
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return strncmp(answer, "HTTP/1.1 200", 12) == 0;
}

/* For both ends of IDLE connections. False where that is not allowed. */
static bool raise_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
    files.rlim_cur = files.rlim_max;
    return files.rlim_max >= IDLE + 400 && setrlimit(RLIMIT_NOFILE, &files) == 0;
}

START_TEST(test_idle_connections_are_cheap)
{
    struct daemon daemon;
    int *fd = calloc(IDLE, sizeof *fd);
    ck_assert(fd);
    daemon_start(&daemon, MODEL, NULL);
    ck_assert(daemon_await_ready(&daemon));
    long before = daemon_status(&daemon, "VmRSS");
    for (int i = 0; i < IDLE; i++) {
        fd[i] = connect_to(&daemon);
        ck_assert(is_healthy(fd[i])); /* idle after a request costs more than before the first */
    }
    long each = (daemon_status(&daemon, "VmRSS") - before) / IDLE;
    for (int i = 0; i < IDLE; i += IDLE / 50) ck_assert(is_healthy(fd[i])); /* all were kept */
    fprintf(stderr, "an idle connection costs %ld KiB\n", each);
    ck_assert_msg(before > 0 && each < KIB_EACH_MAX, "an idle connection costs %ld KiB", each);
    for (int i = 0; i < IDLE; i++) close(fd[i]);
    free(fd);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

START_TEST(test_options)
{
    struct daemon daemon;
    int fd[20];
    char answer[1];
    daemon_start(&daemon, MODEL,
                 (const char *const[]){"--max-connections", "8", "--idle-timeout", "2", NULL});
    ck_assert(daemon_await_ready(&daemon));
    ck_assert(daemon_logged(&daemon, "at most 8 connections at once, silent ones are closed after 2 s"));
    for (int i = 0; i < 20; i++) {
        fd[i] = connect_to(&daemon);
        ck_assert(is_healthy(fd[i]));
    }
    ck_assert_int_le(recv(fd[0], answer, 1, 0), 0); /* made room */
    ck_assert(is_healthy(fd[19]));
    ck_assert_int_le(recv(fd[19], answer, 1, 0), 0); /* fell silent */
    for (int i = 0; i < 20; i++) close(fd[i]);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

static int status_of(struct kv_client *client, const char *method, const char *path)
{
    struct kv_response response;
    struct kv_error err = {0};
    struct iovec body = {(char[]){"abc"}, strcmp(method, "POST") == 0 ? 3 : 0};
    bool answered = kv_client_call(client, method, path, NULL, 0, &body, body.iov_len > 0, &response, &err);
    ck_assert_msg(answered, "%s %s: %s", method, path, err.message);
    return response.status;
}

/* Probes and metrics alone, however many connections the other address has. */
START_TEST(test_admin_listen)
{
    enum { STUCK = 40 };
    static const char head[] = "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\nabc";
    struct daemon daemon;
    struct kv_client *client = NULL;
    int fd[STUCK];
    char address[64];
    snprintf(address, sizeof address, "unix:/tmp/kvmat_admin_%d.sock", (int)getpid());
    daemon_start(&daemon, MODEL,
                 (const char *const[]){"--max-connections", "8", "--admin-listen", address, NULL});
    ck_assert(daemon_await_ready(&daemon));
    for (int i = 0; i < STUCK; i++) {
        fd[i] = connect_to(&daemon);
        ck_assert_int_eq(send(fd[i], head, sizeof head - 1, MSG_NOSIGNAL), (ssize_t)sizeof head - 1);
    }
    ck_assert(kv_client_open(&client, address, NULL, NULL));
    ck_assert_int_eq(status_of(client, "GET", "/health"), 200);
    ck_assert_int_eq(status_of(client, "GET", "/ready"), 200);
    ck_assert_int_eq(status_of(client, "GET", "/metrics"), 200);
    ck_assert_int_eq(status_of(client, "GET", "/v1/model"), 404);
    ck_assert_int_eq(status_of(client, "GET", "/v1/errors"), 404);
    ck_assert_int_eq(status_of(client, "POST", "/v1/materialize"), 404);
    kv_client_close(client);
    for (int i = 0; i < STUCK; i++) close(fd[i]);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
    ck_assert_int_ne(access(address + strlen("unix:"), F_OK), 0);
}
END_TEST

/* Fewer descriptors than connections asked for: it says so, and keeps to what it has. */
START_TEST(test_few_descriptors)
{
    struct rlimit files;
    struct daemon daemon;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    const struct rlimit few = {700, 700};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0); /* of this test's process, and what it starts */
    daemon_start(&daemon, MODEL, NULL);
    ck_assert(daemon_await_ready(&daemon));
    ck_assert(daemon_logged(&daemon, "only 380 connections at once instead of 1024"));
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    if (!raise_descriptors()) {
        printf("skip: %d connections need more descriptors (ulimit -n)\n", IDLE);
        return 77;
    }
    Suite *suite = suite_create("server/crowd");
    TCase *cases = tcase_create("crowd");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_idle_connections_are_cheap);
    tcase_add_test(cases, test_options);
    tcase_add_test(cases, test_admin_listen);
    tcase_add_test(cases, test_few_descriptors);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
