/* Reading a JSON file of the model's folder, and typed keys of its objects; what is wrong with a key becomes
 * a finding. Knows no key's meaning. The index is read through the same door. */
#ifndef KV_SERVER_CONFIG_JSON_H
#define KV_SERVER_CONFIG_JSON_H

#include "server/file.h"
#include "server/findings.h"

struct json_t;

/* A JSON object and the dotted path that leads to it, "" at the top. `json` NULL: no such object; every key
 * is absent. */
struct kv_object {
    const struct json_t *json;
    char path[KV_PARAM_BYTES];
};

/* An explicit null is absent. */
enum kv_key { KV_KEY_ABSENT, KV_KEY_WRONG, KV_KEY_FOUND };

/* A whole file: one JSON object of at most bytes_max bytes, no key twice, not nested deep; else
 * config_invalid. kv_json_free it; NULL on failure. */
struct json_t *kv_json_read(const struct kv_file *file, size_t bytes_max, struct kv_error *err) KV_MUST_CHECK;
void kv_json_free(struct json_t *json); /* NULL is fine */

/* "path.key", cut to fit. Returns `to`. */
const char *kv_key_path(const struct kv_object *object, const char *key, char to[KV_PARAM_BYTES]);

/* A value as findings show it. */
struct kv_value kv_json_value(const struct json_t *json);

/* config_invalid for this key. Returns KV_KEY_WRONG. */
enum kv_key kv_key_wrong(const struct kv_object *object, const char *key, const char *expected,
                         const struct json_t *got, struct kv_findings *findings);

/* Each writes *out only when it returns KV_KEY_FOUND. An integer must be written as one; a number may be
 * either. `expected` says the range in words. */
enum kv_key kv_key_integer(const struct kv_object *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, struct kv_findings *findings);
enum kv_key kv_key_number(const struct kv_object *object, const char *key, double min, double max,
                          const char *expected, double *out, struct kv_findings *findings);
enum kv_key kv_key_flag(const struct kv_object *object, const char *key, bool *out,
                        struct kv_findings *findings);
enum kv_key kv_key_text(const struct kv_object *object, const char *key, const char **out,
                        struct kv_findings *findings);
enum kv_key kv_key_array(const struct kv_object *object, const char *key, const struct json_t **out,
                         struct kv_findings *findings);
enum kv_key kv_key_object(const struct kv_object *object, const char *key, struct kv_object *out,
                          struct kv_findings *findings);

#endif
