/* JSON values that can always be written: hostile text, NaN, 64-bit extremes; and JSON read without a silent
 * loss. Knows no object's members. */
#include "protocol/json_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fifteen digits of anything larger round to a number that no reader takes: such are strings. */
#define REAL_MAX 1.797693134862315e308

/* The library drops characters of a token that it gets no memory for, and reads on: a tensor would be there
 * under another name, and where it drops a closing quote it writes past its memory, if it gets some then. So
 * every allocation is watched, and after one that failed a text gets no more. */
static _Thread_local bool reading, starved;

static void *allocate(size_t bytes)
{
    void *memory = reading && starved ? NULL : malloc(bytes);
    if (!memory) starved = true;
    return memory;
}

/* Before main: other threads may be writing JSON by the time that the first is read. */
__attribute__((constructor)) static void watch(void)
{
    json_set_alloc_funcs(allocate, free);
}

json_t *kv_json_load(const char *text, size_t bytes, json_error_t *problem)
{
    reading = true;
    starved = false;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, problem);
    reading = false;
    if (!starved) return json;
    json_decref(json);
    problem->text[0] = '\0';
    return NULL;
}

json_t *kv_json_text(const char *text)
{
    if (!text) return json_null();
    size_t bytes = strlen(text) + 1;
    char *printable = malloc(bytes);
    if (!printable) return NULL;
    json_t *json = json_string(kv_text_print(text, printable, bytes));
    free(printable);
    return json;
}

json_t *kv_json_text_or_null(const char *text)
{
    return kv_json_text(text && text[0] ? text : NULL);
}

json_t *kv_json_real(double real)
{
    if (isnan(real)) return json_string("NaN");
    if (isinf(real)) return json_string(real > 0 ? "Infinity" : "-Infinity");
    if (fabs(real) > REAL_MAX) return json_sprintf("%.17g", real);
    return json_real(kv_real_shorten(real));
}

json_t *kv_json_size(uint64_t size)
{
    return json_integer(size > INT64_MAX ? INT64_MAX : (json_int_t)size);
}

bool kv_json_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

json_t *kv_json_made(json_t *json, bool made)
{
    if (made) return json;
    json_decref(json);
    return NULL;
}

static json_t *shape(const struct kv_value *value)
{
    json_t *array = json_array();
    bool made = array != NULL;
    for (int32_t i = 0; made && i < value->rank && i < KV_RANK_MAX; i++)
        made = json_array_append_new(array, json_integer(value->shape[i])) == 0;
    return kv_json_made(array, made);
}

json_t *kv_value_json(const struct kv_value *value)
{
    switch (value->kind) {
    case KV_VALUE_INTEGER: return json_integer(value->integer);
    case KV_VALUE_REAL: return kv_json_real(value->real);
    case KV_VALUE_TEXT: return kv_json_text(value->text);
    case KV_VALUE_SHAPE: return shape(value);
    case KV_VALUE_NONE: break;
    }
    return json_null();
}

char *kv_json_dump(json_t *json)
{
    if (!json) return NULL;
    char *text = json_dumps(json, KV_JSON_FORMAT);
    json_decref(json);
    return text;
}
