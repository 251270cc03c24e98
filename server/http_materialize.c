/* POST /v1/materialize: admission before the body, then decode, run and a reply straight from pool memory. */
#include "server/http_exchange.h"

#include <stdio.h>
#include <stdlib.h>

void kv_job_end(void *of)
{
    struct kv_job *job = of;
    if (!job) return;
    kv_engine_release(job);
    free(job);
}

bool kv_materialize_admit(struct kv_exchange *exchange, int64_t deadline_us)
{
    struct kv_job *job = calloc(1, sizeof *job);
    if (!job) return kv_fail(&exchange->err, KV_INTERNAL, "no memory for a request");
    job->deadline_us = deadline_us;
    job->gone = kv_link_gone;
    job->who = exchange->link;
    bool ok = kv_engine_admit(exchange->http->options.engine, job, exchange->announced, &exchange->err);
    exchange->queue_us = job->queue_us;
    if (ok)
        exchange->job = job;
    else
        kv_job_end(job);
    return ok;
}

static bool compute(struct kv_exchange *exchange)
{
    struct kv_http *http = exchange->http;
    struct kv_job *job = exchange->job;
    const struct kv_request_limits limits = {kv_engine_limits(http->options.engine)->tokens_max};
    if (exchange->received != exchange->announced)
        return kv_fail_values(
            &exchange->err, KV_SIZE_MISMATCH, "Content-Length", kv_integer((int64_t)exchange->announced),
            kv_integer((int64_t)exchange->received), "the body has another length than announced");
    if (!kv_request_decode(&job->request, job->body, job->body_bytes,
                           kv_engine_geometry(http->options.engine), &limits, &exchange->err))
        return false;
    exchange->tokens = job->request.tokens;
    bool ok = kv_engine_run(job, &exchange->err);
    exchange->queue_us = job->queue_us;
    exchange->device_us = job->device_us;
    if (ok) kv_engine_release_body(job);
    return ok;
}

/* Puts the header right before K, where the engine left room: the reply is one piece and goes out in one
 * call. */
static unsigned char *head_reply(struct kv_exchange *exchange)
{
    unsigned char header[KV_REPLY_HEADER_BYTES_MAX];
    const struct kv_http *http = exchange->http;
    size_t bytes = 0;
    if (!kv_reply_encode(header, sizeof header, kv_engine_geometry(http->options.engine), exchange->tokens,
                         http->options.model, http->description.fingerprint, exchange->id, &bytes,
                         &exchange->err))
        return NULL;
    exchange->reply_bytes = bytes + exchange->job->reply_bytes;
    return memcpy(exchange->job->reply - bytes, header, bytes);
}

enum MHD_Result kv_materialize_answer(struct kv_exchange *exchange)
{
    /* The library counts silence also while a request computes: no timeout until there is an answer. */
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    unsigned char *reply = compute(exchange) ? head_reply(exchange) : NULL;
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned int)kv_engine_limits(exchange->http->options.engine)->idle_seconds);
    if (!reply) {
        kv_job_end(exchange->job);
        exchange->job = NULL;
        if (exchange->err.fault == KV_CLIENT_GONE) return MHD_NO;
        return kv_reply_error(exchange, false);
    }
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback_cls(
        exchange->reply_bytes, reply, kv_job_end, exchange->job);
    if (!response) return MHD_NO;
    exchange->job = NULL; /* the response ends it now, sent or not */
    char timing[96];
    snprintf(timing, sizeof timing, "queue;dur=%lld.%03d, device;dur=%lld.%03d",
             (long long)(exchange->queue_us / 1000), (int)(exchange->queue_us % 1000),
             (long long)(exchange->device_us / 1000), (int)(exchange->device_us % 1000));
    if (MHD_add_response_header(response, "Server-Timing", timing) != MHD_YES) {
        MHD_destroy_response(response);
        return MHD_NO;
    }
    return kv_reply_send(exchange, 200, "application/octet-stream", response);
}
