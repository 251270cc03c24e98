/* The client library: one connection to a daemon, calls that block, and K and V as views of the reply. Plain
 * POSIX sockets, HTTP/1.1 with keep-alive over TCP or a unix socket. Knows no arithmetic and no checkpoint.
 *
 * Threads: a client object is used by one thread at a time; use one object for each thread. Nothing here
 * raises SIGPIPE, changes a signal, exits, or keeps state outside the object. Trust: nothing a service sends
 * is believed before it is checked; every size is bounded. Retries: a call that fails on a kept connection
 * before the first byte of its reply is sent once more on a fresh one. All calls of the service can be
 * repeated without harm. Nothing else is retried, and refusals never are. */
#ifndef KV_CLIENT_CLIENT_H
#define KV_CLIENT_CLIENT_H

#include "protocol/message.h"

#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_client;

/* Zero means the default. */
struct kv_client_options {
    int32_t connect_ms;       /* for each address of a host: 5000 */
    int32_t silence_ms;       /* the longest time without a byte sent or received: 60000 */
    int32_t call_ms;          /* for a whole call, connecting included: no limit */
    uint64_t reply_bytes_max; /* of a reply's body: 2 GiB */
    const char *api_key;      /* sent as `Authorization: Bearer`; borrowed for the object's life; none */
};

enum {
    KV_CLIENT_PARTS_MAX = 8,          /* of a request's body */
    KV_CLIENT_HEADERS_MAX = 16,       /* that a caller may add */
    KV_CLIENT_KEY_BYTES_MAX = 256,    /* of an API key */
    KV_CLIENT_HEAD_BYTES_MAX = 32768, /* of a request's or a reply's header section */
    KV_CLIENT_MODEL_BYTES = 513
};

/* Parses `url` and allocates; connects at the first call. `url` is http://HOST:PORT, http://[IPV6]:PORT or
 * unix:PATH; anything else is option_invalid. `options` may be NULL. On failure *out is NULL. */
bool kv_client_open(struct kv_client **out, const char *url, const struct kv_client_options *options,
                    struct kv_error *err) KV_MUST_CHECK;
void kv_client_close(struct kv_client *client); /* NULL is fine */

struct kv_header {
    const char *name, *value; /* a header whose value is NULL is left out */
};

/* A complete HTTP reply. `body` belongs to the client object and is good until its next call or its close; it
 * starts at a multiple of 64 bytes and may be written to. */
struct kv_response {
    int32_t status;
    int32_t retry_after_s;      /* -1: not said */
    double queue_ms, device_ms; /* from Server-Timing; -1: not said */
    char content_type[KV_TEXT_BYTES];
    char request_id[KV_REQUEST_ID_BYTES];
    void *body;
    uint64_t bytes;
};

/* Sends one request and reads its whole reply, whatever its status. The body is the parts in order, sent from
 * where they lie; they must not change during the call. Host, Content-Length and Connection are written here.
 * A reply that comes while the body is still being sent ends the sending and is the result.
 * False: no complete reply. service_unreachable (not connected, cut off, too slow), reply_malformed (not the
 * HTTP that the service speaks, or over a bound), parameter_invalid (a header or path that cannot be sent).
 */
bool kv_client_call(struct kv_client *client, const char *method, const char *path,
                    const struct kv_header *headers, int32_t header_count, const struct iovec *parts,
                    int32_t part_count, struct kv_response *response, struct kv_error *err) KV_MUST_CHECK;

/* True for a 2xx reply. Else fails with the service's own code, sentence, param and hint; a reply without a
 * known code fails with a fault that fits its status. */
bool kv_client_accepted(const struct kv_response *response, struct kv_error *err) KV_MUST_CHECK;

/* How one materialize call is to be treated. NULL and zero leave it to the service. */
struct kv_materialize_options {
    const char *request_id; /* [A-Za-z0-9._-]{1,128} */
    int64_t timeout_ms;     /* after this the service may give up: deadline_exceeded */
};

/* K and V. The views borrow from the client object: good until its next call or its close. */
struct kv_reply_view {
    int64_t tokens;
    struct kv_view k, v; /* [layers, T, kv_heads, head_dim], of one dtype; each aligned to its elements */
    char model[KV_CLIENT_MODEL_BYTES];
    char fingerprint[KV_FINGERPRINT_BYTES];
    char request_id[KV_REQUEST_ID_BYTES];
    double queue_ms, device_ms; /* -1: not said */
    const void *document;       /* the whole reply, a safetensors document */
    uint64_t bytes;
};

/* Hidden states and positions in, K and V out. `hidden` is [T, hidden] or [T, taps * hidden] by `kind`,
 * `positions` is [T]; only that bytes fit shape and dtype is checked here, the rest is the service's to
 * judge. False: as kv_client_call and kv_client_accepted; reply_malformed also when the reply is not K and V
 * for T tokens. */
bool kv_client_materialize(struct kv_client *client, enum kv_input_kind kind, const struct kv_view *hidden,
                           const struct kv_view *positions, const struct kv_materialize_options *options,
                           struct kv_reply_view *reply, struct kv_error *err) KV_MUST_CHECK;

/* The same for a request that is a document already; its bytes are sent as they are. */
bool kv_client_materialize_document(struct kv_client *client, const void *document, uint64_t bytes,
                                    const struct kv_materialize_options *options, struct kv_reply_view *reply,
                                    struct kv_error *err) KV_MUST_CHECK;

/* Reads K and V out of a reply that kv_client_accepted takes. reply_malformed: it is not these two. */
bool kv_client_reply_read(const struct kv_response *response, struct kv_reply_view *reply,
                          struct kv_error *err) KV_MUST_CHECK;

/* How many connections the client object has opened so far. */
uint64_t kv_client_connections(const struct kv_client *client);

/* What a caller needs to know of the model behind a service. */
struct kv_client_model {
    char name[KV_CLIENT_MODEL_BYTES];
    char fingerprint[KV_FINGERPRINT_BYTES];
    bool ready;
    int64_t hidden;
    int32_t layers, kv_heads, head_dim, taps;
    enum kv_dtype dtype;
    int64_t positions; /* valid are [0, positions) */
};

bool kv_client_describe(struct kv_client *client, struct kv_client_model *model,
                        struct kv_error *err) KV_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
