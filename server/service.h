/* The daemon put together: listeners, HTTP, checkpoint, device, engine; opened in that order, closed in
 * reverse. */
#ifndef KV_SERVER_SERVICE_H
#define KV_SERVER_SERVICE_H

#include "kernels/backend.h"
#include "server/options.h"

enum kv_exit {
    KV_EXIT_OK = 0,
    KV_EXIT_CHECKPOINT = 1, /* the checkpoint was refused */
    KV_EXIT_USAGE = 2,
    KV_EXIT_ADDRESS = 3, /* an address cannot be bound */
    KV_EXIT_DEVICE = 4   /* the device failed or is not there */
};

/* `--check`: loads and validates, prints the report on standard output. */
enum kv_exit kv_service_check(const struct kv_options *options);

/* Serves by one of the backends, of which the last is NULL, until SIGTERM or SIGINT. SIGHUP reads a key file
 * again; without one, and without TLS, it stops, too, unless it is ignored, as under nohup. Call it with a
 * single thread: it blocks the signals for all later ones.
 * *left_behind: a thread is stuck in the device or in a read; end the process at once, by _exit. */
enum kv_exit kv_service_run(const struct kv_options *options, const struct kv_backend_ops *const *backends,
                            bool *left_behind);

#endif
