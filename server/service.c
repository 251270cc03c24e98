/* Bind, serve health, load, warm up, then ready; on a signal the reverse. */
#include "server/service.h"

#include "server/log.h"
#include "server/notes.h"
#include "server/service_state.h"
#include "server/version.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    OTHER_DESCRIPTORS = 192 + 16 * KV_LISTENERS_MAX,
    UPLOAD_SECONDS = 30,
    REPLY_SECONDS = 30,
    RATE_SECONDS = 10,
    RATE_BYTES = 64 << 10, /* a second */
    LOST_SECONDS = 1,      /* for answers to reach those who asked, where nothing more will be computed */
    ABANDON_SECONDS = 1,
    STOP_SECONDS = 10 /* what stopping takes beside the drain, at most */
};

/* The last part of the model's path. */
static void name_model(const struct kv_options *options, char to[256])
{
    char *path = options->name ? NULL : realpath(options->model, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    snprintf(to, 256, "%s", options->name ? options->name : slash && slash[1] ? slash + 1 : options->model);
    free(path);
}

/* As many connections as are asked for, or as there are descriptors for, beside those of listeners, spare
 * connections, files, a device and the log; where they are few, a quarter of them. */
static int32_t connections_that_fit(const struct kv_options *options)
{
    struct rlimit files;
    int32_t wanted = (int32_t)options->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0 && getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
    }
    if (files.rlim_cur >= (rlim_t)wanted + OTHER_DESCRIPTORS) return wanted;
    int32_t fit = files.rlim_cur >= 8 ? (int32_t)(files.rlim_cur / 4) : 2;
    if (files.rlim_cur >= 2 * OTHER_DESCRIPTORS) fit = (int32_t)files.rlim_cur - OTHER_DESCRIPTORS;
    return fit < wanted ? fit : wanted;
}

static struct kv_limits limits_of(const struct kv_options *options)
{
    return (struct kv_limits){
        .tokens_max = options->max_tokens,
        .body_bytes_max = (uint64_t)options->max_body,
        .pool_bytes = (uint64_t)options->pool_bytes, /* 0: the device says */
        .queue_max = (int32_t)options->max_queue,
        .batch_tokens_max = options->max_batch_tokens,
        .connections_max = connections_that_fit(options),
        .idle_seconds = (int32_t)options->idle_timeout,
        .upload_seconds = UPLOAD_SECONDS,
        .reply_seconds = REPLY_SECONDS,
        .device_seconds = (int32_t)options->device_timeout,
        .drain_seconds = (int32_t)options->drain_timeout,
        .rate_seconds = RATE_SECONDS,
        .rate_bytes = RATE_BYTES,
    };
}

enum kv_exit kv_service_check(const struct kv_options *options)
{
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint = NULL;
    const struct kv_checkpoint_options wanted = kv_service_checkpoint(options);
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

/* Is there a file that SIGHUP has read again? */
static bool reloads(const struct kv_options *options)
{
    return options->api_key_file || options->tls_cert;
}

static void block_signals(const struct kv_options *options, sigset_t *signals)
{
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    struct sigaction hangup;
    bool ignored = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (reloads(options) || !ignored) sigaddset(signals, SIGHUP); /* nohup stays in force */
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

/* To a service manager: how far loading is. As long as weights come in, it is to wait for more of them. */
static void tell_loading(struct kv_service *service)
{
    enum { EVERY_US = 1000 * 1000, EXTEND_US = 30 * 1000 * 1000 };
    uint64_t bytes = atomic_load(&service->loaded_bytes);
    int64_t now_us = kv_now_us();
    if (now_us < service->status_due_us || (bytes == service->status_bytes && service->status_due_us)) return;
    if (kv_notify_send(&service->notify, "EXTEND_TIMEOUT_USEC=%d\nSTATUS=loading: %.0f MiB of weights read",
                       EXTEND_US, (double)bytes / 1048576.0)) {
        service->status_bytes = bytes;
        service->status_due_us = now_us + EVERY_US;
    }
}

/* What is owed to a service manager now. */
static void tell(struct kv_service *service)
{
    char name[512];
    if (service->announced) {
        kv_pulse_beat(&service->pulse);
    } else if (kv_engine_state(service->engine) == KV_ENGINE_STARTING) {
        tell_loading(service);
    } else if (kv_engine_state(service->engine) == KV_ENGINE_READY) {
        service->announced = kv_notify_send(&service->notify, "READY=1\nSTATUS=serving %.256s",
                                            kv_text_print(service->name, name, sizeof name));
    }
}

/* True when a signal to stop came within this time. */
static bool signalled(struct kv_service *service, int64_t ms)
{
    enum { SLICE_MS = 100 };
    int64_t until_us = kv_now_us() + ms * 1000;
    for (int64_t left_us = ms * 1000; left_us > 0; left_us = until_us - kv_now_us()) {
        int64_t slice_us = left_us < SLICE_MS * 1000 ? left_us : SLICE_MS * 1000;
        const struct timespec wait = {.tv_nsec = slice_us * 1000};
        tell(service);
        int signal = sigtimedwait(&service->signals, NULL, &wait);
        if (signal == SIGHUP && reloads(service->options))
            kv_access_reload(service->access);
        else if (signal > 0)
            return true;
    }
    return false;
}

/* Said by the device itself, or because it does not give a batch back. Logged once. */
static bool device_is_lost(struct kv_service *service)
{
    struct kv_error err = {0};
    if (service->lost) return true;
    if (!kv_engine_watch(service->engine, &err))
        kv_log_error(&err);
    else if (kv_engine_state(service->engine) != KV_ENGINE_LOST)
        return false;
    kv_log(KV_LOG_ERROR, "the device is lost: stopping so that a supervisor can start a fresh process");
    service->lost = true;
    return true;
}

/* Until a signal, a refused checkpoint or a lost device. */
static enum kv_exit serve(struct kv_service *service)
{
    enum { LOOK_MS = 100 };
    while (!signalled(service, LOOK_MS)) {
        if (atomic_load(&service->loaded) && service->load_result != KV_EXIT_OK) return service->load_result;
        if (device_is_lost(service)) return KV_EXIT_DEVICE;
    }
    return KV_EXIT_OK;
}

/* Waits until the loading thread has seen that it is to stop; a further signal ends the waiting. False: it is
 * still in the middle of something. */
static bool end_loading(struct kv_service *service, int64_t seconds)
{
    enum { LOOK_MS = 10 };
    int64_t until_us = kv_now_us() + seconds * 1000000;
    atomic_store(&service->stop_loading, true);
    while (!atomic_load(&service->loaded))
        if (kv_now_us() >= until_us || signalled(service, LOOK_MS)) return false;
    pthread_join(service->loader, NULL);
    return true;
}

/* Waits until nothing is in flight; a further signal ends the waiting, and a device that is lost meanwhile
 * shortens it. */
static bool await_idle(struct kv_service *service, int64_t seconds)
{
    enum { LOOK_MS = 10 };
    int64_t until_us = kv_now_us() + seconds * 1000000;
    while (!kv_http_idle(service->http)) {
        if (!service->lost && device_is_lost(service)) {
            int64_t soon_us = kv_now_us() + LOST_SECONDS * 1000000LL;
            if (soon_us < until_us) until_us = soon_us;
        }
        if (kv_now_us() >= until_us || signalled(service, LOOK_MS)) return false;
    }
    return true;
}

static void drain(struct kv_service *service, enum kv_exit result)
{
    const struct kv_options *options = service->options;
    bool in_time = true;
    kv_http_retire(service->http);
    if (result == KV_EXIT_OK) in_time = !signalled(service, options->drain_grace * 1000);
    if (!kv_engine_responds(service->engine)) return; /* stuck in the device: nobody can be answered */
    kv_engine_drain(service->engine);
    kv_http_quiesce(service->http);
    kv_pulse_forget_listener(&service->pulse);
    in_time = in_time && await_idle(service, result == KV_EXIT_OK ? options->drain_timeout : LOST_SECONDS);
    if (in_time || !kv_engine_responds(service->engine)) return;
    kv_log(KV_LOG_WARNING, "requests are still in flight: those that wait are refused, the others are cut");
    kv_engine_abandon(service->engine);
    kv_http_abandon(service->http);
    await_idle(service, ABANDON_SECONDS);
}

/* Stops in order. False: a thread is still in the device or in a read, where nothing can call it back. It may
 * write to memory of ours at any time, so nothing is freed, and the process has to end without it. */
static bool stop(struct kv_service *service, enum kv_exit result)
{
    const struct kv_options *options = service->options;
    kv_notify_send(&service->notify, "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=%lld",
                   (long long)(options->drain_grace + options->drain_timeout + STOP_SECONDS) * 1000000);
    kv_log(KV_LOG_INFO, "stopping: not ready any more");
    if (!end_loading(service, result == KV_EXIT_OK ? options->drain_timeout : LOST_SECONDS)) return false;
    drain(service, result);
    return kv_engine_settle(service->engine);
}

static enum kv_exit fail_start(const struct kv_error *err, enum kv_exit result)
{
    kv_log_error(err);
    return err->fault == KV_OPTION_INVALID ? KV_EXIT_USAGE : result;
}

static enum kv_exit start(struct kv_service *service)
{
    const struct kv_options *options = service->options;
    const struct kv_log_field said[] = {
        {"version", kv_version}, {"path", options->model}, {"device", options->device}};
    const struct kv_access_options access = {options->api_key_file, options->tls_cert, options->tls_key};
    const struct kv_listener_options listening = {(mode_t)options->unix_mode, options->tls_cert != NULL,
                                                  !options->api_key_file && !options->allow_anonymous};
    struct kv_error err = {0};
    kv_log_fields(KV_LOG_INFO, "starting", said, sizeof said / sizeof said[0]);
    if (!kv_access_open(&service->access, &access, &err)) return fail_start(&err, KV_EXIT_DEVICE);
    for (int32_t i = 0; i < options->listens; i++)
        if (!kv_listener_open(&service->listener[i], options->listen[i], &listening, &err))
            return fail_start(&err, KV_EXIT_ADDRESS);
    struct kv_listener *admin = &service->listener[options->listens];
    if (options->admin_listen && !kv_listener_open(admin, options->admin_listen, &listening, &err))
        return fail_start(&err, KV_EXIT_ADDRESS);
    const struct kv_engine_options engine_options = {limits_of(options), options->batch_delay_us,
                                                     options->spin_us};
    service->engine = kv_engine_open(&engine_options);
    if (!service->engine) {
        kv_fail(&err, KV_INTERNAL, "no memory for the engine");
        return fail_start(&err, KV_EXIT_DEVICE);
    }
    const struct kv_http_options http_options = {
        .engine = service->engine,
        .listener = service->listener,
        .listeners = options->listens + (options->admin_listen != NULL),
        .last_is_admin = options->admin_listen != NULL,
        .model = service->name,
        .version = kv_version,
        .access = service->access,
    };
    if (!kv_http_open(&service->http, &http_options, &err)) return fail_start(&err, KV_EXIT_DEVICE);
    for (int32_t i = 0; i < options->listens; i++)
        kv_log(KV_LOG_INFO, "kvmatd %s listening on %s", kv_version, service->listener[i].url);
    if (options->admin_listen)
        kv_log(KV_LOG_INFO, "/health, /ready and /metrics alone are served on %s, too", admin->url);
    int32_t connections = engine_options.limits.connections_max;
    if (connections < options->max_connections)
        kv_log(
            KV_LOG_WARNING,
            "only %d connections at once instead of %d: the limit of open files (ulimit -n) allows no more",
            connections, (int32_t)options->max_connections);
    else
        kv_log(KV_LOG_INFO, "at most %d connections at once, silent ones are closed after %d s", connections,
               engine_options.limits.idle_seconds);
    return KV_EXIT_OK;
}

static void free_service(struct kv_service *service)
{
    kv_engine_close(service->engine);
    kv_checkpoint_close(service->checkpoint);
    kv_findings_free(&service->findings);
    kv_access_close(service->access);
    free(service);
}

enum kv_exit kv_service_run(const struct kv_options *options, const struct kv_backend_ops *const *backends,
                            bool *left_behind)
{
    struct kv_service *service = calloc(1, sizeof *service);
    *left_behind = false;
    if (!service) return KV_EXIT_DEVICE;
    service->options = options;
    service->backends = backends;
    for (int32_t i = 0; i <= KV_LISTENERS_MAX; i++) service->listener[i].fd = -1;
    name_model(options, service->name);
    kv_findings_init(&service->findings);
    block_signals(options, &service->signals);
    kv_notify_open(&service->notify);

    enum kv_exit result = start(service);
    kv_pulse_open(&service->pulse, &service->notify, service->engine, service->listener[0].fd);
    if (result == KV_EXIT_OK && pthread_create(&service->loader, NULL, kv_service_load, service) != 0) {
        kv_log(KV_LOG_ERROR, "the thread that loads the model cannot be started");
        result = KV_EXIT_DEVICE;
    } else if (result == KV_EXIT_OK) {
        result = serve(service);
        *left_behind = !stop(service, result);
        if (service->lost) result = KV_EXIT_DEVICE;
    }
    if (!*left_behind) kv_http_close(service->http);
    for (int32_t i = 0; i <= KV_LISTENERS_MAX; i++) kv_listener_close(&service->listener[i]);
    kv_pulse_close(&service->pulse);
    kv_notify_close(&service->notify);
    if (*left_behind)
        kv_log(KV_LOG_WARNING, "a thread is still in the device or in a read: the process ends without it");
    else
        free_service(service);
    if (result == KV_EXIT_OK) kv_log(KV_LOG_INFO, "stopped");
    return result;
}
