/* The route table and the answers that need no device. */
#include "server/http_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON "application/json"

static enum MHD_Result answer_health(struct kv_exchange *exchange)
{
    return kv_reply_text(exchange, JSON, strdup("{\"live\":true}\n"));
}

static enum MHD_Result answer_ready(struct kv_exchange *exchange)
{
    struct kv_http *http = exchange->http;
    bool ready = kv_engine_check(http->options.engine, &exchange->err);
    if (ready && atomic_load(&http->retired))
        ready = kv_fail(&exchange->err, KV_DRAINING, "the daemon is about to stop");
    if (!ready) return kv_reply_error(exchange, false);
    return kv_reply_text(exchange, JSON, strdup("{\"ready\":true}\n"));
}

static enum MHD_Result answer_model(struct kv_exchange *exchange)
{
    struct kv_http *http = exchange->http;
    enum kv_engine_state state = kv_engine_state(http->options.engine);
    if (state == KV_ENGINE_STARTING || !atomic_load(&http->described)) {
        kv_fail(&exchange->err, KV_NOT_READY, "the model is still being loaded");
        return kv_reply_error(exchange, false);
    }
    struct kv_description description = http->description;
    description.ready = state == KV_ENGINE_READY && !atomic_load(&http->retired);
    return kv_reply_text(exchange, JSON, kv_description_encode(&description));
}

static enum MHD_Result answer_catalogue(struct kv_exchange *exchange)
{
    return kv_reply_text(exchange, JSON, kv_catalogue_encode(kv_http_status));
}

static enum MHD_Result answer_catalogue_row(struct kv_exchange *exchange)
{
    enum kv_fault fault = kv_fault_find(exchange->rest);
    if (fault == KV_OK) {
        kv_fail_values(&exchange->err, KV_NOT_FOUND, "code", kv_none(), kv_text(exchange->rest),
                       "there is no such error code");
        kv_error_hint(&exchange->err, "GET /v1/errors lists every code.");
        return kv_reply_error(exchange, false);
    }
    return kv_reply_text(exchange, JSON, kv_catalogue_row_encode(fault, kv_http_status));
}

static enum MHD_Result answer_metrics(struct kv_exchange *exchange)
{
    struct kv_http *http = exchange->http;
    const char *labels[KV_ROUTES_MAX];
    struct kv_engine_stats stats;
    struct kv_device_info device;
    struct kv_process process;
    uint64_t cuts[KV_CUT_COUNT];
    int32_t count = 0;
    const struct kv_route *table = kv_route_table(&count);
    for (int32_t i = 0; i < count; i++) labels[i] = table[i].label;
    kv_engine_stats(http->options.engine, &stats);
    const struct kv_metrics_view view = {
        .metrics = &http->metrics,
        .routes = labels,
        .route_count = count,
        .engine = &stats,
        .device = kv_engine_device(http->options.engine, &device) ? &device : NULL,
        .version = http->options.version,
        .ready = stats.state == KV_ENGINE_READY && !atomic_load(&http->retired),
        .limits = kv_engine_limits(http->options.engine),
        .description = atomic_load(&http->described) ? &http->description : NULL,
        .process = &process,
        .cuts = cuts,
    };
    kv_process_read(&process);
    kv_links_cuts(&http->links, cuts);
    return kv_reply_text(exchange, "text/plain; version=0.0.4; charset=utf-8", kv_metrics_print(&view));
}

/* Only reached through a fault: what has no route is refused before its body is read. */
static enum MHD_Result answer_nothing(struct kv_exchange *exchange)
{
    return kv_reply_error(exchange, false);
}

static const struct kv_route table[] = {
    {"", "", "", "none", answer_nothing, false, KV_REACH_PUBLIC}, /* the first: no route at all */
    {"/health", "GET", "GET, HEAD", "health", answer_health, false, KV_REACH_PROBE},
    {"/ready", "GET", "GET, HEAD", "ready", answer_ready, false, KV_REACH_PROBE},
    {"/v1/model", "GET", "GET, HEAD", "model", answer_model, false, KV_REACH_PUBLIC},
    {"/v1/errors", "GET", "GET, HEAD", "errors", answer_catalogue, false, KV_REACH_PUBLIC},
    {"/v1/errors/*", "GET", "GET, HEAD", "error", answer_catalogue_row, false, KV_REACH_PUBLIC},
    {"/metrics", "GET", "GET, HEAD", "metrics", answer_metrics, false, KV_REACH_ADMIN},
    {"/v1/materialize", "POST", "POST", "materialize", kv_materialize_answer, true, KV_REACH_PUBLIC},
};
_Static_assert(sizeof table / sizeof table[0] <= KV_ROUTES_MAX, "the metrics count this many routes");

const struct kv_route *kv_route_table(int32_t *count)
{
    *count = (int32_t)(sizeof table / sizeof table[0]);
    return table;
}

/* Does the path fit? *rest is what stands in the place of a final '*', which takes one whole segment. */
static bool fits(const char *pattern, const char *path, const char **rest)
{
    size_t fixed = strcspn(pattern, "*");
    if (pattern[fixed] == '\0') return strcmp(pattern, path) == 0;
    if (strncmp(pattern, path, fixed) != 0 || path[fixed] == '\0' || strchr(path + fixed, '/')) return false;
    *rest = path + fixed;
    return true;
}

void kv_route_find(struct kv_exchange *exchange, const char *path)
{
    bool admin = exchange->link->links == &exchange->http->admin_links;
    for (size_t i = 1; i < sizeof table / sizeof table[0]; i++) {
        const char *rest = "";
        if ((admin && table[i].reach == KV_REACH_PUBLIC) || !fits(table[i].path, path, &rest)) continue;
        exchange->route = &table[i];
        exchange->route_index = (int32_t)i;
        snprintf(exchange->rest, sizeof exchange->rest, "%s", rest);
        return;
    }
}

bool kv_route_check(struct kv_exchange *exchange, const char *path)
{
    const struct kv_route *route = exchange->route;
    if (route == table)
        return kv_fail_values(&exchange->err, KV_NOT_FOUND, "path", kv_none(), kv_text(path),
                              "there is nothing at this path");
    bool head = strcmp(exchange->method, "HEAD") == 0 && strcmp(route->method, "GET") == 0;
    return head || strcmp(exchange->method, route->method) == 0 ||
           kv_fail_values(&exchange->err, KV_METHOD_NOT_ALLOWED, "method", kv_text(route->allow),
                          kv_text(exchange->method), "%s does not take this method", route->path);
}
