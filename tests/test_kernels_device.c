/* The CPU backend as a device: what open refuses and leaves behind, what it says of itself, and memory. */
#include "tests/cpu_device.h"
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t seed;

START_TEST(the_table_has_the_cpu)
{
    ck_assert_ptr_nonnull(kv_backends()[0]);
    ck_assert_ptr_eq(kv_backend_find("cpu"), &kv_cpu_ops);
    ck_assert_ptr_null(kv_backend_find("abacus"));
}
END_TEST

START_TEST(parts_have_their_sizes)
{
    struct kv_geometry geometry = cpu_device_geometry();
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_K_WEIGHT), 2 * 64 * 96 * 2);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_K_BIAS), 2 * 64 * 4);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_V_BIAS), 0);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_K_NORM), 64 * 4);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_EPS), 4);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_FC), 0);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_HIDDEN_NORM), 0);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_INV_FREQ), 32 * 4);
    geometry.taps = 3;
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_FC), 96 * 3 * 96 * 2);
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_HIDDEN_NORM), 96 * 4);
    geometry.hidden = INT64_MAX / 2;
    ck_assert_uint_eq(kv_part_bytes(&geometry, KV_PART_K_WEIGHT), UINT64_MAX);
}
END_TEST

START_TEST(a_device_says_what_it_is)
{
    uint64_t state = seed;
    struct kv_geometry geometry = cpu_device_geometry();
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct kv_backend *backend;
    struct kv_error err = {0};
    struct kv_backend_description said;
    ck_assert_msg(cpu_device_try(&geometry, weights, 2, &backend, &err), "%s", err.message);
    kv_cpu_ops.describe(backend, &said);
    ck_assert_str_eq(said.kind, "cpu");
    ck_assert_ptr_nonnull(strstr(said.name, kv_isa_best()->name));
    ck_assert_ptr_nonnull(strstr(said.name, "2 threads"));
    ck_assert_uint_ge(said.memory_bytes, 2 * 2 * kv_part_bytes(&geometry, KV_PART_K_WEIGHT));
    ck_assert_int_ge(said.span_rows, 1);
    ck_assert_int_ge(said.batches_max, 1);
    kv_cpu_ops.close(backend);
    random_weights_free(weights);
    kv_cpu_ops.close(NULL);
}
END_TEST

/* Address space of this process, in pages: what asan does not look at is mapped memory. */
static long mapped_pages(void)
{
    char line[64] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    fclose(file);
    return strtol(line, NULL, 10);
}

/* Open with every read failing in turn, until none is left that could fail. */
static int32_t fail_every_read(const struct kv_geometry *geometry, struct random_weights *weights)
{
    struct kv_backend *backend;
    for (int32_t reads = 0; reads < 1000; reads++) {
        struct kv_error err = {0};
        random_weights_fail_at(weights, reads);
        if (cpu_device_try(geometry, weights, 2, &backend, &err)) {
            ck_assert(random_weights_pulled_once(weights));
            kv_cpu_ops.close(backend);
            return reads;
        }
        ck_assert_ptr_null(backend);
        ck_assert_int_eq(err.fault, KV_SAFETENSORS_MALFORMED);
    }
    return 1000;
}

START_TEST(a_failing_read_fails_open_and_leaks_nothing)
{
    uint64_t state = seed;
    struct kv_geometry geometry = cpu_device_geometry();
    geometry.taps = 2;
    struct random_weights *weights = random_weights_make(&geometry, &state);
    int32_t failures = fail_every_read(&geometry, weights);
    ck_assert_int_ge(failures, 2 * 2 * 4);
    ck_assert_int_lt(failures, 1000);
    long before = mapped_pages();
    fail_every_read(&geometry, weights);
    /* A backend of this size maps some 2 MiB: one leak in each of the failures would be ten times as much as
     * this. */
    ck_assert_int_lt(mapped_pages() - before, (long)(4 << 20) / 4096);
    random_weights_free(weights);
}
END_TEST

START_TEST(too_much_memory_is_refused)
{
    uint64_t state = seed;
    struct kv_geometry geometry = cpu_device_geometry();
    struct random_weights *weights = random_weights_make(&geometry, &state);
    struct kv_backend *backend;
    struct kv_error err = {0};
    geometry.layers = 1024;
    geometry.kv_heads = 512;
    geometry.hidden = 1 << 20;
    ck_assert(!cpu_device_try(&geometry, weights, 1, &backend, &err));
    ck_assert_ptr_null(backend);
    ck_assert_int_eq(err.fault, KV_DEVICE_OUT_OF_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.message, "140737")); /* 2 * 1024 * 512 * 64 * 2^20 * 2 = 1.4e14 bytes,
                                                             and a bit */
    err = (struct kv_error){0};
    geometry.kv_heads = INT32_MAX;
    geometry.hidden = INT32_MAX;
    ck_assert(!cpu_device_try(&geometry, weights, 1, &backend, &err));
    ck_assert_int_eq(err.fault, KV_DEVICE_OUT_OF_MEMORY);
    random_weights_free(weights);
}
END_TEST

START_TEST(memory_comes_and_goes)
{
    struct cpu_device device;
    struct kv_geometry geometry = cpu_device_geometry();
    struct kv_mem *mem;
    void *host;
    struct kv_error err = {0};
    cpu_device_open(&device, &geometry, seed);
    static const size_t sizes[] = {0, 1, 4096, (2 << 20) - 1, 5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_assert_msg(kv_cpu_ops.alloc(device.rig.backend, sizes[i], &mem, &host, &err), "%s", err.message);
        ck_assert_uint_eq((uintptr_t)host % 64, 0);
        memset(host, 1, sizes[i]);
        kv_cpu_ops.release(device.rig.backend, mem);
    }
    kv_cpu_ops.release(device.rig.backend, NULL);
    ck_assert(!kv_cpu_ops.alloc(device.rig.backend, SIZE_MAX, &mem, &host, &err));
    ck_assert_int_eq(err.fault, KV_DEVICE_OUT_OF_MEMORY);
    err = (struct kv_error){0};
    ck_assert(
        !kv_cpu_ops.import(device.rig.backend, &(struct kv_handle){.fd = 0, .length = 4096}, &mem, &err));
    ck_assert_int_eq(err.fault, KV_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "shared memory"));
    cpu_device_close(&device);
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: the CPU as a device");
    TCase *device = tcase_create("device");
    tcase_set_timeout(device, 300);
    tcase_add_test(device, the_table_has_the_cpu);
    tcase_add_test(device, parts_have_their_sizes);
    tcase_add_test(device, a_device_says_what_it_is);
    tcase_add_test(device, a_failing_read_fails_open_and_leaks_nothing);
    tcase_add_test(device, too_much_memory_is_refused);
    tcase_add_test(device, memory_comes_and_goes);
    suite_add_tcase(suite, device);
    return suite_run(suite);
}
