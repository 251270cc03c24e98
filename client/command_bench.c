/* bench: asks a daemon what it serves, drives it for a while, and says rates, latencies and answers. */
#include "client/bench_report.h"
#include "client/bench_requests.h"
#include "client/command.h"
#include "client/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bench_job {
    struct kv_bench_options how;
    struct kv_client_model model;
    struct iovec *document;
    int64_t connections, tokens, warmup, seed;
    double timeout_s;
    const char *dtype, *mix, *rates, *arrivals, *format, *json, *svg;
    bool target, timed, sized, rated, allow_errors, progress;
    struct kv_bench_run run[KV_RATES_MAX];
    struct kv_bench_result *result[KV_RATES_MAX]; /* of the runs, owned */
    int32_t runs;
    uint64_t answered; /* when progress was last shown */
    double shown_s;
};

static bool refuse_both(const char *one, const char *other, bool both, struct kv_error *err)
{
    return !both || kv_fail_param(err, KV_OPTION_INVALID, one, "%s and %s exclude each other", one, other);
}

static bool refuse_without(const char *one, const char *other, bool without, struct kv_error *err)
{
    return !without || kv_fail_param(err, KV_OPTION_INVALID, one, "%s needs %s", one, other);
}

/* From what was said on the command line to what is to be done. */
static bool settle(struct bench_job *job, struct kv_error *err)
{
    struct kv_bench_options *how = &job->how;
    double rates[KV_RATES_MAX] = {how->rate};
    if (!refuse_both("--mix", "--tokens", job->mix && job->sized, err) ||
        !refuse_both("--rates", "--rate", job->rates && job->rated, err) ||
        !refuse_without("--svg", "--rates", job->svg && !job->rates, err) ||
        !refuse_without("--arrivals", "--rate or --rates", job->arrivals && !job->rates && !job->rated, err))
        return false;
    how->mix = (struct kv_mix){.count = 1, .tokens = {job->tokens}, .weight = {1}};
    if (job->mix && !kv_mix_read(job->mix, &how->mix, err)) return false;
    job->runs = 1;
    if (job->rates && !kv_rates_read(job->rates, rates, &job->runs, err)) return false;
    for (int32_t i = 0; i < job->runs; i++) job->run[i].rate = rates[i];
    how->poisson = job->arrivals && strcmp(job->arrivals, "poisson") == 0;
    how->connections = (int32_t)job->connections;
    how->warmup = (int32_t)job->warmup;
    how->seed = (uint64_t)job->seed;
    how->call_ms = (int32_t)(job->timeout_s * 1000);
    /* A number of requests ends a run by itself; a run is bounded in any case. */
    if (!job->timed) how->seconds = how->requests > 0 ? 0 : 5;
    if (!job->format) job->format = isatty(STDOUT_FILENO) == 1 ? "table" : "lines";
    return true;
}

static enum kv_dtype dtype_of(const struct bench_job *job)
{
    if (!job->dtype) return job->model.dtype;
    if (strcmp(job->dtype, "bf16") == 0) return KV_BF16;
    return strcmp(job->dtype, "f16") == 0 ? KV_F16 : KV_F32;
}

/* Asks what is served and makes the requests for it. */
static bool prepare(struct bench_job *job, struct kv_error *err)
{
    const struct kv_client_options options = {.call_ms = 10000, .api_key = kv_command_key()};
    struct kv_client *client = NULL;
    bool asked =
        kv_client_open(&client, job->how.url, &options, err) && kv_client_describe(client, &job->model, err);
    kv_client_close(client);
    if (!asked ||
        !kv_bench_requests_make(&job->model, &job->how.mix, job->target ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES,
                                dtype_of(job), job->how.seed, &job->document, err))
        return false;
    job->how.model = &job->model;
    job->how.document = job->document;
    return true;
}

/* A file is opened once before the runs: that it cannot be written is not to be learned after them. */
static bool probe(const char *path, struct kv_error *err)
{
    struct kv_output output = {.fd = -1};
    bool opened = !path || kv_output_open(&output, path, 0, err);
    kv_output_close(&output);
    return opened;
}

static bool write_file(const char *path, const struct kv_bench_report *report,
                       void (*print)(FILE *to, const struct kv_bench_report *report), struct kv_error *err)
{
    struct kv_output output = {.fd = -1};
    char *text = NULL;
    size_t bytes = 0;
    if (!path) return true;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory) print(memory, report);
    bool written = (memory && fclose(memory) == 0) ||
                   kv_fail(err, KV_INTERNAL, "There is no memory for the text of %s", path);
    written = written && kv_output_open(&output, path, bytes, err) &&
              kv_output_write(&output, text, bytes, err) && kv_output_finish(&output, err) &&
              kv_output_place(&output, err);
    kv_output_close(&output);
    free(text);
    return written;
}

static void show_progress(void *context, const struct kv_bench_result *so_far)
{
    struct bench_job *job = context;
    if (so_far->seconds < job->shown_s) job->shown_s = 0, job->answered = 0; /* the next run of a sweep */
    double per_s = (double)(so_far->requests - job->answered) / (so_far->seconds - job->shown_s);
    fprintf(stderr, "%4.0f s %9.1f requests/s, p50 %.3f ms, p99 %.3f ms", so_far->seconds, per_s,
            (double)kv_latencies_at(&so_far->latency, 0.5) / 1e6,
            (double)kv_latencies_at(&so_far->latency, 0.99) / 1e6);
    for (int i = 0; i < KV_FAULT_COUNT; i++) {
        if (so_far->refused[i].count == 0) continue;
        fprintf(stderr, ", %llu %s", (unsigned long long)so_far->refused[i].count,
                kv_bench_answer_name((enum kv_fault)i));
    }
    fputc('\n', stderr);
    job->answered = so_far->requests;
    job->shown_s = so_far->seconds;
}

static bool run_all(struct bench_job *job, const struct kv_bench_report *report, struct kv_error *err)
{
    bool table = strcmp(job->format, "table") == 0, lines = strcmp(job->format, "lines") == 0;
    if (table && job->rates) kv_bench_sweep_head(stdout, report);
    for (int32_t i = 0; i < job->runs; i++) {
        struct kv_bench_run *run = &job->run[i];
        struct kv_bench_result *result = job->result[i] = calloc(1, sizeof *result);
        if (!result) return kv_fail(err, KV_INTERNAL, "There is no memory for the result");
        run->result = result;
        job->how.rate = run->rate;
        if (!kv_bench_run(&job->how, result, err)) return false;
        if (lines) kv_bench_lines(stdout, report, run);
        if (table && job->rates) kv_bench_sweep_line(stdout, run);
        if (table && !job->rates) kv_bench_table(stdout, report, run);
        fflush(stdout);
    }
    if (!table && !lines) kv_bench_json(stdout, report);
    return write_file(job->json, report, kv_bench_json, err) &&
           write_file(job->svg, report, kv_bench_svg, err);
}

/* What the exit status says of runs that came to their end. */
static int judge(const struct bench_job *job, const char *command)
{
    struct kv_error first = {0};
    uint64_t answered = 0, failed = 0;
    bool replied = false;
    for (int32_t i = 0; i < job->runs; i++) {
        const struct kv_bench_result *result = job->run[i].result;
        answered += result->requests;
        failed += result->failed;
        if (first.fault == KV_OK || result->first.fault == KV_REPLY_CHANGED) first = result->first;
        for (int fault = 0; fault < KV_FAULT_COUNT; fault++)
            replied = replied || result->refused[fault].status > 0;
    }
    if (answered == 0 && failed == 0)
        kv_fail(&first, KV_DEADLINE_EXCEEDED, "No request was answered in the time given");
    /* Wrong bits are no answer of a service that is busy: nothing allows them. */
    if (answered > 0 && (failed == 0 || (job->allow_errors && first.fault != KV_REPLY_CHANGED)))
        return KV_EXIT_OK;
    kv_command_failed(command, &first);
    return answered > 0 || failed == 0 || replied ? KV_EXIT_NO : KV_EXIT_UNREACHABLE;
}

static int run(struct bench_job *job, const char *command)
{
    struct kv_error err = {0};
    struct kv_bench_report report = {.version = kv_command_version(),
                                     .input = job->target ? "target_hidden" : "hidden_states",
                                     .how = &job->how,
                                     .run = job->run};
    if (job->progress || isatty(STDERR_FILENO) == 1) {
        job->how.progress = show_progress;
        job->how.context = job;
    }
    bool ran = probe(job->json, &err) && probe(job->svg, &err) && prepare(job, &err);
    report.runs = job->runs;
    report.dtype = ran ? kv_dtype_name(dtype_of(job)) : "";
    ran = ran && run_all(job, &report, &err);
    int code = ran ? judge(job, command) : kv_command_failed(command, &err);
    for (int32_t i = 0; i < KV_RATES_MAX; i++) free(job->result[i]);
    kv_bench_requests_free(job->document, job->how.mix.count);
    return code;
}

static const char summary[] =
    "Drives a daemon with random requests and says rates, latencies and answers. Without a rate, the closed "
    "loop: each connection sends its next request when its reply is in; latency is from the first byte sent "
    "to the last byte read. With --rate, the open loop: requests are due at their times, whether or not "
    "earlier ones are answered; one that finds no connection free waits, and latency is from when it was "
    "due. "
    "Positions are random over all that the model takes. Every reply is checked for status, shape and dtype.";

static const char notes[] =
    "Answers other than 200 are counted by their code and do not end the run.\n"
    "Exit status: 0 all was answered; 1 some requests failed (with --allow-errors:\n"
    "only if none succeeded) or K and V changed under --verify; 2 usage or a file;\n"
    "3 no reply at all.\n"
    "KVMAT_URL in the environment is the default of --url; KVMAT_API_KEY is the key\n"
    "that is sent to a daemon that asks for one.\n"
    "\n"
    "Examples:\n"
    "  kvmat bench --connections 8 --tokens 512 --seconds 10\n"
    "  kvmat bench --connections 64 --rate 200 --arrivals poisson --mix 16:70,512:30\n"
    "  kvmat bench --connections 64 --rates 100,200,400,800 --svg latency.svg";

int kv_command_bench(int argc, char **argv)
{
    struct bench_job job = {.how = {.url = kv_command_url(), .api_key = kv_command_key()},
                            .connections = 1,
                            .tokens = 16,
                            .warmup = 2,
                            .timeout_s = 60};
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &job.how.url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--connections", "N", KV_OPTION_INTEGER, &job.connections, 1, KV_BENCH_CONNECTIONS_MAX, NULL,
         "each has one request in flight (default 1)", NULL},
        {"--seconds", "S", KV_OPTION_REAL, &job.how.seconds, 0.01, 86400, NULL,
         "for how long (default 5, or until --requests are done)", &job.timed},
        {"--requests", "N", KV_OPTION_INTEGER, &job.how.requests, 1, 9007199254740992.0, NULL,
         "stop after this many over all connections", NULL},
        {"--warmup", "N", KV_OPTION_INTEGER, &job.warmup, 0, 1000000, NULL,
         "requests of each connection before the clock starts (default 2)", NULL},
        {"--rate", "R", KV_OPTION_REAL, &job.how.rate, 0.001, KV_RATE_MAX, NULL,
         "open loop: requests per second over all connections", &job.rated},
        {"--rates", "R,R,...", KV_OPTION_TEXT, &job.rates, 0, 0, NULL,
         "open loop at each of these rates, one after the other, each for --seconds", NULL},
        {"--arrivals", NULL, KV_OPTION_CHOICE, &job.arrivals, 0, 0, "constant|poisson",
         "equal or random gaps between requests of the open loop (default constant)", NULL},
        {"--tokens", "T", KV_OPTION_INTEGER, &job.tokens, 0, 1 << 24, NULL, "in a request (default 16)",
         &job.sized},
        {"--mix", "T:WEIGHT,...", KV_OPTION_TEXT, &job.mix, 0, 0, NULL,
         "requests of several sizes, each as often as its weight says", NULL},
        {"--seed", "N", KV_OPTION_INTEGER, &job.seed, 0, 9007199254740992.0, NULL,
         "of values, sizes and gaps: the same seed sends the same (default 0)", NULL},
        {"--target", NULL, KV_OPTION_FLAG, &job.target, 0, 0, NULL, "send target_hidden, for models with fc",
         NULL},
        {"--dtype", NULL, KV_OPTION_CHOICE, &job.dtype, 0, 0, "bf16|f16|f32",
         "of the rows (default: the model's)", NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &job.timeout_s, 0.001, 86400, NULL,
         "for one request (default 60)", NULL},
        {"--retry", NULL, KV_OPTION_FLAG, &job.how.retry, 0, 0, NULL,
         "send a refused request again after its Retry-After, until --timeout; the wait counts", NULL},
        {"--verify", NULL, KV_OPTION_FLAG, &job.how.verify, 0, 0, NULL,
         "compare K and V with the first reply to the same request, bit for bit", NULL},
        {"--allow-errors", NULL, KV_OPTION_FLAG, &job.allow_errors, 0, 0, NULL,
         "exit with 0 although some requests failed", NULL},
        {"--progress", NULL, KV_OPTION_FLAG, &job.progress, 0, 0, NULL,
         "a line a second on standard error, also where that is no terminal", NULL},
        {"--format", NULL, KV_OPTION_CHOICE, &job.format, 0, 0, "lines|table|json",
         "`name value` lines, tables for people, or JSON (default: table on a terminal, else lines)", NULL},
        {"--json", "FILE", KV_OPTION_TEXT, &job.json, 0, 0, NULL, "write the JSON to a file as well", NULL},
        {"--svg", "FILE", KV_OPTION_TEXT, &job.svg, 0, 0, NULL, "draw latency over --rates", NULL},
    };
    const struct kv_usage usage = {
        "kvmat bench", "", summary, options, sizeof options / sizeof *options, 0, 0, notes};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed == KV_PARSED_RUN && !settle(&job, &err)) parsed = KV_PARSED_WRONG;
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    return run(&job, usage.command);
}
