/* Sends one request of a measurement and judges its reply. */
#include "client/bench_call.h"

#include <stdlib.h>
#include <string.h>

void kv_bench_replies_open(struct kv_bench_replies *replies)
{
    *replies = (struct kv_bench_replies){0};
    pthread_mutex_init(&replies->lock, NULL);
}

void kv_bench_replies_close(struct kv_bench_replies *replies)
{
    for (int32_t i = 0; i < KV_MIX_MAX; i++) free(replies->first[i]);
    pthread_mutex_destroy(&replies->lock);
}

static bool check_shape(const struct kv_client_model *model, int64_t tokens,
                        const struct kv_reply_view *reply, struct kv_error *err)
{
    const int64_t dims[] = {model->layers, tokens, model->kv_heads, model->head_dim};
    if (memcmp(reply->k.dims, dims, sizeof dims) != 0) {
        return kv_fail_values(err, KV_REPLY_MALFORMED, "k", kv_shape(4, dims),
                              kv_shape(reply->k.rank, reply->k.dims),
                              "The reply is not of the shape that the request and the model give");
    }
    if (reply->k.dtype != model->dtype) {
        return kv_fail_values(err, KV_REPLY_MALFORMED, "k", kv_text(kv_dtype_name(model->dtype)),
                              kv_text(kv_dtype_name(reply->k.dtype)),
                              "The reply is not of the model's dtype");
    }
    return true;
}

bool kv_bench_call(struct kv_client *client, const struct kv_bench_options *options, int32_t size,
                   struct kv_response *response, struct kv_reply_view *reply, struct kv_error *err)
{
    const struct kv_header type = {"Content-Type", "application/octet-stream"};
    return kv_client_call(client, "POST", "/v1/materialize", &type, 1, &options->document[size], 1, response,
                          err) &&
           kv_client_accepted(response, err) && kv_client_reply_read(response, reply, err) &&
           check_shape(options->model, options->mix.tokens[size], reply, err);
}

static bool same_bytes(const char *name, const unsigned char *first, const struct kv_view *view,
                       struct kv_error *err)
{
    const unsigned char *now = view->data;
    if (view->bytes == 0 || memcmp(first, now, (size_t)view->bytes) == 0) return true;
    uint64_t at = 0;
    while (first[at] == now[at]) at++;
    return kv_fail_values(err, KV_REPLY_CHANGED, name, kv_integer(first[at]), kv_integer(now[at]),
                          "Byte %llu of %s is not that of the first reply to the same request",
                          (unsigned long long)at, name);
}

bool kv_bench_verify(struct kv_bench_replies *replies, int32_t size, const struct kv_reply_view *reply,
                     struct kv_error *err)
{
    const struct kv_view *k = &reply->k, *v = &reply->v;
    pthread_mutex_lock(&replies->lock);
    char *first = replies->first[size];
    if (!first && (first = malloc((size_t)(k->bytes + v->bytes + 1)))) {
        if (k->bytes > 0) memcpy(first, k->data, (size_t)k->bytes);
        if (v->bytes > 0) memcpy(first + k->bytes, v->data, (size_t)v->bytes);
        replies->first[size] = first;
    }
    pthread_mutex_unlock(&replies->lock);
    if (!first) {
        return kv_fail_values(err, KV_INTERNAL, "", kv_integer((int64_t)(k->bytes + v->bytes)), kv_none(),
                              "There is no memory to keep a reply of this many bytes for --verify");
    }
    return same_bytes("k", (unsigned char *)first, k, err) &&
           same_bytes("v", (unsigned char *)first + k->bytes, v, err);
}
