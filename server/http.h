/* The HTTP face of an engine: routes, framing, statuses. Thread for each connection; a request's thread waits
 * for the device itself. libmicrohttpd is known in server/http*.c only. */
#ifndef KV_SERVER_HTTP_H
#define KV_SERVER_HTTP_H

#include "server/access.h"
#include "server/engine.h"
#include "server/listener.h"
#include "server/metrics.h"

struct kv_http;

struct kv_http_options {
    struct kv_engine *engine;     /* outlives the server */
    struct kv_listener *listener; /* [listeners], bound; outlive the server */
    int32_t listeners;
    const char *model;   /* name, borrowed */
    const char *version; /* of the program, borrowed */
    bool last_is_admin;  /* the last listener serves /health, /ready and /metrics alone, whatever the others
                            hold */
    struct kv_access *access; /* who may call, and TLS for listeners with it; outlives the server. NULL:
                                 anybody, and no TLS */
};

/* Begins to serve at once: /health says yes, /ready no, until the engine is ready. A certificate and key that
 * do not serve TLS, or a build of libmicrohttpd without it, is option_invalid. */
bool kv_http_open(struct kv_http **out, const struct kv_http_options *options,
                  struct kv_error *err) KV_MUST_CHECK;

/* What /v1/model says and replies carry: call it once, before the engine's doors open. What the description
 * points to is borrowed until close; its `ready` is ignored. */
void kv_http_describe(struct kv_http *http, const struct kv_description *description);

/* /ready says draining from here on; requests are still served. */
void kv_http_retire(struct kv_http *http);
/* Refuses new connections, but for the admin listener's. Answers on old ones say Connection: close once the
 * engine drains. */
void kv_http_quiesce(struct kv_http *http);
/* Uploads still on their way are answered with draining and cut. */
void kv_http_abandon(struct kv_http *http);
/* Is no request in flight? */
bool kv_http_idle(struct kv_http *http);

/* Cuts what is still open and joins all threads. NULL is fine. */
void kv_http_close(struct kv_http *http);

/* The HTTP status of a class; 0 for those that never answer a request. */
int kv_http_status(enum kv_class kind);

#endif
