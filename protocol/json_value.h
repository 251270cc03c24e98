/* JSON made from what the house has: text of any bytes, floats, the values of errors; and JSON read. Private
 * to protocol/, but for kv_json_load; every function gives a new reference, or NULL when memory is out. Knows
 * no object's members. */
#ifndef KV_PROTOCOL_JSON_VALUE_H
#define KV_PROTOCOL_JSON_VALUE_H

#include "protocol/error.h"

#include <jansson.h>

/* Fifteen digits give every decimal of a config back as it was written. */
#define KV_JSON_FORMAT JSON_REAL_PRECISION(15)

/* Reads a text, no key twice. Where it gives NULL, the problem's text says why; "" is for want of memory. */
json_t *kv_json_load(const char *text, size_t bytes, json_error_t *problem);

/* NULL gives null; bytes that are no printable UTF-8 become '?'. */
json_t *kv_json_text(const char *text);
/* As kv_json_text; "" gives null too. */
json_t *kv_json_text_or_null(const char *text);
/* Shortened like kv_real_shorten; NaN and infinities, which JSON has not, are strings. */
json_t *kv_json_real(double real);
/* Over INT64_MAX: INT64_MAX. */
json_t *kv_json_size(uint64_t size);
/* A number, string or array; NONE is null. */
json_t *kv_value_json(const struct kv_value *value);
/* Adds a member; takes `value`. False where either is NULL or memory is out, so that members can be chained
 * by &&. */
bool kv_json_put(json_t *object, const char *key, json_t *value);
/* Gives back `json` where all of it was `made`, else drops it and gives NULL. */
json_t *kv_json_made(json_t *json, bool made);
/* Takes the reference; the text is to be freed with free(). NULL gives NULL. */
char *kv_json_dump(json_t *json);

#endif
