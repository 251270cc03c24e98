/* Every limit that the daemon enforces is said, as the options set it. */
#include "tests/daemon_rig.h"
#include "tests/suite.h"

#include <jansson.h>
#include <signal.h>

START_TEST(test_limits_show)
{
    static const struct {
        const char *flag, *value, *limit;
        int64_t expected;
    } rows[] = {
        {"--max-tokens", "1234", "tokens_max", 1234},
        {"--max-body", "3MiB", "body_bytes_max", 3 << 20},
        {"--pool-bytes", "5MiB", "pool_bytes", 5 << 20},
        {"--max-queue", "17", "queue_max", 17},
        {"--max-batch-tokens", "40", "batch_tokens_max", 40},
        {"--device-timeout", "41", "device_seconds", 41},
        {"--drain-timeout", "42", "drain_seconds", 42},
        {NULL, NULL, "span_tokens_max", 40}, /* no more than a batch holds */
        {NULL, NULL, "idle_seconds", 60},
        {NULL, NULL, "upload_seconds", 30},
        {NULL, NULL, "reply_seconds", 30},
        {NULL, NULL, "connections_max", 0}, /* as many as there are descriptors for */
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    const char *arguments[2 * ROWS + 1] = {NULL};
    struct daemon daemon;
    struct kv_response response;
    int count = 0;
    for (int i = 0; i < ROWS && rows[i].flag; i++) {
        arguments[count++] = rows[i].flag;
        arguments[count++] = rows[i].value;
    }
    daemon_start(&daemon, "tests/vectors/one_token", arguments);
    ck_assert(daemon_await_ready(&daemon));
    struct kv_client *client = NULL;
    ck_assert(kv_client_open(&client, daemon.url, NULL, NULL));
    ck_assert(kv_client_call(client, "GET", "/v1/model", NULL, 0, NULL, 0, &response, NULL));
    json_t *said = json_loadb((const char *)response.body, response.bytes, 0, NULL);
    const json_t *limits = json_object_get(said, "limits");
    for (int i = 0; i < ROWS; i++) {
        const json_t *limit = json_object_get(limits, rows[i].limit);
        ck_assert_msg(json_is_integer(limit), "no %s", rows[i].limit);
        int64_t got = json_integer_value(limit);
        ck_assert_msg(rows[i].expected ? got == rows[i].expected : got > 0, "%s: %lld", rows[i].limit,
                      (long long)got);
    }
    ck_assert_uint_eq(json_object_size(limits), ROWS); /* none that is not looked at here */
    json_decref(said);
    kv_client_close(client);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    Suite *suite = suite_create("server/limits");
    TCase *cases = tcase_create("limits");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_limits_show);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
