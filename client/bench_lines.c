/* A run as `name value` a line, for scripts: names stay, new ones may be added. */
#include "client/bench_report.h"

const struct kv_bench_part kv_bench_parts[KV_BENCH_PARTS] = {
    {"p50", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};

const char *kv_bench_answer_name(enum kv_fault fault)
{
    return fault == KV_SERVICE_UNREACHABLE ? "connection lost" : kv_fault_info(fault)->code;
}

const char *kv_bench_mix_print(const struct kv_mix *mix, char *to, size_t to_bytes)
{
    size_t used = 0;
    to[0] = '\0';
    for (int32_t i = 0; i < mix->count && used < to_bytes; i++) {
        const char *comma = i > 0 ? "," : "";
        int bytes = mix->count == 1 ? snprintf(to, to_bytes, "%lld", (long long)mix->tokens[i])
                                    : snprintf(to + used, to_bytes - used, "%s%lld:%lld", comma,
                                               (long long)mix->tokens[i], (long long)mix->weight[i]);
        used += (size_t)bytes;
    }
    return to;
}

static void print_count(FILE *to, const char *name, uint64_t count)
{
    fprintf(to, "%s %llu\n", name, (unsigned long long)count);
}

static void print_latencies(FILE *to, const char *suffix, const struct kv_latencies *latencies)
{
    if (latencies->count == 0) return;
    fprintf(to, "latency_ms_mean%s %.3f\n", suffix, kv_latencies_mean(latencies) / 1e6);
    for (int i = 0; i < KV_BENCH_PARTS; i++) {
        fprintf(to, "latency_ms_%s%s %.3f\n", kv_bench_parts[i].name, suffix,
                (double)kv_latencies_at(latencies, kv_bench_parts[i].part) / 1e6);
    }
}

/* What one request had in the mean; before any was answered, what the first size of the mix has. */
static double mean_of(uint64_t sum, uint64_t requests, double first)
{
    return requests > 0 ? (double)sum / (double)requests : first;
}

void kv_bench_lines(FILE *to, const struct kv_bench_report *report, const struct kv_bench_run *run)
{
    const struct kv_bench_options *how = report->how;
    const struct kv_bench_result *result = run->result;
    double per_s = result->seconds > 0 ? 1 / result->seconds : 0;
    if (run->rate > 0) fprintf(to, "rate_per_s %.15g\n", run->rate);
    fprintf(to, "connections %d\n", how->connections);
    fprintf(to, "tokens_per_request %.15g\n",
            mean_of(result->tokens, result->requests, (double)how->mix.tokens[0]));
    fprintf(to, "request_bytes %.15g\n",
            mean_of(result->request_bytes, result->requests, (double)how->document[0].iov_len));
    fprintf(to, "seconds %.3f\n", result->seconds);
    print_count(to, "requests", result->requests);
    print_count(to, "failed", result->failed);
    if (run->rate > 0) print_count(to, "not_begun", result->not_begun);
    if (how->retry) print_count(to, "retried", result->retried);
    print_count(to, "reconnects", result->reconnects);
    fprintf(to, "requests_per_s %.1f\ntokens_per_s %.1f\n", (double)result->requests * per_s,
            (double)result->tokens * per_s);
    fprintf(to, "request_gb_per_s %.4f\nreply_gb_per_s %.4f\n", (double)result->request_bytes * per_s / 1e9,
            (double)result->reply_bytes * per_s / 1e9);
    print_latencies(to, "", &result->latency);
    for (int32_t i = 0; how->mix.count > 1 && i < how->mix.count; i++) {
        char suffix[24];
        snprintf(suffix, sizeof suffix, "_t%lld", (long long)how->mix.tokens[i]);
        fprintf(to, "requests%s %llu\n", suffix, (unsigned long long)result->by_size[i].count);
        print_latencies(to, suffix, &result->by_size[i]);
    }
    if (result->begun > 0)
        fprintf(to, "late_ms_mean %.3f\nlate_ms_max %.3f\n", result->late_ms / (double)result->begun,
                result->late_ms_max);
    if (result->timed > 0) {
        fprintf(to, "queue_ms_mean %.3f\ndevice_ms_mean %.3f\n", result->queue_ms / (double)result->timed,
                result->device_ms / (double)result->timed);
    }
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        if (result->refused[i].count == 0) continue;
        fprintf(to, "failed_%s %llu\n", kv_fault_info((enum kv_fault)i)->code,
                (unsigned long long)result->refused[i].count);
    }
}
