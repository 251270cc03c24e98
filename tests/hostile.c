/* See hostile.h: the conversations. The requests are in hostile_heads.c and hostile_bodies.c. */
#include "tests/hostile.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_SECONDS = 60, GOOD_TOKENS = 2, GOOD_SEED = 4242 };

static const char good_id[] = "X-Request-Id: good-one-behind\r\n";

/* Is this what the service calls the fault? */
static void find_code(const struct http_reply *reply, char code[32])
{
    code[0] = '\0';
    for (int fault = KV_OK + 1; fault < KV_FAULT_COUNT; fault++) {
        const char *name = kv_fault_info((enum kv_fault)fault)->code;
        if (http_reply_has_code(reply, name)) snprintf(code, 32, "%s", name);
    }
}

static void note(struct talk *talk, const struct http_reply *reply)
{
    if (talk->replies == TALK_REPLIES_MAX) return;
    talk->status[talk->replies] = reply->status;
    find_code(reply, talk->code[talk->replies]);
    talk->replies++;
}

struct talk talk_read(int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    struct talk talk = {0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (bool over = false; !over;) {
        struct http_reply reply = http_rig_read(fd);
        talk.smuggled = talk.smuggled || strcasestr(reply.head, "X-Request-Id: smuggled") != NULL;
        if (strcasestr(reply.head, good_id)) {
            talk.in_step = http_rig_is_right(&reply, GOOD_TOKENS, GOOD_SEED);
            talk.swallowed = !talk.in_step;
            over = true;
        } else if (reply.status == 0) {
            over = true;
        } else if (reply.status != 100) {
            note(&talk, &reply);
            over = strcasestr(reply.head, "\r\nConnection: close") != NULL;
        }
        http_reply_free(&reply);
    }
    talk.ended = !talk.in_step && !talk.swallowed && http_rig_closed(fd);
    close(fd);
    return talk;
}

struct talk talk_with(const struct http_rig *rig, bool over_unix, const void *bytes, size_t count,
                      enum talk_pieces pieces)
{
    const int on = 1;
    size_t good_bytes;
    int fd = http_rig_connect(rig, over_unix);
    unsigned char *good = http_rig_request(GOOD_TOKENS, GOOD_SEED, good_id, &good_bytes, NULL);
    unsigned char *all = malloc(count + good_bytes);
    if (!all) abort();
    memcpy(all, bytes, count);
    memcpy(all + count, good, good_bytes);
    if (!over_unix) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* A peer that has ended the connection takes no more; what it said before can be read all the same. */
    size_t step = pieces == TALK_WHOLE ? count + good_bytes : 1;
    for (size_t at = 0; at < count + good_bytes; at += step)
        if (!http_rig_send(fd, all + at, step)) break;
    free(all);
    free(good);
    return talk_read(fd);
}

const char *hostile_verdict(const struct hostile *promise, const struct talk *talk)
{
    static _Thread_local char why[160];
    int first = talk->replies > 0 ? talk->status[0] : 0;
    if (!talk->in_step && !talk->swallowed && !talk->ended) return "neither answered nor ended";
    if (talk->smuggled) return "something in it was taken for a request of its own";
    if (promise->status == HOSTILE_REFUSED && first > 0 && first < 400) return "it was served";
    snprintf(why, sizeof why, "%d %s, %s", first, talk->replies > 0 ? talk->code[0] : "",
             talk->in_step ? "kept" : "ended");
    if (promise->status > 0 && first != promise->status) return why;
    if (promise->code && (talk->replies == 0 || strcmp(talk->code[0], promise->code) != 0)) return why;
    if (promise->after == HOSTILE_KEPT && !talk->in_step) return why;
    if (promise->after == HOSTILE_KEPT && talk->replies != 1) return "not one answer";
    if (promise->after == HOSTILE_ENDED && !talk->ended) return "the connection goes on";
    if (promise->status != HOSTILE_ANY && talk->swallowed) return "it ran into the request behind it";
    return NULL;
}

const char *hostile_print(const void *bytes, size_t count, char *to, size_t to_bytes)
{
    const unsigned char *from = bytes;
    size_t at = 0;
    for (size_t i = 0; i < count && at + 8 < to_bytes; i++) {
        bool plain = from[i] >= 0x20 && from[i] < 0x7f;
        at += (size_t)snprintf(to + at, to_bytes - at, plain ? "%c" : "\\x%02x", from[i]);
    }
    to[at] = '\0';
    return to;
}

unsigned char *hostile_post(const void *body, size_t body_bytes, const char *extra, size_t *count)
{
    unsigned char *wire = malloc(body_bytes + 1024);
    if (!wire) abort();
    int head = snprintf((char *)wire, 1024,
                        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%.800s\r\n",
                        body_bytes, extra);
    if (body_bytes > 0) memcpy(wire + head, body, body_bytes);
    *count = (size_t)head + body_bytes;
    return wire;
}

unsigned char *hostile_document(const struct hostile_body *body, size_t *bytes)
{
    uint64_t length = body->header_bytes;
    *bytes = KV_DOCUMENT_PREFIX_BYTES + body->header_bytes + body->data_bytes;
    unsigned char *document = calloc(1, *bytes);
    if (!document) abort();
    memcpy(document, &length, sizeof length);
    memcpy(document + KV_DOCUMENT_PREFIX_BYTES, body->header, body->header_bytes);
    return document;
}
