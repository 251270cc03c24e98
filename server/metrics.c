/* Prometheus text exposition, names in base units. */
#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t bounds_us[KV_LATENCY_BUCKETS] = {50,     100,     250,     500,     1000,     2500,
                                                      5000,   10000,   25000,   50000,   100000,   250000,
                                                      500000, 1000000, 2500000, 5000000, 10000000, 30000000};

void kv_histogram_count(struct kv_histogram *histogram, int64_t us)
{
    int32_t at = 0;
    while (at < KV_LATENCY_BUCKETS && us > bounds_us[at]) at++;
    atomic_fetch_add_explicit(&histogram->bucket[at], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_us, us > 0 ? (uint64_t)us : 0, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void print_head(FILE *to, const char *name, const char *type, const char *help)
{
    fprintf(to, "# HELP kvmat_%s %s\n# TYPE kvmat_%s %s\n", name, help, name, type);
}

static void print_one(FILE *to, const char *name, const char *type, const char *help, uint64_t value)
{
    print_head(to, name, type, help);
    fprintf(to, "kvmat_%s %" PRIu64 "\n", name, value);
}

static void print_histogram(FILE *to, const char *name, const char *help,
                            const struct kv_histogram *histogram)
{
    uint64_t count = 0;
    print_head(to, name, "histogram", help);
    for (int32_t i = 0; i < KV_LATENCY_BUCKETS; i++) {
        count += load(&histogram->bucket[i]);
        fprintf(to, "kvmat_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, (double)bounds_us[i] / 1e6, count);
    }
    count += load(&histogram->bucket[KV_LATENCY_BUCKETS]);
    fprintf(to, "kvmat_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
    fprintf(to, "kvmat_%s_sum %.6f\nkvmat_%s_count %" PRIu64 "\n", name,
            (double)load(&histogram->sum_us) / 1e6, name, count);
}

static void print_requests(FILE *to, const struct kv_metrics_view *view)
{
    print_head(to, "requests_total", "counter", "Finished requests by route and result code.");
    for (int32_t route = 0; route < view->route_count; route++) {
        for (int32_t fault = 0; fault < KV_FAULT_COUNT; fault++) {
            uint64_t count = load(&view->metrics->requests[route][fault]);
            if (count == 0 && fault != KV_OK) continue;
            const char *code = fault == KV_OK ? "ok" : kv_fault_info((enum kv_fault)fault)->code;
            fprintf(to, "kvmat_requests_total{route=\"%s\",code=\"%s\"} %" PRIu64 "\n", view->routes[route],
                    code, count);
        }
    }
}

/* A label's value: backslash, quote and line feed are escaped. */
static void print_label(FILE *to, const char *name, const char *value)
{
    fprintf(to, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"')
            fprintf(to, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", to);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

static void print_engine(FILE *to, const struct kv_engine_stats *engine)
{
    print_one(to, "ready", "gauge", "1 when requests are served.", engine->state == KV_ENGINE_READY);
    print_one(to, "requests_in_flight", "gauge", "Requests that hold pool memory.", (uint64_t)engine->jobs);
    print_one(to, "requests_waiting", "gauge", "Requests that wait for memory or the device.",
              (uint64_t)engine->waiting);
    print_one(to, "pool_bytes", "gauge", "Memory for bodies and replies.", engine->pool_bytes);
    print_one(to, "pool_used_bytes", "gauge", "Pool memory in use.", engine->pool_used_bytes);
    print_one(to, "pool_used_bytes_max", "gauge", "The most pool memory that was ever in use.",
              engine->pool_used_bytes_max);
    print_one(to, "batches_total", "counter", "Batches done by the device.", engine->batches);
    print_one(to, "batches_inline_total", "counter",
              "Batches that a request submitted itself to an idle device.", engine->inline_batches);
    print_one(to, "batch_rows_total", "counter", "Rows in those batches.", engine->batch_rows);
    print_one(to, "batch_items_total", "counter", "Requests, or spans of requests, in those batches.",
              engine->batch_items);
    print_head(to, "device_busy_seconds_total", "counter",
               "Time from submit to done, summed over the batches.");
    fprintf(to, "kvmat_device_busy_seconds_total %.6f\n", (double)engine->device_us / 1e6);
}

static void print_device(FILE *to, const struct kv_device_info *device)
{
    char name[512];
    print_head(to, "device_info", "gauge", "1, with the kind of the device and its name as labels.");
    fputs("kvmat_device_info{", to);
    print_label(to, "kind", device->kind);
    fputc(',', to);
    print_label(to, "name", kv_text_print(device->name, name, sizeof name));
    fputs("} 1\n", to);
    print_one(to, "device_memory_bytes", "gauge", "Memory that weights and buffers keep on the device.",
              device->memory_bytes);
}

char *kv_metrics_print(const struct kv_metrics_view *view)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    const struct kv_metrics *metrics = view->metrics;
    print_head(to, "build_info", "gauge", "1, with the version and the model as labels.");
    fputs("kvmat_build_info{", to);
    print_label(to, "version", view->version);
    fputc(',', to);
    char model[512];
    print_label(to, "model", kv_text_print(view->model, model, sizeof model));
    fputs("} 1\n", to);
    if (view->device) print_device(to, view->device);
    print_engine(to, view->engine);
    print_requests(to, view);
    print_one(to, "tokens_total", "counter", "Tokens materialized.", load(&metrics->tokens));
    print_one(to, "body_bytes_total", "counter", "Bytes of request bodies received.",
              load(&metrics->body_bytes));
    print_one(to, "reply_bytes_total", "counter", "Bytes of replies handed out.",
              load(&metrics->reply_bytes));
    print_one(to, "connections", "gauge", "Open connections.",
              (uint64_t)atomic_load_explicit(&metrics->connections, memory_order_relaxed));
    print_histogram(to, "request_seconds", "From the request's head to the end of its reply.",
                    &metrics->total);
    print_histogram(to, "queue_seconds", "Waiting for memory and for the device.", &metrics->queue);
    print_histogram(to, "device_seconds", "From the first submit to the last result of a request.",
                    &metrics->device);
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}
