/* Answers: the one map from a fault's class to a status, error JSON, texts. */
#include "server/http_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kv_http_status(enum kv_class kind)
{
    switch (kind) {
    case KV_CLASS_CALLER: return 400;
    case KV_CLASS_CREDENTIALS: return 401;
    case KV_CLASS_FORBIDDEN: return 403;
    case KV_CLASS_ABSENT: return 404;
    case KV_CLASS_METHOD: return 405;
    case KV_CLASS_SLOW: return 408;
    case KV_CLASS_LENGTH: return 411;
    case KV_CLASS_LARGE: return 413;
    case KV_CLASS_MEDIA: return 415;
    case KV_CLASS_EXPECTATION: return 417;
    case KV_CLASS_BUSY: return 429;
    case KV_CLASS_INTERNAL: return 500;
    case KV_CLASS_UNSUPPORTED: return 501;
    case KV_CLASS_UNAVAILABLE: return 503;
    case KV_CLASS_DEADLINE: return 504;
    case KV_CLASS_STARTUP: return 0;
    }
    return 500; /* a class outside the enum: our own bug */
}

const char *kv_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Unknown";
}

int64_t kv_transfer_seconds(int32_t first_seconds, uint64_t bytes)
{
    return first_seconds + (int64_t)(bytes >> 18);
}

static int64_t reply_deadline_us(const struct kv_exchange *exchange)
{
    const struct kv_limits *limits = kv_engine_limits(exchange->http->options.engine);
    return kv_now_us() + kv_transfer_seconds(limits->reply_seconds, exchange->reply_bytes) * 1000000;
}

enum MHD_Result kv_reply_send(struct kv_exchange *exchange, int status, const char *content_type,
                              struct MHD_Response *response)
{
    if (!response) return MHD_NO; /* memory is out: the connection is closed */
    bool draining = kv_engine_state(exchange->http->options.engine) >= KV_ENGINE_DRAINING;
    bool ok = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type) == MHD_YES &&
              MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") == MHD_YES &&
              MHD_add_response_header(response, "X-Request-Id", exchange->id) == MHD_YES;
    if (draining)
        ok = ok && MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
    exchange->status = status;
    ok = ok && kv_link_enter(exchange->link, KV_LINK_REPLY, reply_deadline_us(exchange), NULL) &&
         MHD_queue_response(exchange->connection, (unsigned int)status, response) == MHD_YES;
    if (!ok) exchange->status = 0;
    MHD_destroy_response(response);
    return ok ? MHD_YES : MHD_NO;
}

enum MHD_Result kv_reply_text(struct kv_exchange *exchange, const char *content_type, char *text)
{
    if (!text) {
        kv_fail(&exchange->err, KV_INTERNAL, "no memory for the answer");
        return kv_reply_error(exchange, false);
    }
    exchange->reply_bytes = strlen(text);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!response) free(text);
    return kv_reply_send(exchange, 200, content_type, response);
}

enum MHD_Result kv_reply_error(struct kv_exchange *exchange, bool close)
{
    const struct kv_fault_info *info = kv_fault_info(exchange->err.fault);
    int status = kv_http_status(info->kind);
    if (status == 0) status = 500;
    char *text = kv_error_encode(&exchange->err, status, kv_reason(status), exchange->id);
    if (!text) return MHD_NO;
    exchange->reply_bytes = strlen(text);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    if (close) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 405) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, exchange->route->allow);
    if (status == 415) MHD_add_response_header(response, MHD_HTTP_HEADER_ACCEPT_ENCODING, "identity");
    if (status == 429 || status == 503) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    return kv_reply_send(exchange, status, "application/json", response);
}

void kv_late_upload_error(const struct kv_exchange *exchange, struct kv_error *err)
{
    bool announced = exchange->announced != UINT64_MAX; /* else the body is chunked */
    if (err->fault != KV_OK) return;
    if (atomic_load(&exchange->http->abandoned))
        kv_fail(err, KV_DRAINING, "the daemon stopped before the body was in");
    else
        kv_fail_values(err, KV_UPLOAD_TIMEOUT, announced ? "Content-Length" : "Transfer-Encoding",
                       announced ? kv_integer((int64_t)exchange->announced) : kv_none(),
                       kv_integer((int64_t)atomic_load(&exchange->link->moved)),
                       "the bytes of the body did not arrive in time");
}

/* Written to the socket as it is, since the HTTP library takes no answer in the middle of a body: the refusal
 * that was waiting for the body's end, or that the body is late. Called with the links' lock held. */
size_t kv_late_upload_answer(const void *of, char *to, size_t room)
{
    const struct kv_exchange *exchange = of;
    struct kv_error err = exchange->err;
    kv_late_upload_error(exchange, &err);
    int status = kv_http_status(kv_fault_info(err.fault)->kind);
    char *text = kv_error_encode(&err, status, kv_reason(status), exchange->id);
    int bytes = snprintf(to, room,
                         "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
                         "%sX-Request-Id: %s\r\nContent-Length: %zu\r\n\r\n%s",
                         status, kv_reason(status), status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                         exchange->id, text ? strlen(text) : 0, text ? text : "");
    free(text);
    return bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0;
}
