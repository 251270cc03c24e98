/* Who may call: keys that routes ask for before they say anything of themselves, refusals that reserve no
 * memory and keep framing, files that are read again, and files that are refused. */
#include "server/access.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_A "a-key-of-the-first-caller"
#define KEY_B "another-key-0123456789abcdef"
#define BEARER(key) "Authorization: Bearer " key "\r\n"

static struct http_rig rig;
static struct kv_access *access_open;
static char path[64];

static void write_file(const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert(fputs(text, file) >= 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void setup(void)
{
    const struct kv_access_options options = {.key_file = path};
    struct kv_error err = {0};
    snprintf(path, sizeof path, "/tmp/kvmat_access_%d", (int)getpid());
    write_file("# two callers\n" KEY_A "\n" KEY_B "\n", 0600);
    memset(&fake, 0, sizeof fake);
    ck_assert_msg(kv_access_open(&access_open, &options, &err), "%s", err.message);
    http_rig_open_guarded(&rig, (struct kv_engine_options){.spin_us = 20}, access_open);
}

static void teardown(void)
{
    http_rig_close(&rig);
    kv_access_close(access_open);
    unlink(path);
}

/* The status of one request without a body; its answer has this code where one is given. */
static int ask(const char *method, const char *route, const char *headers, const char *code)
{
    char text[1024];
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n%s\r\n", method, route,
             headers);
    struct http_reply reply = http_rig_ask(&rig, text);
    if (code) ck_assert_msg(http_reply_has_code(&reply, code), "%s %s: %s", method, route, reply.body);
    bool challenged = strstr(reply.head, "WWW-Authenticate: Bearer\r\n") != NULL;
    ck_assert_int_eq(challenged, reply.status == 401);
    int status = reply.status;
    http_reply_free(&reply);
    return status;
}

START_TEST(test_routes)
{
    static const char *const closed[][2] = {
        {"GET", "/v1/model"},       {"GET", "/v1/errors"},        {"GET", "/v1/errors/queue_full"},
        {"GET", "/metrics"},        {"POST", "/v1/materialize"},  {"GET", "/v1/materialize"},
        {"POST", "/v1/model"},      {"DELETE", "/metrics"},       {"GET", "/"},
        {"GET", "/nothing"},        {"OPTIONS", "/v1/errors/x"},  {"GET", "/health/"},
        {"GET", "/v1/errors/none"}, {"BREW", "/v1/materialize"},  {"GET", "//health"},
        {"GET", "/healthy"},        {"GET", "/v1/../health"},     {"GET", "/ready%00/../metrics"},
        {"GET", "/v1/model?ready"}, {"PUT", "/v1/materialize?x"},
    };
    char first[2048] = "";
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
        char text[256];
        ck_assert_int_eq(ask(closed[i][0], closed[i][1], "", "unauthorized"), 401);
        ck_assert_int_eq(ask(closed[i][0], closed[i][1], BEARER("not-a-key-of-anybody"), "unauthorized"),
                         401);
        ck_assert_int_ne(ask(closed[i][0], closed[i][1], BEARER(KEY_A), NULL), 401);
        /* What is said is the same whether there is something or not. */
        snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: same\r\n\r\n", closed[i][0],
                 closed[i][1]);
        struct http_reply reply = http_rig_ask(&rig, text);
        if (i == 0) snprintf(first, sizeof first, "%s", reply.body);
        ck_assert_str_eq(reply.body, first);
        http_reply_free(&reply);
    }
    ck_assert_int_eq(ask("GET", "/health", "", NULL), 200);
    ck_assert_int_eq(ask("GET", "/ready", "", NULL), 200);
    ck_assert_int_eq(ask("GET", "/ready", BEARER("not-a-key-of-anybody"), NULL), 200);
    ck_assert_int_eq(ask("POST", "/health", "", "method_not_allowed"), 405);
    ck_assert_int_eq(ask("GET", "/nothing", BEARER(KEY_B), "not_found"), 404);
    ck_assert_int_eq(ask("GET", "/v1/materialize", BEARER(KEY_B), "method_not_allowed"), 405);
    ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_B), NULL), 200);
}
END_TEST

START_TEST(test_headers)
{
    static const char *const wrong[] = {
        "Authorization: Bearer\r\n",
        "Authorization:\r\n",
        "Authorization: Basic " KEY_A "\r\n",
        "Authorization: " KEY_A "\r\n",
        "Authorization: Bearer " KEY_A "x\r\n",
        "Authorization: Bearer " KEY_A " " KEY_A "\r\n",
        "Authorization: Bearer x\r\n",
        BEARER(KEY_A) BEARER(KEY_A),
        BEARER(KEY_A) BEARER(KEY_B),
        BEARER(KEY_A) "AUTHORIZATION: Basic x\r\n",
        "Proxy-Authorization: Bearer " KEY_A "\r\n",
        "X-Api-Key: " KEY_A "\r\n",
        "Cookie: Authorization=Bearer " KEY_A "\r\n",
    };
    static const char *const good[] = {
        BEARER(KEY_A),
        BEARER(KEY_B),
        "authorization:   bearer   " KEY_B "  \r\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(ask("GET", "/v1/model", wrong[i], "unauthorized") == 401, "%s", wrong[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(ask("GET", "/v1/model", good[i], NULL) == 200, "%s", good[i]);
    /* Folded, or with a blank before the colon, it is no header at all. */
    ck_assert_int_eq(ask("GET", "/v1/model", "Authorization:\r\n Bearer " KEY_A "\r\n", NULL), 400);
    ck_assert_int_eq(ask("GET", "/v1/model", "Authorization : Bearer " KEY_A "\r\n", NULL), 400);
}
END_TEST

/* The refusal is known at the head, and no memory is reserved for the body that is dropped. */
START_TEST(test_bodies)
{
    struct kv_engine_stats stats;
    size_t bytes, head;
    unsigned char *refused = http_rig_request(64, 5, "", &bytes, &head);
    int fd = http_rig_connect(&rig, _i);
    for (int i = 0; i < 3; i++) { /* on one connection: the framing is kept */
        ck_assert(http_rig_send(fd, refused, bytes));
        struct http_reply reply = http_rig_read(fd);
        ck_assert_int_eq(reply.status, 401);
        ck_assert(!strstr(reply.head, "Connection: close"));
        http_reply_free(&reply);
    }
    kv_engine_stats(rig.engine, &stats);
    ck_assert_uint_eq(stats.pool_used_bytes_max, 0);
    free(refused);

    unsigned char *served = http_rig_request(64, 5, BEARER(KEY_B), &bytes, &head);
    ck_assert(http_rig_send(fd, served, bytes));
    struct http_reply reply = http_rig_read(fd);
    ck_assert(http_rig_is_right(&reply, 64, 5));
    http_reply_free(&reply);
    kv_engine_stats(rig.engine, &stats);
    ck_assert_uint_gt(stats.pool_used_bytes_max, 0);
    close(fd);
    free(served);

    /* With Expect the body is not asked for. */
    unsigned char *careful = http_rig_request(64, 5, "Expect: 100-continue\r\n", &bytes, &head);
    fd = http_rig_connect(&rig, _i);
    ck_assert(http_rig_send(fd, careful, head));
    reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 401);
    ck_assert(strstr(reply.head, "Connection: close"));
    ck_assert(http_rig_closed(fd));
    http_reply_free(&reply);
    close(fd);
    free(careful);
}
END_TEST

/* A body that does not come: the refusal is heard all the same, with its challenge. */
START_TEST(test_body_that_does_not_come)
{
    size_t bytes, head;
    unsigned char *wire = http_rig_request(64, 5, "", &bytes, &head);
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_send(fd, wire, head + 1));
    struct http_reply reply = http_rig_read(fd);
    ck_assert_int_eq(reply.status, 401);
    ck_assert(strstr(reply.head, "WWW-Authenticate: Bearer\r\n"));
    ck_assert(http_rig_closed(fd));
    http_reply_free(&reply);
    close(fd);
    free(wire);
}
END_TEST

static _Atomic int asking;

static void *ask_on(void *of)
{
    int *refused = of;
    while (asking) *refused += ask("GET", "/v1/model", BEARER(KEY_A), NULL) != 200;
    return NULL;
}

START_TEST(test_reload)
{
    pthread_t thread;
    int refused = 0;
    asking = 1;
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_on, &refused), 0);
    for (int i = 0; i < 50; i++) { /* KEY_A stays, KEY_B comes and goes */
        write_file(i % 2 ? KEY_A "\n" KEY_B "\n" : KEY_A "\n", 0640);
        kv_access_reload(access_open);
        ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_B), NULL), i % 2 ? 200 : 401);
    }
    asking = 0;
    pthread_join(thread, NULL);
    ck_assert_int_eq(refused, 0);

    static const char *const bad[] = {"", "short\n", KEY_B "\nwith a blank in it\n"};
    write_file(KEY_A "\n", 0600);
    kv_access_reload(access_open);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file(bad[i], 0600);
        kv_access_reload(access_open);
        ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_A), NULL), 200);
        ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_B), NULL), 401);
    }
    write_file(KEY_B "\n", 0604);
    kv_access_reload(access_open);
    ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_B), NULL), 401);
    unlink(path);
    kv_access_reload(access_open);
    ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_A), NULL), 200);
    write_file(KEY_B "\n", 0600);
    kv_access_reload(access_open);
    ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_A), NULL), 401);
    ck_assert_int_eq(ask("GET", "/v1/model", BEARER(KEY_B), NULL), 200);
}
END_TEST

static void assert_refused(struct kv_access_options options, const char *option, const char *said)
{
    struct kv_access *access;
    struct kv_error err = {0};
    ck_assert_msg(!kv_access_open(&access, &options, &err), "%s is taken", said);
    ck_assert_ptr_null(access);
    ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
    ck_assert_str_eq(err.param, option);
    ck_assert_msg(strstr(err.message, said), "%s", err.message);
    ck_assert_msg(strstr(err.message, options.key_file ? options.key_file : path), "%s", err.message);
}

START_TEST(test_files)
{
    static const char cert[] = "-----BEGIN CERTIFICATE-----\n", key[] = "-----BEGIN PRIVATE KEY-----\n";
    const struct kv_access_options keys = {.key_file = path};
    struct kv_access *access;
    write_file(KEY_A "\n", 0644);
    assert_refused(keys, "--api-key-file", "no rights for others, got 0644");
    write_file(KEY_A "\n", 0601);
    assert_refused(keys, "--api-key-file", "no rights for others, got 0601");
    write_file("", 0600);
    assert_refused(keys, "--api-key-file", "holds no key");
    assert_refused((struct kv_access_options){.key_file = "/tmp"}, "--api-key-file", "not a regular file");
    assert_refused((struct kv_access_options){.key_file = "/nonexistent/keys"}, "--api-key-file",
                   "cannot be opened");
    ck_assert_int_eq(truncate(path, (1 << 20) + 1), 0);
    assert_refused(keys, "--api-key-file", "too many bytes");
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* nobody writes: it must not be waited for */
    assert_refused(keys, "--api-key-file", "not a regular file");
    unlink(path);

    write_file(key, 0600);
    assert_refused((struct kv_access_options){.tls_cert = path, .tls_key = path}, "--tls-cert", "PEM");
    write_file(cert, 0644);
    assert_refused((struct kv_access_options){.tls_cert = path, .tls_key = path}, "--tls-key",
                   "no rights for others, got 0644");
    write_file(cert, 0600);
    assert_refused((struct kv_access_options){.tls_cert = path, .tls_key = path}, "--tls-key", "PEM");

    /* Without files anybody may call. */
    ck_assert(kv_access_open(&access, &(struct kv_access_options){0}, NULL));
    ck_assert(kv_access_check(access, 0, NULL, NULL));
    ck_assert_ptr_null(kv_access_tls_cert(access));
    kv_access_close(access);
    kv_access_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/access");
    TCase *cases = tcase_create("access");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_routes);
    tcase_add_test(cases, test_headers);
    tcase_add_loop_test(cases, test_bodies, 0, 2);
    tcase_add_test(cases, test_body_that_does_not_come);
    tcase_add_test(cases, test_reload);
    tcase_add_test(cases, test_files);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
