/* Settings and runs as JSON, written as text: every name and number here is ours, and strings are escaped. */
#include "client/bench_report.h"

static void put_text(FILE *to, const char *name, const char *text)
{
    char printable[KV_CLIENT_MODEL_BYTES * 2];
    kv_text_print(text, printable, sizeof printable);
    fprintf(to, "\"%s\": \"", name);
    for (const char *at = printable; *at; at++) {
        if (*at == '"' || *at == '\\') fputc('\\', to);
        fputc(*at, to);
    }
    fputc('"', to);
}

static void put_bool(FILE *to, const char *name, bool value)
{
    fprintf(to, ", \"%s\": %s", name, value ? "true" : "false");
}

static void put_count(FILE *to, const char *name, uint64_t count)
{
    fprintf(to, ", \"%s\": %llu", name, (unsigned long long)count);
}

/* What is not there is null. */
static void put_real(FILE *to, const char *name, bool there, double value)
{
    fprintf(to, ", \"%s\": ", name);
    if (there) {
        fprintf(to, "%.12g", value);
    } else {
        fputs("null", to);
    }
}

static void put_settings(FILE *to, const struct kv_bench_report *report)
{
    const struct kv_bench_options *how = report->how;
    fprintf(to, "\"settings\": {");
    put_text(to, "url", how->url);
    fprintf(to, ", ");
    put_text(to, "model", how->model->name);
    fprintf(to, ", ");
    put_text(to, "fingerprint", how->model->fingerprint);
    fprintf(to, ",\n    \"input\": \"%s\", \"dtype\": \"%s\", \"connections\": %d", report->input,
            report->dtype, how->connections);
    bool paced = report->run[0].rate > 0;
    fprintf(to, ", \"loop\": \"%s\", \"arrivals\": %s", paced ? "open" : "closed",
            !paced         ? "null"
            : how->poisson ? "\"poisson\""
                           : "\"constant\"");
    put_real(to, "seconds", how->seconds > 0, how->seconds);
    put_real(to, "requests", how->requests > 0, (double)how->requests);
    put_count(to, "warmup", (uint64_t)how->warmup);
    put_count(to, "timeout_ms", (uint64_t)how->call_ms);
    put_count(to, "seed", how->seed);
    put_bool(to, "verify", how->verify);
    put_bool(to, "retry", how->retry);
    fprintf(to, ",\n    \"mix\": [");
    for (int32_t i = 0; i < how->mix.count; i++) {
        fprintf(to, "%s{\"tokens\": %lld, \"weight\": %lld, \"request_bytes\": %zu}", i > 0 ? ", " : "",
                (long long)how->mix.tokens[i], (long long)how->mix.weight[i], how->document[i].iov_len);
    }
    fprintf(to, "]}");
}

static void put_latencies(FILE *to, const struct kv_latencies *latencies)
{
    bool any = latencies->count > 0;
    fprintf(to, "\"latency_ms\": {\"count\": %llu", (unsigned long long)latencies->count);
    put_real(to, "mean", any, kv_latencies_mean(latencies) / 1e6);
    put_real(to, "min", any, (double)latencies->min / 1e6);
    for (int i = 0; i < KV_BENCH_PARTS; i++) {
        put_real(to, kv_bench_parts[i].name, any,
                 (double)kv_latencies_at(latencies, kv_bench_parts[i].part) / 1e6);
    }
    fprintf(to, "},\n      \"histogram\": [");
    struct kv_latency_bucket bucket = {0};
    for (int count = 0; kv_latencies_next(latencies, &bucket); count++) {
        fprintf(to, "%s{\"from_ms\": %.6f, \"to_ms\": %.6f, \"count\": %llu}",
                count == 0       ? ""
                : count % 4 == 0 ? ",\n        "
                                 : ", ",
                (double)bucket.first_ns / 1e6, (double)bucket.last_ns / 1e6,
                (unsigned long long)bucket.count);
    }
    fputc(']', to);
}

static void put_answers(FILE *to, const struct kv_bench_result *result)
{
    fprintf(to, "\"answers\": [{\"code\": \"ok\", \"status\": 200, \"count\": %llu}",
            (unsigned long long)result->requests);
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        const struct kv_bench_answer *answer = &result->refused[i];
        if (answer->count == 0) continue;
        fprintf(to, ", {\"code\": \"%s\"", kv_fault_info((enum kv_fault)i)->code);
        put_real(to, "status", answer->status > 0, answer->status);
        put_count(to, "count", answer->count);
        fputc('}', to);
    }
    fputc(']', to);
}

static void put_mean(FILE *to, const char *name, double sum, uint64_t count)
{
    put_real(to, name, count > 0, sum / (double)(count > 0 ? count : 1));
}

static void put_run(FILE *to, const struct kv_bench_report *report, const struct kv_bench_run *run)
{
    const struct kv_bench_result *result = run->result;
    double per_s = result->seconds > 0 ? 1 / result->seconds : 0;
    fprintf(to, "{\"seconds\": %.6f", result->seconds);
    put_real(to, "rate_per_s", run->rate > 0, run->rate);
    put_count(to, "requests", result->requests);
    put_count(to, "failed", result->failed);
    put_count(to, "not_begun", result->not_begun);
    put_count(to, "retried", result->retried);
    put_count(to, "reconnects", result->reconnects);
    put_real(to, "requests_per_s", true, (double)result->requests * per_s);
    put_real(to, "tokens_per_s", true, (double)result->tokens * per_s);
    put_real(to, "request_gb_per_s", true, (double)result->request_bytes * per_s / 1e9);
    put_real(to, "reply_gb_per_s", true, (double)result->reply_bytes * per_s / 1e9);
    put_mean(to, "late_ms_mean", result->late_ms, result->begun);
    put_real(to, "late_ms_max", result->begun > 0, result->late_ms_max);
    put_mean(to, "queue_ms_mean", result->queue_ms, result->timed);
    put_mean(to, "device_ms_mean", result->device_ms, result->timed);
    fprintf(to, ",\n      ");
    put_answers(to, result);
    fprintf(to, ",\n      ");
    put_latencies(to, &result->latency);
    fprintf(to, ",\n      \"by_tokens\": [");
    for (int32_t i = 0; i < report->how->mix.count; i++) {
        fprintf(to, "%s{\"tokens\": %lld, ", i > 0 ? ",\n      " : "", (long long)report->how->mix.tokens[i]);
        put_latencies(to, &result->by_size[i]);
        fputc('}', to);
    }
    fprintf(to, "]}");
}

void kv_bench_json(FILE *to, const struct kv_bench_report *report)
{
    fputc('{', to);
    put_text(to, "kvmat", report->version);
    fprintf(to, ",\n  ");
    put_settings(to, report);
    fprintf(to, ",\n  \"runs\": [\n    ");
    for (int32_t i = 0; i < report->runs; i++) {
        if (i > 0) fprintf(to, ",\n    ");
        put_run(to, report, &report->run[i]);
    }
    fprintf(to, "]}\n");
}
