/* The only code of this room that sees the JSON library. Knows no socket and no file. */
#include "client/decode.h"

#include "protocol/json_value.h"

#include <jansson.h>
#include <stdio.h>

enum { SHOWN_BYTES = 120 };

/* The fault that fits a status, for replies that carry no code: a proxy's, or a later version's. */
static enum kv_fault fault_of_status(int32_t status)
{
    switch (status) {
    case 401: return KV_UNAUTHORIZED;
    case 403: return KV_FORBIDDEN;
    case 404: return KV_NOT_FOUND;
    case 405: return KV_METHOD_NOT_ALLOWED;
    case 408: return KV_UPLOAD_TIMEOUT;
    case 411: return KV_LENGTH_REQUIRED;
    case 413: return KV_PAYLOAD_TOO_LARGE;
    case 415: return KV_MEDIA_TYPE_UNSUPPORTED;
    case 417: return KV_EXPECTATION_FAILED;
    case 429: return KV_QUEUE_FULL;
    case 501: return KV_UNSUPPORTED;
    case 503: return KV_NOT_READY;
    case 504: return KV_DEADLINE_EXCEEDED;
    default: break;
    }
    if (status >= 400 && status < 500) return KV_HEADER_INVALID;
    return status >= 500 ? KV_INTERNAL : KV_REPLY_MALFORMED;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static struct kv_value value_of(const json_t *json)
{
    if (json_is_integer(json)) return kv_integer(json_integer_value(json));
    if (json_is_real(json)) return kv_real(json_real_value(json));
    if (json_is_string(json)) return kv_text(json_string_value(json));
    if (!json_is_array(json) || json_array_size(json) > KV_RANK_MAX) return kv_none();
    int64_t dims[KV_RANK_MAX] = {0};
    for (size_t i = 0; i < json_array_size(json); i++) {
        const json_t *dim = json_array_get(json, i);
        /* "any" travels as null. */
        dims[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
    }
    return kv_shape((int32_t)json_array_size(json), dims);
}

bool kv_refusal_decode(int32_t status, const void *body, uint64_t bytes, struct kv_error *err)
{
    json_error_t problem;
    json_t *root = bytes > 0 ? kv_json_load(body, (size_t)bytes, &problem) : NULL;
    const char *sentence = text_of(root, "error"), *hint = text_of(root, "hint"),
               *param = text_of(root, "param");
    enum kv_fault fault = kv_fault_find(json_string_value(json_object_get(root, "code")));
    if (fault == KV_OK) fault = fault_of_status(status);
    if (*sentence) {
        kv_fail_param(err, fault, param, "%s", sentence);
        if (*hint) kv_error_hint(err, "%s", hint);
        if (err && err->fault == fault) {
            err->expected = value_of(json_object_get(root, "expected"));
            err->got = value_of(json_object_get(root, "got"));
        }
    } else {
        int shown = bytes < SHOWN_BYTES ? (int)bytes : SHOWN_BYTES;
        kv_fail(err, fault, "The reply is status %d without an error of the service: %.*s", status, shown,
                bytes ? (const char *)body : "");
    }
    json_decref(root);
    return false;
}

/* An integer member in [min, max]. */
static bool integer_of(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                       struct kv_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max) {
        return kv_fail_param(err, KV_REPLY_MALFORMED, key, "/v1/model has no usable %s", key);
    }
    *out = json_integer_value(value);
    return true;
}

static bool read_model(struct kv_client_model *model, const json_t *root, struct kv_error *err)
{
    const json_t *geometry = json_object_get(root, "geometry"), *rope = json_object_get(root, "rope");
    int64_t layers, kv_heads, head_dim, taps;
    *model = (struct kv_client_model){.ready = json_is_true(json_object_get(root, "ready"))};
    snprintf(model->name, sizeof model->name, "%s", text_of(root, "name"));
    snprintf(model->fingerprint, sizeof model->fingerprint, "%s", text_of(root, "fingerprint"));
    if (!integer_of(geometry, "layers", 1, INT32_MAX, &layers, err)) return false;
    if (!integer_of(geometry, "kv_heads", 1, INT32_MAX, &kv_heads, err)) return false;
    if (!integer_of(geometry, "head_dim", 1, INT32_MAX, &head_dim, err)) return false;
    if (!integer_of(geometry, "taps", 0, INT32_MAX, &taps, err)) return false;
    if (!integer_of(geometry, "hidden", 1, INT64_MAX, &model->hidden, err)) return false;
    if (!integer_of(rope, "positions", 1, INT64_MAX, &model->positions, err)) return false;
    if (!kv_dtype_find(text_of(root, "dtype"), &model->dtype)) {
        return kv_fail_param(err, KV_REPLY_MALFORMED, "dtype", "/v1/model has no usable dtype");
    }
    model->layers = (int32_t)layers;
    model->kv_heads = (int32_t)kv_heads;
    model->head_dim = (int32_t)head_dim;
    model->taps = (int32_t)taps;
    return true;
}

bool kv_client_model_decode(struct kv_client_model *model, const void *body, uint64_t bytes,
                            struct kv_error *err)
{
    json_error_t problem;
    json_t *root = bytes > 0 ? kv_json_load(body, (size_t)bytes, &problem) : NULL;
    bool read = json_is_object(root) ? read_model(model, root, err)
                                     : kv_fail(err, KV_REPLY_MALFORMED, "/v1/model is not a JSON object");
    json_decref(root);
    return read;
}

bool kv_config_decode(const char *text, size_t bytes, int64_t *hidden, int32_t *taps, struct kv_error *err)
{
    json_error_t where;
    json_t *root = kv_json_load(text, bytes, &where);
    if (!json_is_object(root)) {
        json_decref(root);
        return kv_fail(err, KV_CONFIG_INVALID, "config.json is not a JSON object: line %d: %s", where.line,
                       where.text);
    }
    const json_t *size = json_object_get(root, "hidden_size");
    if (!json_is_integer(size))
        size = json_object_get(json_object_get(root, "transformer_layer_config"), "hidden_size");
    const json_t *ids = json_object_get(json_object_get(root, "dflash_config"), "target_layer_ids");
    bool usable = json_is_integer(size) && json_integer_value(size) > 0 && json_array_size(ids) <= INT32_MAX;
    if (usable) {
        *hidden = json_integer_value(size);
        *taps = (int32_t)json_array_size(ids);
    }
    json_decref(root);
    if (!usable)
        return kv_fail_param(err, KV_CONFIG_MISSING_KEY, "hidden_size",
                             "config.json has no usable hidden_size");
    return true;
}
