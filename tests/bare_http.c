/* See bare_http.h. */
#include "tests/bare_http.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECTION_BYTES = 64 * 1024, STACK_BYTES = 512 * 1024, PIECE_BYTES = 128 * 1024 };

struct bare_http {
    struct MHD_Daemon *daemon;
    unsigned char *reply;
    size_t reply_bytes;
};

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *bytes,
                              void **context)
{
    unsigned char body[PIECE_BYTES];
    static char begun, health[] = "{\"live\":true}\n";
    struct bare_http *bare = cls;
    (void)path;
    (void)version;
    if (!*context) {
        *context = &begun;
        return MHD_YES;
    }
    if (*bytes > 0) {
        memcpy(body, data, *bytes < sizeof body ? *bytes : sizeof body);
        *bytes = 0;
        return MHD_YES;
    }
    bool post = strcmp(method, "POST") == 0;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(post ? bare->reply_bytes : strlen(health),
                                        post ? (void *)bare->reply : health, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result queued = response ? MHD_queue_response(connection, 200, response) : MHD_NO;
    if (response) MHD_destroy_response(response);
    return queued;
}

struct bare_http *bare_http_open(const struct kv_listener *listener, size_t reply_bytes, int connections_max)
{
    struct bare_http *bare = calloc(1, sizeof *bare);
    if (!bare) abort();
    bare->reply_bytes = reply_bytes;
    bare->reply = malloc(reply_bytes);
    if (!bare->reply) abort();
    memset(bare->reply, 1, reply_bytes);
    bare->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC, 0, NULL,
        NULL, handle, bare, MHD_OPTION_LISTEN_SOCKET, listener->fd, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_LIMIT, (unsigned int)connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, 60u, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
        MHD_OPTION_END);
    if (!bare->daemon) abort();
    return bare;
}

void bare_http_close(struct bare_http *bare)
{
    MHD_quiesce_daemon(bare->daemon); /* else it would close the listener's socket */
    MHD_stop_daemon(bare->daemon);
    free(bare->reply);
    free(bare);
}
