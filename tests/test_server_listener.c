/* Listening sockets: addresses, ports, and unix paths that outlive or outpace their owner. */
#include "server/listener.h"
#include "tests/suite.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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
        ck_assert_msg(!kv_listener_open(&listener, wrong[i], NULL, &err), "%s is taken", wrong[i]);
        ck_assert_msg(err.fault == KV_OPTION_INVALID, "%s: %s", wrong[i], err.message);
        ck_assert_int_eq(listener.fd, -1);
    }
    ck_assert(kv_listener_open(&listener, "127.0.0.1:0", NULL, NULL));
    ck_assert(strncmp(listener.url, "http://127.0.0.1:", 17) == 0);
    ck_assert_str_ne(listener.url, "http://127.0.0.1:0");
    struct kv_listener again;
    struct kv_error err = {0};
    ck_assert(!kv_listener_open(&again, listener.url + strlen("http://"), NULL, &err));
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
    ck_assert(kv_listener_open(&old, address, NULL, NULL));
    ck_assert(!kv_listener_open(&third, address, NULL, &err)); /* alive: not to be replaced */
    ck_assert_int_eq(err.fault, KV_ADDRESS_IN_USE);
    kv_listener_shut(&old);
    ck_assert(kv_listener_open(&successor, address, NULL, NULL));
    kv_listener_close(&old);
    ck_assert_int_eq(lstat(path, &there), 0);
    kv_listener_close(&successor);
    ck_assert_int_ne(lstat(path, &there), 0);
}
END_TEST

/* The rights are those asked for, whatever the umask, which stays as it was. */
START_TEST(test_unix_mode)
{
    static const mode_t modes[] = {0660, 0600, 0666, 0777, 0100, 0001};
    static const mode_t masks[] = {022, 077, 0, 0777};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] * 4; i++) {
        const struct kv_listener_options options = {.unix_mode = modes[i / 4]};
        struct kv_listener listener;
        struct stat there;
        mode_t before = umask(masks[i % 4]);
        ck_assert(kv_listener_open(&listener, address, &options, NULL));
        ck_assert_uint_eq(umask(before), masks[i % 4]);
        ck_assert_int_eq(stat(path, &there), 0);
        ck_assert(S_ISSOCK(there.st_mode));
        ck_assert_uint_eq(there.st_mode & 07777, modes[i / 4]);
        kv_listener_close(&listener);
    }
}
END_TEST

struct watch {
    _Atomic int stop;
    _Atomic mode_t widest;
};

static void *look(void *of)
{
    struct watch *watch = of;
    struct stat there;
    while (!watch->stop)
        if (lstat(path, &there) == 0) watch->widest |= there.st_mode & 0777;
    return NULL;
}

/* Somebody who looks all the time never sees wider rights. */
START_TEST(test_never_wider)
{
    const struct kv_listener_options options = {.unix_mode = 0600};
    struct watch watch = {0};
    pthread_t thread;
    mode_t before = umask(0);
    ck_assert_int_eq(pthread_create(&thread, NULL, look, &watch), 0);
    for (int i = 0; i < 3000; i++) {
        struct kv_listener listener;
        ck_assert(kv_listener_open(&listener, address, &options, NULL));
        kv_listener_close(&listener);
    }
    watch.stop = 1;
    pthread_join(thread, NULL);
    umask(before);
    ck_assert_uint_eq(watch.widest & ~0600u, 0);
}
END_TEST

/* A socket that nobody answers on is replaced; files, folders, pipes and links are not touched. */
START_TEST(test_what_is_there)
{
    struct kv_listener listener;
    struct stat before, after;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memcpy(un.sun_path, path, strlen(path));
    int left = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(left, (struct sockaddr *)&un, sizeof un), 0);
    close(left); /* as a killed process does */
    ck_assert(kv_listener_open(&listener, address, NULL, NULL));
    int caller = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(caller, (struct sockaddr *)&un, sizeof un), 0);
    close(caller);
    kv_listener_close(&listener);

    for (int i = 0; i < 4; i++) {
        struct kv_error err = {0};
        FILE *file = i == 0 ? fopen(path, "w") : NULL;
        ck_assert(i != 0 || (file && fclose(file) == 0));
        ck_assert(i != 1 || mkdir(path, 0700) == 0);
        ck_assert(i != 2 || mkfifo(path, 0600) == 0);
        ck_assert(i != 3 || symlink("/nonexistent", path) == 0);
        ck_assert_int_eq(lstat(path, &before), 0);
        ck_assert(!kv_listener_open(&listener, address, NULL, &err));
        ck_assert_int_eq(err.fault, KV_ADDRESS_IN_USE);
        ck_assert_int_eq(lstat(path, &after), 0);
        ck_assert_uint_eq(after.st_ino, before.st_ino);
        ck_assert_int_eq(remove(path), 0);
    }
}
END_TEST

/* A live socket that we may not connect to is no stale one. */
START_TEST(test_not_ours_to_ask)
{
    const struct kv_listener_options options = {.unix_mode = 0001};
    struct kv_listener live, second;
    struct kv_error err = {0};
    ck_assert(geteuid() != 0 || seteuid(65534) == 0); /* root may connect to anything */
    ck_assert(kv_listener_open(&live, address, &options, NULL));
    ck_assert(!kv_listener_open(&second, address, NULL, &err));
    ck_assert_int_eq(err.fault, KV_ADDRESS_IN_USE);
    ck_assert_int_eq(access(path, F_OK), 0);
    kv_listener_close(&live);
    ck_assert(geteuid() != 65534 || getuid() != 0 || seteuid(0) == 0);
}
END_TEST

START_TEST(test_loopback_only)
{
    static const char *const closed[] = {"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[2001:db8::1]:0",
                                         "128.0.0.1:0"};
    static const char *const open[] = {"127.0.0.1:0", "127.255.0.1:0", "localhost:0"};
    const struct kv_listener_options options = {.unix_mode = 0660, .loopback_only = true};
    struct kv_listener listener;
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
        struct kv_error err = {0};
        ck_assert_msg(!kv_listener_open(&listener, closed[i], &options, &err), "%s is taken", closed[i]);
        ck_assert_msg(err.fault == KV_OPTION_INVALID, "%s: %s", closed[i], err.message);
        ck_assert(strstr(err.hint, "--api-key-file") && strstr(err.hint, "--allow-anonymous"));
    }
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        struct kv_error err = {0};
        ck_assert_msg(kv_listener_open(&listener, open[i], &options, &err), "%s: %s", open[i], err.message);
        kv_listener_close(&listener);
    }
    ck_assert(kv_listener_open(&listener, address, &options, NULL));
    kv_listener_close(&listener);
    ck_assert(kv_listener_open(&listener, "0.0.0.0:0", NULL, NULL));
    kv_listener_close(&listener);
}
END_TEST

/* Both protocols on one port, several sockets beside them: each is itself only. */
START_TEST(test_many_at_once)
{
    const struct kv_listener_options tls = {.unix_mode = 0660, .tls = true};
    struct kv_listener listener[KV_LISTENERS_MAX];
    struct kv_error err = {0};
    char wanted[128], six[64];
    int fd = socket(AF_INET6, SOCK_STREAM, 0), count = 0;
    struct sockaddr_in6 probe = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool has_six = fd >= 0 && bind(fd, (struct sockaddr *)&probe, sizeof probe) == 0;
    if (fd >= 0) close(fd);
    ck_assert(kv_listener_open(&listener[count++], "0.0.0.0:0", &tls, NULL));
    ck_assert(listener[0].tls && strncmp(listener[0].url, "https://0.0.0.0:", 16) == 0);
    snprintf(six, sizeof six, "[::]%.10s", strrchr(listener[0].url, ':'));
    snprintf(wanted, sizeof wanted, "http://%s", six);
    if (has_six) {
        ck_assert_msg(kv_listener_open(&listener[count], six, NULL, &err), "%s", err.message);
        ck_assert_str_eq(listener[count++].url, wanted);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(wanted, sizeof wanted, "%s.%d", address, i);
        ck_assert(kv_listener_open(&listener[count], wanted, &tls, NULL));
        ck_assert(!listener[count].tls);
        ck_assert_str_eq(listener[count++].url, wanted);
    }
    for (int i = 0; i < count; i++) kv_listener_close(&listener[i]);
    for (int i = 0; i < 4; i++) {
        snprintf(wanted, sizeof wanted, "%s.%d", path, i);
        ck_assert_int_ne(access(wanted, F_OK), 0);
    }
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
    tcase_add_test(cases, test_unix_mode);
    tcase_add_test(cases, test_never_wider);
    tcase_add_test(cases, test_what_is_there);
    tcase_add_test(cases, test_not_ours_to_ask);
    tcase_add_test(cases, test_loopback_only);
    tcase_add_test(cases, test_many_at_once);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
