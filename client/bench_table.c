/* A run for people at a terminal: percentiles, answers, and a histogram, in at most 80 columns. */
#include "client/bench_report.h"

#include <math.h>
#include <string.h>

enum { ROWS_MAX = 20, BAR_COLUMNS = 36, NUMBER_BYTES = 24 };

/* Four digits where there are as many. */
static const char *print_ms(double ns, char *to /* [NUMBER_BYTES] */)
{
    double ms = ns / 1e6;
    snprintf(to, NUMBER_BYTES, "%.*f", ms < 10 ? 3 : ms < 100 ? 2 : ms < 1000 ? 1 : 0, ms);
    return to;
}

static void print_percentiles(FILE *to, const char *name, const struct kv_latencies *latencies)
{
    char number[NUMBER_BYTES];
    fprintf(to, "%9s %10llu", name, (unsigned long long)latencies->count);
    for (int i = 0; i < KV_BENCH_PARTS; i++) {
        double ns = (double)kv_latencies_at(latencies, kv_bench_parts[i].part);
        fprintf(to, " %7s", latencies->count > 0 ? print_ms(ns, number) : "-");
    }
    fputc('\n', to);
}

static void print_all_percentiles(FILE *to, const struct kv_mix *mix, const struct kv_bench_result *result)
{
    fprintf(to, "\n%9s %10s", "tokens", "answered");
    for (int i = 0; i < KV_BENCH_PARTS; i++) fprintf(to, " %7s", kv_bench_parts[i].name);
    fprintf(to, " ms\n");
    for (int32_t i = 0; i < mix->count; i++) {
        char name[NUMBER_BYTES];
        snprintf(name, sizeof name, "%lld", (long long)mix->tokens[i]);
        print_percentiles(to, name, &result->by_size[i]);
    }
    if (mix->count > 1) print_percentiles(to, "all", &result->latency);
}

static void print_answer(FILE *to, int32_t status, const char *name, uint64_t count, uint64_t all)
{
    char number[NUMBER_BYTES] = "-";
    if (status > 0) snprintf(number, sizeof number, "%d", status);
    fprintf(to, "  %3s  %-32s %12llu %6.2f %%\n", number, name, (unsigned long long)count,
            100 * (double)count / (double)all);
}

static void print_answers(FILE *to, const struct kv_bench_result *result)
{
    uint64_t all = result->requests;
    for (int i = 0; i < KV_FAULT_COUNT; i++) all += result->refused[i].count;
    fprintf(to, "\nanswers\n");
    if (result->requests > 0) print_answer(to, 200, "ok", result->requests, all);
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        const struct kv_bench_answer *answer = &result->refused[i];
        if (answer->count == 0) continue;
        print_answer(to, answer->status, kv_bench_answer_name((enum kv_fault)i), answer->count, all);
    }
    if (result->retried > 0)
        fprintf(to, "  %llu refusals were sent again later\n", (unsigned long long)result->retried);
    if (result->reconnects > 0)
        fprintf(to, "  %llu connections were opened again\n", (unsigned long long)result->reconnects);
}

/* Row r holds latencies from 10^((first + r) / steps) on; `steps` to a decade as many as fit. */
struct rows {
    int32_t steps, first, count;
    uint64_t in[ROWS_MAX], most;
};

static int32_t row_of(uint64_t ns, int32_t steps)
{
    return (int32_t)floor(log10(ns > 0 ? (double)ns : 1) * steps + 1e-9);
}

static void fill_rows(struct rows *rows, const struct kv_latencies *latencies)
{
    static const int32_t steps[] = {20, 10, 5, 2, 1}; /* 64 bits have 20 decades: the last one fits */
    *rows = (struct rows){0};
    for (int i = 0; i < 5 && rows->steps == 0; i++) {
        int32_t first = row_of(latencies->min, steps[i]), last = row_of(latencies->max, steps[i]);
        if (last - first < ROWS_MAX)
            *rows = (struct rows){.steps = steps[i], .first = first, .count = last - first + 1};
    }
    struct kv_latency_bucket bucket = {0};
    while (kv_latencies_next(latencies, &bucket)) {
        int32_t row = row_of(bucket.first_ns, rows->steps) - rows->first;
        if (row < 0) row = 0; /* the bucket of the shortest begins before it */
        rows->in[row] += bucket.count;
        if (rows->in[row] > rows->most) rows->most = rows->in[row];
    }
}

static void print_histogram(FILE *to, const struct kv_latencies *latencies)
{
    struct rows rows;
    char from[NUMBER_BYTES], below[NUMBER_BYTES], bar[BAR_COLUMNS + 1];
    fill_rows(&rows, latencies);
    memset(bar, '#', sizeof bar);
    fprintf(to, "\nlatency in ms, from and below\n");
    for (int32_t r = 0; r < rows.count; r++) {
        double begin = pow(10, (double)(rows.first + r) / rows.steps),
               end = pow(10, (double)(rows.first + r + 1) / rows.steps);
        int length = (int)ceil((double)rows.in[r] * BAR_COLUMNS / (double)rows.most);
        fprintf(to, "%8s %8s |%-*.*s %11llu %6.2f %%\n", print_ms(begin, from), print_ms(end, below),
                BAR_COLUMNS, length, bar, (unsigned long long)rows.in[r],
                100 * (double)rows.in[r] / (double)latencies->count);
    }
}

static void print_how(FILE *to, const struct kv_bench_report *report)
{
    const struct kv_bench_options *how = report->how;
    char mix[KV_BENCH_MIX_BYTES];
    fprintf(to, "%s at %s\n", how->model->name, how->url);
    const char *arrivals = how->poisson ? "poisson" : "constant";
    if (report->runs > 1) {
        fprintf(to, "open loop, %s arrivals, %.15g s at each rate, ", arrivals, how->seconds);
    } else if (report->run[0].rate > 0) {
        fprintf(to, "open loop, %.15g requests/s due, %s arrivals, ", report->run[0].rate, arrivals);
    } else {
        fprintf(to, "closed loop, ");
    }
    fprintf(to, "%d connection%s\n%s %s, tokens %s\n", how->connections, how->connections > 1 ? "s" : "",
            report->input, report->dtype, kv_bench_mix_print(&how->mix, mix, sizeof mix));
}

void kv_bench_table(FILE *to, const struct kv_bench_report *report, const struct kv_bench_run *run)
{
    const struct kv_bench_result *result = run->result;
    double per_s = result->seconds > 0 ? 1 / result->seconds : 0;
    print_how(to, report);
    fprintf(to, "\n%.1f requests/s, %.0f tokens/s, %.4f GB/s in, %.4f GB/s out, %.1f s\n",
            (double)result->requests * per_s, (double)result->tokens * per_s,
            (double)result->request_bytes * per_s / 1e9, (double)result->reply_bytes * per_s / 1e9,
            result->seconds);
    if (result->begun > 0)
        fprintf(to, "sent late by %.3f ms in the mean, %.3f ms at most: counted as latency\n",
                result->late_ms / (double)result->begun, result->late_ms_max);
    if (result->not_begun > 0) {
        unsigned long long due = result->not_begun + result->begun;
        fprintf(to, "%llu of %llu requests could not be begun: no connection was free\n",
                (unsigned long long)result->not_begun, due);
    }
    if (result->timed > 0)
        fprintf(to, "in the service: %.3f ms waiting, %.3f ms on the device in the mean\n",
                result->queue_ms / (double)result->timed, result->device_ms / (double)result->timed);
    if (result->requests > 0) print_all_percentiles(to, &report->how->mix, result);
    if (result->requests + result->failed > 0) print_answers(to, result);
    if (result->requests > 0) print_histogram(to, &result->latency);
}

void kv_bench_sweep_head(FILE *to, const struct kv_bench_report *report)
{
    print_how(to, report);
    fprintf(to, "\n%9s %9s %9s %9s %8s %8s %8s ms\n", "rate/s", "answered", "failed", "not begun", "p50",
            "p90", "p99");
}

void kv_bench_sweep_line(FILE *to, const struct kv_bench_run *run)
{
    const struct kv_bench_result *result = run->result;
    char number[NUMBER_BYTES];
    fprintf(to, "%9.9g %9llu %9llu %9llu", run->rate, (unsigned long long)result->requests,
            (unsigned long long)result->failed, (unsigned long long)result->not_begun);
    static const double parts[] = {0.5, 0.9, 0.99};
    for (int i = 0; i < 3; i++) {
        double ns = (double)kv_latencies_at(&result->latency, parts[i]);
        fprintf(to, " %8s", result->requests > 0 ? print_ms(ns, number) : "-");
    }
    fputc('\n', to);
}
