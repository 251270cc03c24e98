/* The HTTP server's life, and one exchange from its head to its completion. */
#include "server/http_exchange.h"

#include "server/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Accepted by the library beyond our own limits: those that were cut are its own until their threads have
 * seen it.
 */
enum { LINGERING_CONNECTIONS = 32 };

/* Takes a piece of the body. */
static enum MHD_Result take(struct kv_exchange *exchange, const char *data, size_t *bytes)
{
    uint64_t before = exchange->received;
    exchange->received += *bytes;
    atomic_store_explicit(&exchange->link->moved, exchange->received, memory_order_relaxed);
    if (exchange->swallowing) {
        bool enough = exchange->received > KV_SWALLOW_BYTES_MAX || kv_now_us() > exchange->swallow_until_us;
        *bytes = 0;
        if (!enough) return MHD_YES;
        kv_link_cut(exchange->link); /* with the answer that waited for the body's end */
        return MHD_NO;
    }
    if (exchange->job) {
        if (exchange->received > exchange->announced) return MHD_NO;
        memcpy(exchange->job->body + before, data, *bytes);
    }
    *bytes = 0;
    return MHD_YES;
}

/* The head is in: refuse at once, refuse after the body, or go on. */
static enum MHD_Result begin(struct kv_exchange *exchange, const char *path)
{
    const struct kv_limits *limits = kv_engine_limits(exchange->http->options.engine);
    bool now = false;
    kv_check_request_id(exchange);
    kv_trace_note(exchange);
    /* Admission may wait for memory; the peer owes nothing meanwhile, and its silence is no fault. */
    if (!kv_link_enter(exchange->link, KV_LINK_WORK, 0, NULL)) return MHD_NO;
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    bool ok = kv_check_head(exchange, path, &now);
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned int)limits->idle_seconds);
    if (!ok && exchange->err.fault == KV_CLIENT_GONE) return MHD_NO;
    if (!ok && now) return kv_reply_error(exchange, true);
    /* Expect without a body: were it not answered here, the library would say 100 and take for the body
     * whatever has come behind, the next request. */
    if (ok && now && exchange->announced == 0) return exchange->route->answer(exchange);
    int64_t seconds = kv_transfer_seconds(limits->upload_seconds, exchange->announced);
    if (!exchange->job) { /* refused, or a route that takes no body: what comes is read and dropped */
        exchange->swallowing = true;
        exchange->swallow_until_us = kv_now_us() + KV_SWALLOW_SECONDS * 1000000LL;
        seconds = KV_SWALLOW_SECONDS;
    }
    bool alive = kv_link_enter(exchange->link, KV_LINK_UPLOAD, kv_now_us() + seconds * 1000000, exchange);
    return alive ? MHD_YES : MHD_NO;
}

static enum MHD_Result finish(struct kv_exchange *exchange)
{
    if (!kv_link_enter(exchange->link, KV_LINK_WORK, 0, NULL)) return MHD_NO;
    if (exchange->err.fault != KV_OK) return kv_reply_error(exchange, exchange->link->spare);
    return exchange->route->answer(exchange);
}

static struct kv_exchange *open_exchange(struct kv_http *http, struct MHD_Connection *connection,
                                         const char *method, const char *version)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct kv_link *link = info ? info->socket_context : NULL;
    struct kv_exchange *exchange = link ? calloc(1, sizeof *exchange) : NULL;
    if (!exchange) return NULL;
    int32_t count = 0;
    exchange->http = http;
    exchange->connection = connection;
    exchange->link = link;
    exchange->route = kv_route_table(&count);
    exchange->began_us = kv_now_us();
    exchange->tokens = -1;
    exchange->needs_host = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
    snprintf(exchange->method, sizeof exchange->method, "%s", method);
    atomic_fetch_add(&http->exchanges, 1);
    return exchange;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *bytes,
                              void **context)
{
    struct kv_exchange *exchange = *context;
    if (!exchange) {
        exchange = open_exchange(cls, connection, method, version);
        if (!exchange) return MHD_NO;
        *context = exchange;
        return begin(exchange, path);
    }
    if (*bytes > 0) return take(exchange, data, bytes);
    return finish(exchange);
}

static void count_exchange(const struct kv_exchange *exchange, enum kv_fault fault, int64_t total_us)
{
    struct kv_metrics *metrics = &exchange->http->metrics;
    atomic_fetch_add_explicit(&metrics->requests[exchange->route_index][fault], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->body_bytes, exchange->received, memory_order_relaxed);
    if (exchange->status)
        atomic_fetch_add_explicit(&metrics->reply_bytes, exchange->reply_bytes, memory_order_relaxed);
    if (!exchange->route->takes_body) return;
    /* Who gave up waiting waited, too. */
    if (fault == KV_OK || fault == KV_DEADLINE_EXCEEDED)
        kv_histogram_count(&metrics->queue, exchange->queue_us);
    if (fault != KV_OK) return;
    atomic_fetch_add_explicit(&metrics->tokens, (uint64_t)exchange->tokens, memory_order_relaxed);
    kv_histogram_count(&metrics->total, total_us);
    kv_histogram_count(&metrics->device, exchange->device_us);
}

/* Why an exchange ended without its answer being taken, where nothing is known yet. */
static void note_end(struct kv_exchange *exchange, enum MHD_RequestTerminationCode how)
{
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK) return;
    bool cut = !kv_link_enter(exchange->link, KV_LINK_IDLE, 0, NULL);
    if (exchange->status) {
        kv_fail(&exchange->err, KV_CLIENT_GONE,
                cut ? "the reply was not taken in time" : "the reply was not taken");
    } else if (cut || how == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED) {
        kv_late_upload_error(exchange, &exchange->err);
        if (cut && !exchange->link->tls)
            exchange->status = kv_http_status(kv_fault_info(exchange->err.fault)->kind); /* by who cut it */
    } else {
        kv_fail(&exchange->err, KV_CLIENT_GONE, "the connection closed before an answer");
    }
}

static void complete(void *cls, struct MHD_Connection *connection, void **context,
                     enum MHD_RequestTerminationCode how)
{
    struct kv_exchange *exchange = *context;
    struct kv_http *http = cls;
    (void)connection;
    if (!exchange) return;
    *context = NULL;
    note_end(exchange, how);
    int64_t now_us = kv_now_us(), total_us = now_us - exchange->began_us;
    enum kv_fault fault = exchange->err.fault;
    count_exchange(exchange, fault, total_us);
    kv_log_finished(&(struct kv_log_request){
        .method = exchange->method,
        .route = exchange->route->label,
        .id = exchange->id,
        .trace_id = exchange->trace.trace_id,
        .span_id = exchange->trace.span_id,
        .code = fault == KV_OK ? "ok" : kv_fault_info(fault)->code,
        .error = exchange->err.message,
        .status = exchange->status,
        .tokens = exchange->tokens,
        .body_bytes = exchange->received,
        .reply_bytes = exchange->reply_bytes,
        .queue_us = exchange->queue_us,
        .device_us = exchange->device_us,
        .total_us = total_us,
    });
    kv_job_end(exchange->job);
    int64_t idle_us = kv_engine_limits(http->options.engine)->idle_seconds * 1000000LL;
    kv_link_enter(exchange->link, KV_LINK_IDLE, now_us + 2 * idle_us, NULL);
    free(exchange);
    atomic_fetch_sub(&http->exchanges, 1);
}

static void notify(void *cls, struct MHD_Connection *connection, void **context,
                   enum MHD_ConnectionNotificationCode what)
{
    const struct kv_door *door = cls;
    struct kv_http *http = door->http;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*context) atomic_fetch_sub(&http->metrics.connections, 1);
        kv_link_close(*context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int64_t idle_us = kv_engine_limits(http->options.engine)->idle_seconds * 1000000LL;
    *context = info ? kv_link_open(door->links, info->connect_fd, kv_tls_is_spoken(connection),
                                   kv_now_us() + 2 * idle_us)
                    : NULL;
    if (*context) atomic_fetch_add(&http->metrics.connections, 1);
}

/* At most so many lines a second are the library's: it repeats itself for as long as it is short of
 * something. */
enum { LIBRARY_LINES_MAX = 10 };

static void log_library(void *cls, const char *format, va_list arguments)
{
    static _Atomic int64_t second;
    static _Atomic int32_t lines;
    char message[256];
    (void)cls;
    /* A handshake that came to nothing: said of every port scan, and of the daemon's own watchdog. */
    if (strstr(format, "handshake message out of context")) return;
    int64_t now = kv_now_us() / 1000000;
    if (atomic_exchange(&second, now) != now) atomic_store(&lines, 0);
    if (atomic_fetch_add(&lines, 1) >= LIBRARY_LINES_MAX) return;
    vsnprintf(message, sizeof message, format, arguments);
    message[strcspn(message, "\r\n")] = '\0';
    kv_log(KV_LOG_INFO, "http: %s", message);
}

/* Paths are compared as they were sent: no escape in them is ever decoded. */
static size_t keep(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    return strlen(text);
}

/* Not strict for clients: a strict library refuses some requests itself, with a page instead of our JSON.
 * server/http_checks.c refuses the same. */
static struct MHD_Daemon *start(struct kv_door *door, const struct kv_listener *listener)
{
    struct kv_http *http = door->http;
    const struct kv_limits *limits = kv_engine_limits(http->options.engine);
    const struct kv_links_limits *links = &door->links->limits;
    struct MHD_OptionItem tls[KV_TLS_ITEMS] = {{MHD_OPTION_END, 0, NULL}};
    if (listener->tls) kv_tls_items(http->options.access, tls);
    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
            MHD_USE_ERROR_LOG | (listener->tls ? MHD_USE_TLS : 0u),
        0, NULL, NULL, handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL, MHD_OPTION_LISTEN_SOCKET,
        listener->fd, MHD_OPTION_NOTIFY_COMPLETED, complete, http, MHD_OPTION_NOTIFY_CONNECTION, notify, door,
        MHD_OPTION_UNESCAPE_CALLBACK, keep, NULL, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)KV_CONNECTION_BYTES, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned int)(links->count_max + links->spares_max + LINGERING_CONNECTIONS),
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)limits->idle_seconds, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)KV_STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

static bool open_links(struct kv_http *http)
{
    const struct kv_limits *limits = kv_engine_limits(http->options.engine);
    struct kv_links_limits links = {limits->connections_max, KV_SPARE_CONNECTIONS, limits->rate_seconds,
                                    limits->rate_bytes};
    if (!kv_links_open(&http->links, &links, kv_late_upload_answer)) return false;
    links.count_max = KV_ADMIN_CONNECTIONS;
    return !http->options.last_is_admin || kv_links_open(&http->admin_links, &links, kv_late_upload_answer);
}

bool kv_http_open(struct kv_http **out, const struct kv_http_options *options, struct kv_error *err)
{
    *out = NULL;
    if (options->access && !kv_tls_check(options->access, err)) return false;
    struct kv_http *http = calloc(1, sizeof *http);
    if (!http) return kv_fail(err, KV_INTERNAL, "no memory for the HTTP server");
    http->options = *options;
    http->metrics.started = time(NULL);
    if (getrandom(&http->id_seed, sizeof http->id_seed, GRND_NONBLOCK) < 0)
        http->id_seed = (uint64_t)kv_now_us();
    bool ok = open_links(http) ||
              kv_fail(err, KV_INTERNAL, "the thread that watches connections cannot be started");
    for (int32_t i = 0; ok && i < options->listeners; i++) {
        bool admin = options->last_is_admin && i == options->listeners - 1;
        struct kv_door *door = &http->door[i];
        *door = (struct kv_door){.http = http, .links = admin ? &http->admin_links : &http->links};
        door->daemon = start(door, &options->listener[i]);
        ok = door->daemon || kv_fail(err, KV_INTERNAL, "no thread or memory to serve %s: %s",
                                     options->listener[i].url, strerror(errno));
    }
    if (ok)
        *out = http;
    else
        kv_http_close(http);
    return ok;
}

void kv_http_describe(struct kv_http *http, const struct kv_description *description)
{
    http->description = *description;
    atomic_store(&http->described, true);
}

void kv_http_retire(struct kv_http *http)
{
    atomic_store(&http->retired, true);
}

static void quiesce(struct kv_http *http, int32_t i)
{
    if (http->door[i].daemon) MHD_quiesce_daemon(http->door[i].daemon);
    /* A quiesced socket still accepts into its backlog, where clients would hang. */
    kv_listener_shut(&http->options.listener[i]);
}

void kv_http_quiesce(struct kv_http *http)
{
    for (int32_t i = 0; i < http->options.listeners - http->options.last_is_admin; i++) quiesce(http, i);
}

void kv_http_abandon(struct kv_http *http)
{
    atomic_store(&http->abandoned, true);
    kv_links_cut(&http->links, KV_LINK_UPLOAD);
}

bool kv_http_idle(struct kv_http *http)
{
    return atomic_load(&http->exchanges) == 0;
}

void kv_http_close(struct kv_http *http)
{
    if (!http) return;
    /* A daemon that was not quiesced would close the listener's socket, which is not its own. */
    for (int32_t i = 0; i < http->options.listeners; i++) quiesce(http, i);
    kv_links_cut(&http->links, KV_LINK_REPLY);
    for (int32_t i = 0; i < http->options.listeners; i++)
        if (http->door[i].daemon) MHD_stop_daemon(http->door[i].daemon);
    kv_links_close(&http->links);
    if (http->options.last_is_admin) kv_links_close(&http->admin_links);
    free(http);
}
