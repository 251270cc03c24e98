/* make-request: a random request file of the size that a model or a daemon takes. */
#include "client/command.h"
#include "client/decode.h"
#include "client/input.h"
#include "client/output.h"
#include "client/request_shape.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK_ELEMENTS = 64 * 1024 };

struct make_request {
    struct kv_request_shape shape;
    int64_t hidden, taps, seed;
    const char *model, *url, *dtype, *positions_dtype;
    bool target, started;
};

/* hidden and taps of the checkpoint in a folder. */
static bool read_config(const char *folder, int64_t *hidden, int64_t *taps, struct kv_error *err)
{
    char path[KV_OUTPUT_PATH_BYTES];
    struct kv_input_file file = {0};
    int32_t count = 0;
    int bytes = snprintf(path, sizeof path, "%s/config.json", folder);
    if (bytes < 0 || (size_t)bytes >= sizeof path)
        return kv_fail(err, KV_FILE_UNUSABLE, "The path of the model is too long");
    struct kv_error inner = {0};
    bool read = kv_input_file_open(&file, path, err);
    if (read && !kv_config_decode(file.bytes, (size_t)file.size, hidden, &count, &inner)) {
        read = kv_fail_param(err, KV_FILE_UNUSABLE, inner.param, "%s: %s", path, inner.message);
    }
    kv_input_file_close(&file);
    *taps = count;
    return read;
}

static bool ask_daemon(const char *url, int64_t *hidden, int64_t *taps, struct kv_error *err)
{
    const struct kv_client_options options = {.call_ms = 10000, .api_key = kv_command_key()};
    struct kv_client *client = NULL;
    struct kv_client_model model;
    bool asked = kv_client_open(&client, url, &options, err) && kv_client_describe(client, &model, err);
    kv_client_close(client);
    if (!asked) return false;
    *hidden = model.hidden;
    *taps = model.taps;
    return true;
}

/* Fills in the width from whichever source was named. */
static bool complete(struct make_request *job, struct kv_error *err)
{
    struct kv_request_shape *shape = &job->shape;
    int64_t hidden = job->hidden, taps = 0;
    if ((job->hidden > 0) + (job->model != NULL) + (job->url != NULL) != 1) {
        return kv_fail(err, KV_OPTION_INVALID, "One of --hidden, --model and --url is needed, and only one");
    }
    if (shape->tokens < 0) return kv_fail(err, KV_OPTION_INVALID, "--tokens N is needed");
    if (job->started && shape->position_max > 0) {
        return kv_fail(err, KV_OPTION_INVALID, "--position-start and --random-positions exclude each other");
    }
    if (job->taps > 0 && !job->target) return kv_fail(err, KV_OPTION_INVALID, "--taps needs --target");
    if (job->model && !read_config(job->model, &hidden, &taps, err)) return false;
    if (job->url && !ask_daemon(job->url, &hidden, &taps, err)) return false;
    if (job->taps > 0) taps = job->taps;
    if (job->target && taps == 0) {
        return kv_fail(err, KV_OPTION_INVALID,
                       "--target needs --taps N: nothing else says how many there are");
    }
    uint64_t width = 0;
    if (!kv_mul((uint64_t)hidden, job->target ? (uint64_t)taps : 1, &width) || width > INT64_MAX) {
        return kv_fail(err, KV_OPTION_INVALID, "A row would be larger than any file");
    }
    shape->kind = job->target ? KV_TARGET_HIDDEN : KV_HIDDEN_STATES;
    shape->width = (int64_t)width;
    shape->dtype = strcmp(job->dtype, "bf16") == 0  ? KV_BF16
                   : strcmp(job->dtype, "f16") == 0 ? KV_F16
                                                    : KV_F32;
    shape->positions_dtype = strcmp(job->positions_dtype, "i64") == 0 ? KV_I64 : KV_I32;
    shape->seed = (uint64_t)job->seed;
    return true;
}

static bool write_values(const struct kv_request_shape *shape, struct kv_output *output, uint64_t bytes,
                         struct kv_error *err)
{
    struct kv_noise hidden = kv_request_shape_hidden(shape), positions = kv_request_shape_positions(shape);
    struct kv_progress progress;
    int64_t elements = shape->tokens * shape->width;
    uint64_t done = 0;
    bool filled = true;
    kv_progress_begin(&progress, "writing", bytes);
    for (int64_t at = 0; filled && at < elements; at += CHUNK_ELEMENTS) {
        int64_t count = elements - at < CHUNK_ELEMENTS ? elements - at : CHUNK_ELEMENTS;
        size_t chunk = (size_t)count * kv_dtype_bytes(shape->dtype);
        void *to = NULL;
        filled = kv_output_room(output, chunk, &to, err);
        if (!filled) break;
        kv_noise_fill(&hidden, shape->dtype, 0, 1, count, to);
        kv_output_filled(output, chunk);
        done += chunk;
        kv_progress_show(&progress, done);
    }
    for (int64_t at = 0; filled && at < shape->tokens; at += CHUNK_ELEMENTS) {
        int64_t count = shape->tokens - at < CHUNK_ELEMENTS ? shape->tokens - at : CHUNK_ELEMENTS;
        size_t chunk = (size_t)count * kv_dtype_bytes(shape->positions_dtype);
        void *to = NULL;
        filled = kv_output_room(output, chunk, &to, err);
        if (!filled) break;
        kv_request_shape_fill_positions(shape, &positions, at, count, to);
        kv_output_filled(output, chunk);
    }
    kv_progress_end(&progress);
    return filled;
}

static bool write_request(const struct kv_request_shape *shape, const char *path, uint64_t *bytes,
                          struct kv_error *err)
{
    char head[KV_REQUEST_HEAD_BYTES];
    size_t head_bytes = 0;
    struct kv_output output = {0};
    bool written = kv_request_shape_head(shape, head, &head_bytes, bytes, err) &&
                   kv_output_open(&output, path, *bytes, err) &&
                   kv_output_write(&output, head, head_bytes, err) &&
                   write_values(shape, &output, *bytes, err) && kv_output_finish(&output, err) &&
                   kv_output_place(&output, err);
    kv_output_close(&output);
    return written;
}

int kv_command_make_request(int argc, char **argv)
{
    struct make_request job = {.shape = {.tokens = -1}, .dtype = "bf16", .positions_dtype = "i64"};
    struct kv_request_shape *shape = &job.shape;
    const struct kv_option options[] = {
        {"--tokens", "T", KV_OPTION_INTEGER, &shape->tokens, 0, INT32_MAX, NULL,
         "rows; 0 is a valid request (needed)", NULL},
        {"--hidden", "N", KV_OPTION_INTEGER, &job.hidden, 1, 1 << 24, NULL, "hidden_size of the model", NULL},
        {"--model", "DIR", KV_OPTION_TEXT, &job.model, 0, 0, NULL,
         "or: take it from this folder's config.json", NULL},
        {"--url", "URL", KV_OPTION_TEXT, &job.url, 0, 0, NULL, "or: ask this daemon", NULL},
        {"--target", NULL, KV_OPTION_FLAG, &job.target, 0, 0, NULL,
         "target_hidden [T, taps * hidden] instead of "
         "hidden_states",
         NULL},
        {"--taps", "N", KV_OPTION_INTEGER, &job.taps, 1, 64, NULL,
         "target hidden states in a row (default: what the model "
         "or the daemon says)",
         NULL},
        {"--dtype", NULL, KV_OPTION_CHOICE, &job.dtype, 0, 0, "bf16|f16|f32", "of the rows (default bf16)",
         NULL},
        {"--positions-dtype", NULL, KV_OPTION_CHOICE, &job.positions_dtype, 0, 0, "i64|i32", "(default i64)",
         NULL},
        {"--position-start", "P", KV_OPTION_INTEGER, &shape->position_start, -9007199254740992.0,
         9007199254740992.0, NULL,
         "positions are P, P + 1, ... (default 0); any value, so that refusals can be tried", &job.started},
        {"--random-positions", "MAX", KV_OPTION_INTEGER, &shape->position_max, 1, INT32_MAX, NULL,
         "positions are random, from 0 to MAX - 1", NULL},
        {"--seed", "N", KV_OPTION_INTEGER, &job.seed, 0, 9007199254740992.0, NULL,
         "the same seed and shape give the same bytes (default 0)", NULL},
    };
    const struct kv_usage usage = {"kvmat make-request",
                                   "FILE",
                                   "Writes a random request for POST /v1/materialize: a safetensors "
                                   "document. It appears only when it is whole.",
                                   options,
                                   sizeof options / sizeof *options,
                                   1,
                                   1,
                                   "Exit status: 0, 1 refused by the daemon, 2 usage or a file, 3 no reply."};
    const char *path = NULL;
    uint64_t bytes = 0;
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, &path, NULL, &err);
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    if (!complete(&job, &err)) {
        return err.fault == KV_OPTION_INVALID ? kv_command_parsed(&usage, KV_PARSED_WRONG, &err)
                                              : kv_command_failed(usage.command, &err);
    }
    kv_output_catch_signals();
    if (!write_request(shape, path, &bytes, &err)) return kv_command_failed(usage.command, &err);
    printf("file %s\ntokens %lld\nwidth %lld\nbytes %llu\n", path, (long long)shape->tokens,
           (long long)shape->width, (unsigned long long)bytes);
    return KV_EXIT_OK;
}
