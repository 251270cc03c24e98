/* See http_rig.h. */
#include "tests/http_rig.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "http_rig: %s\n", what);
    abort();
}

static void open_cold(struct http_rig *rig, struct kv_engine_options options, struct kv_access *access)
{
    struct kv_error err = {0};
    char path[128];
    *rig = (struct http_rig){.engine = engine_rig_open_cold(options)};
    snprintf(path, sizeof path, "unix:/tmp/kvmat_http_%d.sock", (int)getpid());
    must(kv_listener_open(&rig->listener[0], "127.0.0.1:0", NULL, &err), err.message);
    must(kv_listener_open(&rig->listener[1], path, NULL, &err), err.message);
    const struct kv_http_options http = {rig->engine, rig->listener, 2, "rig", "test", false, access};
    for (int i = 0; i < 8; i++) rig->eps[i] = 1e-6f;
    rig->description = (struct kv_description){.name = "rig",
                                               .fingerprint = "0123456789abcdef0123456789abcdef",
                                               .geometry = engine_rig_geometry,
                                               .eps = rig->eps};
    must(kv_http_open(&rig->http, &http, &err), err.message);
    kv_http_describe(rig->http, &rig->description);
}

void http_rig_open_cold(struct http_rig *rig, struct kv_engine_options options)
{
    open_cold(rig, options, NULL);
}

void http_rig_open_guarded(struct http_rig *rig, struct kv_engine_options options, struct kv_access *access)
{
    open_cold(rig, options, access);
    engine_rig_warm(rig->engine);
}

void http_rig_open(struct http_rig *rig, struct kv_engine_options options)
{
    http_rig_open_cold(rig, options);
    engine_rig_warm(rig->engine);
}

void http_rig_close(struct http_rig *rig)
{
    kv_http_close(rig->http);
    kv_listener_close(&rig->listener[0]);
    kv_listener_close(&rig->listener[1]);
    engine_rig_close(rig->engine);
}

int http_rig_connect(const struct http_rig *rig, bool over_unix)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct timeval patience = {.tv_sec = 10};
    int fd = socket(over_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "no socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (over_unix) {
        snprintf(un.sun_path, sizeof un.sun_path, "%.107s", rig->listener[1].unlink_path);
        must(connect(fd, (struct sockaddr *)&un, sizeof un) == 0, "no connection over the unix socket");
    } else {
        in.sin_port = htons((uint16_t)strtoul(strrchr(rig->listener[0].url, ':') + 1, NULL, 10));
        must(connect(fd, (struct sockaddr *)&in, sizeof in) == 0, "no connection over TCP");
    }
    return fd;
}

bool http_rig_send(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

bool http_rig_say(int fd, const char *text)
{
    return http_rig_send(fd, text, strlen(text));
}

struct http_reply http_rig_read_head(int fd)
{
    struct http_reply reply = {0};
    size_t count = 0;
    while (count < sizeof reply.head - 1 && recv(fd, reply.head + count, 1, 0) == 1) {
        reply.head[++count] = '\0';
        if (count >= 4 && memcmp(reply.head + count - 4, "\r\n\r\n", 4) == 0) {
            reply.status = (int)strtol(reply.head + strlen("HTTP/1.1 "), NULL, 10);
            return reply;
        }
    }
    return reply;
}

struct http_reply http_rig_read(int fd)
{
    struct http_reply reply = http_rig_read_head(fd);
    if (reply.status == 0 || reply.status == 100) return reply;
    const char *length = strcasestr(reply.head, "\r\nContent-Length:");
    must(length != NULL, "a reply without Content-Length");
    size_t wanted = strtoull(length + strlen("\r\nContent-Length:"), NULL, 10);
    reply.body = calloc(1, wanted + 1);
    must(reply.body != NULL, "no memory");
    while (reply.bytes < wanted) {
        ssize_t got = recv(fd, reply.body + reply.bytes, wanted - reply.bytes, 0);
        if (got <= 0) {
            reply.status = 0;
            break;
        }
        reply.bytes += (size_t)got;
    }
    return reply;
}

void http_reply_free(struct http_reply *reply)
{
    free(reply->body);
    *reply = (struct http_reply){0};
}

bool http_reply_has_code(const struct http_reply *reply, const char *code)
{
    char wanted[128];
    if (!reply->body) return false;
    snprintf(wanted, sizeof wanted, "\"code\":\"%s\"", code);
    if (strstr(reply->body, wanted)) return true;
    snprintf(wanted, sizeof wanted, "\"code\": \"%s\"", code);
    return strstr(reply->body, wanted) != NULL;
}

struct http_reply http_rig_ask(const struct http_rig *rig, const char *text)
{
    int fd = http_rig_connect(rig, false);
    must(http_rig_say(fd, text), "the request cannot be sent");
    struct http_reply reply = http_rig_read(fd);
    close(fd);
    return reply;
}

bool http_rig_closed(int fd)
{
    char rest[4096];
    ssize_t got;
    do got = recv(fd, rest, sizeof rest, 0);
    while (got > 0);
    return got == 0 || errno == ECONNRESET;
}

unsigned char *http_rig_request(int64_t tokens, uint32_t seed, const char *extra, size_t *bytes,
                                size_t *head_bytes)
{
    struct engine_rig_request request = {.tokens = tokens, .seed = seed};
    size_t body_bytes = 0, room = 4096 + (size_t)tokens * 64;
    unsigned char *body = malloc(room), *wire = malloc(room + 1024);
    must(body && wire, "no memory");
    engine_rig_fill(&request, body, &body_bytes);
    int head = snprintf((char *)wire, 1024,
                        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s\r\n",
                        body_bytes, extra);
    memcpy(wire + head, body, body_bytes);
    free(body);
    *bytes = (size_t)head + body_bytes;
    if (head_bytes) *head_bytes = (size_t)head;
    return wire;
}

bool http_rig_is_right(const struct http_reply *reply, int64_t tokens, uint32_t seed)
{
    struct engine_rig_request request = {.tokens = tokens, .seed = seed};
    struct kv_document document = {0};
    if (reply->status != 200) return false;
    if (!kv_document_open(&document, reply->body, reply->bytes, KV_DOCUMENT_FILE, NULL)) return false;
    const struct kv_tensor *k = kv_document_find(&document, "k"), *v = kv_document_find(&document, "v");
    uint64_t part_bytes = kv_reply_part_bytes(&engine_rig_geometry, tokens);
    uint64_t data_at = KV_DOCUMENT_PREFIX_BYTES + document.header_bytes;
    bool ok = k && v && k->begin == 0 && v->begin == part_bytes && data_at % KV_DATA_ALIGNMENT == 0 &&
              k->dtype == engine_rig_geometry.dtype && k->rank == 4 && k->dims[1] == tokens &&
              engine_rig_is_right(&request, (const unsigned char *)reply->body + data_at);
    kv_document_close(&document);
    return ok;
}

bool http_rig_serves(const struct http_rig *rig, bool over_unix)
{
    size_t bytes;
    int fd = http_rig_connect(rig, over_unix);
    unsigned char *wire = http_rig_request(5, 77, "", &bytes, NULL);
    struct http_reply reply = {0};
    if (http_rig_send(fd, wire, bytes)) reply = http_rig_read(fd);
    bool right = http_rig_is_right(&reply, 5, 77);
    http_reply_free(&reply);
    free(wire);
    close(fd);
    return right;
}

bool http_rig_alive(const struct http_rig *rig)
{
    return http_rig_serves(rig, false);
}
