/* POST /v1/materialize: admission before the body, then decode, run and a reply straight from pool memory. */
#include "server/http_exchange.h"

#include <stdio.h>
#include <stdlib.h>

void kv_delivery_close(void *of)
{
    struct kv_delivery *delivery = of;
    if (!delivery) return;
    kv_engine_release(&delivery->job);
    free(delivery);
}

bool kv_materialize_admit(struct kv_exchange *exchange, int64_t deadline_us)
{
    struct kv_delivery *delivery = calloc(1, sizeof *delivery);
    if (!delivery) return kv_fail(&exchange->err, KV_INTERNAL, "no memory for a request");
    delivery->job.deadline_us = deadline_us;
    delivery->job.gone = kv_link_gone;
    delivery->job.who = exchange->link;
    if (!kv_engine_admit(exchange->http->options.engine, &delivery->job, exchange->announced, &exchange->err)) {
        kv_delivery_close(delivery);
        return false;
    }
    exchange->queue_us = delivery->job.queue_us;
    exchange->delivery = delivery;
    return true;
}

static bool compute(struct kv_exchange *exchange, size_t *header_bytes)
{
    struct kv_http *http = exchange->http;
    struct kv_job *job = &exchange->delivery->job;
    const struct kv_geometry *geometry = kv_engine_geometry(http->options.engine);
    const struct kv_request_limits limits = {kv_engine_limits(http->options.engine)->tokens_max};
    if (exchange->received != exchange->announced)
        return kv_fail_values(&exchange->err, KV_SIZE_MISMATCH, "Content-Length",
                              kv_integer((int64_t)exchange->announced), kv_integer((int64_t)exchange->received),
                              "the body has another length than announced");
    if (!kv_request_decode(&job->request, job->body, job->body_bytes, geometry, &limits, &exchange->err))
        return false;
    exchange->tokens = job->request.tokens;
    bool ok = kv_engine_run(job, &exchange->err);
    exchange->queue_us = job->queue_us;
    exchange->device_us = job->device_us;
    if (!ok) return false;
    kv_engine_release_body(job);
    return kv_reply_encode(exchange->delivery->header, sizeof exchange->delivery->header, geometry, exchange->tokens,
                           http->options.model, http->description.fingerprint, exchange->id, header_bytes, &exchange->err);
}

enum MHD_Result kv_materialize_answer(struct kv_exchange *exchange)
{
    size_t header_bytes = 0;
    /* The library counts silence also while a request computes: no timeout until there is an answer. */
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    bool ok = compute(exchange, &header_bytes);
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned int)kv_engine_limits(exchange->http->options.engine)->idle_seconds);
    if (!ok) {
        kv_delivery_close(exchange->delivery);
        exchange->delivery = NULL;
        if (exchange->err.fault == KV_CLIENT_GONE) return MHD_NO;
        return kv_reply_error(exchange, false);
    }
    struct kv_delivery *delivery = exchange->delivery;
    const struct MHD_IoVec parts[2] = {{delivery->header, header_bytes},
                                       {delivery->job.reply, (size_t)delivery->job.reply_bytes}};
    exchange->reply_bytes = header_bytes + delivery->job.reply_bytes;
    struct MHD_Response *response = MHD_create_response_from_iovec(
        parts, delivery->job.reply_bytes > 0 ? 2 : 1, kv_delivery_close, delivery);
    if (!response) return MHD_NO;
    exchange->delivery = NULL; /* the response ends it now, sent or not */
    char timing[96];
    snprintf(timing, sizeof timing, "queue;dur=%.3f, device;dur=%.3f", (double)exchange->queue_us / 1e3,
             (double)exchange->device_us / 1e3);
    if (MHD_add_response_header(response, "Server-Timing", timing) != MHD_YES) {
        MHD_destroy_response(response);
        return MHD_NO;
    }
    return kv_reply_send(exchange, 200, "application/octet-stream", response);
}
