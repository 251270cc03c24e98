/* The client library against a service that closes early, lies, falls silent or speaks garbage. */
#include "client/client.h"

#include "tests/fake_service.h"
#include "tests/suite.h"

#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#define OK_REPLY "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

static struct kv_client *client_of(const char *url, const struct kv_client_options *options)
{
    struct kv_client *client = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_client_open(&client, url, options, &err), "%s", err.message);
    return client;
}

static bool get(struct kv_client *client, struct kv_response *response, struct kv_error *err)
{
    *err = (struct kv_error){0};
    return kv_client_call(client, "GET", "/health", NULL, 0, NULL, 0, response, err);
}

/* Runs one GET against a script and returns its fault; the connection is not retried, as it is the first. */
static enum kv_fault fault_of(void (*script)(struct fake *), const struct kv_client_options *options)
{
    struct fake *fake = fake_start(script);
    struct kv_client *client = client_of(fake->url, options);
    struct kv_response response;
    struct kv_error err;
    bool whole = get(client, &response, &err);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
    ck_assert_int_eq(whole, err.fault == KV_OK);
    if (!whole) ck_assert(err.message[0] != '\0');
    return err.fault;
}

static void serve_three(struct fake *fake)
{
    fake_accept(fake);
    for (int i = 0; i < 3; i++) {
        if (fake_read(fake)) fake_send(fake, OK_REPLY);
    }
}

START_TEST(a_connection_is_kept)
{
    struct fake *fake = fake_start(serve_three);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(get(client, &response, &err), "%s", err.message);
        ck_assert_uint_eq(response.bytes, 2);
        ck_assert_mem_eq(response.body, "ok", 2);
        ck_assert_uint_eq((uintptr_t)response.body % 64, 0);
    }
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
}
END_TEST

START_TEST(a_unix_socket_works)
{
    struct fake *fake = fake_start_unix(serve_three);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    for (int i = 0; i < 3; i++) ck_assert_msg(get(client, &response, &err), "%s", err.message);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
}
END_TEST

/* Closes the kept connection while idle, then serves another. */
static void serve_closing_idle(struct fake *fake)
{
    for (int i = 0; i < 2; i++) {
        fake_accept(fake);
        if (fake_read(fake)) fake_send(fake, OK_REPLY);
        fake_hang_up(fake);
    }
}

/* Takes a second request on the kept connection and closes without a byte. */
static void serve_closing_on_request(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_send(fake, OK_REPLY);
    (void)fake_read(fake);
    fake_accept(fake);
    if (fake_read(fake)) fake_send(fake, OK_REPLY);
}

static void (*const stale_scripts[])(struct fake *) = {serve_closing_idle, serve_closing_on_request};

START_TEST(a_stale_connection_is_replaced)
{
    struct fake *fake = fake_start(stale_scripts[_i]);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    ck_assert(get(client, &response, &err));
    usleep(50000);
    ck_assert_msg(get(client, &response, &err), "%s", err.message);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 2);
}
END_TEST

static void serve_never_again(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_send(fake, OK_REPLY);
    (void)fake_read(fake);
    fake_accept(fake);
    (void)fake_read(fake);
}

START_TEST(one_retry_is_all)
{
    struct fake *fake = fake_start(serve_never_again);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    ck_assert(get(client, &response, &err));
    ck_assert(!get(client, &response, &err));
    ck_assert_int_eq(err.fault, KV_SERVICE_UNREACHABLE);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 2);
}
END_TEST

/* A reply that breaks off is not asked for again: it had begun. */
static void serve_half_on_kept(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_send(fake, OK_REPLY);
    if (fake_read(fake)) fake_send(fake, "HTTP/1.1 200 OK\r\nContent-Le");
}

START_TEST(a_begun_reply_is_not_retried)
{
    struct fake *fake = fake_start(serve_half_on_kept);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    ck_assert(get(client, &response, &err));
    ck_assert(!get(client, &response, &err));
    ck_assert_int_eq(err.fault, KV_SERVICE_UNREACHABLE);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
}
END_TEST

static void serve_nothing(struct fake *fake)
{
    fake_accept(fake);
    (void)fake_read(fake);
}

#define SERVE(name, text)                                                                                    \
    static void name(struct fake *fake)                                                                      \
    {                                                                                                        \
        fake_accept(fake);                                                                                   \
        if (fake_read(fake)) fake_send(fake, text);                                                          \
    }
SERVE(serve_half_head, "HTTP/1.1 200 OK\r\nContent-")
SERVE(serve_half_body, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
SERVE(serve_garbage, "\x16\x03\x01\x02\n\n\x01\xfc\x03\x03 not http at all\r\n\r\n")
SERVE(serve_huge, "HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\n")
SERVE(serve_over, "HTTP/1.1 200 OK\r\nContent-Length: 2147483649\r\n\r\n")
SERVE(serve_no_length, "HTTP/1.1 200 OK\r\n\r\nok")
SERVE(serve_switch, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
SERVE(serve_continue, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK_REPLY)
SERVE(serve_empty, "HTTP/1.1 204 No Content\r\n\r\n")
SERVE(serve_old, "HTTP/1.0 200 OK\nContent-Length: 2\n\nok")

static void serve_endless_head(struct fake *fake)
{
    char line[1000];
    memset(line, 'a', sizeof line);
    fake_accept(fake);
    if (!fake_read(fake)) return;
    fake_send(fake, "HTTP/1.1 200 OK\r\nX: ");
    for (int i = 0; i < 100; i++) fake_send_bytes(fake, line, sizeof line);
}

static const struct {
    void (*script)(struct fake *);
    enum kv_fault fault;
} replies[] = {
    {serve_nothing, KV_SERVICE_UNREACHABLE},
    {serve_half_head, KV_SERVICE_UNREACHABLE},
    {serve_half_body, KV_SERVICE_UNREACHABLE},
    {serve_garbage, KV_REPLY_MALFORMED},
    {serve_huge, KV_REPLY_MALFORMED},
    {serve_over, KV_REPLY_MALFORMED},
    {serve_no_length, KV_REPLY_MALFORMED},
    {serve_switch, KV_REPLY_MALFORMED},
    {serve_endless_head, KV_REPLY_MALFORMED},
    {serve_continue, KV_OK},
    {serve_empty, KV_OK},
    {serve_old, KV_OK},
};

START_TEST(replies_are_judged)
{
    ck_assert_int_eq(fault_of(replies[_i].script, NULL), replies[_i].fault);
}
END_TEST

START_TEST(a_bound_of_ones_own_holds)
{
    const struct kv_client_options one = {.reply_bytes_max = 1}, two = {.reply_bytes_max = 2};
    ck_assert_int_eq(fault_of(serve_empty, &one), KV_OK);
    ck_assert_int_eq(fault_of(serve_old, &one), KV_REPLY_MALFORMED);
    ck_assert_int_eq(fault_of(serve_old, &two), KV_OK);
}
END_TEST

static void serve_silence(struct fake *fake)
{
    char byte;
    fake_accept(fake);
    if (fake_read(fake)) (void)recv(fake->fd, &byte, 1, 0);
}

static void serve_trickle(struct fake *fake)
{
    fake_accept(fake);
    if (!fake_read(fake)) return;
    for (int i = 0; i < 60; i++) {
        if (send(fake->fd, "H", 1, MSG_NOSIGNAL) != 1) return;
        usleep(50000);
    }
}

START_TEST(time_limits_end_a_call)
{
    const struct kv_client_options silence = {.silence_ms = 100},
                                   whole = {.silence_ms = 5000, .call_ms = 300};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ck_assert_int_eq(fault_of(serve_silence, &silence), KV_SERVICE_UNREACHABLE);
    ck_assert_int_eq(fault_of(serve_trickle, &whole), KV_SERVICE_UNREACHABLE);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ck_assert_int_lt(end.tv_sec - begin.tv_sec, 3);
}
END_TEST

START_TEST(nobody_listening_is_unreachable)
{
    struct fake *fake = fake_start(serve_empty);
    struct kv_client *client = client_of(fake->url, NULL);
    struct kv_response response;
    struct kv_error err;
    ck_assert(get(client, &response, &err));
    kv_client_close(client);
    char url[sizeof fake->url];
    memcpy(url, fake->url, sizeof url);
    fake_stop(fake);
    const char *const urls[] = {url, "unix:/tmp/kvmat-no-such.sock"};
    for (int i = 0; i < 2; i++) {
        client = client_of(urls[i], NULL);
        ck_assert(!get(client, &response, &err));
        ck_assert_int_eq(err.fault, KV_SERVICE_UNREACHABLE);
        ck_assert(strstr(err.message, urls[i]) != NULL);
        kv_client_close(client);
    }
}
END_TEST

static const char *const bad_values[] = {"a\r\nX-Evil: 1", "a\nb", "\x7f"};

START_TEST(headers_cannot_smuggle)
{
    struct kv_client *client = client_of("http://127.0.0.1:1", NULL);
    struct kv_response response;
    struct kv_error err = {0};
    const struct kv_header value = {"X-Request-Id", bad_values[_i]}, name = {"X: y\r\nZ", "1"};
    const struct kv_header own = {"Content-length", "5"};
    ck_assert(!kv_client_call(client, "GET", "/", &value, 1, NULL, 0, &response, &err));
    ck_assert_int_eq(err.fault, KV_PARAMETER_INVALID);
    ck_assert(!kv_client_call(client, "GET", "/", &name, 1, NULL, 0, &response, NULL));
    ck_assert(!kv_client_call(client, "GET", "/", &own, 1, NULL, 0, &response, NULL));
    err = (struct kv_error){0};
    ck_assert(!kv_client_call(client, "GET", "/a b", NULL, 0, NULL, 0, &response, &err));
    ck_assert_int_eq(err.fault, KV_PARAMETER_INVALID);
    kv_client_close(client);

    const struct kv_client_options keyed = {.api_key = bad_values[_i]};
    err = (struct kv_error){0};
    client = client_of("http://127.0.0.1:1", &keyed);
    ck_assert(!kv_client_call(client, "GET", "/", NULL, 0, NULL, 0, &response, &err));
    ck_assert_int_eq(err.fault, KV_PARAMETER_INVALID);
    kv_client_close(client);
}
END_TEST

START_TEST(a_key_has_a_bound)
{
    char key[KV_CLIENT_KEY_BYTES_MAX + 2] = "";
    struct kv_response response;
    struct kv_error err = {0};
    memset(key, 'k', sizeof key - 1);
    const struct kv_client_options keyed = {.api_key = key};
    struct kv_client *client = client_of("http://127.0.0.1:1", &keyed);
    ck_assert(!kv_client_call(client, "GET", "/", NULL, 0, NULL, 0, &response, &err));
    ck_assert_int_eq(err.fault, KV_PARAMETER_INVALID);
    ck_assert_ptr_null(strstr(err.message, "kkk"));
    key[KV_CLIENT_KEY_BYTES_MAX] = '\0';
    err = (struct kv_error){0};
    ck_assert(!kv_client_call(client, "GET", "/", NULL, 0, NULL, 0, &response, &err));
    ck_assert_int_eq(err.fault, KV_SERVICE_UNREACHABLE); /* nobody is there, but it was tried */
    kv_client_close(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client http");
    TCase *tests = tcase_create("http");
    tcase_add_test(tests, a_connection_is_kept);
    tcase_add_test(tests, a_unix_socket_works);
    tcase_add_loop_test(tests, a_stale_connection_is_replaced, 0, 2);
    tcase_add_test(tests, one_retry_is_all);
    tcase_add_test(tests, a_begun_reply_is_not_retried);
    tcase_add_loop_test(tests, replies_are_judged, 0, (int)(sizeof replies / sizeof *replies));
    tcase_add_test(tests, a_bound_of_ones_own_holds);
    tcase_add_test(tests, time_limits_end_a_call);
    tcase_add_test(tests, nobody_listening_is_unreachable);
    tcase_add_loop_test(tests, headers_cannot_smuggle, 0, 3);
    tcase_add_test(tests, a_key_has_a_bound);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
