/* health, ready, model and materialize: one call each, shown to a person or a script. Knows no socket. */
#include "client/channel.h"
#include "client/command.h"
#include "client/input.h"
#include "client/output.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char timeout_help[] = "for one whole call (default 10)";

enum { POLL_MS = 200 };

static int32_t milliseconds(double seconds)
{
    return seconds < 0.001 ? 1 : (int32_t)(seconds * 1000);
}

/* GET `path` on a client of its own. True: a 2xx reply, printed when asked for. */
static bool get(const char *url, const char *path, double timeout_s, bool print, struct kv_error *err)
{
    const struct kv_client_options options = {.connect_ms = milliseconds(timeout_s),
                                              .call_ms = milliseconds(timeout_s),
                                              .api_key = kv_command_key()};
    struct kv_client *client = NULL;
    struct kv_response response;
    bool accepted = kv_client_open(&client, url, &options, err) &&
                    kv_client_call(client, "GET", path, NULL, 0, NULL, 0, &response, err) &&
                    kv_client_accepted(&response, err);
    if (accepted && print) {
        fwrite(response.body, 1, (size_t)response.bytes, stdout);
        if (response.bytes == 0 || ((const char *)response.body)[response.bytes - 1] != '\n') putchar('\n');
    }
    kv_client_close(client);
    return accepted;
}

int kv_command_health(int argc, char **argv)
{
    const char *url = kv_command_url();
    double timeout_s = 10;
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &timeout_s, 0.001, 86400, NULL, timeout_help, NULL}};
    const struct kv_usage usage = {
        "kvmat health", "", "Asks a daemon whether it is alive; prints `healthy`.", options, 2, 0, 0,
        KV_EXIT_NOTES};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    if (!get(url, "/health", timeout_s, false, &err)) return kv_command_failed(usage.command, &err);
    puts("healthy");
    return KV_EXIT_OK;
}

/* Asks until it is ready or the time is over; the last answer stands. */
static bool wait_ready(const char *url, double timeout_s, double wait_s, struct kv_error *err)
{
    int64_t end_ms = kv_clock_ms() + (int64_t)(wait_s * 1000);
    for (;;) {
        *err = (struct kv_error){0};
        int64_t left_ms = end_ms - kv_clock_ms();
        double one_s = wait_s > 0 && (double)left_ms < timeout_s * 1000 ? (double)left_ms / 1000 : timeout_s;
        if (get(url, "/ready", one_s, false, err)) return true;
        if (err->fault == KV_OPTION_INVALID || kv_clock_ms() + POLL_MS >= end_ms) return false;
        const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
        nanosleep(&pause, NULL);
    }
}

int kv_command_ready(int argc, char **argv)
{
    const char *url = kv_command_url();
    double timeout_s = 10, wait_s = 0;
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &timeout_s, 0.001, 86400, NULL, timeout_help, NULL},
        {"--wait", "SECONDS", KV_OPTION_REAL, &wait_s, 0, 86400, NULL,
         "ask again, five times a second, until it is ready or this time is "
         "over; also while nobody listens (default 0)",
         NULL}};
    const struct kv_usage usage = {
        "kvmat ready",
        "",
        "Asks a daemon whether it takes requests; prints `ready`. Fit for a container's health "
        "check.",
        options,
        3,
        0,
        0,
        KV_EXIT_NOTES};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    if (!wait_ready(url, timeout_s, wait_s, &err)) return kv_command_failed(usage.command, &err);
    puts("ready");
    return KV_EXIT_OK;
}

int kv_command_model(int argc, char **argv)
{
    const char *url = kv_command_url();
    double timeout_s = 10;
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &timeout_s, 0.001, 86400, NULL, timeout_help, NULL}};
    const struct kv_usage usage = {
        "kvmat model", "", "Prints what a daemon serves: its /v1/model, JSON as it came.", options, 2, 0, 0,
        KV_EXIT_NOTES};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    if (!get(url, "/v1/model", timeout_s, true, &err)) return kv_command_failed(usage.command, &err);
    return KV_EXIT_OK;
}

struct materialize {
    const char *url, *input, *output, *request_id;
    int64_t timeout_ms;
    double timeout_s;
};

static bool store(const char *path, const struct kv_reply_view *reply, struct kv_error *err)
{
    struct kv_output output = {0};
    kv_output_catch_signals();
    bool stored = kv_output_open(&output, path, reply->bytes, err) &&
                  kv_output_write(&output, reply->document, (size_t)reply->bytes, err) &&
                  kv_output_finish(&output, err) && kv_output_place(&output, err);
    kv_output_close(&output);
    return stored;
}

static bool materialize(const struct materialize *job, struct kv_error *err)
{
    const struct kv_client_options options = {.call_ms = milliseconds(job->timeout_s),
                                              .silence_ms = milliseconds(job->timeout_s),
                                              .api_key = kv_command_key()};
    const struct kv_materialize_options how = {.request_id = job->request_id, .timeout_ms = job->timeout_ms};
    struct kv_client *client = NULL;
    struct kv_input_file input = {0};
    struct kv_reply_view reply;
    int64_t begin_ms = kv_clock_ms();
    bool done = kv_client_open(&client, job->url, &options, err) &&
                kv_input_file_open(&input, job->input, err) &&
                kv_client_materialize_document(client, input.bytes, input.size, &how, &reply, err) &&
                store(job->output, &reply, err);
    if (done) {
        printf("tokens %lld\nrequest_bytes %llu\nreply_bytes %llu\ndtype %s\nmodel %s\nfingerprint "
               "%s\nrequest_id %s\n",
               (long long)reply.tokens, (unsigned long long)input.size, (unsigned long long)reply.bytes,
               kv_dtype_name(reply.k.dtype), reply.model, reply.fingerprint, reply.request_id);
        if (reply.queue_ms >= 0) printf("queue_ms %.3f\n", reply.queue_ms);
        if (reply.device_ms >= 0) printf("device_ms %.3f\n", reply.device_ms);
        printf("total_ms %lld\n", (long long)(kv_clock_ms() - begin_ms));
    }
    kv_input_file_close(&input);
    kv_client_close(client);
    return done;
}

int kv_command_materialize(int argc, char **argv)
{
    struct materialize job = {.url = kv_command_url(), .timeout_s = 600};
    const struct kv_option options[] = {
        {"--url", "URL", KV_OPTION_TEXT, &job.url, 0, 0, NULL, KV_URL_HELP, NULL},
        {"--input", "FILE", KV_OPTION_TEXT, &job.input, 0, 0, NULL,
         "the request: a safetensors document, sent as it is (`kvmat make-request` writes one)", NULL},
        {"--output", "FILE", KV_OPTION_TEXT, &job.output, 0, 0, NULL,
         "where K and V go, a safetensors document; it appears only when it is whole", NULL},
        {"--request-id", "ID", KV_OPTION_TEXT, &job.request_id, 0, 0, NULL,
         "for the daemon's log: 1 to 128 of A-Z a-z 0-9 . _ - (default: the daemon makes one)", NULL},
        {"--timeout-ms", "N", KV_OPTION_INTEGER, &job.timeout_ms, 1, 86400000, NULL,
         "the daemon answers deadline_exceeded when it has not begun by then (default: no limit)", NULL},
        {"--timeout", "SECONDS", KV_OPTION_REAL, &job.timeout_s, 0.001, 86400, NULL,
         "the client's own limit for the whole call (default 600)", NULL},
    };
    const struct kv_usage usage = {
        "kvmat materialize",
        "",
        "Sends hidden states and positions from a file and stores K and V of every layer.",
        options,
        6,
        0,
        0,
        KV_EXIT_NOTES};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, NULL, NULL, &err);
    if (parsed == KV_PARSED_RUN && (!job.input || !job.output)) {
        kv_fail(&err, KV_OPTION_INVALID, "%s is needed", job.input ? "--output FILE" : "--input FILE");
        parsed = KV_PARSED_WRONG;
    }
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    if (!materialize(&job, &err)) return kv_command_failed(usage.command, &err);
    return KV_EXIT_OK;
}
