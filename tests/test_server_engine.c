/* The engine over a fake device: memory, spans, batches, and everything that can go wrong between them. */
#include "tests/engine_rig.h"
#include "tests/suite.h"

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
}

static void assert_served(const struct engine_rig_request *request)
{
    ck_assert_msg(request->ok, "refused: %s", request->err.message);
    ck_assert(request->right);
}

START_TEST(test_without_a_device)
{
    const struct kv_engine_options options = {.limits = {.tokens_max = 1, .queue_max = 1}};
    struct kv_engine *engine = kv_engine_open(&options);
    struct kv_job job = {0};
    struct kv_error err = {0};
    ck_assert(!kv_engine_admit(engine, &job, 100, &err));
    ck_assert_int_eq(err.fault, KV_NOT_READY);
    kv_engine_release(&job);
    kv_engine_close(engine);
}
END_TEST

START_TEST(test_alone)
{
    static const int64_t tokens[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000};
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 50});
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        struct engine_rig_request request = {.engine = engine, .tokens = tokens[i], .seed = (uint32_t)i + 1};
        engine_rig_run(&request);
        assert_served(&request);
    }
    struct kv_engine_stats stats;
    kv_engine_stats(engine, &stats);
    ck_assert_uint_eq(stats.inline_batches, 4); /* 1, 2, 63, 64: what fits one span of 64 */
    ck_assert_int_le(fake.rows_max_seen, 64);
    ck_assert_uint_eq(stats.batch_rows, 1 + 2 + 63 + 64 + 65 + 127 + 128 + 129 + 1000);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_join)
{
    struct kv_engine *engine =
        engine_rig_open((struct kv_engine_options){.limits = {.batch_tokens_max = 40}});
    struct engine_rig_request first = {.engine = engine, .tokens = 3, .seed = 99}, small[10];
    fake.held = 1;
    engine_rig_start(&first); /* inline, keeps the device busy */
    while (fake.batches == 0) sched_yield();
    for (uint32_t i = 0; i < 10; i++) {
        small[i] = (struct engine_rig_request){.engine = engine, .tokens = 8, .seed = i};
        engine_rig_start(&small[i]);
    }
    ck_assert(engine_rig_await_waiting(engine, 10));
    fake.held = 0;
    engine_rig_join(&first);
    assert_served(&first);
    for (int i = 0; i < 10; i++) {
        engine_rig_join(&small[i]);
        assert_served(&small[i]);
    }
    ck_assert_int_eq(fake.items_max_seen, 5); /* 5 * 8 = 40 rows */
    ck_assert_int_eq(fake.batches, 3);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_small_beside_large)
{
    struct kv_engine *engine =
        engine_rig_open((struct kv_engine_options){.limits = {.batch_tokens_max = 64}});
    struct engine_rig_request large = {.engine = engine, .tokens = 6400, .seed = 5};
    fake.delay_us = 2000; /* 100 spans of 64 rows: 200 ms */
    engine_rig_start(&large);
    while (fake.batches < 3) sched_yield();
    struct engine_rig_request small = {.engine = engine, .tokens = 64, .seed = 6};
    engine_rig_run(&small);
    assert_served(&small);
    ck_assert_int_lt(fake.batches, 20); /* it did not wait for the large one's 100 spans */
    engine_rig_join(&large);
    assert_served(&large);
    engine_rig_close(engine);
}
END_TEST

/* A small request behind large ones waits for what is in the air and for one span of each of them, no more.
 */
START_TEST(test_small_waits_for_one_span_each)
{
    enum { LARGE = 4, SMALL_SEED = 50 };
    fake.batches_max = _i;
    fake.watched_position = SMALL_SEED * 7919 % 100000; /* the small one's first */
    struct kv_engine *engine =
        engine_rig_open((struct kv_engine_options){.limits = {.batch_tokens_max = 64}});
    struct engine_rig_request large[LARGE], small = {.engine = engine, .tokens = 1, .seed = SMALL_SEED};
    fake.held = 1;
    for (uint32_t i = 0; i < LARGE; i++) { /* of 100 spans each */
        large[i] = (struct engine_rig_request){.engine = engine, .tokens = 6400, .seed = i};
        engine_rig_start(&large[i]);
        ck_assert(engine_rig_await_waiting(engine, (int32_t)i + 1));
        while (fake.batches < _i) sched_yield(); /* all of the first one's */
    }
    engine_rig_start(&small);
    ck_assert(engine_rig_await_waiting(engine, LARGE + 1));
    ck_assert_int_eq(fake.batches, _i);
    fake.held = 0;
    engine_rig_join(&small);
    assert_served(&small);
    ck_assert_int_gt(fake.watched_batch, _i);
    ck_assert_int_le(fake.watched_batch, _i + LARGE + 1); /* the last is its own */
    for (int i = 0; i < LARGE; i++) {
        engine_rig_join(&large[i]);
        assert_served(&large[i]); /* cut into spans, the bits are those of being served alone */
    }
    engine_rig_close(engine);
}
END_TEST

/* A deadline drops what waits; what the device has begun is finished. */
START_TEST(test_begun_is_finished)
{
    struct kv_engine *engine =
        engine_rig_open((struct kv_engine_options){.limits = {.batch_tokens_max = 64}});
    struct engine_rig_request request = {
        .engine = engine, .tokens = 640, .seed = 3, .deadline_us = kv_now_us() + 60000};
    fake.delay_us = 20000; /* ten spans: 200 ms */
    engine_rig_run(&request);
    assert_served(&request);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_faults_are_the_items_own)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request busy = {.engine = engine, .tokens = 1, .seed = 1}, request[6];
    fake.held = 1;
    engine_rig_start(&busy);
    while (fake.batches == 0) sched_yield();
    fake.fault = KV_DEVICE_OUT_OF_MEMORY;
    fake.fault_position = 3 * 7919 % 100000; /* the first position of seed 3 */
    for (uint32_t i = 0; i < 6; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = 9, .seed = i};
        engine_rig_start(&request[i]);
    }
    ck_assert(engine_rig_await_waiting(engine, 6));
    fake.held = 0;
    engine_rig_join(&busy);
    for (uint32_t i = 0; i < 6; i++) {
        engine_rig_join(&request[i]);
        if (i != 3) assert_served(&request[i]);
    }
    ck_assert(!request[3].ok);
    ck_assert_int_eq(request[3].err.fault, KV_DEVICE_OUT_OF_MEMORY);
    fake.fault = KV_OK;
    engine_rig_run(&request[3]); /* nothing is poisoned */
    request[3].err = (struct kv_error){0};
    assert_served(&request[3]);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_submit_fails)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request request = {.engine = engine, .tokens = 300, .seed = 2};
    fake.submit_fails = KV_DEVICE_OUT_OF_MEMORY;
    engine_rig_run(&request); /* through the queue */
    ck_assert_int_eq(request.err.fault, KV_DEVICE_OUT_OF_MEMORY);
    struct engine_rig_request small = {.engine = engine, .tokens = 3, .seed = 2};
    engine_rig_run(&small); /* inline */
    ck_assert_int_eq(small.err.fault, KV_DEVICE_OUT_OF_MEMORY);
    fake.submit_fails = KV_OK;
    request.err = (struct kv_error){0};
    engine_rig_run(&request);
    assert_served(&request);
    ck_assert_int_eq(kv_engine_state(engine), KV_ENGINE_READY);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_lost)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request request[4], after = {.engine = engine, .tokens = 1};
    fake.held = 1;
    for (uint32_t i = 0; i < 4; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = i == 1 ? 500 : 2, .seed = i};
        engine_rig_start(&request[i]);
        if (i == 0)
            while (fake.batches == 0) sched_yield();
    }
    ck_assert(engine_rig_await_waiting(engine, 3));
    fake.lost = 1;
    for (int i = 0; i < 4; i++) {
        engine_rig_join(&request[i]);
        ck_assert_int_eq(request[i].err.fault, KV_DEVICE_LOST);
    }
    ck_assert_int_eq(kv_engine_state(engine), KV_ENGINE_LOST);
    engine_rig_run(&after);
    ck_assert_int_eq(after.err.fault, KV_DEVICE_LOST);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_drain)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request busy = {.engine = engine, .tokens = 4, .seed = 1};
    struct engine_rig_request queued = {.engine = engine, .tokens = 5, .seed = 2};
    struct engine_rig_request after = {.engine = engine, .tokens = 6, .seed = 3};
    fake.held = 1;
    engine_rig_start(&busy);
    while (fake.batches == 0) sched_yield();
    engine_rig_start(&queued);
    ck_assert(engine_rig_await_waiting(engine, 1));
    kv_engine_drain(engine);
    engine_rig_run(&after);
    ck_assert_int_eq(after.err.fault, KV_DRAINING);
    fake.held = 0;
    engine_rig_join(&busy);
    engine_rig_join(&queued);
    assert_served(&busy);
    assert_served(&queued); /* what was admitted is finished */
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_abandon)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request busy = {.engine = engine, .tokens = 4, .seed = 1};
    struct engine_rig_request queued = {.engine = engine, .tokens = 5, .seed = 2};
    fake.held = 1;
    engine_rig_start(&busy);
    while (fake.batches == 0) sched_yield();
    engine_rig_start(&queued);
    ck_assert(engine_rig_await_waiting(engine, 1));
    kv_engine_drain(engine);
    kv_engine_abandon(engine);
    engine_rig_join(&queued);
    ck_assert_int_eq(queued.err.fault, KV_DRAINING);
    fake.held = 0;
    engine_rig_join(&busy);
    assert_served(&busy);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_delay_joins)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.batch_delay_us = 200000});
    struct engine_rig_request request[8];
    for (uint32_t i = 0; i < 8; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = 32, .seed = i};
        engine_rig_start(&request[i]);
    }
    for (int i = 0; i < 8; i++) {
        engine_rig_join(&request[i]);
        assert_served(&request[i]);
    }
    ck_assert_int_lt(fake.batches, 8); /* 256 rows fill a batch: no need to wait for the delay's end */
    engine_rig_close(engine);
}
END_TEST

static void *storm(void *of)
{
    struct engine_rig_request *mine = of;
    uint32_t state = mine->seed * 2654435761u + 1;
    mine->right = true;
    for (int i = 0; i < 60; i++) {
        state = state * 1664525u + 1013904223u;
        struct engine_rig_request request = {
            .engine = mine->engine, .tokens = state >> 24 & 255, .seed = state};
        if ((state >> 8 & 15) == 0) request.deadline_us = kv_now_us() + 300;
        if ((state >> 12 & 15) == 0) request.hung_up = 1;
        engine_rig_run(&request);
        enum kv_fault fault = request.err.fault;
        bool expected =
            request.ok ? request.right
                       : fault == KV_DEADLINE_EXCEEDED || fault == KV_CLIENT_GONE || fault == KV_QUEUE_FULL;
        if (!expected) mine->right = false;
    }
    return NULL;
}

START_TEST(test_storm)
{
    fake.batches_max = _i; /* one to three batches in flight */
    fake.delay_us = 100;
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){
        .spin_us = 20, .limits = {.pool_bytes = 4 * engine_rig_request_bytes(255)}});
    struct engine_rig_request thread[8];
    for (uint32_t i = 0; i < 8; i++) {
        thread[i] = (struct engine_rig_request){.engine = engine, .seed = i};
        ck_assert_int_eq(pthread_create(&thread[i].thread, NULL, storm, &thread[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i].thread, NULL);
        ck_assert(thread[i].right);
    }
    engine_rig_close(engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/engine");
    TCase *cases = tcase_create("engine");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_without_a_device);
    tcase_add_test(cases, test_alone);
    tcase_add_test(cases, test_join);
    tcase_add_test(cases, test_small_beside_large);
    tcase_add_loop_test(cases, test_small_waits_for_one_span_each, 1, 4);
    tcase_add_test(cases, test_begun_is_finished);
    tcase_add_test(cases, test_faults_are_the_items_own);
    tcase_add_test(cases, test_submit_fails);
    tcase_add_test(cases, test_lost);
    tcase_add_test(cases, test_drain);
    tcase_add_test(cases, test_abandon);
    tcase_add_test(cases, test_delay_joins);
    tcase_add_loop_test(cases, test_storm, 1, 4);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
