/* The golden cases on the tested device: each in this process, from the checkpoint's folder to K and V, and
 * some through the daemon and its sockets, which must say which device it serves on and stop cleanly. */
#include "server/checkpoint.h"
#include "tests/daemon_rig.h"
#include "tests/golden.h"
#include "tests/tested_device.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static const double sglang_bound = 1e-3;

/* Prints how far an answer is from a file, for K and V; more than the bounds fails. */
static void assert_close(const struct golden_case *golden, const void *answer, uint64_t bytes,
                         const char *file, double k_bound, double v_bound)
{
    uint64_t expected_bytes;
    void *expected = golden_read(golden, file, &expected_bytes);
    double k = golden_error(answer, bytes, expected, expected_bytes, "k");
    double v = golden_error(answer, bytes, expected, expected_bytes, "v");
    printf("%-26s %-28s K %.2e V %.2e\n", golden->name, file, k, v);
    fflush(stdout);
    ck_assert_msg(k <= k_bound, "%s: K is off %s by %.3e, more than %.1e", golden->name, file, k, k_bound);
    ck_assert_msg(v <= v_bound, "%s: V is off %s by %.3e, more than %.1e", golden->name, file, v, v_bound);
    free(expected);
}

static void assert_right(const struct golden_case *golden, const void *answer, uint64_t bytes)
{
    assert_close(golden, answer, bytes, "expected.safetensors", golden->k_bound, golden->v_bound);
    if (golden->has_sglang)
        assert_close(golden, answer, bytes, "expected_sglang.safetensors", sglang_bound, sglang_bound);
}

/* A request's rows and positions, as a rig wants them. */
static struct rig_input input_of(const struct kv_request *request)
{
    struct rig_input input = {.kind = request->kind,
                              .dtype = request->hidden.dtype,
                              .rows = request->tokens,
                              .columns = request->hidden.dims[1]};
    input.bytes = malloc(request->hidden.bytes);
    input.positions = calloc((size_t)input.rows, sizeof *input.positions);
    ck_assert(input.bytes && input.positions);
    memcpy(input.bytes, request->hidden.data, request->hidden.bytes);
    for (int64_t t = 0; t < input.rows; t++) {
        int32_t narrow;
        if (request->positions.dtype == KV_I64) {
            memcpy(&input.positions[t], (const char *)request->positions.data + 8 * t, sizeof(int64_t));
        } else {
            memcpy(&narrow, (const char *)request->positions.data + 4 * t, sizeof narrow);
            input.positions[t] = narrow;
        }
    }
    return input;
}

/* What a service would answer: a document, its K and V from the item's output, which is one piece. */
static unsigned char *answer_of(const struct rig *rig, const struct kv_item *item, uint64_t *bytes)
{
    struct kv_error err = {0};
    size_t header_bytes, data_bytes = 2 * kv_reply_part_bytes(&rig->geometry, item->rows);
    unsigned char *answer = malloc(KV_REPLY_HEADER_BYTES_MAX + data_bytes);
    ck_assert_ptr_nonnull(answer);
    ck_assert_msg(kv_reply_encode(answer, KV_REPLY_HEADER_BYTES_MAX, &rig->geometry, item->rows, "golden", "",
                                  "", &header_bytes, &err),
                  "%s", err.message);
    memcpy(answer + header_bytes, rig->host + item->out.k[0].offset, data_bytes);
    *bytes = header_bytes + data_bytes;
    return answer;
}

static struct kv_checkpoint *open_checkpoint(const char *folder, struct kv_findings *findings)
{
    const struct kv_checkpoint_options options = {.directory = folder, .attention_factor = -1};
    struct kv_checkpoint *checkpoint = NULL;
    kv_findings_init(findings);
    ck_assert_msg(kv_checkpoint_open(&checkpoint, &options, findings), "%s: %s", folder,
                  findings->count > 0 ? findings->item[0].error.message : "refused without a finding");
    return checkpoint;
}

static struct kv_backend *open_backend(const struct kv_weights *weights)
{
    const struct kv_backend_options options = {
        .rows_max = TESTED_ROWS_MAX, .items_max = TESTED_ITEMS_MAX, .tune = true};
    struct kv_backend *backend = NULL;
    struct kv_error err = {0};
    ck_assert_msg(tested_ops()->open(&backend, weights, &options, &err), "%s", err.message);
    return backend;
}

START_TEST(golden_in_process)
{
    struct golden_case golden = golden_case(_i);
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint = open_checkpoint(golden.folder, &findings);
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    struct kv_backend *backend = open_backend(&weights);
    ck_assert_msg(kv_checkpoint_finish(checkpoint),
                  "not every part was pulled, or not every value is finite");
    struct kv_error err = {0};
    struct kv_request request;
    struct kv_ref bases[64];
    struct rig rig;
    uint64_t bytes, answer_bytes;
    void *body = golden_read(&golden, "request.safetensors", &bytes);
    const struct kv_request_limits limits = {.tokens_max = TESTED_ROWS_MAX};
    ck_assert_msg(kv_request_decode(&request, body, bytes, &weights.geometry, &limits, &err), "%s",
                  err.message);
    ck_assert_int_le(2 * weights.geometry.layers, 64);
    rig_open(&rig, tested_ops(), backend, &weights.geometry,
             tested_slab_bytes(&weights.geometry, request.tokens, 1));
    struct rig_input input = input_of(&request);
    struct rig_layout layout = {.narrow_positions = request.positions.dtype == KV_I32};
    struct kv_item item = rig_item(&rig, &input, NULL, request.tokens, &layout, bases);
    rig_run(&rig, &item, 1);
    ck_assert_int_eq(item.fault, KV_OK);
    unsigned char *answer = answer_of(&rig, &item, &answer_bytes);
    assert_right(&golden, answer, answer_bytes);
    free(answer);
    rig_input_free(&input);
    rig_close(&rig);
    free(body);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
}
END_TEST

static struct kv_client *connect_to(const char *url)
{
    struct kv_client *client = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_client_open(&client, url, NULL, &err), "%s", err.message);
    return client;
}

static void start_daemon(struct daemon *daemon, const struct golden_case *golden)
{
    daemon_start(daemon, golden->folder, (const char *const[]){"--device", tested_name(), NULL});
    ck_assert_msg(daemon_await_ready(daemon), "not ready; its log is %s", daemon->log_path);
}

static void assert_device(struct kv_client *client)
{
    struct kv_response response;
    struct kv_error err = {0};
    ck_assert_msg(kv_client_call(client, "GET", "/v1/model", NULL, 0, NULL, 0, &response, &err), "%s",
                  err.message);
    ck_assert_int_eq(response.status, 200);
    json_t *model = json_loadb(response.body, response.bytes, 0, NULL);
    const json_t *device = json_object_get(model, "device");
    ck_assert_str_eq(json_string_value(json_object_get(device, "kind")), tested_name());
    ck_assert_uint_gt(strlen(json_string_value(json_object_get(device, "name"))), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(device, "memory_bytes")), 0);
    json_decref(model);
}

static const char *const served[] = {"dflash_default", "dflash_target_hidden", "sharded_fp16_v4",
                                     "interleaved", "int32_positions_f32_hidden"};
enum { SERVED = sizeof served / sizeof *served };

static struct golden_case golden_named(const char *name)
{
    int at = 0;
    while (at < GOLDEN_CASES && strcmp(golden_case(at).name, name) != 0) at++;
    ck_assert_int_lt(at, GOLDEN_CASES);
    return golden_case(at);
}

START_TEST(golden_over_sockets)
{
    struct golden_case golden = golden_named(served[_i]);
    struct daemon daemon;
    struct kv_error err = {0};
    struct kv_reply_view reply;
    uint64_t bytes;
    start_daemon(&daemon, &golden);
    void *request = golden_read(&golden, "request.safetensors", &bytes);
    const char *const urls[] = {daemon.url, daemon.unix_url};
    for (int i = 0; i < 2; i++) {
        struct kv_client *client = connect_to(urls[i]);
        assert_device(client);
        ck_assert_msg(kv_client_materialize_document(client, request, bytes, NULL, &reply, &err), "%s",
                      err.message);
        assert_right(&golden, reply.document, reply.bytes);
        kv_client_close(client);
    }
    free(request);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

/* One of several callers at once: its answers must all have the bits of the first. */
struct caller {
    pthread_t thread;
    const char *url;
    const void *request;
    uint64_t bytes;
    void *first; /* K and V */
    uint64_t first_bytes;
    struct kv_error err;
    int32_t right, asked;
};

static void *ask_again(void *of)
{
    enum { ROUNDS = 50 };
    struct caller *caller = of;
    struct kv_client *client = NULL;
    if (!kv_client_open(&client, caller->url, NULL, &caller->err)) return NULL;
    for (; caller->asked < ROUNDS; caller->asked++) {
        struct kv_reply_view reply;
        if (!kv_client_materialize_document(client, caller->request, caller->bytes, NULL, &reply,
                                            &caller->err))
            break;
        uint64_t bytes = reply.k.bytes + reply.v.bytes;
        if (!caller->first && (caller->first = malloc(bytes)) != NULL) {
            memcpy(caller->first, reply.k.data, reply.k.bytes);
            memcpy((char *)caller->first + reply.k.bytes, reply.v.data, reply.v.bytes);
            caller->first_bytes = bytes;
        }
        caller->right += caller->first && bytes == caller->first_bytes &&
                         memcmp(caller->first, reply.k.data, reply.k.bytes) == 0 &&
                         memcmp((char *)caller->first + reply.k.bytes, reply.v.data, reply.v.bytes) == 0;
    }
    kv_client_close(client);
    return NULL;
}

/* Callers whose requests meet in batches: every answer is the one that the request gets alone. */
START_TEST(callers_at_once_get_the_same_bits)
{
    enum { CALLERS = 12 };
    struct golden_case golden = golden_named("dflash_default");
    struct caller caller[CALLERS] = {{0}}, alone = {0};
    struct daemon daemon;
    uint64_t bytes;
    start_daemon(&daemon, &golden);
    void *request = golden_read(&golden, "request.safetensors", &bytes);
    alone = (struct caller){.url = daemon.url, .request = request, .bytes = bytes};
    ask_again(&alone);
    ck_assert_msg(alone.right == alone.asked && alone.asked > 0, "%s", alone.err.message);
    for (int i = 0; i < CALLERS; i++) {
        caller[i] = (struct caller){.url = i % 2 ? daemon.url : daemon.unix_url,
                                    .request = request,
                                    .bytes = bytes,
                                    .first = alone.first,
                                    .first_bytes = alone.first_bytes};
        ck_assert_int_eq(pthread_create(&caller[i].thread, NULL, ask_again, &caller[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(caller[i].thread, NULL);
    for (int i = 0; i < CALLERS; i++)
        ck_assert_msg(caller[i].right == alone.asked, "%d of %d answers: %s", (int)caller[i].right,
                      (int)alone.asked, caller[i].err.message);
    free(alone.first);
    free(request);
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    int status = tested_probe();
    if (status != 0) return status;
    Suite *suite = suite_create("gpu: golden cases");
    TCase *golden = tcase_create("golden"), *daemon = tcase_create("daemon");
    tcase_add_loop_test(golden, golden_in_process, 0, GOLDEN_CASES);
    tcase_add_loop_test(daemon, golden_over_sockets, 0, SERVED);
    tcase_add_test(daemon, callers_at_once_get_the_same_bits);
    suite_add_tcase(suite, golden);
    suite_add_tcase(suite, daemon);
    return tested_run(suite);
}
