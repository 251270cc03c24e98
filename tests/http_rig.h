/* The HTTP server over the fake device, and raw sockets to it: what is sent is exactly what a test writes. */
#ifndef KV_TESTS_HTTP_RIG_H
#define KV_TESTS_HTTP_RIG_H

#include "server/http.h"
#include "tests/engine_rig.h"

struct http_rig {
    struct kv_engine *engine;
    struct kv_http *http;
    struct kv_listener listener[2]; /* loopback TCP, then a unix socket */
    struct kv_description description;
    float eps[8];
};

void http_rig_open(struct http_rig *rig, struct kv_engine_options options);
/* The same without a device: not ready until engine_rig_warm(rig->engine). */
void http_rig_open_cold(struct http_rig *rig, struct kv_engine_options options);
/* The same as http_rig_open for callers with a key; `access` outlives the rig. */
void http_rig_open_guarded(struct http_rig *rig, struct kv_engine_options options, struct kv_access *access);
void http_rig_close(struct http_rig *rig);

/* A fresh connection to the TCP listener, or to the unix socket; receives time out after 10 s. */
int http_rig_connect(const struct http_rig *rig, bool over_unix);
/* Sends all; false when the peer is gone. */
bool http_rig_send(int fd, const void *bytes, size_t count);
bool http_rig_say(int fd, const char *text);

/* One reply, read by its Content-Length. */
struct http_reply {
    int status; /* 0: the connection ended before a whole reply */
    char head[4096];
    char *body; /* terminated; free with http_reply_free */
    size_t bytes;
};
struct http_reply http_rig_read(int fd);
struct http_reply http_rig_read_head(int fd); /* of a reply to HEAD */
void http_reply_free(struct http_reply *reply);
/* Does the body say this "code"? */
bool http_reply_has_code(const struct http_reply *reply, const char *code);
/* The whole exchange on a fresh connection: sends the text, reads one reply. */
struct http_reply http_rig_ask(const struct http_rig *rig, const char *text);
/* Has the peer closed? Waits up to 10 s for it. */
bool http_rig_closed(int fd);

/* A whole valid request for T tokens as bytes on the wire; free() it. `extra` are header lines or "". */
unsigned char *http_rig_request(int64_t tokens, uint32_t seed, const char *extra, size_t *bytes,
                                size_t *head_bytes);
/* Is a fresh request served rightly over this socket? Every connection made to it before has been taken from
 * its queue when this returns. */
bool http_rig_serves(const struct http_rig *rig, bool over_unix);
/* Is a fresh request still served rightly (over TCP)? What every test of a fault ends with. */
bool http_rig_alive(const struct http_rig *rig);
bool http_rig_is_right(const struct http_reply *reply, int64_t tokens, uint32_t seed);

#endif
