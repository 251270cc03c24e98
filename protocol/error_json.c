/* Errors and the catalogue of errors as JSON. Knows no HTTP: statuses and their reasons are handed in. */
#include "protocol/message.h"

#include "protocol/json_value.h"

char *kv_error_encode(const struct kv_error *err, int status, const char *reason, const char *request_id)
{
    char hint[KV_MESSAGE_BYTES];
    kv_error_hint_print(err, hint, sizeof hint);
    json_t *json = json_object();
    bool made = kv_json_put(json, "error", kv_json_text(err->message)) &&
                kv_json_put(json, "code", json_string(kv_fault_info(err->fault)->code)) &&
                kv_json_put(json, "status", json_integer(status)) &&
                kv_json_put(json, "title", kv_json_text(reason)) &&
                kv_json_put(json, "type", json_string("about:blank")) &&
                kv_json_put(json, "detail", kv_json_text(err->message)) &&
                kv_json_put(json, "param", kv_json_text_or_null(err->param)) &&
                kv_json_put(json, "expected", kv_value_json(&err->expected)) &&
                kv_json_put(json, "got", kv_value_json(&err->got)) &&
                kv_json_put(json, "hint", kv_json_text(hint)) &&
                kv_json_put(json, "request_id", kv_json_text(request_id));
    return kv_json_dump(kv_json_made(json, made));
}

/* The pieces of `text` between separators, as an array; no text, no pieces. */
static json_t *split(const char *text, const char *separator)
{
    json_t *array = json_array();
    bool made = array != NULL;
    while (made && *text) {
        size_t bytes = strcspn(text, separator);
        made = json_array_append_new(array, json_stringn(text, bytes)) == 0;
        text += bytes;
        if (*text) text++;
    }
    return kv_json_made(array, made);
}

static json_t *row(const struct kv_fault_info *info, int (*status_of)(enum kv_class kind))
{
    int status = status_of(info->kind);
    json_t *json = json_object();
    bool made = kv_json_put(json, "code", json_string(info->code)) &&
                kv_json_put(json, "status", status ? json_integer(status) : json_null()) &&
                kv_json_put(json, "title", json_string(info->title)) &&
                kv_json_put(json, "meaning", json_string(info->meaning)) &&
                kv_json_put(json, "when", json_string(info->when)) &&
                kv_json_put(json, "situations", split(info->situations, "\n")) &&
                kv_json_put(json, "solutions", split(info->solutions, "\n")) &&
                kv_json_put(json, "example", split(info->example, "\n")) &&
                kv_json_put(json, "before", json_string(info->before)) &&
                kv_json_put(json, "related", split(info->related, " "));
    return kv_json_made(json, made);
}

char *kv_catalogue_row_encode(enum kv_fault fault, int (*status_of)(enum kv_class kind))
{
    return kv_json_dump(row(kv_fault_info(fault), status_of));
}

char *kv_catalogue_encode(int (*status_of)(enum kv_class kind))
{
    json_t *rows = json_array(), *json = json_object();
    bool made = rows != NULL;
    for (int fault = KV_OK + 1; made && fault < KV_FAULT_COUNT; fault++)
        made = json_array_append_new(rows, row(kv_fault_info((enum kv_fault)fault), status_of)) == 0;
    made = kv_json_put(json, "errors", rows) && made;
    return kv_json_dump(kv_json_made(json, made));
}
