/* The log: one line an event on standard error, as text or JSON, each written at once. Any thread.
 * Knows nothing of what it says. */
#ifndef KV_SERVER_LOG_H
#define KV_SERVER_LOG_H

#include "protocol/error.h"

enum kv_log_format { KV_LOG_TEXT, KV_LOG_JSON };
enum kv_log_level { KV_LOG_INFO, KV_LOG_WARNING, KV_LOG_ERROR };

struct kv_log_field {
    const char *name, *value;
};

/* One finished request. Strings are borrowed; NULL or "" are left out. */
struct kv_log_request {
    const char *method, *route, *id, *code; /* code: "ok" or the wire name of the fault */
    const char *error;                      /* the sentence, on refusals */
    const char *trace_id, *span_id;         /* of the caller's traceparent */
    int status;                             /* 0: no answer was sent */
    int64_t tokens;                         /* -1: not known */
    uint64_t body_bytes, reply_bytes;
    int64_t queue_us, device_us, total_us;
};

/* Before other threads log; text is the default. */
void kv_log_open(enum kv_log_format format);
void kv_log(enum kv_log_level level, const char *format, ...) KV_PRINTF(2, 3);
/* "error: <sentence> [code] <hint>" as one line. */
void kv_log_error(const struct kv_error *err);
/* A message that is a literal of ours, with members: " name=value" each as text. Values are borrowed; NULL or
 * "" are left out. */
void kv_log_fields(enum kv_log_level level, const char *message,
                   const struct kv_log_field *field /* [count] */, int32_t count);
void kv_log_finished(const struct kv_log_request *request);

#endif
