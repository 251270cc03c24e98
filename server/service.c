/* Bind, serve health, load, warm up, then ready; on a signal the reverse. Loading runs beside the signals, so
 * that a daemon can be stopped at any time. */
#include "server/service.h"

#include "kernels/backend.h"
#include "server/checkpoint.h"
#include "server/http.h"
#include "server/log.h"
#include "server/notes.h"
#include "server/version.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    CONNECTIONS_MAX = 512,
    OTHER_DESCRIPTORS = 128 + 16 * KV_LISTENERS_MAX,
    IDLE_SECONDS = 60,
    UPLOAD_SECONDS = 30,
    REPLY_SECONDS = 30,
    ABANDON_SECONDS = 2
};

struct service {
    const struct kv_options *options;
    char name[256];
    struct kv_listener listener[KV_LISTENERS_MAX];
    struct kv_engine *engine;
    struct kv_http *http;
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint;
    struct kv_weights weights;
    struct kv_device_info device;
    pthread_t loader;
    _Atomic bool stop_loading, loaded;
    enum kv_exit load_result; /* after `loaded` */
};

/* The last part of the model's path. */
static void name_model(const struct kv_options *options, char to[256])
{
    char *path = options->name ? NULL : realpath(options->model, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    snprintf(to, 256, "%s", options->name ? options->name : slash && slash[1] ? slash + 1 : options->model);
    free(path);
}

/* As many connections as there are descriptors for, beside those of listeners, files, a device and the log;
 * where they are short, a quarter of them. */
static int32_t connections_that_fit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return CONNECTIONS_MAX;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0 && getrlimit(RLIMIT_NOFILE, &files) != 0)
            return CONNECTIONS_MAX;
    }
    if (files.rlim_cur >= CONNECTIONS_MAX + OTHER_DESCRIPTORS) return CONNECTIONS_MAX;
    return files.rlim_cur >= 8 ? (int32_t)(files.rlim_cur / 4) : 2;
}

static struct kv_limits limits_of(const struct kv_options *options)
{
    return (struct kv_limits){
        .tokens_max = options->max_tokens,
        .body_bytes_max = (uint64_t)options->max_body,
        .pool_bytes = (uint64_t)options->pool_bytes, /* 0: the device says */
        .queue_max = (int32_t)options->max_queue,
        .batch_tokens_max = options->max_batch_tokens,
        .connections_max = connections_that_fit(),
        .idle_seconds = IDLE_SECONDS,
        .upload_seconds = UPLOAD_SECONDS,
        .reply_seconds = REPLY_SECONDS,
    };
}

static struct kv_checkpoint_options checkpoint_options(const struct kv_options *options)
{
    return (struct kv_checkpoint_options){
        .directory = options->model,
        .positions_max = options->max_position,
        .rope_theta = options->rope_theta,
        .attention_factor = options->rope_attention_factor,
    };
}

enum kv_exit kv_service_check(const struct kv_options *options)
{
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint = NULL;
    const struct kv_checkpoint_options wanted = checkpoint_options(options);
    const struct kv_limits limits = limits_of(options);
    struct kv_description description = {0};
    char name[256];
    name_model(options, name);
    kv_findings_init(&findings);
    bool ok = kv_checkpoint_open(&checkpoint, &wanted, &findings) && kv_checkpoint_scan(checkpoint) &&
              kv_checkpoint_finish(checkpoint);
    if (ok) kv_checkpoint_describe(checkpoint, &description);
    description.name = name;
    description.limits = &limits;
    const char *warning[KV_NOTES_MAX + 1]; /* NULL ends them */
    int32_t warnings = 0;
    while (ok && (warning[warnings] = kv_checkpoint_warning(checkpoint, warnings)) != NULL) warnings++;
    char *report = kv_check_encode(&description, warning, warnings, findings.item, findings.count);
    if (report) puts(report);
    ok = ok && report && fflush(stdout) == 0;
    free(report);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    return ok ? KV_EXIT_OK : KV_EXIT_CHECKPOINT;
}

static bool read_unless_stopped(void *of, int32_t layer, enum kv_part part, uint64_t offset, void *to,
                                size_t bytes, struct kv_error *err)
{
    struct service *service = of;
    if (atomic_load(&service->stop_loading)) return kv_fail(err, KV_DRAINING, "stopped while loading");
    return service->weights.read(service->weights.source, layer, part, offset, to, bytes, err);
}

static void log_findings(struct kv_findings *findings)
{
    for (int32_t i = 0; i < findings->count; i++) kv_log_error(&findings->item[i].error);
    kv_log(KV_LOG_ERROR, "the checkpoint is refused: %d fault%s", findings->count,
           findings->count == 1 ? "" : "s");
}

/* Opens the device asked for by name, or with auto the first that works. */
static const struct kv_backend_ops *open_device(struct service *service, struct kv_backend **backend,
                                                struct kv_error *err)
{
    const struct kv_options *options = service->options;
    struct kv_weights weights = {service->weights.geometry, service, read_unless_stopped};
    struct kv_backend_options wanted = {
        .rows_max = options->max_batch_tokens, .items_max = KV_BATCH_ITEMS_MAX, .tune = options->tune};
    char name[16];
    if (!kv_options_device(options, name, &wanted.device, err)) return NULL;
    bool any = strcmp(name, "auto") == 0;
    struct kv_error last = {0};
    if (any) wanted.device = -1;
    for (const struct kv_backend_ops *const *ops = kv_backends(); *ops; ops++) {
        struct kv_error why = {0};
        if (!any && strcmp((*ops)->name, name) != 0) continue;
        if ((*ops)->open(backend, &weights, &wanted, &why)) return *ops;
        if (!any || why.fault != KV_DEVICE_UNAVAILABLE) {
            *err = why;
            return NULL;
        }
        kv_log(KV_LOG_INFO, "device %s: %s; looking further", (*ops)->name, why.message);
        last = why;
    }
    *err = last;
    kv_fail_values(err, KV_DEVICE_UNAVAILABLE, "--device", kv_none(), kv_text(options->device),
                   "this build has no such device");
    return NULL;
}

static void log_model(const struct service *service, const struct kv_description *description)
{
    const struct kv_geometry *geometry = &description->geometry;
    kv_log(KV_LOG_INFO,
           "model %s: layers %d, hidden %" PRId64 ", kv_heads %d, head_dim %d, rotary_dim %d, taps %d, %s, "
           "fingerprint %s",
           service->name, geometry->layers, geometry->hidden, geometry->kv_heads, geometry->head_dim,
           geometry->rotary_dim, geometry->taps, kv_dtype_name(geometry->dtype), description->fingerprint);
    kv_log(KV_LOG_INFO, "rope: %s, theta %g, attention factor %.9g, %s pairs, positions 0 to %" PRId64,
           description->rope.type, description->rope.theta, description->rope.attention_factor,
           description->rope.interleaved ? "interleaved" : "half-split", description->rope.positions - 1);
    for (int32_t i = 0; kv_checkpoint_note(service->checkpoint, i); i++)
        kv_log(KV_LOG_INFO, "checkpoint: %s", kv_checkpoint_note(service->checkpoint, i));
    for (int32_t i = 0; kv_checkpoint_warning(service->checkpoint, i); i++)
        kv_log(KV_LOG_WARNING, "checkpoint: %s", kv_checkpoint_warning(service->checkpoint, i));
}

/* Opens the device with the weights, then the engine; what the checkpoint's values got wrong comes out on the
 * way. */
static enum kv_exit load_device(struct service *service, struct kv_description *description)
{
    struct kv_error err = {0};
    struct kv_backend *backend = NULL;
    const struct kv_backend_ops *ops = open_device(service, &backend, &err);
    if (!ops && err.fault == KV_DRAINING) return KV_EXIT_OK;
    if (ops && !kv_checkpoint_finish(service->checkpoint)) {
        ops->close(backend);
        log_findings(&service->findings);
        return KV_EXIT_CHECKPOINT;
    }
    if (!ops || !kv_engine_start(service->engine, ops, backend, &service->weights.geometry, &err)) {
        kv_log_error(&err);
        if (err.fault == KV_OPTION_INVALID) return KV_EXIT_USAGE;
        return kv_fault_info(err.fault)->kind == KV_CLASS_STARTUP && err.fault != KV_DEVICE_UNAVAILABLE
                   ? KV_EXIT_CHECKPOINT
                   : KV_EXIT_DEVICE;
    }
    kv_engine_device(service->engine, &service->device);
    kv_checkpoint_describe(service->checkpoint, description);
    description->name = service->name;
    description->device = &service->device;
    description->limits = kv_engine_limits(service->engine);
    return KV_EXIT_OK;
}

static enum kv_exit load(struct service *service)
{
    const struct kv_checkpoint_options wanted = checkpoint_options(service->options);
    struct kv_description description = {0};
    int64_t began_us = kv_now_us();
    if (!kv_checkpoint_open(&service->checkpoint, &wanted, &service->findings)) {
        log_findings(&service->findings);
        return KV_EXIT_CHECKPOINT;
    }
    service->weights = kv_checkpoint_weights(service->checkpoint);
    enum kv_exit result = load_device(service, &description);
    if (result != KV_EXIT_OK || atomic_load(&service->stop_loading)) return result;
    kv_log(KV_LOG_INFO, "device %s: %s, %.1f MiB resident, pool %.1f MiB", service->device.kind,
           service->device.name, (double)service->device.memory_bytes / 1048576.0,
           (double)kv_engine_limits(service->engine)->pool_bytes / 1048576.0);
    log_model(service, &description);
    kv_checkpoint_settle(service->checkpoint);
    kv_http_describe(service->http, &description);
    kv_engine_open_doors(service->engine);
    kv_log(KV_LOG_INFO, "ready after %.3f s", (double)(kv_now_us() - began_us) / 1e6);
    return KV_EXIT_OK;
}

static void *load_thread(void *of)
{
    struct service *service = of;
    service->load_result = load(service);
    atomic_store(&service->loaded, true);
    return NULL;
}

static void block_signals(sigset_t *signals)
{
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup stays in force */
        sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

/* True when one of the signals came within this time. */
static bool signalled(const sigset_t *signals, int32_t ms)
{
    const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    return sigtimedwait(signals, NULL, &wait) > 0;
}

/* Until a signal, a refused checkpoint or a lost device. */
static enum kv_exit serve(struct service *service, const sigset_t *signals)
{
    while (!signalled(signals, 100)) {
        if (atomic_load(&service->loaded) && service->load_result != KV_EXIT_OK) return service->load_result;
        if (kv_engine_state(service->engine) == KV_ENGINE_LOST) {
            kv_log(KV_LOG_ERROR,
                   "the device is lost: stopping so that a supervisor can start a fresh process");
            return KV_EXIT_DEVICE;
        }
    }
    return KV_EXIT_OK;
}

/* Waits until nothing is in flight; a further signal ends the waiting. */
static bool await_idle(struct service *service, const sigset_t *signals, int64_t seconds)
{
    int64_t until_us = kv_now_us() + seconds * 1000000;
    while (!kv_http_idle(service->http)) {
        if (kv_now_us() >= until_us || signalled(signals, 10)) return false;
    }
    return true;
}

static void drain(struct service *service, const sigset_t *signals, enum kv_exit result)
{
    const struct kv_options *options = service->options;
    bool in_time = true;
    kv_log(KV_LOG_INFO, "stopping: not ready any more");
    kv_http_retire(service->http);
    if (result == KV_EXIT_OK && options->drain_grace > 0)
        in_time = !signalled(signals, (int32_t)options->drain_grace * 1000);
    kv_engine_drain(service->engine);
    kv_http_quiesce(service->http);
    in_time = in_time && await_idle(service, signals, result == KV_EXIT_OK ? options->drain_timeout : 1);
    if (in_time) return;
    kv_log(KV_LOG_WARNING, "requests are still in flight: those that wait are refused, the others are cut");
    kv_engine_abandon(service->engine);
    await_idle(service, signals, ABANDON_SECONDS);
}

static enum kv_exit fail_start(const struct kv_error *err, enum kv_exit result)
{
    kv_log_error(err);
    return err->fault == KV_OPTION_INVALID ? KV_EXIT_USAGE : result;
}

static enum kv_exit start(struct service *service)
{
    const struct kv_options *options = service->options;
    struct kv_error err = {0};
    for (int32_t i = 0; i < options->listens; i++)
        if (!kv_listener_open(&service->listener[i], options->listen[i], &err))
            return fail_start(&err, KV_EXIT_ADDRESS);
    const struct kv_engine_options engine_options = {limits_of(options), options->batch_delay_us,
                                                     options->spin_us};
    service->engine = kv_engine_open(&engine_options);
    if (!service->engine) {
        kv_fail(&err, KV_INTERNAL, "no memory for the engine");
        return fail_start(&err, KV_EXIT_DEVICE);
    }
    const struct kv_http_options http_options = {service->engine, service->listener, options->listens,
                                                 service->name, kv_version};
    if (!kv_http_open(&service->http, &http_options, &err)) return fail_start(&err, KV_EXIT_DEVICE);
    for (int32_t i = 0; i < options->listens; i++)
        kv_log(KV_LOG_INFO, "kvmatd %s listening on %s", kv_version, service->listener[i].url);
    if (engine_options.limits.connections_max < CONNECTIONS_MAX)
        kv_log(KV_LOG_WARNING,
               "only %d connections at once: the limit of open files (ulimit -n) allows no more",
               engine_options.limits.connections_max);
    return KV_EXIT_OK;
}

enum kv_exit kv_service_run(const struct kv_options *options)
{
    struct service *service = calloc(1, sizeof *service);
    sigset_t signals;
    if (!service) return KV_EXIT_DEVICE;
    service->options = options;
    for (int32_t i = 0; i < KV_LISTENERS_MAX; i++) service->listener[i].fd = -1;
    name_model(options, service->name);
    kv_findings_init(&service->findings);
    block_signals(&signals);

    enum kv_exit result = start(service);
    if (result == KV_EXIT_OK && pthread_create(&service->loader, NULL, load_thread, service) != 0) {
        kv_log(KV_LOG_ERROR, "the thread that loads the model cannot be started");
        result = KV_EXIT_DEVICE;
    } else if (result == KV_EXIT_OK) {
        result = serve(service, &signals);
        atomic_store(&service->stop_loading, true);
        pthread_join(service->loader, NULL);
        drain(service, &signals, result);
    }
    kv_http_close(service->http);
    for (int32_t i = 0; i < KV_LISTENERS_MAX; i++) kv_listener_close(&service->listener[i]);
    kv_engine_close(service->engine);
    kv_checkpoint_close(service->checkpoint);
    kv_findings_free(&service->findings);
    if (result == KV_EXIT_OK) kv_log(KV_LOG_INFO, "stopped");
    free(service);
    return result;
}
