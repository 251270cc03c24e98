/* The four fields of a traceparent have fixed lengths, so that each stands at a fixed place. */
#include "server/trace.h"

#include <string.h>

/* Are these lower-case hexadecimal digits, and not all zero unless that is allowed? */
static bool is_hex(const char *text, size_t count, bool zero_allowed)
{
    if (strspn(text, "0123456789abcdef") < count) return false;
    return zero_allowed || strspn(text, "0") < count;
}

bool kv_trace_read(const char *text, struct kv_trace *out)
{
    enum { VERSION = 0, TRACE = 3, SPAN = 36, FLAGS = 53, END = 55 };
    *out = (struct kv_trace){"", ""};
    size_t bytes = strlen(text);
    if (bytes < END || text[TRACE - 1] != '-' || text[SPAN - 1] != '-' || text[FLAGS - 1] != '-')
        return false;
    if (!is_hex(text + VERSION, 2, true) || !is_hex(text + TRACE, 32, false) ||
        !is_hex(text + SPAN, 16, false) || !is_hex(text + FLAGS, 2, true))
        return false;
    if (strncmp(text, "ff", 2) == 0) return false;
    if (bytes > END && (strncmp(text, "00", 2) == 0 || text[END] != '-')) return false;
    memcpy(out->trace_id, text + TRACE, 32);
    memcpy(out->span_id, text + SPAN, 16);
    return true;
}
