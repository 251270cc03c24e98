/* bench: asks a daemon what it serves, drives it for a while, and prints rates, latencies and failures. */
#include "client/bench.h"
#include "client/command.h"
#include "client/request_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench_job {
    struct kv_bench_options how;
    int64_t connections, tokens, warmup;
    double timeout_s;
    const char *dtype;
    bool target, timed;
};

/* Makes the request in memory: all connections send the same bytes. */
static bool make_request(struct bench_job *job, void **document, struct kv_error *err)
{
    const struct kv_client_options options = {.call_ms = 10000};
    struct kv_client *client = NULL;
    struct kv_client_model model;
    bool asked =
        kv_client_open(&client, job->how.url, &options, err) && kv_client_describe(client, &model, err);
    kv_client_close(client);
    if (!asked) return false;
    if (job->target && model.taps == 0) {
        return kv_fail(err, KV_OPTION_INVALID, "--target: the model %s has no fc", model.name);
    }
    struct kv_request_shape shape = {
        .kind = job->target ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES,
        .dtype = !job->dtype                       ? model.dtype
                 : strcmp(job->dtype, "bf16") == 0 ? KV_BF16
                 : strcmp(job->dtype, "f16") == 0  ? KV_F16
                                                   : KV_F32,
        .positions_dtype = KV_I64,
        .tokens = job->tokens,
        .width = job->target ? model.taps * model.hidden : model.hidden,
        .position_max = model.positions,
    };
    char head[KV_REQUEST_HEAD_BYTES];
    size_t head_bytes = 0;
    if (!kv_request_shape_head(&shape, head, &head_bytes, &job->how.bytes, err)) return false;
    char *to = malloc((size_t)job->how.bytes);
    if (!to) {
        return kv_fail_values(err, KV_OPTION_INVALID, "--tokens", kv_none(),
                              kv_integer((int64_t)job->how.bytes),
                              "There is no memory for a request of this many bytes");
    }
    struct kv_noise hidden = kv_request_shape_hidden(&shape), positions = kv_request_shape_positions(&shape);
    size_t rows = (size_t)(shape.tokens * shape.width) * kv_dtype_bytes(shape.dtype);
    memcpy(to, head, head_bytes);
    kv_noise_fill(&hidden, shape.dtype, 0, 1, shape.tokens * shape.width, to + head_bytes);
    kv_request_shape_fill_positions(&shape, &positions, 0, shape.tokens, to + head_bytes + rows);
    *document = to;
    return true;
}

static void print_result(const struct bench_job *job, const struct kv_bench_result *result)
{
    static const struct {
        const char *name;
        double part;
    } parts[] = {
        {"latency_ms_p50", 0.5}, {"latency_ms_p90", 0.9}, {"latency_ms_p99", 0.99}, {"latency_ms_max", 1}};
    double requests = (double)result->requests, per_s = result->seconds > 0 ? 1 / result->seconds : 0;
    printf("connections %lld\ntokens_per_request %lld\nrequest_bytes %llu\n", (long long)job->connections,
           (long long)job->tokens, (unsigned long long)job->how.bytes);
    printf("seconds %.3f\nrequests %llu\nfailed %llu\n", result->seconds,
           (unsigned long long)result->requests, (unsigned long long)result->failed);
    printf("requests_per_s %.1f\ntokens_per_s %.1f\n", requests * per_s,
           requests * (double)job->tokens * per_s);
    printf("request_gb_per_s %.4f\nreply_gb_per_s %.4f\n", requests * (double)job->how.bytes * per_s / 1e9,
           (double)result->reply_bytes * per_s / 1e9);
    if (result->requests > 0) printf("latency_ms_mean %.3f\n", result->latency.sum / requests / 1e6);
    for (int i = 0; result->requests > 0 && i < 4; i++) {
        printf("%s %.3f\n", parts[i].name, (double)kv_latencies_at(&result->latency, parts[i].part) / 1e6);
    }
    if (result->timed > 0) {
        printf("queue_ms_mean %.3f\ndevice_ms_mean %.3f\n", result->queue_ms / (double)result->timed,
               result->device_ms / (double)result->timed);
    }
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        if (result->faults[i] == 0) continue;
        printf("failed_%s %llu\n", kv_fault_info((enum kv_fault)i)->code,
               (unsigned long long)result->faults[i]);
    }
}

static int run(struct bench_job *job, const char *command)
{
    struct kv_error err = {0};
    struct kv_bench_result *result = calloc(1, sizeof *result);
    void *document = NULL;
    job->how.connections = (int32_t)job->connections;
    job->how.warmup = (int32_t)job->warmup;
    job->how.call_ms = (int32_t)(job->timeout_s * 1000);
    job->how.tokens = job->tokens;
    /* A number of requests ends a run by itself; a run is bounded in any case. */
    if (!job->timed) job->how.seconds = job->how.requests > 0 ? 0 : 5;
    bool run = result != NULL || kv_fail(&err, KV_INTERNAL, "There is no memory for the result");
    run = run && make_request(job, &document, &err);
    job->how.document = document;
    run = run && kv_bench_run(&job->how, result, &err);
    int code = KV_EXIT_OK;
    if (run) print_result(job, result);
    if (!run) {
        code = kv_command_failed(command, &err);
    } else if (result->failed > 0) {
        code = kv_command_failed(command, &result->first);
    } else if (result->requests == 0) {
        kv_fail(&err, KV_DEADLINE_EXCEEDED, "No request was answered in the time given");
        code = kv_command_failed(command, &err);
    }
    free(document);
    free(result);
    return code;
}

int kv_command_bench(int argc, char **argv)
{
    struct bench_job job = {
        .how = {.url = kv_command_url()}, .connections = 1, .tokens = 16, .warmup = 2, .timeout_s = 60};
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &job.how.url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--connections", "N", KV_OPTION_INTEGER, &job.connections, 1, KV_BENCH_CONNECTIONS_MAX, NULL,
         "each has one request in flight (default 1)", NULL},
        {"--tokens", "T", KV_OPTION_INTEGER, &job.tokens, 0, 1 << 24, NULL, "in a request (default 16)",
         NULL},
        {"--seconds", "S", KV_OPTION_REAL, &job.how.seconds, 0.01, 86400, NULL,
         "for how long (default 5, or until --requests are done)", &job.timed},
        {"--requests", "N", KV_OPTION_INTEGER, &job.how.requests, 1, 9007199254740992.0, NULL,
         "stop after this many over all connections", NULL},
        {"--warmup", "N", KV_OPTION_INTEGER, &job.warmup, 0, 1000000, NULL,
         "requests of each connection before the clock starts (default 2)", NULL},
        {"--target", NULL, KV_OPTION_FLAG, &job.target, 0, 0, NULL, "send target_hidden, for models with fc",
         NULL},
        {"--dtype", NULL, KV_OPTION_CHOICE, &job.dtype, 0, 0, "bf16|f16|f32",
         "of the rows (default: the model's)", NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &job.timeout_s, 0.001, 86400, NULL,
         "for one request (default 60)", NULL},
    };
    const struct kv_usage usage = {
        "kvmat bench",
        "",
        "Drives a daemon with random requests and prints rates and latencies, one `name value` a line. "
        "Positions are "
        "random over all that the model takes. Latency is from the first byte sent to the last byte read.",
        options,
        sizeof options / sizeof *options,
        0,
        0,
        KV_EXIT_NOTES};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    return run(&job, usage.command);
}
