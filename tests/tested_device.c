/* See tested_device.h. */
#include "tests/tested_device.h"

#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t seed;

const char *tested_name(void)
{
    const char *name = getenv("KVMAT_GPU_CHECK_BACKEND");
    return name && name[0] ? name : "cuda";
}

const struct kv_backend_ops *tested_ops(void)
{
    return kv_backend_find(tested_name());
}

uint64_t tested_seed(void)
{
    return seed;
}

static int no_device(const char *why)
{
    const char *required = getenv("KVMAT_GPU_CHECK_REQUIRED");
    bool fail = required && required[0] && strcmp(required, "0") != 0;
    fprintf(stderr, "%s: %s\n", tested_name(), why);
    puts(fail ? "no CUDA device, and one is required" : "skip: no CUDA device");
    return fail ? 1 : 77;
}

int tested_probe(void)
{
    const struct kv_backend_ops *ops = tested_ops();
    const struct kv_geometry geometry = {.layers = 1,
                                         .kv_heads = 1,
                                         .head_dim = 32,
                                         .rotary_dim = 32,
                                         .hidden = 32,
                                         .positions = 16,
                                         .dtype = KV_BF16,
                                         .value_scale = 1.0f,
                                         .attention_factor = 1.0f};
    const struct kv_backend_options options = {.rows_max = TESTED_ROWS_MAX, .items_max = TESTED_ITEMS_MAX};
    struct kv_backend *backend = NULL;
    struct kv_backend_description said;
    struct kv_error err = {0};
    if (!ops) return no_device("this build has no such backend");
    uint64_t state = 1;
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct kv_weights source = random_weights_source(weights);
    bool opened = ops->open(&backend, &source, &options, &err);
    random_weights_free(weights);
    if (!opened && err.fault == KV_DEVICE_UNAVAILABLE) return no_device(err.message);
    if (!opened) {
        printf("%s: does not open: %s\n", tested_name(), err.message);
        return 1;
    }
    ops->describe(backend, &said);
    printf("device: %s: %s, spans of %lld rows, %d batches in flight\n", said.kind, said.name,
           (long long)said.span_rows, (int)said.batches_max);
    ops->close(backend);
    seed = random_seed();
    return 0;
}

struct kv_backend *tested_open(const struct kv_backend_ops *ops, struct random_weights *weights, bool tune)
{
    const struct kv_backend_options options = {
        .rows_max = TESTED_ROWS_MAX, .items_max = TESTED_ITEMS_MAX, .tune = tune};
    struct kv_weights source = random_weights_source(weights);
    struct kv_backend *backend = NULL;
    struct kv_error err = {0};
    random_weights_fail_at(weights, -1); /* from the beginning again, and nothing fails */
    ck_assert_msg(ops->open(&backend, &source, &options, &err), "%s: %s", ops->name, err.message);
    ck_assert_msg(random_weights_pulled_once(weights), "%s: not every part was read once, in order",
                  ops->name);
    return backend;
}

size_t tested_slab_bytes(const struct kv_geometry *geometry, int64_t rows, int64_t items)
{
    enum { GAP_BYTES_MAX = 64, ITEM_BYTES = 4096 };
    int64_t columns = geometry->hidden * (geometry->taps > 0 ? geometry->taps : 1);
    int64_t row_bytes = columns * 4 + 8 + GAP_BYTES_MAX + 4 * kv_geometry_token_elements(geometry);
    return (size_t)(rows * row_bytes + items * ITEM_BYTES);
}

int tested_run(Suite *suite)
{
    return suite_run_as(suite, CK_NOFORK);
}
