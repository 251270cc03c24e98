/* Thousands of bad requests of every kind, one behind the other: memory and descriptors are what they were
 * before. KVMAT_FLOOD says how many; `make flood` sends many more than `make check`. */
#include "tests/hostile.h"
#include "tests/suite.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCH_MEMORY = 0, REQUESTS = 1000 }; /* a sanitizer keeps freed memory back */
#else
enum { WATCH_MEMORY = 1, REQUESTS = 3000 };
#endif
enum { KIB_MORE_MAX = 1024, CUTS = 16, PATIENCE_MS = 60000 };

static struct http_rig rig;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20, .limits = {.body_bytes_max = 8 << 20}});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

static long resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* The server takes the last connections, and closes its side of them, a little after the client has gone. */
static void assert_descriptors(int before)
{
    int count;
    ck_assert(http_rig_serves(&rig, false) && http_rig_serves(&rig, true));
    for (int waited = 0; (count = descriptors()) != before && waited < PATIENCE_MS; waited++) usleep(1000);
    ck_assert_msg(count == before, "%d descriptors, %d before", count, before);
}

/* A request that is good as far as it goes, from a client that leaves in the middle of it. */
static void send_cut(int32_t cut, bool over_unix, const unsigned char *wire, size_t bytes)
{
    const struct linger reset = {.l_onoff = 1};
    int fd = http_rig_connect(&rig, over_unix);
    ck_assert(http_rig_send(fd, wire, bytes * (size_t)cut / CUTS));
    if (cut % 2) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void assert_promise(const struct hostile *promise, bool over_unix, const void *wire, size_t bytes)
{
    char text[300];
    struct talk talk = talk_with(&rig, over_unix, wire, bytes, TALK_WHOLE);
    const char *wrong = hostile_verdict(promise, &talk);
    ck_assert_msg(!wrong, "%s: %s", wrong, hostile_print(wire, bytes, text, sizeof text));
}

/* The request of this number: all heads, all bodies, all cuts, and again over the other kind of socket.
 * Returns how many kinds there are. */
static int32_t send_one(int32_t number)
{
    int32_t heads_count, bodies_count;
    const struct hostile *heads = hostile_heads(&heads_count);
    const struct hostile_body *bodies = hostile_bodies(&bodies_count);
    int32_t kinds = heads_count + bodies_count + CUTS, kind = number % kinds;
    bool over_unix = number / kinds % 2;
    size_t document_bytes, bytes;
    if (kind < heads_count) {
        assert_promise(&heads[kind], over_unix, heads[kind].bytes, heads[kind].count);
    } else if (kind < heads_count + bodies_count) {
        const struct hostile_body *body = &bodies[kind - heads_count];
        const struct hostile promise = {NULL, 0, body->status, body->code, HOSTILE_KEPT};
        unsigned char *document = hostile_document(body, &document_bytes);
        unsigned char *wire = hostile_post(document, document_bytes, "", &bytes);
        assert_promise(&promise, over_unix, wire, bytes);
        free(document);
        free(wire);
    } else {
        unsigned char *wire = http_rig_request(500, 1, "", &bytes, NULL);
        send_cut(kind - heads_count - bodies_count, over_unix, wire, bytes);
        free(wire);
    }
    return kinds;
}

START_TEST(test_flood)
{
    const char *asked = getenv("KVMAT_FLOOD");
    int32_t requests = asked ? (int32_t)strtol(asked, NULL, 10) : REQUESTS, kinds = 1;
    ck_assert_int_gt(requests, 0);
    int before = descriptors();
    for (int32_t i = 0; i < 2 * kinds; i++) kinds = send_one(i);
    assert_descriptors(before);
    long resident = resident_kib();
    for (int32_t i = 0; i < requests; i++) send_one(i);
    assert_descriptors(before);
    long more = resident_kib() - resident;
    printf("%d requests of %d kinds: %ld KiB resident before, %ld more after\n", requests, kinds, resident,
           more);
    ck_assert_msg(!WATCH_MEMORY || more <= KIB_MORE_MAX, "%ld KiB more than the %ld before", more, resident);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/flood");
    TCase *cases = tcase_create("flood");
    tcase_set_timeout(cases, 500);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_flood);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
