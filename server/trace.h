/* W3C Trace Context: what a traceparent header says. Knows no HTTP. */
#ifndef KV_SERVER_TRACE_H
#define KV_SERVER_TRACE_H

#include <stdbool.h>

/* Hexadecimal digits in lower case; "" where there is none. */
struct kv_trace {
    char trace_id[33], span_id[17];
};

/* Reads "00-<trace id>-<span id>-<flags>", also of later versions, which may say more behind it. False, and
 * an empty trace, when it is anything else: a caller's mistake in it is no reason to refuse a request. */
bool kv_trace_read(const char *text, struct kv_trace *out);

#endif
