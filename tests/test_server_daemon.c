/* The real daemon over its sockets: golden cases, --check, exit statuses, signals, and memory that stays
 * flat. */
#include "tests/daemon_rig.h"
#include "tests/golden.h"
#include "tests/suite.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct kv_client *connect_to(const char *url)
{
    struct kv_client *client = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_client_open(&client, url, NULL, &err), "%s", err.message);
    return client;
}

static void assert_close(const struct golden_case *golden, const struct kv_reply_view *reply,
                         const char *file, double k_bound, double v_bound)
{
    uint64_t bytes;
    void *expected = golden_read(golden, file, &bytes);
    double k = golden_error(reply->document, reply->bytes, expected, bytes, "k");
    double v = golden_error(reply->document, reply->bytes, expected, bytes, "v");
    ck_assert_msg(k <= k_bound, "%s: K is off %s by %.3e, more than %.1e", golden->name, file, k, k_bound);
    ck_assert_msg(v <= v_bound, "%s: V is off %s by %.3e, more than %.1e", golden->name, file, v, v_bound);
    free(expected);
}

START_TEST(test_golden)
{
    struct golden_case golden = golden_case(_i);
    struct daemon daemon;
    struct kv_error err = {0};
    struct kv_reply_view reply;
    uint64_t bytes;
    daemon_start(&daemon, golden.folder, (const char *const[]){"--device", "cpu", NULL});
    ck_assert(daemon_await_ready(&daemon));
    void *request = golden_read(&golden, "request.safetensors", &bytes);
    const char *const urls[] = {daemon.url, daemon.unix_url};
    for (int i = 0; i < 2; i++) {
        struct kv_client *client = connect_to(urls[i]);
        ck_assert_msg(kv_client_materialize_document(client, request, bytes, NULL, &reply, &err), "%s",
                      err.message);
        ck_assert_int_eq(reply.k.dtype, strcmp(golden.name, "sharded_fp16_v4") == 0 ? KV_F16 : KV_BF16);
        assert_close(&golden, &reply, "expected.safetensors", golden.k_bound, golden.v_bound);
        if (golden.has_sglang) assert_close(&golden, &reply, "expected_sglang.safetensors", 1e-3, 1e-3);
        kv_client_close(client);
    }
    free(request);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

static int64_t number(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "no integer %s", key);
    return json_integer_value(json_object_get(object, key));
}

/* --check prints the geometry that the case was made with. */
START_TEST(test_check)
{
    static const char *const pairs[][2] = {{"layers", "L"},
                                           {"hidden", "H"},
                                           {"kv_heads", "Hkv"},
                                           {"head_dim", "D"},
                                           {"rotary_dim", "rotary_dim"}};
    struct golden_case golden = golden_case(_i);
    char *output, path[192];
    int status = daemon_run(daemon_path("kvmatd"),
                            (const char *const[]){"--check", "--model", golden.folder, NULL}, &output, NULL);
    ck_assert_int_eq(status, 0);
    snprintf(path, sizeof path, "%s/case.json", golden.folder);
    json_t *said = json_loads(output, 0, NULL), *made = json_load_file(path, 0, NULL);
    ck_assert_msg(said && made, "%s", output);
    ck_assert(json_is_true(json_object_get(said, "ok")));
    const json_t *model = json_object_get(said, "model"), *geometry = json_object_get(model, "geometry");
    const json_t *rope = json_object_get(model, "rope"), *made_rope = json_object_get(made, "rope");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        ck_assert_int_eq(number(geometry, pairs[i][0]), number(made, pairs[i][1]));
    ck_assert_str_eq(json_string_value(json_object_get(rope, "type")),
                     json_string_value(json_object_get(made_rope, "rope_type")));
    ck_assert_double_eq(json_number_value(json_object_get(rope, "theta")),
                        json_number_value(json_object_get(made_rope, "rope_theta")));
    ck_assert_double_eq_tol(json_number_value(json_object_get(rope, "attention_factor")),
                            json_number_value(json_object_get(made, "attention_scaling")), 1e-12);
    ck_assert_int_eq(json_is_true(json_object_get(rope, "interleaved")),
                     json_is_true(json_object_get(made, "interleaved")));
    ck_assert_ptr_null(json_object_get(model, "device"));
    json_decref(said);
    json_decref(made);
    free(output);
}
END_TEST

static void assert_exit(int expected, const char *const *arguments, const char *said)
{
    char *errors, *output;
    int status = daemon_run(daemon_path("kvmatd"), arguments, &output, &errors);
    ck_assert_msg(status == expected, "exit %d, expected %d: %s", status, expected, errors);
    ck_assert_msg(strstr(errors, said) || strstr(output, said), "nothing of '%s' in: %s%s", said, output,
                  errors);
    free(errors);
    free(output);
}

#define GOOD "tests/vectors/one_token"

START_TEST(test_exit_statuses)
{
    assert_exit(0, (const char *const[]){"--help", NULL}, "--max-batch-tokens N");
    assert_exit(0, (const char *const[]){"--version", NULL}, "kvmatd ");
    assert_exit(2, (const char *const[]){NULL}, "--model is required");
    assert_exit(2, (const char *const[]){"--model", GOOD, "--max-tokens", "many", NULL}, "got many");
    assert_exit(2, (const char *const[]){"--model", GOOD, "--no-such", NULL}, "--no-such");
    assert_exit(2, (const char *const[]){"--model", GOOD, "--device", "tpu", NULL}, "got tpu");
    assert_exit(2, (const char *const[]){"--model", GOOD, "--listen", "nowhere", NULL}, "malformed");
    assert_exit(1, (const char *const[]){"--model", "tests/vectors", "--listen", "127.0.0.1:0", NULL},
                "config.json");
    assert_exit(1, (const char *const[]){"--check", "--model", "/nonexistent", NULL}, "model_not_found");
    assert_exit(4,
                (const char *const[]){"--model", GOOD, "--listen", "127.0.0.1:0", "--device", "cuda:7", NULL},
                "device_unavailable");
}
END_TEST

/* The address is looked at before the weights: the second daemon does not get as far as its missing model. */
START_TEST(test_address_in_use)
{
    struct daemon daemon;
    daemon_start(&daemon, GOOD, NULL);
    ck_assert(daemon_await_ready(&daemon));
    const char *const unix_again[] = {"--model", "/nonexistent", "--listen", daemon.unix_url, NULL};
    const char *const tcp_again[] = {"--model", "/nonexistent", "--listen", daemon.url + strlen("http://"),
                                     NULL};
    assert_exit(3, unix_again, "address_in_use");
    assert_exit(3, tcp_again, "address_in_use");
    assert_exit(3, (const char *const[]){"--model", GOOD, "--listen", "unix:Makefile", NULL}, "no socket");
    ck_assert_int_eq(access("Makefile", R_OK), 0);
    ck_assert(daemon_await_ready(&daemon)); /* the first one is still served */
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

/* A socket left behind by a killed daemon does not stop the next one. */
START_TEST(test_stale_socket)
{
    struct daemon killed, next;
    daemon_start(&killed, GOOD, NULL);
    ck_assert(daemon_await_ready(&killed));
    const char *const listen[] = {"--listen", killed.unix_url, NULL};
    ck_assert_int_eq(daemon_stop(&killed, SIGKILL), 128 + SIGKILL);
    unlink(killed.log_path);
    daemon_start(&next, GOOD, listen);
    ck_assert(daemon_await_ready(&next));
    ck_assert_int_eq(daemon_stop(&next, SIGTERM), 0);
    ck_assert_int_ne(access(killed.unix_url + strlen("unix:"), F_OK), 0); /* removed at a clean stop */
}
END_TEST

START_TEST(test_stop_at_once)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 6; i++) {
        struct daemon daemon;
        daemon_start(&daemon, GOOD, NULL); /* while it may still be loading */
        ck_assert_int_eq(daemon_stop(&daemon, signals[i % 3]), 0);
    }
}
END_TEST

struct in_flight {
    const char *url;
    struct kv_error err;
    bool ok;
    int64_t tokens;
};

static void *ask_for_much(void *of)
{
    enum { TOKENS = 4096, HIDDEN = 64 };
    struct in_flight *ask = of;
    struct kv_client *client = connect_to(ask->url);
    uint16_t *hidden = calloc(TOKENS, HIDDEN * sizeof *hidden);
    int64_t *positions = calloc(TOKENS, sizeof *positions);
    struct kv_reply_view reply;
    const struct kv_view rows = {KV_BF16, 2, {TOKENS, HIDDEN}, hidden, TOKENS * HIDDEN * 2};
    const struct kv_view at = {KV_I64, 1, {TOKENS}, positions, TOKENS * 8};
    ask->ok = kv_client_materialize(client, KV_HIDDEN_STATES, &rows, &at, NULL, &reply, &ask->err);
    ask->tokens = ask->ok ? reply.tokens : 0;
    free(hidden);
    free(positions);
    kv_client_close(client);
    return NULL;
}

/* The value of a series without labels in /metrics. */
static double metric(struct kv_client *client, const char *name)
{
    struct kv_response response;
    char line[128];
    if (!kv_client_call(client, "GET", "/metrics", NULL, 0, NULL, 0, &response, NULL)) return -1;
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = memmem(response.body, response.bytes, line, strlen(line));
    return at ? strtod(at + strlen(line), NULL) : -1;
}

/* SIGTERM while requests are in flight: what was admitted is answered in full, and the exit is clean. */
START_TEST(test_drain)
{
    enum { ASKERS = 4 };
    struct daemon daemon;
    struct in_flight ask[ASKERS];
    pthread_t thread[ASKERS];
    daemon_start(&daemon, "tests/vectors/dflash_default", NULL);
    ck_assert(daemon_await_ready(&daemon));
    struct kv_client *client = connect_to(daemon.url);
    for (int i = 0; i < ASKERS; i++) {
        ask[i] = (struct in_flight){.url = i % 2 ? daemon.url : daemon.unix_url};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, ask_for_much, &ask[i]), 0);
    }
    /* Until at least one is in flight; at least as many as were then must be answered. */
    int in_flight = 0;
    while (in_flight < 1 + _i % ASKERS &&
           metric(client, "kvmat_requests_total{route=\"materialize\",code=\"ok\"}") <= 0)
        in_flight = (int)metric(client, "kvmat_requests_in_flight");
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
    int answered = 0;
    for (int i = 0; i < ASKERS; i++) {
        pthread_join(thread[i], NULL);
        bool refused = ask[i].err.fault == KV_DRAINING || ask[i].err.fault == KV_SERVICE_UNREACHABLE;
        ck_assert_msg((ask[i].ok && ask[i].tokens == 4096) || refused, "%s", ask[i].err.message);
        answered += ask[i].ok;
    }
    ck_assert_int_ge(answered, in_flight);
    kv_client_close(client);
}
END_TEST

/* One good or bad request by its number; the expected status of each is asserted. */
static void ask_mixed(struct kv_client *client, int turn, unsigned char *request, uint64_t bytes)
{
    struct kv_response response;
    struct kv_error err = {0};
    struct iovec body = {request, bytes};
    const char *path = "/v1/materialize";
    int expected = 200;
    uint64_t data_at = KV_DOCUMENT_PREFIX_BYTES + (uint64_t)request[0] + 256u * request[1];
    /* A byte of the JSON header, or the high byte of the first position, which comes first in this request.
     */
    unsigned char *flipped = turn % 8 == 4 ? request + 20 : request + data_at + 7;
    switch (turn % 8) {
    case 1: body.iov_len = bytes - 1, expected = 400; break;
    case 2: body.iov_len = 9, expected = 400; break;
    case 3: path = "/v1/nothing", expected = 404; break;
    case 4:
    case 5: *flipped ^= 0x40, expected = 400; break;
    default: break;
    }
    bool answered = kv_client_call(client, "POST", path, NULL, 0, &body, 1, &response, &err);
    if (turn % 8 == 4 || turn % 8 == 5) *flipped ^= 0x40;
    ck_assert_msg(answered, "turn %d: %s", turn, err.message);
    ck_assert_msg(response.status == expected, "turn %d: %d, expected %d: %.*s", turn, response.status,
                  expected, response.status == 200 ? 0 : (int)response.bytes, (const char *)response.body);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCH_MEMORY = 0 }; /* a sanitizer keeps freed memory back; leaks are its own business */
#else
enum { WATCH_MEMORY = 1 };
#endif

START_TEST(test_memory_stays_flat)
{
    enum { WARM = 400, TURNS = 2000, KIB_MORE_MAX = 512 };
    struct golden_case golden = golden_case(0);
    struct daemon daemon;
    uint64_t bytes;
    unsigned char *request = golden_read(&golden, "request.safetensors", &bytes);
    daemon_start(&daemon, golden.folder, NULL);
    ck_assert(daemon_await_ready(&daemon));
    struct kv_client *client = connect_to(daemon.url);
    for (int turn = 0; turn < WARM; turn++) ask_mixed(client, turn, request, bytes);
    long before = daemon_status(&daemon, "VmRSS");
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn % 50 == 0) { /* connections come and go, too */
            kv_client_close(client);
            client = connect_to(turn % 100 ? daemon.url : daemon.unix_url);
        }
        ask_mixed(client, turn, request, bytes);
    }
    long after = daemon_status(&daemon, "VmRSS");
    ck_assert(before > 0);
    ck_assert_msg(!WATCH_MEMORY || after - before <= KIB_MORE_MAX,
                  "resident KiB: %ld before, %ld after %d requests", before, after, TURNS);
    kv_client_close(client);
    free(request);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

/* Environment, names and the model's description reach the client. */
START_TEST(test_options_show)
{
    struct daemon daemon;
    struct kv_client_model model;
    struct kv_error err = {0};
    setenv("KVMAT_NAME", "from the environment", 1);
    setenv("KVMAT_MAX_POSITION", "77", 1);
    daemon_start(&daemon, GOOD, (const char *const[]){"--max-position", "99", NULL});
    ck_assert(daemon_await_ready(&daemon));
    struct kv_client *client = connect_to(daemon.url);
    ck_assert_msg(kv_client_describe(client, &model, &err), "%s", err.message);
    ck_assert_str_eq(model.name, "from the environment");
    ck_assert_int_eq(model.positions, 99); /* a flag beats the environment */
    ck_assert(model.ready);
    ck_assert_uint_eq(strlen(model.fingerprint), 32);
    ck_assert(daemon_logged(&daemon, "device cpu"));
    ck_assert(daemon_logged(&daemon, " path=" GOOD " device=auto\n"));
    ck_assert(daemon_logged(&daemon, " path=" GOOD " device=cpu device_name="));
    kv_client_close(client);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    Suite *suite = suite_create("server/daemon");
    TCase *cases = tcase_create("daemon");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, test_golden, 0, GOLDEN_CASES);
    tcase_add_loop_test(cases, test_check, 0, GOLDEN_CASES);
    tcase_add_test(cases, test_exit_statuses);
    tcase_add_test(cases, test_address_in_use);
    tcase_add_test(cases, test_stale_socket);
    tcase_add_test(cases, test_stop_at_once);
    tcase_add_loop_test(cases, test_drain, 0, 4);
    tcase_add_test(cases, test_memory_stays_flat);
    tcase_add_test(cases, test_options_show);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
