/* The opponent of the server's HTTP stack: libmicrohttpd with a handler that reads a body and answers with as
 * many bytes as it is told, on a thread for each connection as in the server. */
#ifndef KV_TESTS_BARE_HTTP_H
#define KV_TESTS_BARE_HTTP_H

#include "server/listener.h"

struct bare_http;

/* POST is answered with reply_bytes bytes, GET with as many as /health has. Aborts on failure. */
struct bare_http *bare_http_open(const struct kv_listener *listener, size_t reply_bytes, int connections_max);
void bare_http_close(struct bare_http *bare);

#endif
