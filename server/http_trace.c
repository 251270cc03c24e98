/* The traceparent header of a request, for the log. It is passed on to nobody: the daemon asks no other
 * service. */
#include "server/http_exchange.h"

#include <strings.h>

/* All of that name; more than one is none. */
struct parents {
    int32_t count;
    const char *value;
};

static enum MHD_Result note(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct parents *parents = cls;
    (void)kind;
    if (strcasecmp(key, "traceparent") != 0) return MHD_YES;
    parents->count++;
    parents->value = value;
    return MHD_YES;
}

void kv_trace_note(struct kv_exchange *exchange)
{
    struct parents parents = {0, NULL};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, note, &parents);
    if (parents.count == 1 && parents.value) (void)kv_trace_read(parents.value, &exchange->trace);
}
