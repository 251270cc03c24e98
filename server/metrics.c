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

static void print_seconds(FILE *to, const char *name, const char *type, const char *help, uint64_t us)
{
    print_head(to, name, type, help);
    fprintf(to, "kvmat_%s %.6f\n", name, (double)us / 1e6);
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

/* Batches by size: bucket[i] are those of up to 2^i. */
static void print_sizes(FILE *to, const char *name, const char *help, const uint64_t *bucket, uint64_t sum)
{
    uint64_t count = 0;
    print_head(to, name, "histogram", help);
    for (int32_t i = 0; i < KV_SIZE_BUCKETS; i++) {
        count += bucket[i];
        fprintf(to, "kvmat_%s_bucket{le=\"%lld\"} %" PRIu64 "\n", name, 1LL << i, count);
    }
    count += bucket[KV_SIZE_BUCKETS];
    fprintf(to, "kvmat_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
    fprintf(to, "kvmat_%s_sum %" PRIu64 "\nkvmat_%s_count %" PRIu64 "\n", name, sum, name, count);
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

static void print_text_label(FILE *to, const char *name, const char *value)
{
    char text[512];
    print_label(to, name, kv_text_print(value, text, sizeof text));
}

static void print_model(FILE *to, const struct kv_description *model)
{
    const struct kv_geometry *geometry = &model->geometry;
    print_head(to, "model_info", "gauge", "1, with what the model is as labels.");
    fputs("kvmat_model_info{", to);
    print_text_label(to, "name", model->name);
    fputc(',', to);
    print_text_label(to, "fingerprint", model->fingerprint);
    fprintf(to,
            ",dtype=\"%s\",layers=\"%d\",hidden=\"%" PRId64 "\",kv_heads=\"%d\",head_dim=\"%d\","
            "rotary_dim=\"%d\",taps=\"%d\"} 1\n",
            kv_dtype_name(geometry->dtype), geometry->layers, geometry->hidden, geometry->kv_heads,
            geometry->head_dim, geometry->rotary_dim, geometry->taps);
}

static void print_device(FILE *to, const struct kv_device_info *device)
{
    print_head(to, "device_info", "gauge", "1, with the kind of the device and its name as labels.");
    fputs("kvmat_device_info{", to);
    print_text_label(to, "kind", device->kind);
    fputc(',', to);
    print_text_label(to, "name", device->name);
    fputs("} 1\n", to);
    print_one(to, "device_memory_bytes", "gauge", "Memory that weights and buffers keep on the device.",
              device->memory_bytes);
    if (device->total_bytes == 0) return;
    print_one(to, "device_memory_total_bytes", "gauge", "Memory of the device, whoever uses it.",
              device->total_bytes);
    print_one(to, "device_memory_free_bytes", "gauge", "Memory of the device that nobody uses.",
              device->free_bytes);
}

static void print_queue(FILE *to, const struct kv_engine_stats *engine, const struct kv_limits *limits)
{
    print_one(to, "requests_in_flight", "gauge", "Requests that hold pool memory.", (uint64_t)engine->jobs);
    print_one(to, "requests_waiting", "gauge", "Requests that wait for memory or the device.",
              (uint64_t)engine->waiting);
    print_one(to, "requests_waiting_max", "gauge",
              "As many may wait; the next one is refused with queue_full.", (uint64_t)limits->queue_max);
    print_one(to, "requests_gone_total", "counter",
              "Requests whose callers hung up while they waited; they never reached the device.",
              engine->gone);
    print_one(to, "queued_rows", "gauge", "Rows that wait for the device.", (uint64_t)engine->queued_rows);
    print_one(to, "pool_bytes", "gauge", "Memory for bodies and replies.", engine->pool_bytes);
    print_one(to, "pool_used_bytes", "gauge", "Pool memory in use.", engine->pool_used_bytes);
    print_one(to, "pool_used_max_bytes", "gauge", "The most pool memory that was ever in use.",
              engine->pool_used_bytes_max);
}

static void print_batches(FILE *to, const struct kv_engine_stats *engine)
{
    print_one(to, "batches_total", "counter", "Batches done by the device.", engine->batches);
    print_one(to, "batches_inline_total", "counter",
              "Batches that a request submitted itself to an idle device.", engine->inline_batches);
    print_sizes(to, "batch_rows", "Rows of a batch.", engine->rows_bucket, engine->batch_rows);
    print_sizes(to, "batch_requests", "Requests of a batch, whole or a span of them.", engine->items_bucket,
                engine->batch_items);
    print_seconds(to, "device_busy_seconds_total", "counter",
                  "Time from submit to done, summed over the batches.", engine->device_us);
    print_seconds(to, "device_oldest_batch_seconds", "gauge",
                  "How long the oldest batch has been with the device; 0 when there is none.",
                  (uint64_t)engine->busy_us);
}

static void print_connections(FILE *to, const struct kv_metrics_view *view)
{
    static const char *const reasons[KV_CUT_COUNT] = {
        [KV_CUT_IDLE] = "idle", [KV_CUT_UPLOAD] = "upload_late", [KV_CUT_REPLY] = "reply_late",
        [KV_CUT_ROOM] = "room", [KV_CUT_FULL] = "full",          [KV_CUT_REFUSED] = "refused",
        [KV_CUT_STOP] = "stop"};
    print_one(to, "connections", "gauge", "Open connections.",
              (uint64_t)atomic_load_explicit(&view->metrics->connections, memory_order_relaxed));
    print_one(to, "connections_max", "gauge", "As many may be open.",
              (uint64_t)view->limits->connections_max);
    print_head(
        to, "connections_cut_total", "counter",
        "Connections that the daemon ended by force, by reason; full: new ones, refused at the limit.");
    for (int32_t i = 0; i < KV_CUT_COUNT; i++)
        fprintf(to, "kvmat_connections_cut_total{reason=\"%s\"} %" PRIu64 "\n", reasons[i], view->cuts[i]);
}

/* Under the names that every exporter of processes uses. */
static void print_process(FILE *to, const struct kv_metrics_view *view)
{
    const struct kv_process *process = view->process;
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"start_time_seconds", "gauge", "When the service started, in seconds since 1970.",
         (double)view->metrics->started},
        {"cpu_seconds_total", "counter", "Processor time of all threads.", process->cpu_seconds},
        {"resident_memory_bytes", "gauge", "Resident memory.", (double)process->resident_bytes},
        {"virtual_memory_bytes", "gauge", "Virtual memory.", (double)process->virtual_bytes},
        {"open_fds", "gauge", "Open file descriptors.", (double)process->open_fds},
        {"max_fds", "gauge", "As many may be open.", (double)process->max_fds},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(to, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.17g\n", rows[i].name,
                rows[i].help, rows[i].name, rows[i].type, rows[i].name, rows[i].value);
}

char *kv_metrics_print(const struct kv_metrics_view *view)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    const struct kv_metrics *metrics = view->metrics;
    print_head(to, "build_info", "gauge", "1, with the version as a label.");
    fputs("kvmat_build_info{", to);
    print_text_label(to, "version", view->version);
    fputs("} 1\n", to);
    if (view->description) print_model(to, view->description);
    if (view->device) print_device(to, view->device);
    print_one(to, "ready", "gauge", "1 when /ready says yes.", view->ready);
    print_requests(to, view);
    print_one(to, "tokens_total", "counter", "Tokens materialized.", load(&metrics->tokens));
    print_one(to, "body_bytes_total", "counter", "Bytes of request bodies received.",
              load(&metrics->body_bytes));
    print_one(to, "reply_bytes_total", "counter", "Bytes of replies handed out.",
              load(&metrics->reply_bytes));
    print_histogram(to, "request_seconds", "From the request's head to the end of its reply.",
                    &metrics->total);
    print_histogram(to, "queue_seconds", "Waiting for memory and for the device.", &metrics->queue);
    print_histogram(to, "device_seconds", "From the first submit to the last result of a request.",
                    &metrics->device);
    print_queue(to, view->engine, view->limits);
    print_batches(to, view->engine);
    print_connections(to, view);
    print_process(to, view);
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}
