/* See cpu_device.h. */
#include "tests/cpu_device.h"

#include <check.h>

struct kv_geometry cpu_device_geometry(void)
{
    return (struct kv_geometry){.layers = 2,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .rotary_dim = 64,
                                .hidden = 96,
                                .positions = 1000,
                                .dtype = KV_BF16,
                                .k_norm = true,
                                .k_bias = true,
                                .value_scale = 1.0f,
                                .attention_factor = 1.0f};
}

bool cpu_device_try(const struct kv_geometry *geometry, struct random_weights *weights, int32_t threads,
                    struct kv_backend **out, struct kv_error *err)
{
    struct kv_weights source = random_weights_source(weights);
    struct kv_backend_options options = {.threads = threads, .rows_max = 512, .items_max = 16};
    source.geometry = *geometry;
    return kv_cpu_ops.open(out, &source, &options, err);
}

void cpu_device_open(struct cpu_device *device, const struct kv_geometry *geometry, uint64_t seed)
{
    struct kv_backend *backend;
    struct kv_error err = {0};
    device->state = seed;
    device->weights = random_weights_make(geometry, &device->state);
    ck_assert_msg(cpu_device_try(geometry, device->weights, 2, &backend, &err), "%s", err.message);
    rig_open(&device->rig, &kv_cpu_ops, backend, geometry, 16 << 20);
}

void cpu_device_close(struct cpu_device *device)
{
    rig_close(&device->rig);
    random_weights_free(device->weights);
}
