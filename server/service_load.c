/* Loading: the checkpoint, the device with its weights, the engine, then open doors. Runs beside the signals,
 * so that a daemon can be stopped at any time. */
#include "server/service_state.h"

#include "kernels/backend.h"
#include "server/log.h"
#include "server/notes.h"
#include "server/version.h"

#include <inttypes.h>
#include <string.h>

struct kv_checkpoint_options kv_service_checkpoint(const struct kv_options *options)
{
    return (struct kv_checkpoint_options){
        .directory = options->model,
        .positions_max = options->max_position,
        .rope_theta = options->rope_theta,
        .attention_factor = options->rope_attention_factor,
    };
}

static bool read_unless_stopped(void *of, int32_t layer, enum kv_part part, uint64_t offset, void *to,
                                size_t bytes, struct kv_error *err)
{
    struct kv_service *service = of;
    if (atomic_load(&service->stop_loading)) return kv_fail(err, KV_DRAINING, "stopped while loading");
    if (!service->weights.read(service->weights.source, layer, part, offset, to, bytes, err)) return false;
    atomic_fetch_add(&service->loaded_bytes, bytes);
    return true;
}

static void log_findings(struct kv_findings *findings)
{
    for (int32_t i = 0; i < findings->count; i++) kv_log_error(&findings->item[i].error);
    kv_log(KV_LOG_ERROR, "the checkpoint is refused: %d fault%s", findings->count,
           findings->count == 1 ? "" : "s");
}

/* Opens the device asked for by name, or with auto the first that works. */
static const struct kv_backend_ops *open_device(struct kv_service *service, struct kv_backend **backend,
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
    for (const struct kv_backend_ops *const *ops = service->backends; *ops; ops++) {
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

static void log_model(const struct kv_service *service, const struct kv_description *description)
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
static enum kv_exit load_device(struct kv_service *service, struct kv_description *description)
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

static void log_ready(const struct kv_service *service, int64_t us)
{
    char message[64];
    const struct kv_log_field fields[] = {
        {"version", kv_version},
        {"model", service->name},
        {"path", service->options->model},
        {"device", service->device.kind},
        {"device_name", service->device.name},
    };
    snprintf(message, sizeof message, "ready after %.3f s", (double)us / 1e6);
    kv_log_fields(KV_LOG_INFO, message, fields, sizeof fields / sizeof fields[0]);
}

static enum kv_exit load(struct kv_service *service)
{
    const struct kv_checkpoint_options wanted = kv_service_checkpoint(service->options);
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
    log_ready(service, kv_now_us() - began_us);
    return KV_EXIT_OK;
}

void *kv_service_load(void *of)
{
    struct kv_service *service = of;
    service->load_result = load(service);
    atomic_store(&service->loaded, true);
    return NULL;
}
