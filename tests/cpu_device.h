/* A small open CPU backend with random weights and a rig around it, for the tests of that backend. Failures
 * end the test (libcheck). */
#ifndef KV_TESTS_CPU_DEVICE_H
#define KV_TESTS_CPU_DEVICE_H

#include "kernels/cpu_backend.h"
#include "tests/device_rig.h"

struct cpu_device {
    struct random_weights *weights;
    struct rig rig;
    uint64_t state; /* of the random numbers */
};

/* 2 layers, 2 heads of 64, hidden 96, with K norms and K biases. */
struct kv_geometry cpu_device_geometry(void);

/* Opens a backend for `weights`, which may be of another geometry; batches of 512 rows and 16 items. */
bool cpu_device_try(const struct kv_geometry *geometry, struct random_weights *weights, int32_t threads,
                    struct kv_backend **out, struct kv_error *err);

void cpu_device_open(struct cpu_device *device, const struct kv_geometry *geometry, uint64_t seed);
void cpu_device_close(struct cpu_device *device);

#endif
