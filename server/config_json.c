/* JSON files and typed keys through jansson. */
#include "server/config_json.h"

#include "protocol/json_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

enum { DEPTH_MAX = 32 };

/* The parser calls itself for each level, so levels are counted before it looks. */
static bool check_depth(const char *text, size_t bytes, const char *name, struct kv_error *err)
{
    int32_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"') {
            quoted = !quoted;
        } else if (quoted) {
            if (text[i] == '\\') i++;
        } else if (text[i] == '{' || text[i] == '[') {
            if (++depth > DEPTH_MAX)
                return kv_fail_param(err, KV_CONFIG_INVALID, name, "%.128s is nested deeper than %d levels",
                                     name, DEPTH_MAX);
        } else if (text[i] == '}' || text[i] == ']') {
            depth--;
        }
    }
    return true;
}

static json_t *parse(const char *text, size_t bytes, const char *name, struct kv_error *err)
{
    if (!check_depth(text, bytes, name, err)) return NULL;
    json_error_t problem;
    json_t *json = kv_json_load(text, bytes, &problem);
    if (!json && problem.text[0] == '\0') {
        kv_fail(err, KV_INTERNAL, "out of memory for what %.128s says", name);
        return NULL;
    }
    if (!json) {
        kv_fail_param(err, KV_CONFIG_INVALID, name, "%.128s is not valid JSON: %s (line %d, column %d)", name,
                      problem.text, problem.line, problem.column);
        return NULL;
    }
    if (json_is_object(json)) return json;
    kv_fail_values(err, KV_CONFIG_INVALID, name, kv_text("a JSON object"), kv_json_value(json),
                   "%.128s is JSON of another kind", name);
    json_decref(json);
    return NULL;
}

struct json_t *kv_json_read(const struct kv_file *file, size_t bytes_max, struct kv_error *err)
{
    if (file->bytes > bytes_max) {
        kv_fail_param(err, KV_CONFIG_INVALID, file->name,
                      "%.128s is %" PRIu64 " bytes, more than the limit of %zu", file->name, file->bytes,
                      bytes_max);
        return NULL;
    }
    size_t bytes = (size_t)file->bytes;
    char *text = malloc(bytes + 1);
    json_t *json = NULL;
    if (!text)
        kv_fail(err, KV_INTERNAL, "out of memory for the %zu bytes of %.128s", bytes, file->name);
    else if (kv_file_read(file, 0, text, bytes, err))
        json = parse(text, bytes, file->name, err);
    free(text);
    return json;
}

void kv_json_free(struct json_t *json)
{
    json_decref(json);
}

const char *kv_key_path(const struct kv_object *object, const char *key, char to[KV_PARAM_BYTES])
{
    snprintf(to, KV_PARAM_BYTES, "%.63s%s%.63s", object->path, object->path[0] ? "." : "", key);
    return to;
}

struct kv_value kv_json_value(const struct json_t *json)
{
    if (!json) return kv_none();
    switch (json_typeof(json)) {
    case JSON_INTEGER: return kv_integer(json_integer_value(json));
    case JSON_REAL: return kv_real(json_real_value(json));
    case JSON_STRING: return kv_text(json_string_value(json));
    case JSON_TRUE: return kv_text("true");
    case JSON_FALSE: return kv_text("false");
    case JSON_NULL: return kv_text("null");
    case JSON_ARRAY: return kv_text("an array");
    case JSON_OBJECT: return kv_text("an object");
    }
    return kv_none();
}

enum kv_key kv_key_wrong(const struct kv_object *object, const char *key, const char *expected,
                         const struct json_t *got, struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    kv_key_path(object, key, path);
    kv_findings_fail(findings, -1, KV_CONFIG_INVALID, path, kv_text(expected), kv_json_value(got),
                     "%s has a value that cannot be used", path);
    return KV_KEY_WRONG;
}

/* NULL when absent or null. */
static const json_t *value_of(const struct kv_object *object, const char *key)
{
    const json_t *value = json_object_get(object->json, key);
    return json_is_null(value) ? NULL : value;
}

enum kv_key kv_key_integer(const struct kv_object *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    if (json_is_integer(value) && json_integer_value(value) >= min && json_integer_value(value) <= max) {
        *out = json_integer_value(value);
        return KV_KEY_FOUND;
    }
    char expected[KV_TEXT_BYTES];
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
    return kv_key_wrong(object, key, expected, value, findings);
}

enum kv_key kv_key_number(const struct kv_object *object, const char *key, double min, double max,
                          const char *expected, double *out, struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < min || number > max)
        return kv_key_wrong(object, key, expected, value, findings);
    *out = number;
    return KV_KEY_FOUND;
}

enum kv_key kv_key_flag(const struct kv_object *object, const char *key, bool *out,
                        struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    if (!json_is_boolean(value)) return kv_key_wrong(object, key, "true or false", value, findings);
    *out = json_is_true(value);
    return KV_KEY_FOUND;
}

enum kv_key kv_key_text(const struct kv_object *object, const char *key, const char **out,
                        struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    if (!json_is_string(value)) return kv_key_wrong(object, key, "a string", value, findings);
    *out = json_string_value(value);
    return KV_KEY_FOUND;
}

enum kv_key kv_key_array(const struct kv_object *object, const char *key, const struct json_t **out,
                         struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    if (!json_is_array(value)) return kv_key_wrong(object, key, "an array", value, findings);
    *out = value;
    return KV_KEY_FOUND;
}

enum kv_key kv_key_object(const struct kv_object *object, const char *key, struct kv_object *out,
                          struct kv_findings *findings)
{
    const json_t *value = value_of(object, key);
    if (!value) return KV_KEY_ABSENT;
    if (!json_is_object(value)) return kv_key_wrong(object, key, "an object", value, findings);
    struct kv_object found = {.json = value};
    kv_key_path(object, key, found.path);
    *out = found;
    return KV_KEY_FOUND;
}
