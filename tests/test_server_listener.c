/* Listening sockets: addresses, ports, and unix paths that outlive or outpace their owner. */
#include "server/listener.h"
#include "tests/suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char address[80], path[64];

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/kvmat_listener_%d.sock", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", path);
}

START_TEST(test_addresses)
{
    static const char *const wrong[] = {
        "",       "nowhere", ":80",   "127.0.0.1:",      "127.0.0.1:x", "127.0.0.1:70000",
        "::1:80", "unix:",   "[]:80", "127.0.0.1:123456"};
    struct kv_listener listener;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct kv_error err = {0};
        ck_assert_msg(!kv_listener_open(&listener, wrong[i], &err), "%s is taken", wrong[i]);
        ck_assert_msg(err.fault == KV_OPTION_INVALID, "%s: %s", wrong[i], err.message);
        ck_assert_int_eq(listener.fd, -1);
    }
    ck_assert(kv_listener_open(&listener, "127.0.0.1:0", NULL));
    ck_assert(strncmp(listener.url, "http://127.0.0.1:", 17) == 0);
    ck_assert_str_ne(listener.url, "http://127.0.0.1:0");
    struct kv_listener again;
    struct kv_error err = {0};
    ck_assert(!kv_listener_open(&again, listener.url + strlen("http://"), &err));
    ck_assert_int_eq(err.fault, KV_ADDRESS_IN_USE);
    kv_listener_close(&listener);
}
END_TEST

/* One that drains must not take away the socket that its successor has put in its place. */
START_TEST(test_successor_keeps_its_path)
{
    struct kv_listener old, successor, third;
    struct stat there;
    struct kv_error err = {0};
    ck_assert(kv_listener_open(&old, address, NULL));
    ck_assert(!kv_listener_open(&third, address, &err)); /* alive: not to be replaced */
    ck_assert_int_eq(err.fault, KV_ADDRESS_IN_USE);
    kv_listener_shut(&old);
    ck_assert(kv_listener_open(&successor, address, NULL));
    kv_listener_close(&old);
    ck_assert_int_eq(lstat(path, &there), 0);
    kv_listener_close(&successor);
    ck_assert_int_ne(lstat(path, &there), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/listener");
    TCase *cases = tcase_create("listener");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_addresses);
    tcase_add_test(cases, test_successor_keeps_its_path);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
