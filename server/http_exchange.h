/* The inside of the HTTP server: one exchange is one request and its answer; one link is one connection. */
#ifndef KV_SERVER_HTTP_EXCHANGE_H
#define KV_SERVER_HTTP_EXCHANGE_H

#include "server/http.h"
#include "server/http_links.h"
#include "server/trace.h"

#include <microhttpd.h>

enum {
    KV_CONNECTION_BYTES = 64 * 1024,  /* libmicrohttpd clears this much for every request on a connection */
    KV_STACK_BYTES = 512 * 1024,      /* of a connection's thread */
    KV_SPARE_CONNECTIONS = 16,        /* beyond connections_max, for probes */
    KV_ADMIN_CONNECTIONS = 64,        /* of the admin listener */
    KV_SWALLOW_BYTES_MAX = 256 << 20, /* of a refused body, read so that the client can hear the refusal */
    KV_SWALLOW_SECONDS = 5,
    KV_TLS_ITEMS = 4
};

/* A listener and whose limits its connections count against. */
struct kv_door {
    struct kv_http *http;
    struct kv_links *links;
    struct MHD_Daemon *daemon;
};

struct kv_http {
    struct kv_http_options options;
    struct kv_door door[KV_LISTENERS_MAX + 1]; /* one for each listener */
    struct kv_links links, admin_links;        /* those of the admin listener have places of their own */
    struct kv_metrics metrics;
    _Atomic int32_t exchanges; /* requests between their head and their completion */

    uint64_t id_seed;                  /* random, of this start */
    _Atomic uint64_t id_count;         /* of the request ids made */
    _Atomic bool retired;              /* not ready any more, though still serving */
    _Atomic bool abandoned;            /* uploads are cut: the time for a drain is over */
    _Atomic bool described;            /* `description` is set */
    struct kv_description description; /* set before the engine's doors open, constant after */
};

struct kv_exchange;

/* Where a route is served. */
enum kv_reach {
    KV_REACH_PUBLIC, /* not on the admin listener */
    KV_REACH_ADMIN,  /* there, too */
    KV_REACH_PROBE   /* and on connections beyond the limit */
};

/* A row of the route table. `answer` is called when the body is in. */
struct kv_route {
    const char *path; /* exact, or up to its '*' */
    const char *method, *allow;
    const char *label; /* in log and metrics */
    enum MHD_Result (*answer)(struct kv_exchange *exchange);
    bool takes_body;
    enum kv_reach reach;
};

struct kv_exchange {
    struct kv_http *http;
    struct MHD_Connection *connection;
    struct kv_link *link;
    const struct kv_route *route;
    int32_t route_index;
    char method[16];
    bool needs_host; /* HTTP/1.1 */
    char rest[64];   /* of the path: what stands in the place of a route's '*' */
    char id[KV_REQUEST_ID_BYTES];
    struct kv_trace trace; /* empty texts: none */

    struct kv_error err; /* why this request is refused, as soon as it is known */
    bool swallowing;     /* refused, and the body is read to its end first */
    int64_t swallow_until_us;
    uint64_t announced, received; /* bytes of the body; announced UINT64_MAX: not announced */
    struct kv_job *job; /* NULL unless admitted; handed over to the reply, whose free callback ends it */

    int64_t began_us;
    int status; /* of the answer; 0: none yet */
    int64_t tokens, queue_us, device_us;
    uint64_t reply_bytes;
};

/* http_routes.c */
const struct kv_route *kv_route_table(int32_t *count);
/* Sets exchange->route (never NULL) and rest. */
void kv_route_find(struct kv_exchange *exchange, const char *path);
/* Is there a route at all, and does it take the method? Else err is set. */
bool kv_route_check(struct kv_exchange *exchange, const char *path);

/* http_checks.c: what the head of a request says. True: read on. False: err is set. *now says that the
 * answer, where there is one already, goes out at once. */
bool kv_check_head(struct kv_exchange *exchange, const char *path, bool *now);
void kv_check_request_id(struct kv_exchange *exchange);

/* http_trace.c: takes note of a valid traceparent. */
void kv_trace_note(struct kv_exchange *exchange);

/* http_tls.c: option_invalid where the access's certificate and key do not serve TLS here. */
bool kv_tls_check(const struct kv_access *access, struct kv_error *err);
/* What a daemon that speaks TLS is started with; `items` [KV_TLS_ITEMS] borrow from the access. */
void kv_tls_items(const struct kv_access *access, struct MHD_OptionItem *items);
/* Does this connection speak TLS? */
bool kv_tls_is_spoken(struct MHD_Connection *connection);

/* http_materialize.c */
bool kv_materialize_admit(struct kv_exchange *exchange, int64_t deadline_us);
enum MHD_Result kv_materialize_answer(struct kv_exchange *exchange);
void kv_job_end(void *of); /* releases and frees; NULL is fine */

/* Seconds that a body or a reply of this size may be on its way: as many to begin with, and one for each 256
 * KiB.
 */
int64_t kv_transfer_seconds(int32_t first_seconds, uint64_t bytes);

/* http_reply.c: all queue the answer. */
enum MHD_Result kv_reply_error(struct kv_exchange *exchange, bool close);
enum MHD_Result kv_reply_text(struct kv_exchange *exchange, const char *content_type, char *text /* freed */);
enum MHD_Result kv_reply_send(struct kv_exchange *exchange, int status, const char *content_type,
                              struct MHD_Response *response);
const char *kv_reason(int status);
/* Why an upload that is cut was cut; what err says already stays. */
void kv_late_upload_error(const struct kv_exchange *exchange, struct kv_error *err);
size_t kv_late_upload_answer(const void *of, char *to, size_t room); /* a kv_late_answer */

#endif
