/* A device that does not give a batch back: the engine is lost, callers are answered, nothing that the device
 * may still write to is freed, and the process ends with 4 without waiting for it. */
#include "tests/engine_rig.h"
#include "tests/suite.h"

#include <unistd.h>

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
}

static struct kv_engine *open_engine(int32_t device_seconds)
{
    return engine_rig_open(
        (struct kv_engine_options){.spin_us = 20, .limits = {.device_seconds = device_seconds}});
}

/* Watches until the device is lost, at most a minute. */
static struct kv_error watch(struct kv_engine *engine)
{
    struct kv_error err = {0};
    for (int i = 0; i < 6000 && kv_engine_watch(engine, &err); i++) usleep(10000);
    return err;
}

START_TEST(test_a_batch_stays)
{
    struct kv_engine *engine = open_engine(1);
    struct engine_rig_request request[4], after = {.engine = engine, .tokens = 1};
    fake.held = 1;
    for (uint32_t i = 0; i < 4; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = i == 1 ? 500 : 2, .seed = i};
        engine_rig_start(&request[i]);
        if (i == 0)
            while (fake.batches == 0) sched_yield();
    }
    ck_assert(engine_rig_await_waiting(engine, 3));
    struct kv_error err = watch(engine);
    ck_assert_int_eq(err.fault, KV_DEVICE_LOST);
    ck_assert_msg(strstr(err.message, "longer than --device-timeout 1"), "%s", err.message);
    for (int i = 0; i < 4; i++) { /* the one aboard, and those behind it */
        engine_rig_join(&request[i]);
        ck_assert_int_eq(request[i].err.fault, KV_DEVICE_LOST);
        ck_assert(strstr(request[i].err.message, "with the device for"));
    }
    engine_rig_run(&after);
    ck_assert_int_eq(after.err.fault, KV_DEVICE_LOST);
    ck_assert_int_eq(kv_engine_state(engine), KV_ENGINE_LOST);
    ck_assert(kv_engine_responds(engine));
    ck_assert(!kv_engine_settle(engine)); /* the device still has its batch: nothing may be freed */
    ck_assert_int_gt(kv_engine_busy_us(engine), 0);
    fake.held = 0;
    ck_assert(kv_engine_settle(engine)); /* it came back after all; the engine stays lost */
    ck_assert_int_eq(kv_engine_state(engine), KV_ENGINE_LOST);
    engine_rig_close(engine);
}
END_TEST

/* Stuck in submit, with the engine's lock. */
START_TEST(test_submit_stays)
{
    struct kv_engine *engine = open_engine(1);
    struct engine_rig_request request = {.engine = engine, .tokens = 2, .seed = 1};
    fake.hang = 1;
    engine_rig_start(&request);
    struct kv_error err = watch(engine);
    ck_assert_int_eq(err.fault, KV_DEVICE_LOST);
    ck_assert(!kv_engine_responds(engine));
    ck_assert(!kv_engine_settle(engine));
    fake.hang = 0;
    engine_rig_join(&request);
    ck_assert(request.ok && request.right);
    ck_assert(kv_engine_settle(engine));
    engine_rig_close(engine);
}
END_TEST

/* Without a limit, and while no batch stays for too long, nothing is lost. */
START_TEST(test_slow_is_not_stuck)
{
    struct kv_engine *engine = open_engine(_i);
    struct engine_rig_request request = {.engine = engine, .tokens = 640, .seed = 4};
    struct kv_error err = {0};
    fake.delay_us = _i ? 200000 : 2000; /* ten spans, 2 s together where there is a limit of 1 s */
    engine_rig_start(&request);
    for (int i = 0; i < 50; i++) {
        ck_assert(kv_engine_watch(engine, &err));
        usleep(2000);
    }
    engine_rig_join(&request);
    ck_assert(request.ok && request.right);
    ck_assert(kv_engine_watch(engine, &err));
    ck_assert_int_eq(kv_engine_busy_us(engine), 0);
    engine_rig_close(engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/stuck");
    TCase *cases = tcase_create("engine");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_a_batch_stays);
    tcase_add_test(cases, test_submit_stays);
    tcase_add_loop_test(cases, test_slow_is_not_stuck, 0, 2);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
