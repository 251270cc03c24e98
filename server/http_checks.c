/* What is wrong with the head of a request, before its body is read. libmicrohttpd takes requests that other
 * readers would frame differently (two lengths, a length beside a transfer coding): those are refused here.
 */
#include "server/http_exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How often each header that frames a body, or says who asks, is there. */
struct framing {
    int32_t lengths, codings, expects, encodings, hosts, timeouts, authorizations, misnamed, folded;
    const char *length, *coding, *expect, *encoding, *timeout, *authorization;
};

/* Anything else in a name is read as part of it here, and as its end or as another header elsewhere. */
static bool is_token(const char *name)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~";
    return name[strspn(name, allowed)] == '\0';
}

/* Before its version 1, the library appends the continuation of a folded line to the header's name, which it
 * moves for that: "Transfer-Encoding:", folded before "chunked", is a header that nobody looks for. */
static bool is_folded(const char *name, const char *value)
{
#if MHD_VERSION < 0x01000000
    const char *behind = name + strlen(name) + 1;
    while (behind < value && (*behind == ' ' || *behind == '\t')) behind++;
    return behind != value;
#else
    (void)name;
    (void)value;
    return false;
#endif
}

static enum MHD_Result note(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct framing *framing = cls;
    (void)kind;
    if (!is_token(key)) framing->misnamed++;
    if (value && is_folded(key, value)) framing->folded++;
    if (!value) value = "";
    if (strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0) {
        framing->lengths++;
        framing->length = value;
    } else if (strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        framing->codings++;
        framing->coding = value;
    } else if (strcasecmp(key, MHD_HTTP_HEADER_EXPECT) == 0) {
        framing->expects++;
        framing->expect = value;
    } else if (strcasecmp(key, MHD_HTTP_HEADER_CONTENT_ENCODING) == 0) {
        framing->encodings++;
        framing->encoding = value;
    } else if (strcasecmp(key, MHD_HTTP_HEADER_HOST) == 0) {
        framing->hosts++;
    } else if (strcasecmp(key, "X-Request-Timeout-Ms") == 0) {
        framing->timeouts++;
        framing->timeout = value;
    } else if (strcasecmp(key, MHD_HTTP_HEADER_AUTHORIZATION) == 0) {
        framing->authorizations++;
        framing->authorization = value;
    }
    return MHD_YES;
}

void kv_check_request_id(struct kv_exchange *exchange)
{
    const char *given = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "X-Request-Id");
    size_t bytes = given ? strlen(given) : 0;
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (bytes > 0 && bytes < sizeof exchange->id && strspn(given, allowed) == bytes) {
        memcpy(exchange->id, given, bytes + 1);
        return;
    }
    /* An id is for finding a line in a log, not for keeping a secret: the start's random number and a count.
     */
    uint64_t parts[2] = {exchange->http->id_seed, atomic_fetch_add(&exchange->http->id_count, 1)};
    for (int32_t i = 0; i < 32; i++)
        exchange->id[i] = "0123456789abcdef"[parts[i / 16] >> (60 - i % 16 * 4) & 15];
    exchange->id[32] = '\0';
}

static bool check_framing(const struct framing *framing, struct kv_error *err)
{
    if (framing->misnamed > 0)
        return kv_fail(err, KV_HEADER_INVALID, "a header's name has a character that none may have");
    if (framing->folded > 0)
        return kv_fail(err, KV_HEADER_INVALID, "a header goes on in a second line, which is not read");
    if (framing->lengths > 1)
        return kv_fail_values(err, KV_HEADER_INVALID, "Content-Length", kv_integer(1),
                              kv_integer(framing->lengths), "Content-Length is given more than once");
    if (framing->lengths && framing->codings)
        return kv_fail_param(err, KV_HEADER_INVALID, "Transfer-Encoding",
                             "Content-Length and Transfer-Encoding are given together");
    if (framing->codings > 1 || (framing->coding && strcasecmp(framing->coding, "chunked") != 0))
        return kv_fail_values(err, KV_HEADER_INVALID, "Transfer-Encoding", kv_none(),
                              kv_text(framing->coding), "this Transfer-Encoding is not read");
    if (framing->timeouts > 1)
        return kv_fail_values(err, KV_HEADER_INVALID, "X-Request-Timeout-Ms", kv_integer(1),
                              kv_integer(framing->timeouts), "X-Request-Timeout-Ms is given more than once");
    return true;
}

/* The number in Content-Length. The HTTP library has refused what is no number. */
static uint64_t announced_bytes(const struct framing *framing)
{
    if (framing->codings) return UINT64_MAX;
    if (!framing->length) return 0;
    errno = 0;
    unsigned long long bytes = strtoull(framing->length, NULL, 10);
    return errno ? UINT64_MAX : bytes;
}

/* A caller's own deadline, counted from the head of its request. */
static bool check_timeout(struct kv_exchange *exchange, const char *text, int64_t *deadline_us)
{
    *deadline_us = 0;
    if (!text) return true;
    char *end = NULL;
    errno = 0;
    long long ms = strtoll(text, &end, 10);
    if (errno || end == text || *end || ms < 1 || ms > 3600 * 1000)
        return kv_fail_values(&exchange->err, KV_PARAMETER_INVALID, "X-Request-Timeout-Ms",
                              kv_text("1 to 3600000"), kv_text(text), "the deadline is no such number");
    *deadline_us = exchange->began_us + ms * 1000;
    return true;
}

/* At the limit of connections only probes are answered on one more. */
static bool check_place(struct kv_exchange *exchange)
{
    int32_t most = kv_engine_limits(exchange->http->options.engine)->connections_max;
    if (!exchange->link->spare || exchange->route->reach == KV_REACH_PROBE) return true;
    kv_fail_values(&exchange->err, KV_QUEUE_FULL, "--max-connections", kv_integer(most), kv_integer(most + 1),
                   "all connections that may be open are busy");
    kv_error_hint(&exchange->err,
                  "Keep connections alive instead of opening one for each request, or start the "
                  "daemon with a larger --max-connections.");
    return false;
}

/* Before anything is said of routes: who has no key learns nothing of them. */
static bool check_caller(struct kv_exchange *exchange, const struct framing *framing)
{
    struct kv_access *access = exchange->http->options.access;
    return !access || exchange->route->reach == KV_REACH_PROBE ||
           kv_access_check(access, framing->authorizations, framing->authorization, &exchange->err);
}

/* What every route asks for. */
static bool check_common(struct kv_exchange *exchange, const struct framing *framing, const char *path)
{
    struct kv_error *err = &exchange->err;
    if (!check_framing(framing, err)) return false;
    if (framing->hosts > 1 || (framing->hosts == 0 && exchange->needs_host))
        return kv_fail_values(err, KV_HEADER_INVALID, "Host", kv_integer(1), kv_integer(framing->hosts),
                              "a request over HTTP/1.1 has one Host header");
    kv_route_find(exchange, path);
    if (!check_caller(exchange, framing) || !kv_route_check(exchange, path) || !check_place(exchange))
        return false;
    if (framing->encodings > 1 || (framing->encoding && strcasecmp(framing->encoding, "identity") != 0))
        return kv_fail_values(err, KV_MEDIA_TYPE_UNSUPPORTED, "Content-Encoding", kv_text("identity"),
                              kv_text(framing->encoding), "the body is encoded");
    if (framing->expects > 1 || (framing->expect && strcasecmp(framing->expect, "100-continue") != 0))
        return kv_fail_values(err, KV_EXPECTATION_FAILED, "Expect", kv_text("100-continue"),
                              kv_text(framing->expect), "this expectation cannot be met");
    return true;
}

/* What a route that takes a body asks for besides. */
static bool check_body(struct kv_exchange *exchange, const struct framing *framing)
{
    struct kv_error *err = &exchange->err;
    const struct kv_limits *limits = kv_engine_limits(exchange->http->options.engine);
    if (!kv_engine_check(exchange->http->options.engine, err)) return false;
    if (framing->codings || !framing->lengths)
        return kv_fail_param(err, KV_LENGTH_REQUIRED, "Content-Length",
                             framing->codings ? "a chunked body is not read: its length must be announced"
                                              : "the length of the body must be announced");
    if (exchange->announced > limits->body_bytes_max) {
        int64_t got = exchange->announced > INT64_MAX ? INT64_MAX : (int64_t)exchange->announced;
        kv_fail_values(err, KV_PAYLOAD_TOO_LARGE, "Content-Length",
                       kv_integer((int64_t)limits->body_bytes_max), kv_integer(got),
                       "the body is larger than --max-body");
        return false;
    }
    return kv_engine_accepts(exchange->http->options.engine, exchange->announced, err);
}

bool kv_check_head(struct kv_exchange *exchange, const char *path, bool *now)
{
    struct framing framing = {0};
    int64_t deadline_us = 0;
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, note, &framing);
    exchange->announced = announced_bytes(&framing);
    bool ok = check_common(exchange, &framing, path) &&
              check_timeout(exchange, framing.timeout, &deadline_us) &&
              (!exchange->route->takes_body ||
               (check_body(exchange, &framing) && kv_materialize_admit(exchange, deadline_us)));
    /* A chunked body may be read to its end like any other; what is framed badly has no end to trust. */
    *now = exchange->err.fault == KV_HEADER_INVALID || framing.expects > 0 ||
           (exchange->announced > KV_SWALLOW_BYTES_MAX && !framing.codings);
    return ok;
}
