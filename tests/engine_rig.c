/* See engine_rig.h. The hidden states are random bytes; the fake device only reads the first two of a row. */
#include "tests/engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const struct kv_geometry engine_rig_geometry = {
    .layers = 3,
    .kv_heads = 2,
    .head_dim = 4,
    .rotary_dim = 4,
    .hidden = 8,
    .positions = 100000,
    .dtype = KV_BF16,
    .value_scale = 1,
    .attention_factor = 1,
};

struct kv_engine *engine_rig_open_cold(struct kv_engine_options options)
{
    struct kv_limits *limits = &options.limits;
    if (!limits->tokens_max) limits->tokens_max = 16384;
    if (!limits->body_bytes_max) limits->body_bytes_max = 64 << 20;
    if (!limits->pool_bytes) limits->pool_bytes = 16 << 20;
    if (!limits->queue_max) limits->queue_max = 64;
    if (!limits->batch_tokens_max) limits->batch_tokens_max = 256;
    if (!limits->connections_max) limits->connections_max = 128;
    if (!limits->idle_seconds) limits->idle_seconds = 60;
    if (!limits->upload_seconds) limits->upload_seconds = 30;
    if (!limits->reply_seconds) limits->reply_seconds = 30;
    if (!limits->rate_seconds) limits->rate_seconds = 10;
    if (!limits->rate_bytes) limits->rate_bytes = 65536;
    struct kv_engine *engine = kv_engine_open(&options);
    if (!engine) abort();
    return engine;
}

void engine_rig_warm(struct kv_engine *engine)
{
    struct kv_error err = {0};
    struct kv_backend *backend = fake_open(&engine_rig_geometry);
    if (!backend || !kv_engine_start(engine, &fake_ops, backend, &engine_rig_geometry, &err)) {
        fprintf(stderr, "the engine does not start: %s\n", err.message);
        abort();
    }
    fake.batches = fake.items = fake.rows = fake.rows_max_seen = fake.items_max_seen = 0;
    kv_engine_open_doors(engine);
}

struct kv_engine *engine_rig_open(struct kv_engine_options options)
{
    struct kv_engine *engine = engine_rig_open_cold(options);
    engine_rig_warm(engine);
    return engine;
}

void engine_rig_close(struct kv_engine *engine)
{
    struct kv_engine_stats stats;
    kv_engine_stats(engine, &stats);
    if (stats.jobs != 0 || stats.pool_used_bytes != 0 || stats.waiting != 0) {
        fprintf(stderr, "left behind: %d jobs, %llu bytes, %d waiting\n", stats.jobs,
                (unsigned long long)stats.pool_used_bytes, stats.waiting);
        abort();
    }
    kv_engine_close(engine);
    if (fake.open != 0 || fake.mems != 0) {
        fprintf(stderr, "the device did not get back: %d backends, %d memories\n", fake.open, fake.mems);
        abort();
    }
}

static size_t encode_head(unsigned char *to, size_t room, int64_t tokens)
{
    size_t bytes = 0;
    if (!kv_request_encode(to, room, &engine_rig_geometry, KV_HIDDEN_STATES, KV_BF16, KV_I64, tokens, &bytes,
                           NULL))
        abort();
    return bytes;
}

static uint64_t body_bytes(int64_t tokens)
{
    unsigned char head[1024];
    return encode_head(head, sizeof head, tokens) +
           (uint64_t)tokens * ((uint64_t)engine_rig_geometry.hidden * 2 + 8);
}

uint64_t engine_rig_request_bytes(int64_t tokens)
{
    uint64_t body = body_bytes(tokens);
    int64_t bound = kv_request_tokens_bound(&engine_rig_geometry, body, 16384);
    return kv_pool_round(body) +
           kv_pool_round(KV_REPLY_HEADER_BYTES_MAX + 2 * kv_reply_part_bytes(&engine_rig_geometry, bound));
}

static int64_t position_of(const struct engine_rig_request *request, int64_t t)
{
    return (int64_t)((request->seed * 7919u + (uint32_t)t * 31u) % (uint32_t)engine_rig_geometry.positions);
}

static uint16_t first_of(const struct engine_rig_request *request, int64_t t)
{
    return (uint16_t)(request->seed * 40503u + (uint32_t)t * 1009u);
}

void engine_rig_fill(const struct engine_rig_request *request, unsigned char *body, size_t *bytes)
{
    size_t row_bytes = (size_t)engine_rig_geometry.hidden * 2;
    unsigned char *hidden = body + encode_head(body, 1024, request->tokens);
    unsigned char *positions = hidden + (size_t)request->tokens * row_bytes;
    for (int64_t t = 0; t < request->tokens; t++) {
        uint16_t first = first_of(request, t);
        int64_t position = position_of(request, t);
        memset(hidden + (size_t)t * row_bytes, 0x11, row_bytes);
        memcpy(hidden + (size_t)t * row_bytes, &first, 2);
        memcpy(positions + t * 8, &position, 8);
    }
    *bytes = (size_t)(positions - body) + (size_t)request->tokens * 8;
}

bool engine_rig_is_right(const struct engine_rig_request *request, const unsigned char *reply)
{
    const unsigned char *at = reply;
    for (int v = 0; v < 2; v++)
        for (int32_t layer = 0; layer < engine_rig_geometry.layers; layer++)
            for (int64_t t = 0; t < request->tokens; t++)
                for (int32_t head = 0; head < engine_rig_geometry.kv_heads; head++)
                    for (int32_t d = 0; d < engine_rig_geometry.head_dim; d++, at += 2) {
                        uint16_t got;
                        memcpy(&got, at, 2);
                        if (got !=
                            fake_element(v, first_of(request, t), position_of(request, t), layer, head, d))
                            return false;
                    }
    return true;
}

static bool hung_up(void *of)
{
    struct engine_rig_request *request = of;
    return request->hung_up != 0;
}

void engine_rig_run(struct engine_rig_request *request)
{
    struct kv_job job = {.deadline_us = request->deadline_us, .gone = hung_up, .who = request};
    const struct kv_request_limits limits = {kv_engine_limits(request->engine)->tokens_max};
    uint64_t bytes = body_bytes(request->tokens);
    request->ok = request->right = false;
    if (!kv_engine_admit(request->engine, &job, bytes, &request->err)) return;
    size_t filled = 0;
    while (request->hold) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    engine_rig_fill(request, job.body, &filled);
    if (kv_request_decode(&job.request, job.body, bytes, &engine_rig_geometry, &limits, &request->err)) {
        request->ok = kv_engine_run(&job, &request->err);
        request->right = request->ok && engine_rig_is_right(request, job.reply);
        request->queue_us = job.queue_us;
        request->device_us = job.device_us;
    }
    request->done_at_us = kv_now_us();
    kv_engine_release(&job);
}

static void *run_thread(void *of)
{
    engine_rig_run(of);
    return NULL;
}

void engine_rig_start(struct engine_rig_request *request)
{
    if (pthread_create(&request->thread, NULL, run_thread, request) != 0) abort();
}

void engine_rig_join(struct engine_rig_request *request)
{
    pthread_join(request->thread, NULL);
}

bool engine_rig_await_waiting(struct kv_engine *engine, int32_t waiting)
{
    for (int i = 0; i < 10000; i++) {
        struct kv_engine_stats stats;
        kv_engine_stats(engine, &stats);
        if (stats.waiting == waiting) return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}
