/* What a daemon says of itself, as JSON. Knows neither the checkpoint nor the device, only what they told. */
#include "protocol/description.h"

#include "protocol/json_value.h"

static json_t *geometry_json(const struct kv_geometry *geometry)
{
    json_t *json = json_object();
    bool made = kv_json_put(json, "layers", json_integer(geometry->layers)) &&
                kv_json_put(json, "hidden", json_integer(geometry->hidden)) &&
                kv_json_put(json, "kv_heads", json_integer(geometry->kv_heads)) &&
                kv_json_put(json, "head_dim", json_integer(geometry->head_dim)) &&
                kv_json_put(json, "rotary_dim", json_integer(geometry->rotary_dim)) &&
                kv_json_put(json, "taps", json_integer(geometry->taps));
    return kv_json_made(json, made);
}

static json_t *eps_json(const float *eps /* [layers] */, int32_t layers)
{
    json_t *array = json_array();
    bool made = array != NULL;
    for (int32_t layer = 0; made && eps && layer < layers; layer++)
        made = json_array_append_new(array, kv_json_real((double)eps[layer])) == 0;
    return kv_json_made(array, made);
}

static json_t *rope_json(const struct kv_rope_info *rope)
{
    json_t *json = json_object();
    bool made = kv_json_put(json, "type", kv_json_text(rope->type)) &&
                kv_json_put(json, "theta", kv_json_real(rope->theta)) &&
                kv_json_put(json, "attention_factor", kv_json_real(rope->attention_factor)) &&
                kv_json_put(json, "interleaved", json_boolean(rope->interleaved)) &&
                kv_json_put(json, "positions", json_integer(rope->positions));
    return kv_json_made(json, made);
}

static json_t *device_json(const struct kv_device_info *device)
{
    json_t *json = json_object();
    bool made = kv_json_put(json, "kind", kv_json_text(device->kind)) &&
                kv_json_put(json, "name", kv_json_text(device->name)) &&
                kv_json_put(json, "memory_bytes", kv_json_size(device->memory_bytes));
    if (device->total_bytes)
        made = made && kv_json_put(json, "total_bytes", kv_json_size(device->total_bytes));
    return kv_json_made(json, made);
}

/* All that the daemon enforces; what depends on the device is left out until it is known. */
static json_t *limits_json(const struct kv_limits *limits)
{
    json_t *json = json_object();
    bool made =
        kv_json_put(json, "tokens_max", json_integer(limits->tokens_max)) &&
        kv_json_put(json, "body_bytes_max", kv_json_size(limits->body_bytes_max)) &&
        (limits->pool_bytes == 0 || kv_json_put(json, "pool_bytes", kv_json_size(limits->pool_bytes))) &&
        kv_json_put(json, "queue_max", json_integer(limits->queue_max)) &&
        kv_json_put(json, "batch_tokens_max", json_integer(limits->batch_tokens_max)) &&
        (limits->span_tokens_max == 0 ||
         kv_json_put(json, "span_tokens_max", json_integer(limits->span_tokens_max))) &&
        kv_json_put(json, "connections_max", json_integer(limits->connections_max)) &&
        kv_json_put(json, "idle_seconds", json_integer(limits->idle_seconds)) &&
        kv_json_put(json, "upload_seconds", json_integer(limits->upload_seconds)) &&
        kv_json_put(json, "reply_seconds", json_integer(limits->reply_seconds)) &&
        kv_json_put(json, "device_seconds", json_integer(limits->device_seconds)) &&
        kv_json_put(json, "drain_seconds", json_integer(limits->drain_seconds));
    return kv_json_made(json, made);
}

static json_t *model_json(const struct kv_description *description, const struct kv_device_info *device)
{
    const struct kv_geometry *geometry = &description->geometry;
    json_t *json = json_object();
    bool made = kv_json_put(json, "name", kv_json_text(description->name)) &&
                kv_json_put(json, "fingerprint", kv_json_text(description->fingerprint)) &&
                kv_json_put(json, "ready", json_boolean(description->ready)) &&
                kv_json_put(json, "dtype", json_string(kv_dtype_name(geometry->dtype))) &&
                kv_json_put(json, "geometry", geometry_json(geometry)) &&
                kv_json_put(json, "eps", eps_json(description->eps, geometry->layers)) &&
                kv_json_put(json, "rope", rope_json(&description->rope));
    if (device) made = made && kv_json_put(json, "device", device_json(device));
    if (description->limits) made = made && kv_json_put(json, "limits", limits_json(description->limits));
    return kv_json_made(json, made);
}

char *kv_description_encode(const struct kv_description *description)
{
    return kv_json_dump(model_json(description, description->device));
}

static json_t *finding_json(const struct kv_finding *finding)
{
    const struct kv_error *error = &finding->error;
    char hint[KV_MESSAGE_BYTES];
    kv_error_hint_print(error, hint, sizeof hint);
    json_t *json = json_object();
    bool made = kv_json_put(json, "code", json_string(kv_fault_info(error->fault)->code)) &&
                kv_json_put(json, "error", kv_json_text(error->message)) &&
                kv_json_put(json, "layer", finding->layer < 0 ? json_null() : json_integer(finding->layer)) &&
                kv_json_put(json, "tensor", kv_json_text_or_null(error->param)) &&
                kv_json_put(json, "expected", kv_value_json(&error->expected)) &&
                kv_json_put(json, "got", kv_value_json(&error->got)) &&
                kv_json_put(json, "hint", kv_json_text(hint));
    return kv_json_made(json, made);
}

static json_t *texts_json(const char *const *text, int32_t count)
{
    json_t *array = json_array();
    bool made = array != NULL;
    for (int32_t i = 0; made && i < count; i++)
        made = json_array_append_new(array, kv_json_text(text[i])) == 0;
    return kv_json_made(array, made);
}

char *kv_check_encode(const struct kv_description *description, const char *const *warning, int32_t warnings,
                      const struct kv_finding *findings, int32_t count)
{
    json_t *json = json_object();
    if (count == 0) {
        bool made = kv_json_put(json, "ok", json_true()) &&
                    kv_json_put(json, "model", model_json(description, NULL)) &&
                    kv_json_put(json, "warnings", texts_json(warning, warnings));
        return kv_json_dump(kv_json_made(json, made));
    }
    json_t *array = json_array();
    bool made = array != NULL;
    for (int32_t i = 0; made && i < count; i++)
        made = json_array_append_new(array, finding_json(&findings[i])) == 0;
    made = kv_json_put(json, "ok", json_false()) && made;
    made = kv_json_put(json, "errors", array) && made;
    return kv_json_dump(kv_json_made(json, made));
}
