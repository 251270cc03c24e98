/* The typed calls: a materialize request and its reply, refusals as errors, and the model behind a service.
 * Knows messages; sockets are client.c's. */
#include "client/client.h"
#include "client/decode.h"

#include <stdio.h>
#include <string.h>

enum { REQUEST_HEAD_BYTES = 1024, TIMEOUT_TEXT_BYTES = 24 };

bool kv_client_accepted(const struct kv_response *response, struct kv_error *err)
{
    if (response->status >= 200 && response->status < 300) return true;
    return kv_refusal_decode(response->status, response->body, response->bytes, err);
}

static bool same_dims(const struct kv_view *a, const struct kv_view *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

static bool read_tensors(struct kv_reply_view *reply, const struct kv_document *document, const void *body,
                         struct kv_error *err)
{
    const struct kv_tensor *k = kv_document_find(document, "k"), *v = kv_document_find(document, "v");
    if (!k || !v || document->count != 2) {
        return kv_fail(err, KV_REPLY_MALFORMED, "The reply's tensors are not k and v, and these alone");
    }
    reply->k = kv_document_view(document, k, body);
    reply->v = kv_document_view(document, v, body);
    if (reply->k.dtype != reply->v.dtype || (reply->k.dtype != KV_BF16 && reply->k.dtype != KV_F16)) {
        return kv_fail_param(err, KV_REPLY_MALFORMED, "k",
                             "The reply's k is %s and v is %s: both BF16 or both F16 are due",
                             kv_dtype_name(reply->k.dtype), kv_dtype_name(reply->v.dtype));
    }
    if (reply->k.rank != 4 || !same_dims(&reply->k, &reply->v)) {
        return kv_fail_values(err, KV_REPLY_MALFORMED, "v", kv_shape(reply->k.rank, reply->k.dims),
                              kv_shape(reply->v.rank, reply->v.dims),
                              "The reply's k and v are not of one shape [layers, T, kv_heads, head_dim]");
    }
    if ((uintptr_t)reply->k.data % 2 != 0 || (uintptr_t)reply->v.data % 2 != 0) {
        return kv_fail(err, KV_REPLY_MALFORMED, "The reply's tensors lie at an odd byte");
    }
    reply->tokens = reply->k.dims[1];
    return true;
}

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    snprintf(to, to_bytes, "%s", from ? from : "");
}

bool kv_client_reply_read(const struct kv_response *response, struct kv_reply_view *reply,
                          struct kv_error *err)
{
    struct kv_document document = {0};
    struct kv_error inner = {0};
    *reply = (struct kv_reply_view){.queue_ms = response->queue_ms,
                                    .device_ms = response->device_ms,
                                    .document = response->body,
                                    .bytes = response->bytes};
    if (!kv_document_open(&document, response->body, response->bytes, KV_DOCUMENT_REQUEST, &inner)) {
        return kv_fail(err, KV_REPLY_MALFORMED, "The reply is no document: %s", inner.message);
    }
    bool read = read_tensors(reply, &document, response->body, err);
    copy_text(reply->model, sizeof reply->model, kv_document_metadata(&document, "model"));
    copy_text(reply->fingerprint, sizeof reply->fingerprint, kv_document_metadata(&document, "fingerprint"));
    copy_text(reply->request_id, sizeof reply->request_id, kv_document_metadata(&document, "request_id"));
    kv_document_close(&document);
    return read;
}

static bool post(struct kv_client *client, const struct iovec *parts, int32_t part_count,
                 const struct kv_materialize_options *options, struct kv_reply_view *reply,
                 struct kv_error *err)
{
    char timeout[TIMEOUT_TEXT_BYTES];
    struct kv_response response;
    *reply = (struct kv_reply_view){0};
    bool limited = options && options->timeout_ms > 0;
    if (limited) snprintf(timeout, sizeof timeout, "%lld", (long long)options->timeout_ms);
    const struct kv_header headers[] = {
        {"Content-Type", "application/octet-stream"},
        {"X-Request-Id", options ? options->request_id : NULL},
        {"X-Request-Timeout-Ms", limited ? timeout : NULL},
    };
    if (!kv_client_call(client, "POST", "/v1/materialize", headers, 3, parts, part_count, &response, err))
        return false;
    if (!kv_client_accepted(&response, err)) return false;
    return kv_client_reply_read(&response, reply, err);
}

bool kv_client_materialize_document(struct kv_client *client, const void *document, uint64_t bytes,
                                    const struct kv_materialize_options *options, struct kv_reply_view *reply,
                                    struct kv_error *err)
{
    const struct iovec part = {(void *)(uintptr_t)document, (size_t)bytes};
    return post(client, &part, 1, options, reply, err);
}

static bool check_view(const struct kv_view *view, const char *name, struct kv_error *err)
{
    uint64_t bytes = 0;
    if (view->rank < 0 || view->rank > KV_RANK_MAX ||
        !kv_tensor_bytes(view->dtype, view->rank, view->dims, &bytes) || bytes != view->bytes) {
        return kv_fail_values(err, KV_PARAMETER_INVALID, name, kv_integer((int64_t)bytes),
                              kv_integer((int64_t)view->bytes),
                              "The bytes of %s do not fit its shape and dtype", name);
    }
    return true;
}

static struct kv_entry entry_of(const struct kv_view *view, const char *name)
{
    struct kv_entry entry = {.name = name, .dtype = view->dtype, .rank = view->rank};
    memcpy(entry.dims, view->dims, sizeof entry.dims);
    return entry;
}

bool kv_client_materialize(struct kv_client *client, enum kv_input_kind kind, const struct kv_view *hidden,
                           const struct kv_view *positions, const struct kv_materialize_options *options,
                           struct kv_reply_view *reply, struct kv_error *err)
{
    char head[REQUEST_HEAD_BYTES];
    size_t head_bytes = 0;
    const char *name = kind == KV_TARGET_HIDDEN ? "target_hidden" : "hidden_states";
    if (!check_view(hidden, name, err) || !check_view(positions, "positions", err)) return false;
    const struct kv_entry entries[] = {entry_of(hidden, name), entry_of(positions, "positions")};
    if (!kv_document_encode(head, sizeof head, entries, 2, NULL, 0, &head_bytes, NULL, err)) return false;
    const struct iovec parts[] = {
        {head, head_bytes},
        {(void *)(uintptr_t)hidden->data, (size_t)hidden->bytes},
        {(void *)(uintptr_t)positions->data, (size_t)positions->bytes},
    };
    if (!post(client, parts, 3, options, reply, err)) return false;
    int64_t tokens = positions->rank == 1 ? positions->dims[0] : -1;
    if (reply->tokens == tokens) return true;
    return kv_fail_values(err, KV_REPLY_MALFORMED, "k", kv_integer(tokens), kv_integer(reply->tokens),
                          "The reply is for another number of tokens");
}

bool kv_client_describe(struct kv_client *client, struct kv_client_model *model, struct kv_error *err)
{
    struct kv_response response;
    *model = (struct kv_client_model){0};
    if (!kv_client_call(client, "GET", "/v1/model", NULL, 0, NULL, 0, &response, err)) return false;
    if (!kv_client_accepted(&response, err)) return false;
    return kv_client_model_decode(model, response.body, response.bytes, err);
}
