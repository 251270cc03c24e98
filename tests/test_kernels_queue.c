/* The queue in front of the CPU backend: how many batches it takes, how wait keeps its time, and many threads
 * at once. */
#include "tests/cpu_device.h"
#include "tests/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static uint64_t seed;

START_TEST(batches_queue_up_to_their_number)
{
    enum { MANY = 8 };
    struct cpu_device device;
    struct kv_geometry geometry = cpu_device_geometry();
    struct kv_backend_description said;
    struct kv_batch batch[MANY + 1] = {0};
    struct kv_item item[MANY + 1] = {0};
    struct kv_ref bases[MANY + 1][16];
    struct kv_error err = {0};
    cpu_device_open(&device, &geometry, seed);
    kv_cpu_ops.describe(device.rig.backend, &said);
    ck_assert_int_lt(said.batches_max, MANY);
    struct rig_input input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_BF16, 100, &device.state);
    for (int32_t i = 0; i <= said.batches_max; i++) {
        item[i] = rig_item(&device.rig, &input, NULL, 100, &(struct rig_layout){0}, bases[i]);
        batch[i] = (struct kv_batch){.rows = 100, .items = 1, .item = &item[i]};
    }
    for (int32_t i = 0; i < said.batches_max; i++)
        ck_assert_msg(kv_cpu_ops.submit(device.rig.backend, &batch[i], &err), "%s", err.message);
    ck_assert(!kv_cpu_ops.submit(device.rig.backend, &batch[said.batches_max], &err));
    ck_assert_int_eq(err.fault, KV_INTERNAL);
    /* The last first: order of waiting is the caller's. */
    for (int32_t i = said.batches_max - 1; i >= 0; i--) {
        ck_assert_int_eq(kv_cpu_ops.wait(device.rig.backend, &batch[i], -1, NULL), KV_WAIT_DONE);
        ck_assert_int_eq(item[i].fault, KV_OK);
        ck_assert_ptr_null(batch[i].inflight);
    }
    batch[0].rows = 513;
    ck_assert(!kv_cpu_ops.submit(device.rig.backend, &batch[0], &err));
    rig_input_free(&input);
    cpu_device_close(&device);
}
END_TEST

START_TEST(nothing_is_done_at_once)
{
    struct cpu_device device;
    struct kv_geometry geometry = cpu_device_geometry();
    struct kv_error err = {0};
    cpu_device_open(&device, &geometry, seed);
    struct kv_batch none = {0};
    ck_assert(kv_cpu_ops.submit(device.rig.backend, &none, &err));
    ck_assert_int_eq(kv_cpu_ops.wait(device.rig.backend, &none, 0, NULL), KV_WAIT_DONE);
    struct kv_item empty[3] = {{.fault = KV_INTERNAL}, {.fault = KV_INTERNAL}, {.fault = KV_INTERNAL}};
    rig_run(&device.rig, empty, 3);
    for (int32_t i = 0; i < 3; i++) ck_assert_int_eq(empty[i].fault, KV_OK);
    cpu_device_close(&device);
}
END_TEST

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* A batch of some hundred milliseconds: looking says pending and returns, so does a short wait. */
START_TEST(waiting_keeps_its_time)
{
    struct cpu_device device;
    struct kv_geometry geometry = cpu_device_geometry();
    geometry.hidden = 2048;
    geometry.kv_heads = 16;
    geometry.head_dim = geometry.rotary_dim = 128;
    struct kv_error err = {0};
    struct kv_ref bases[16];
    cpu_device_open(&device, &geometry, seed);
    struct rig_input input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_BF16, 400, &device.state);
    struct kv_item item = rig_item(&device.rig, &input, NULL, 400, &(struct rig_layout){0}, bases);
    struct kv_batch batch = {.rows = 400, .items = 1, .item = &item};
    ck_assert_msg(kv_cpu_ops.submit(device.rig.backend, &batch, &err), "%s", err.message);
    ck_assert_int_eq(kv_cpu_ops.wait(device.rig.backend, &batch, 0, NULL), KV_WAIT_PENDING);
    int64_t began_us = now_us();
    ck_assert_int_eq(kv_cpu_ops.wait(device.rig.backend, &batch, 2000, NULL), KV_WAIT_PENDING);
    ck_assert_int_ge(now_us() - began_us, 2000);
    ck_assert_int_eq(kv_cpu_ops.wait(device.rig.backend, &batch, 60 * 1000000, NULL), KV_WAIT_DONE);
    ck_assert_int_eq(item.fault, KV_OK);
    rig_input_free(&input);
    cpu_device_close(&device);
}
END_TEST

/* Threads that submit under one lock, as the engine does, and wait each for their own. */
struct crowd {
    struct cpu_device device;
    pthread_mutex_t lock;
    pthread_cond_t room;
    int32_t flying, flying_max;
    struct rig_input input;
    uint16_t *want; /* [rows][K and V of all heads] */
};
struct member {
    struct crowd *crowd;
    pthread_t thread;
    uint64_t state;
    struct kv_ref bases[16];
    struct kv_item item;
    int64_t wrong;
};

enum { MEMBERS = 6, ROUNDS = 40, INPUT_ROWS = 30 };

static void compute(struct member *member, int64_t rows)
{
    struct crowd *crowd = member->crowd;
    struct kv_batch batch = {.rows = rows, .items = 1, .item = &member->item};
    member->item.rows = rows;
    pthread_mutex_lock(&crowd->lock);
    while (crowd->flying == crowd->flying_max) pthread_cond_wait(&crowd->room, &crowd->lock);
    crowd->flying++;
    bool submitted = kv_cpu_ops.submit(crowd->device.rig.backend, &batch, NULL);
    pthread_mutex_unlock(&crowd->lock);
    enum kv_wait seen = KV_WAIT_PENDING;
    while (submitted && seen == KV_WAIT_PENDING)
        seen = kv_cpu_ops.wait(crowd->device.rig.backend, &batch, random_below(&member->state, 3) * 50, NULL);
    pthread_mutex_lock(&crowd->lock);
    crowd->flying--;
    pthread_cond_signal(&crowd->room);
    pthread_mutex_unlock(&crowd->lock);
    if (!submitted || seen != KV_WAIT_DONE || member->item.fault != KV_OK) member->wrong++;
}

static void compare(struct member *member)
{
    const struct rig *rig = &member->crowd->device.rig;
    uint16_t got[64];
    for (int32_t v = 0; v < 2; v++)
        for (int32_t layer = 0; layer < 2; layer++)
            for (int64_t t = 0; t < member->item.rows; t++)
                for (int32_t head = 0; head < 2; head++) {
                    rig_head(rig, &member->item, v == 1, layer, t, head, got);
                    const uint16_t *want =
                        member->crowd->want + (((v * 2 + layer) * INPUT_ROWS + t) * 2 + head) * 64;
                    if (memcmp(got, want, sizeof got) != 0) member->wrong++;
                }
}

static void *submit_and_wait(void *argument)
{
    struct member *member = argument;
    for (int32_t round = 0; round < ROUNDS; round++) {
        compute(member, random_below(&member->state, INPUT_ROWS + 1));
        compare(member);
    }
    return NULL;
}

START_TEST(many_threads_submit_and_wait)
{
    struct crowd crowd = {.lock = PTHREAD_MUTEX_INITIALIZER, .room = PTHREAD_COND_INITIALIZER};
    struct kv_geometry geometry = cpu_device_geometry();
    struct kv_backend_description said;
    struct member member[MEMBERS];
    struct kv_ref bases[16];
    cpu_device_open(&crowd.device, &geometry, seed);
    struct rig *rig = &crowd.device.rig;
    kv_cpu_ops.describe(rig->backend, &said);
    crowd.flying_max = said.batches_max;
    crowd.input = rig_input_make(&geometry, KV_HIDDEN_STATES, KV_F32, INPUT_ROWS, &crowd.device.state);
    crowd.want = malloc(2 * 2 * INPUT_ROWS * 2 * 64 * sizeof *crowd.want);
    ck_assert_ptr_nonnull(crowd.want);
    struct kv_item alone = rig_item(rig, &crowd.input, NULL, INPUT_ROWS, &(struct rig_layout){0}, bases);
    rig_run(rig, &alone, 1);
    for (int32_t i = 0; i < 2 * 2 * INPUT_ROWS * 2; i++)
        rig_head(rig, &alone, i / (4 * INPUT_ROWS) == 1, i / (2 * INPUT_ROWS) % 2, i / 2 % INPUT_ROWS, i % 2,
                 crowd.want + i * 64);
    for (int32_t i = 0; i < MEMBERS; i++) {
        member[i] = (struct member){.crowd = &crowd, .state = seed + (uint64_t)i};
        member[i].item =
            rig_item(rig, &crowd.input, NULL, INPUT_ROWS, &(struct rig_layout){0}, member[i].bases);
        ck_assert_int_eq(pthread_create(&member[i].thread, NULL, submit_and_wait, &member[i]), 0);
    }
    for (int32_t i = 0; i < MEMBERS; i++) {
        pthread_join(member[i].thread, NULL);
        ck_assert_int_eq(member[i].wrong, 0);
    }
    rig_check_guards(rig);
    free(crowd.want);
    rig_input_free(&crowd.input);
    cpu_device_close(&crowd.device);
}
END_TEST

int main(void)
{
    seed = random_seed();
    Suite *suite = suite_create("kernels: batches in flight");
    TCase *queue = tcase_create("queue");
    tcase_set_timeout(queue, 300);
    tcase_add_test(queue, batches_queue_up_to_their_number);
    tcase_add_test(queue, nothing_is_done_at_once);
    tcase_add_test(queue, waiting_keeps_its_time);
    tcase_add_test(queue, many_threads_submit_and_wait);
    suite_add_tcase(suite, queue);
    return suite_run(suite);
}
