/* Materialize calls of the client library: what goes over the wire, what comes back, refusals, and large
 * bodies. */
#include "client/client.h"

#include "tests/fake_service.h"
#include "tests/suite.h"

#include <errno.h>
#include <signal.h>
#include <sys/time.h>

enum {
    LAYERS = 2,
    KV_HEADS = 3,
    HEAD_DIM = 4,
    TOKENS = 5,
    HIDDEN = 6,
    PART = LAYERS * TOKENS * KV_HEADS * HEAD_DIM * 2
};

static const struct kv_geometry geometry = {.layers = LAYERS,
                                            .kv_heads = KV_HEADS,
                                            .head_dim = HEAD_DIM,
                                            .hidden = HIDDEN,
                                            .rotary_dim = 4,
                                            .positions = 100,
                                            .dtype = KV_BF16};

static struct kv_client *client_of(struct fake *fake, const struct kv_client_options *options)
{
    struct kv_client *client = NULL;
    ck_assert(kv_client_open(&client, fake->url, options, NULL));
    return client;
}

/* Sends a reply of K bytes 0x4b and V bytes 0x56. */
static void send_reply(struct fake *fake, int64_t tokens)
{
    char head[KV_REPLY_HEADER_BYTES_MAX], lines[256];
    size_t bytes = 0;
    bool made = kv_reply_encode(head, sizeof head, &geometry, tokens, "draft",
                                "00112233445566778899aabbccddeeff", "id-7", &bytes, NULL);
    assert(made);
    size_t part = (size_t)kv_reply_part_bytes(&geometry, tokens);
    snprintf(lines, sizeof lines,
             "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nServer-Timing: queue;dur=0.5, device;dur=2"
             "\r\n\r\n",
             bytes + 2 * part);
    fake_send(fake, lines);
    fake_send_bytes(fake, head, bytes);
    char *data = malloc(2 * part + 1);
    assert(data);
    memset(data, 0x4b, part);
    memset(data + part, 0x56, part);
    fake_send_bytes(fake, data, 2 * part);
    free(data);
}

/* Checks the request as the daemon would, then answers. */
static void serve_materialize(struct fake *fake)
{
    struct kv_request request;
    struct kv_error err = {0};
    const struct kv_request_limits limits = {.tokens_max = 100};
    fake_accept(fake);
    if (!fake_read(fake)) return;
    bool valid = kv_request_decode(&request, fake->body, fake->body_bytes, &geometry, &limits, &err) &&
                 strncmp(fake->head, "POST /v1/materialize HTTP/1.1\r\n", 31) == 0 &&
                 strstr(fake->head, "\r\nX-Request-Id: id-7\r\n") &&
                 strstr(fake->head, "\r\nX-Request-Timeout-Ms: 250\r\n");
    if (valid) {
        send_reply(fake, request.tokens);
    } else {
        fake_reply(fake, 500, "", err.message[0] ? err.message : "bad head");
    }
}

static uint16_t rows[TOKENS * HIDDEN];
static int32_t places[TOKENS] = {3, 1, 4, 1, 5};
static const struct kv_view hidden_view = {KV_BF16, 2, {TOKENS, HIDDEN}, rows, sizeof rows};
static const struct kv_view positions_view = {KV_I32, 1, {TOKENS}, places, sizeof places};

START_TEST(k_and_v_come_back)
{
    struct fake *fake = fake_start(serve_materialize);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_reply_view reply;
    struct kv_error err = {0};
    const struct kv_materialize_options options = {.request_id = "id-7", .timeout_ms = 250};
    ck_assert_msg(kv_client_materialize(client, KV_HIDDEN_STATES, &hidden_view, &positions_view, &options,
                                        &reply, &err),
                  "%s", err.message);
    ck_assert_int_eq(reply.tokens, TOKENS);
    ck_assert_uint_eq(reply.k.bytes, PART);
    ck_assert_int_eq(reply.k.dtype, KV_BF16);
    const int64_t dims[] = {LAYERS, TOKENS, KV_HEADS, HEAD_DIM};
    ck_assert_mem_eq(reply.v.dims, dims, sizeof dims);
    ck_assert_uint_eq((uintptr_t)reply.k.data % 64, 0);
    for (int i = 0; i < PART; i++) {
        ck_assert_int_eq(((const char *)reply.k.data)[i], 0x4b);
        ck_assert_int_eq(((const char *)reply.v.data)[i], 0x56);
    }
    ck_assert_str_eq(reply.model, "draft");
    ck_assert_str_eq(reply.fingerprint, "00112233445566778899aabbccddeeff");
    ck_assert_str_eq(reply.request_id, "id-7");
    ck_assert_double_eq(reply.queue_ms, 0.5);
    ck_assert_double_eq(reply.device_ms, 2);
    kv_client_close(client);
    fake_stop(fake);
}
END_TEST

static void serve_other_count(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) send_reply(fake, TOKENS + 1);
}

static void serve_no_document(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_reply(fake, 200, "", "<html>welcome to nginx</html>");
}

static void serve_empty_body(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_reply(fake, 200, "", "");
}

static void serve_other_tensors(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_reply(fake, 200, "", "\x02\0\0\0\0\0\0\0{}");
}

static void serve_our_refusal(struct fake *fake)
{
    fake_accept(fake);
    if (!fake_read(fake)) return;
    fake_reply(
        fake, 400, "Content-Type: application/json\r\n",
        "{\"error\": \"positions[2] is 4096: expected below 4096\", \"code\": \"position_out_of_range\", "
        "\"param\": \"positions\", \"expected\": [null, 5], \"got\": 4096, \"hint\": \"Send other "
        "positions.\"}");
}

static void serve_strange_refusal(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) fake_reply(fake, 503, "", "<html>\x01 upstream is away</html>");
}

static const struct {
    void (*script)(struct fake *);
    enum kv_fault fault;
    const char *says;
} refusals[] = {
    {serve_other_count, KV_REPLY_MALFORMED, "expected 5, got 6"},
    {serve_no_document, KV_REPLY_MALFORMED, "no document"},
    {serve_empty_body, KV_REPLY_MALFORMED, "no document"},
    {serve_other_tensors, KV_REPLY_MALFORMED, ""},
    {serve_our_refusal, KV_POSITION_OUT_OF_RANGE, "positions[2] is 4096"},
    {serve_strange_refusal, KV_NOT_READY, "upstream is away"},
};

START_TEST(refusals_become_errors)
{
    struct fake *fake = fake_start(refusals[_i].script);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_reply_view reply;
    struct kv_error err = {0};
    ck_assert(
        !kv_client_materialize(client, KV_HIDDEN_STATES, &hidden_view, &positions_view, NULL, &reply, &err));
    ck_assert_int_eq(err.fault, refusals[_i].fault);
    ck_assert_msg(strstr(err.message, refusals[_i].says) != NULL, "%s", err.message);
    for (const char *at = err.message; *at; at++) ck_assert(*at >= 0x20 || *at < 0);
    if (refusals[_i].script == serve_our_refusal) {
        ck_assert_str_eq(err.hint, "Send other positions.");
        ck_assert_str_eq(err.param, "positions");
        ck_assert_int_eq(err.expected.kind, KV_VALUE_SHAPE);
        ck_assert_int_eq(err.expected.shape[0], -1);
        ck_assert_int_eq(err.got.integer, 4096);
    }
    kv_client_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(a_view_must_fit_itself)
{
    struct kv_client *client = NULL;
    struct kv_reply_view reply;
    struct kv_error err = {0};
    struct kv_view wrong = hidden_view;
    wrong.bytes--;
    ck_assert(kv_client_open(&client, "http://127.0.0.1:1", NULL, NULL));
    ck_assert(!kv_client_materialize(client, KV_HIDDEN_STATES, &wrong, &positions_view, NULL, &reply, &err));
    ck_assert_int_eq(err.fault, KV_PARAMETER_INVALID);
    kv_client_close(client);
}
END_TEST

enum { LARGE = 48 << 20 };

static void serve_echo(struct fake *fake)
{
    char line[128];
    fake_accept(fake);
    for (int i = 0; i < 2; i++) {
        if (!fake_read(fake)) return;
        snprintf(line, sizeof line, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", fake->body_bytes);
        fake_send(fake, line);
        fake_send_bytes(fake, fake->body, fake->body_bytes);
    }
}

static _Atomic int alarms; /* lock-free, hence fit for a handler */

static void count_alarm(int signal_number)
{
    (void)signal_number;
    alarms++;
}

/* Parts of odd sizes, both directions, while signals interrupt every system call. */
START_TEST(large_bodies_arrive_whole)
{
    const struct sigaction action = {.sa_handler = count_alarm};
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    unsigned char *bytes = malloc(LARGE);
    ck_assert_ptr_nonnull(bytes);
    for (uint32_t i = 0, x = 1; i < LARGE; i++, x = x * 1664525u + 1013904223u)
        bytes[i] = (unsigned char)(x >> 24);
    struct fake *fake = fake_start(serve_echo);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_response response;
    struct kv_error err = {0};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    const struct iovec parts[] = {
        {bytes, 0}, {bytes, 1}, {bytes + 1, 4095}, {bytes + 4096, 0}, {bytes + 4096, LARGE - 4096}};
    bool whole = true;
    for (int i = 0; i < 2 && whole; i++) {
        whole = kv_client_call(client, "POST", "/echo", NULL, 0, parts, 5, &response, &err) &&
                response.bytes == LARGE && memcmp(response.body, bytes, LARGE) == 0;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    ck_assert_msg(whole, "%s", err.message);
    ck_assert_int_gt(alarms, 10);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
    free(bytes);
}
END_TEST

static void refuse_as_too_large(struct fake *fake)
{
    fake_reply(fake, 413, "Connection: close\r\n",
               "{\"error\": \"too large\", \"code\": \"payload_too_large\"}");
}

/* Refuses at the head and then drains what still comes. */
static void serve_early(struct fake *fake)
{
    char bytes[65536];
    fake_accept(fake);
    if (!fake_read_head(fake)) return;
    refuse_as_too_large(fake);
    shutdown(fake->fd, SHUT_WR);
    usleep(100000);
    while (recv(fake->fd, bytes, sizeof bytes, 0) > 0) continue;
}

/* The same, and resets the connection at once, with the body unread. */
static void serve_early_reset(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read_head(fake)) refuse_as_too_large(fake);
    usleep(20000);
}

/* Drains the body before it answers. */
static void serve_drained(struct fake *fake)
{
    fake_accept(fake);
    if (fake_read(fake)) refuse_as_too_large(fake);
}

static void (*const early_scripts[])(struct fake *) = {serve_early, serve_early_reset, serve_drained};

START_TEST(an_early_refusal_is_read)
{
    struct fake *fake = fake_start(early_scripts[_i]);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_reply_view reply;
    struct kv_error err = {0};
    void *bytes = calloc(1, LARGE);
    ck_assert_ptr_nonnull(bytes);
    ck_assert(!kv_client_materialize_document(client, bytes, LARGE, NULL, &reply, &err));
    ck_assert_msg(err.fault == KV_PAYLOAD_TOO_LARGE, "%s", err.message);
    ck_assert_str_eq(err.message, "too large");
    kv_client_close(client);
    fake_stop(fake);
    free(bytes);
}
END_TEST

static void serve_refusing_to_read(struct fake *fake)
{
    fake_accept(fake);
    (void)fake_read_head(fake);
}

START_TEST(a_cut_upload_is_an_error)
{
    struct fake *fake = fake_start(serve_refusing_to_read);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_reply_view reply;
    struct kv_error err = {0};
    void *bytes = calloc(1, LARGE);
    ck_assert_ptr_nonnull(bytes);
    ck_assert(!kv_client_materialize_document(client, bytes, LARGE, NULL, &reply, &err));
    ck_assert_int_eq(err.fault, KV_SERVICE_UNREACHABLE);
    kv_client_close(client);
    ck_assert_int_eq(fake_stop(fake), 1);
    free(bytes);
}
END_TEST

static void serve_model(struct fake *fake)
{
    static const char text[] = "{\"name\": \"m\", \"fingerprint\": \"f\", \"ready\": true, \"dtype\": "
                               "\"F16\", \"geometry\": {\"layers\": 5, "
                               "\"hidden\": 64, \"kv_heads\": 2, \"head_dim\": 8, \"rotary_dim\": 8, "
                               "\"taps\": 3}, \"rope\": {\"positions\": 99}}";
    fake_accept(fake);
    if (fake_read(fake)) fake_reply(fake, 200, "", text);
    if (fake_read(fake)) fake_reply(fake, 200, "", "{\"geometry\": {\"layers\": -1}}");
    if (fake_read(fake)) fake_reply(fake, 200, "", "[]");
}

START_TEST(a_model_is_described)
{
    struct fake *fake = fake_start(serve_model);
    struct kv_client *client = client_of(fake, NULL);
    struct kv_client_model model;
    struct kv_error err = {0};
    ck_assert_msg(kv_client_describe(client, &model, &err), "%s", err.message);
    ck_assert(model.ready && model.hidden == 64 && model.layers == 5 && model.taps == 3 &&
              model.positions == 99);
    ck_assert_int_eq(model.dtype, KV_F16);
    ck_assert(!kv_client_describe(client, &model, &err));
    ck_assert_int_eq(err.fault, KV_REPLY_MALFORMED);
    ck_assert(!kv_client_describe(client, &model, NULL));
    kv_client_close(client);
    fake_stop(fake);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client materialize");
    TCase *tests = tcase_create("materialize");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, k_and_v_come_back);
    tcase_add_loop_test(tests, refusals_become_errors, 0, (int)(sizeof refusals / sizeof *refusals));
    tcase_add_test(tests, a_view_must_fit_itself);
    tcase_add_test(tests, large_bodies_arrive_whole);
    tcase_add_loop_test(tests, an_early_refusal_is_read, 0, 3);
    tcase_add_test(tests, a_cut_upload_is_an_error);
    tcase_add_test(tests, a_model_is_described);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
