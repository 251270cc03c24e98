/* The inside of the service, shared by service.c (start, serve, stop) and service_load.c (the thread that
 * loads). */
#ifndef KV_SERVER_SERVICE_STATE_H
#define KV_SERVER_SERVICE_STATE_H

#include "server/checkpoint.h"
#include "server/http.h"
#include "server/pulse.h"
#include "server/service.h"

#include <signal.h>
#include <stdatomic.h>

struct kv_service {
    const struct kv_options *options;
    const struct kv_backend_ops *const *backends; /* in order of preference; NULL ends them */
    char name[256];
    struct kv_access *access;
    struct kv_listener listener[KV_LISTENERS_MAX + 1]; /* the last that is open may be the admin listener */
    struct kv_engine *engine;
    struct kv_http *http;

    /* The signals' thread alone. */
    sigset_t signals;
    struct kv_notify notify;
    struct kv_pulse pulse;
    int64_t status_due_us; /* when the service manager hears of the loading next */
    uint64_t status_bytes; /* what it has heard of */
    bool announced;        /* the service manager has been told that we are ready */
    bool lost;             /* the device is, and the log has said so */

    /* Loading. */
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint;
    struct kv_weights weights;
    struct kv_device_info device;
    pthread_t loader;
    _Atomic uint64_t loaded_bytes;
    _Atomic bool stop_loading, loaded;
    enum kv_exit load_result; /* after `loaded` */
};

struct kv_checkpoint_options kv_service_checkpoint(const struct kv_options *options);
/* The thread that loads; `of` is the service. */
void *kv_service_load(void *of);

#endif
