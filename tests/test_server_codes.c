/* Every code that the service may answer with, produced once over a socket: the status, the form of the
 * object, and that the service serves on behind it. A code of protocol/errors.def that is not here fails the
 * test. */
#include "tests/hostile.h"
#include "tests/suite.h"

#include <jansson.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static struct http_rig rig;

#define POST "POST /v1/materialize HTTP/1.1\r\nHost: x\r\n"

/* What an answer says beside its object. */
enum { ENDS = 1 /* the connection is closed */, FOR_GOOD = 2 /* the service never takes a request again */ };

static struct http_reply read_and_close(int fd)
{
    struct http_reply reply = http_rig_read(fd);
    close(fd);
    return reply;
}

static int send_good(const char *extra)
{
    size_t bytes;
    int fd = http_rig_connect(&rig, false);
    unsigned char *wire = http_rig_request(3, 1, extra, &bytes, NULL);
    ck_assert(http_rig_send(fd, wire, bytes));
    free(wire);
    return fd;
}

static struct http_reply ask_good(void)
{
    return read_and_close(send_good(""));
}

/* One request is with the device and does not come back. */
static int occupy(void)
{
    int32_t before = fake.batches;
    fake.held = 1;
    int fd = send_good("");
    while (fake.batches == before) usleep(1000);
    return fd;
}

static void assert_served(int fd)
{
    struct http_reply reply = read_and_close(fd);
    ck_assert(http_rig_is_right(&reply, 3, 1));
    http_reply_free(&reply);
}

static struct http_reply when_the_queue_is_full(void)
{
    int busy = occupy(), waits = send_good("");
    ck_assert(engine_rig_await_waiting(rig.engine, 1));
    struct http_reply reply = ask_good();
    fake.held = 0;
    assert_served(busy);
    assert_served(waits);
    return reply;
}

static struct http_reply when_the_deadline_passes(void)
{
    int busy = occupy();
    struct http_reply reply = read_and_close(send_good("X-Request-Timeout-Ms: 20\r\n"));
    fake.held = 0;
    assert_served(busy);
    return reply;
}

static struct http_reply when_the_device_says(enum kv_fault fault)
{
    fake.submit_fails = (int32_t)fault;
    struct http_reply reply = ask_good();
    fake.submit_fails = KV_OK;
    return reply;
}

static struct http_reply when_the_device_fails(void)
{
    return when_the_device_says(KV_INTERNAL);
}

static struct http_reply when_the_device_has_no_such_thing(void)
{
    return when_the_device_says(KV_UNSUPPORTED);
}

static struct http_reply when_the_device_is_full(void)
{
    return when_the_device_says(KV_DEVICE_OUT_OF_MEMORY);
}

static struct http_reply when_the_device_is_lost(void)
{
    fake.lost = 1;
    return ask_good();
}

static struct http_reply while_loading(void)
{
    struct http_reply reply = ask_good();
    engine_rig_warm(rig.engine);
    return reply;
}

static struct http_reply while_draining(void)
{
    kv_engine_drain(rig.engine);
    return ask_good();
}

/* How each code comes about: by these bytes, or a body of this header and so many bytes, or a state of the
 * service; or why it does not. */
struct row {
    enum kv_fault fault;
    int status;
    const char *bytes;
    size_t count;
    struct hostile_body body;
    int64_t position; /* not 0: in the body's last 8 bytes */
    struct http_reply (*state)(void);
    const char *not_sent;
    const char *head; /* a header line that the answer must have */
    unsigned int flags;
};

#define SENT(text) .bytes = (text), .count = sizeof(text) - 1
#define BODY(text, data_bytes) .body = {text, sizeof(text) - 1, data_bytes, 0, NULL}
#define REQUEST(hidden, positions)                                                                           \
    "{\"hidden_states\":{\"dtype\":" hidden "},\"positions\":{\"dtype\":" positions "}}"
#define HIDDEN "\"BF16\",\"shape\":[1,8],\"data_offsets\":[0,16]"
#define PLACE "\"I64\",\"shape\":[1],\"data_offsets\":[16,24]"

static const struct row rows[] = {
    {KV_BODY_MALFORMED, 400, SENT(POST "Content-Length: 3\r\n\r\nabc")},
    {KV_SIZE_MISMATCH, 400, BODY(REQUEST(HIDDEN, PLACE), 23)},
    {KV_TENSOR_MISSING, 400, BODY("{}", 0)},
    {KV_TENSOR_UNEXPECTED, 400, BODY("{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1)},
    {KV_DTYPE_UNSUPPORTED, 400, BODY(REQUEST(HIDDEN, "\"U64\",\"shape\":[1],\"data_offsets\":[16,24]"), 24)},
    {KV_HIDDEN_SHAPE_MISMATCH, 400,
     BODY(REQUEST("\"BF16\",\"shape\":[2,4],\"data_offsets\":[0,16]", PLACE), 24)},
    {KV_POSITIONS_SHAPE_MISMATCH, 400,
     BODY(REQUEST(HIDDEN, "\"I32\",\"shape\":[2],\"data_offsets\":[16,24]"), 24)},
    {KV_POSITION_OUT_OF_RANGE, 400, BODY(REQUEST(HIDDEN, PLACE), 24), .position = -1},
    {KV_PARAMETER_INVALID, 400, SENT(POST "X-Request-Timeout-Ms: soon\r\nContent-Length: 3\r\n\r\nabc")},
    {KV_HEADER_INVALID, 400, SENT(POST "Content-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\nabc"),
     .flags = ENDS},
    {KV_UNAUTHORIZED, 401, .not_sent = "only with keys: tests/test_server_access.c"},
    {KV_FORBIDDEN, 403, .not_sent = "no route is closed to anybody yet"},
    {KV_NOT_FOUND, 404, SENT("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")},
    {KV_METHOD_NOT_ALLOWED, 405, SENT("DELETE /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n"),
     .head = "\r\nAllow: POST\r\n"},
    {KV_UPLOAD_TIMEOUT, 408, SENT(POST "Content-Length: 3\r\n\r\nab"), .flags = ENDS},
    {KV_LENGTH_REQUIRED, 411, SENT(POST "\r\n")},
    {KV_TOKENS_LIMIT_EXCEEDED, 413,
     BODY(REQUEST("\"BF16\",\"shape\":[17,8],\"data_offsets\":[0,272]",
                  "\"I64\",\"shape\":[17],\"data_offsets\":[272,408]"),
          408)},
    {KV_PAYLOAD_TOO_LARGE, 413, SENT(POST "Content-Length: 1099511627776\r\n\r\n"), .flags = ENDS},
    {KV_MEDIA_TYPE_UNSUPPORTED, 415, SENT(POST "Content-Encoding: br\r\nContent-Length: 3\r\n\r\nabc"),
     .head = "\r\nAccept-Encoding: identity\r\n"},
    {KV_EXPECTATION_FAILED, 417, SENT(POST "Expect: the-moon\r\nContent-Length: 3\r\n\r\n"), .flags = ENDS},
    {KV_QUEUE_FULL, 429, .state = when_the_queue_is_full, .head = "\r\nRetry-After: 1\r\n"},
    {KV_INTERNAL, 500, .state = when_the_device_fails},
    {KV_UNSUPPORTED, 501, .state = when_the_device_has_no_such_thing},
    {KV_NOT_READY, 503, .state = while_loading, .head = "\r\nRetry-After: 1\r\n"},
    {KV_DRAINING, 503, .state = while_draining, .head = "\r\nRetry-After: 1\r\n", .flags = FOR_GOOD},
    {KV_DEVICE_LOST, 503, .state = when_the_device_is_lost, .flags = FOR_GOOD},
    {KV_DEVICE_OUT_OF_MEMORY, 503, .state = when_the_device_is_full},
    {KV_DEADLINE_EXCEEDED, 504, .state = when_the_deadline_passes},
    {KV_CLIENT_GONE, 400, .not_sent = "nobody is there to read it; the log and the metrics know it"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static struct http_reply ask_bytes(const void *bytes, size_t count, bool ends)
{
    int fd = http_rig_connect(&rig, false);
    ck_assert(http_rig_send(fd, bytes, count));
    struct http_reply reply = http_rig_read(fd);
    if (ends) ck_assert(strcasestr(reply.head, "\r\nConnection: close\r\n") && http_rig_closed(fd));
    close(fd);
    return reply;
}

static struct http_reply ask(const struct row *row)
{
    size_t count, bytes;
    if (row->state) return row->state();
    if (row->bytes) return ask_bytes(row->bytes, row->count, row->flags & ENDS);
    unsigned char *document = hostile_document(&row->body, &bytes);
    if (row->position) memcpy(document + bytes - sizeof row->position, &row->position, sizeof row->position);
    unsigned char *wire = hostile_post(document, bytes, "", &count);
    struct http_reply reply = ask_bytes(wire, count, false);
    free(document);
    free(wire);
    return reply;
}

static void assert_text(const json_t *object, const char *key, const char *expected)
{
    const char *got = json_string_value(json_object_get(object, key));
    ck_assert_msg(got && (!expected || strcmp(got, expected) == 0), "%s: %s", key, got ? got : "no text");
}

/* The one form of all errors. */
static void assert_object(const struct http_reply *reply, const struct row *row)
{
    static const char *const members[] = {"param", "expected", "got", "hint"};
    json_t *object = json_loadb(reply->body, reply->bytes, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(object, "no JSON: %.300s", reply->body);
    assert_text(object, "code", kv_fault_info(row->fault)->code);
    assert_text(object, "error", NULL);
    assert_text(object, "detail", json_string_value(json_object_get(object, "error")));
    assert_text(object, "type", "about:blank");
    assert_text(object, "title", NULL);
    assert_text(object, "hint", NULL);
    const char *id = json_string_value(json_object_get(object, "request_id"));
    ck_assert(id && id[0] && strstr(reply->head, id));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "status")), row->status);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        ck_assert_msg(json_object_get(object, members[i]), "no %s", members[i]);
    ck_assert_uint_eq(json_object_size(object), 11);
    json_decref(object);
}

START_TEST(test_code)
{
    const struct row *row = &rows[_i];
    struct kv_engine_options options = {
        .spin_us = 20, .limits = {.tokens_max = 16, .queue_max = 1, .body_bytes_max = 1 << 20}};
    if (row->fault == KV_UPLOAD_TIMEOUT) options.limits.upload_seconds = 1;
    if (row->not_sent) return;
    memset(&fake, 0, sizeof fake);
    if (row->fault == KV_NOT_READY)
        http_rig_open_cold(&rig, options);
    else
        http_rig_open(&rig, options);
    struct http_reply reply = ask(row);
    ck_assert_msg(reply.status == row->status, "%s: %d %s", kv_fault_info(row->fault)->code, reply.status,
                  reply.body ? reply.body : "");
    ck_assert(strcasestr(reply.head, "\r\nContent-Type: application/json\r\n"));
    ck_assert_msg(!row->head || strcasestr(reply.head, row->head), "%s: %s", kv_fault_info(row->fault)->code,
                  reply.head);
    assert_object(&reply, row);
    http_reply_free(&reply);
    if (row->flags & FOR_GOOD) {
        reply = http_rig_ask(&rig, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        ck_assert_int_eq(reply.status, 200);
        http_reply_free(&reply);
    } else {
        ck_assert(http_rig_alive(&rig));
    }
    http_rig_close(&rig);
}
END_TEST

/* Every code with a status is in the table once, with the status that its class has. */
START_TEST(test_table_is_complete)
{
    for (int fault = KV_OK + 1; fault < KV_FAULT_COUNT; fault++) {
        const struct kv_fault_info *info = kv_fault_info((enum kv_fault)fault);
        int found = 0;
        for (size_t i = 0; i < ROWS; i++) {
            if (rows[i].fault != info->fault) continue;
            ck_assert_int_eq(rows[i].status, kv_http_status(info->kind));
            found++;
        }
        ck_assert_msg(found == (kv_http_status(info->kind) != 0), "%s is there %d times", info->code, found);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/codes");
    TCase *cases = tcase_create("codes");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_table_is_complete);
    tcase_add_loop_test(cases, test_code, 0, ROWS);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
