/* Fuzz target: any bytes sent to the HTTP server over the fake device, and what comes back: well-formed
 * replies until the connection is closed, errors of ours as one JSON object, and a good request is answered
 * rightly after all of it. Shut standard error (-close_fd_mask=2): the server logs every request. */
#include "tests/fuzz/promise.h"
#include "tests/http_rig.h"

#include <errno.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include <jansson.h>

enum { ALIVE_EVERY = 64, ANSWER_BYTES_MAX = 64 << 20 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct http_rig rig;

/* All that came back, with a NUL behind it; the memory is kept for the next. */
struct answer {
    char *text;
    size_t bytes, room;
};

struct reply {
    int status;
    const char *body;
    size_t bytes;
    bool ours, json, dense; /* carries our id; its content types */
};

/* Reads to the end of the connection, which must come: a receive waits 10 s at most. */
static void read_answer(int fd, struct answer *answer)
{
    ssize_t got;
    answer->bytes = 0;
    do {
        if (answer->room - answer->bytes < 64 * 1024) {
            answer->room = 2 * answer->room + 128 * 1024;
            answer->text = realloc(answer->text, answer->room);
            FUZZ_CHECK(answer->text != NULL && answer->room <= ANSWER_BYTES_MAX);
        }
        got = recv(fd, answer->text + answer->bytes, answer->room - answer->bytes - 1, 0);
        FUZZ_CHECK(got >= 0 || errno == ECONNRESET || errno == EINTR);
        if (got > 0) answer->bytes += (size_t)got;
    } while (got > 0 || (got < 0 && errno == EINTR));
    answer->text[answer->bytes] = '\0';
}

static void check_header(const char *line, const char *end, struct reply *reply, const char **length)
{
    static const char names[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-";
    static const char ids[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const char id[] = "X-Request-Id: ", count[] = "Content-Length: ", type[] = "Content-Type: ";
    size_t name = strspn(line, names);
    FUZZ_CHECK(name > 0 && line[name] == ':' && line[name + 1] == ' ');
    for (const char *at = line; at < end; at++) FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7f);
    if (strncasecmp(line, id, sizeof id - 1) == 0) {
        FUZZ_CHECK(strspn(line + sizeof id - 1, ids) == (size_t)(end - line) - (sizeof id - 1));
        reply->ours = true;
    } else if (strncasecmp(line, count, sizeof count - 1) == 0) {
        FUZZ_CHECK(!*length);
        *length = line + sizeof count - 1;
    } else if (strncasecmp(line, type, sizeof type - 1) == 0) {
        reply->json = strncmp(line + sizeof type - 1, "application/json\r", 17) == 0;
        reply->dense = strncmp(line + sizeof type - 1, "application/octet-stream\r", 25) == 0;
    }
}

/* The body of a refusal, or of an answer in JSON. */
static void check_json(const struct reply *reply)
{
    json_t *json = json_loadb(reply->body, reply->bytes, 0, NULL);
    FUZZ_CHECK(json_is_object(json));
    if (reply->status >= 400) {
        enum kv_fault fault = kv_fault_find(json_string_value(json_object_get(json, "code")));
        FUZZ_CHECK(fault != KV_OK && fault != KV_INTERNAL);
        FUZZ_CHECK(kv_http_status(kv_fault_info(fault)->kind) == reply->status);
        FUZZ_CHECK(json_integer_value(json_object_get(json, "status")) == reply->status);
        FUZZ_CHECK(json_string_length(json_object_get(json, "error")) > 0);
        FUZZ_CHECK(json_string_length(json_object_get(json, "hint")) > 0);
        FUZZ_CHECK(json_string_length(json_object_get(json, "request_id")) > 0);
    }
    json_decref(json);
}

static void check_body(const struct reply *reply)
{
    struct kv_document document;
    FUZZ_CHECK(reply->ours || reply->status == 0 || reply->status >= 400);
    FUZZ_CHECK(!reply->ours || reply->status == 200 || reply->json);
    if (reply->json) check_json(reply);
    if (!reply->dense) return;
    FUZZ_CHECK(kv_document_open(&document, reply->body, reply->bytes, KV_DOCUMENT_FILE, NULL));
    FUZZ_CHECK(document.count == 2 && kv_document_find(&document, "k") && kv_document_find(&document, "v"));
    kv_document_close(&document);
}

/* libmicrohttpd 0.9.75 refuses a Content-Length that is no number, or one that it cannot hold, with a page of
 * its own, and sends the head of it twice. It closes then, so that nobody reads on. */
static bool repeats_head(const char *text, const struct reply *reply, size_t left)
{
    size_t head_bytes = (size_t)(reply->body - text);
    return !reply->ours && reply->status >= 400 && left >= head_bytes &&
           memcmp(text, reply->body, head_bytes) == 0 && strstr(text, "\r\nConnection: close\r\n");
}

/* One reply at the beginning of `text`; returns its bytes. A reply to HEAD has a length and no body, and only
 * who wrote the requests knows which they are. */
static size_t check_reply(const char *text, size_t bytes, bool heads)
{
    struct reply reply = {0};
    const char *length = NULL, *head_end = memmem(text, bytes, "\r\n\r\n", 4);
    FUZZ_CHECK(head_end != NULL);
    FUZZ_CHECK(strncmp(text, "HTTP/1.1 ", 9) == 0 || strncmp(text, "HTTP/1.0 ", 9) == 0);
    FUZZ_CHECK(strspn(text + 9, "0123456789") == 3 && text[12] == ' ');
    reply.status = (int)strtol(text + 9, NULL, 10);
    reply.body = head_end + 4;
    for (const char *line = strstr(text, "\r\n"); line < head_end; line = strstr(line + 2, "\r\n"))
        check_header(line + 2, strstr(line + 2, "\r\n"), &reply, &length);
    size_t left = bytes - (size_t)(reply.body - text);
    if (reply.status == 100) return bytes - left;
    FUZZ_CHECK(reply.status >= 200 && reply.status < 600 && length);
    reply.bytes = strtoull(length, NULL, 10);
    if (repeats_head(text, &reply, left)) return bytes;
    if (heads && (left == 0 || strncmp(reply.body, "HTTP/1.", 7) == 0)) return bytes - left;
    FUZZ_CHECK(reply.bytes <= left);
    check_body(&reply);
    return bytes - left + reply.bytes;
}

/* What was asked for has been done, and all memory is back. */
static void await_rest(void)
{
    struct kv_engine_stats stats = {.jobs = 1};
    for (int i = 0; i < 10000 && (stats.jobs > 0 || !kv_http_idle(rig.http)); i++) {
        kv_engine_stats(rig.engine, &stats);
        if (stats.jobs > 0 || !kv_http_idle(rig.http))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    FUZZ_CHECK(stats.jobs == 0 && stats.waiting == 0 && stats.pool_used_bytes == 0);
}

/* Everything was given back, too. */
static void close_rig(void)
{
    http_rig_close(&rig);
}

/* A good request on a connection of its own gets the right bits: at once, or when the connections that were
 * just closed are put away and there is room again. */
static void check_alive(void)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(5, 77, "", &bytes, NULL);
    struct http_reply reply = {.status = 503};
    for (int i = 0; i < 1000 && (reply.status == 429 || reply.status == 503); i++) {
        if (i > 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        http_reply_free(&reply);
        int fd = http_rig_connect(&rig, false);
        if (http_rig_send(fd, wire, bytes)) reply = http_rig_read(fd);
        close(fd);
    }
    bool right = http_rig_is_right(&reply, 5, 77);
    if (!right)
        dprintf(fuzz_report_fd, "a good request got status %d, %zu bytes: %.500s\n", reply.status,
                reply.bytes, reply.body ? reply.body : "");
    FUZZ_CHECK(right);
    http_reply_free(&reply);
    free(wire);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const struct kv_engine_options options = {
        .limits = {.tokens_max = 64, .body_bytes_max = 64 * 1024, .pool_bytes = 1 << 20}};
    fuzz_report_fd = dup(STDERR_FILENO);
    http_rig_open(&rig, options);
    FUZZ_CHECK(atexit(close_rig) == 0);
    fake.fault = KV_POSITION_OUT_OF_RANGE; /* a fault of the device for one request alone */
    fake.fault_position = 4242;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct answer answer;
    static uint64_t inputs;
    int fd = http_rig_connect(&rig, true);
    (void)http_rig_send(fd, data, size); /* the server may close before it has read all */
    shutdown(fd, SHUT_WR);
    read_answer(fd, &answer);
    close(fd);
    bool heads = memmem(data, size, "HEAD", 4) != NULL;
    for (size_t at = 0; at < answer.bytes;) at += check_reply(answer.text + at, answer.bytes - at, heads);
    if (++inputs % ALIVE_EVERY != 0) return 0;
    await_rest();
    check_alive();
    await_rest();
    return 0;
}
