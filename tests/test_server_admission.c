/* Admission: memory in turn, a bounded line in front of it, and those who leave it. */
#include "tests/engine_rig.h"
#include "tests/suite.h"

#include <unistd.h>

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
}

static void assert_served(const struct engine_rig_request *request)
{
    ck_assert_msg(request->ok, "refused: %s", request->err.message);
    ck_assert(request->right);
}

START_TEST(test_queue_full)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.limits = {.queue_max = 2}});
    struct engine_rig_request request[3], over = {.engine = engine, .tokens = 1};
    fake.held = 1;
    for (uint32_t i = 0; i < 3; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = 1, .seed = i};
        engine_rig_start(&request[i]);
        if (i == 0)
            while (fake.batches == 0) sched_yield();
    }
    ck_assert(engine_rig_await_waiting(engine, 2));
    engine_rig_run(&over);
    ck_assert(!over.ok);
    ck_assert_int_eq(over.err.fault, KV_QUEUE_FULL);
    ck_assert_int_eq((int)over.err.expected.integer, 2);
    ck_assert_int_eq((int)over.err.got.integer, 3);
    fake.held = 0;
    for (int i = 0; i < 3; i++) {
        engine_rig_join(&request[i]);
        assert_served(&request[i]);
    }
    engine_rig_close(engine);
}
END_TEST

static void await_jobs(struct kv_engine *engine, int32_t jobs)
{
    struct kv_engine_stats stats = {.jobs = 0};
    for (int i = 0; i < 20000 && stats.jobs != jobs; i++) {
        usleep(500);
        kv_engine_stats(engine, &stats);
    }
    ck_assert_int_eq(stats.jobs, jobs);
}

/* Memory is given in order of arrival: what would fit stands behind what does not. */
START_TEST(test_memory_in_turn)
{
    static const int64_t tokens[] = {100, 100, 1};
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){
        .limits = {.pool_bytes = engine_rig_request_bytes(100) + engine_rig_request_bytes(1) + 640}});
    struct engine_rig_request request[3];
    fake.held = 1;
    for (uint32_t i = 0; i < 3; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = tokens[i], .seed = i};
        engine_rig_start(&request[i]);
        /* The first is in the queue (two spans), the others wait for memory. */
        if (i == 0)
            while (fake.batches == 0) sched_yield();
        else
            ck_assert(engine_rig_await_waiting(engine, (int32_t)i + 1));
    }
    await_jobs(engine, 1);
    fake.held = 0;
    for (int i = 0; i < 3; i++) {
        engine_rig_join(&request[i]);
        assert_served(&request[i]);
    }
    engine_rig_close(engine);
}
END_TEST

/* The line for memory wants at most one pool's worth; who leaves it makes room in it. */
START_TEST(test_line_is_bounded_in_bytes)
{
    uint64_t pool_bytes = engine_rig_request_bytes(100) + 640;
    struct kv_engine *engine =
        engine_rig_open((struct kv_engine_options){.limits = {.pool_bytes = pool_bytes}});
    struct engine_rig_request first = {.engine = engine, .tokens = 100, .seed = 1}, over = {.engine = engine};
    struct engine_rig_request waits = {.engine = engine, .tokens = 100, .seed = 2};
    fake.held = 1;
    engine_rig_start(&first);
    while (fake.batches == 0) sched_yield();
    engine_rig_start(&waits);
    ck_assert(engine_rig_await_waiting(engine, 2));
    over.tokens = 1;
    engine_rig_run(&over);
    ck_assert(!over.ok);
    ck_assert_int_eq(over.err.fault, KV_QUEUE_FULL);
    ck_assert_int_gt(over.err.got.integer, over.err.expected.integer);
    ck_assert_int_eq(over.err.expected.integer,
                     (int64_t)(pool_bytes / KV_POOL_ALIGNMENT * KV_POOL_ALIGNMENT));
    ck_assert(strstr(over.err.hint, "--pool-bytes"));
    waits.hung_up = 1;
    engine_rig_join(&waits);
    ck_assert_int_eq(waits.err.fault, KV_CLIENT_GONE);
    over.err = (struct kv_error){0};
    engine_rig_start(&over);
    ck_assert(engine_rig_await_waiting(engine, 2));
    fake.held = 0;
    engine_rig_join(&first);
    engine_rig_join(&over);
    assert_served(&first);
    assert_served(&over);
    engine_rig_close(engine);
}
END_TEST

/* Who holds memory is computed, however many wait for it behind. */
START_TEST(test_admitted_is_computed)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){
        .limits = {.queue_max = 2, .pool_bytes = 2 * engine_rig_request_bytes(100) + 640}});
    struct engine_rig_request request[4];
    fake.held = 1;
    for (uint32_t i = 0; i < 4; i++) {
        request[i] = (struct engine_rig_request){.engine = engine, .tokens = i == 0 ? 60 : 100, .seed = i};
        if (i == 1) request[i].hold = 1; /* admitted, its body on its way, while others join the line */
        engine_rig_start(&request[i]);
        if (i == 0)
            while (fake.batches == 0) sched_yield();
        else if (i == 1)
            await_jobs(engine, 2);
        else
            ck_assert(engine_rig_await_waiting(engine, (int32_t)i - 1));
    }
    request[1].hold = 0;
    ck_assert(engine_rig_await_waiting(engine, 3)); /* in the queue, more than may stand in line */
    fake.held = 0;
    for (int i = 0; i < 4; i++) {
        engine_rig_join(&request[i]);
        assert_served(&request[i]);
    }
    engine_rig_close(engine);
}
END_TEST

/* A drain serves who stands in line, and lets in nobody behind. */
START_TEST(test_line_is_drained)
{
    struct kv_engine *engine = engine_rig_open(
        (struct kv_engine_options){.limits = {.pool_bytes = engine_rig_request_bytes(100) + 640}});
    struct engine_rig_request first = {.engine = engine, .tokens = 100, .seed = 1};
    struct engine_rig_request waits = {.engine = engine, .tokens = 100, .seed = 2};
    struct engine_rig_request late = {.engine = engine, .tokens = 1, .seed = 3};
    fake.held = 1;
    engine_rig_start(&first);
    while (fake.batches == 0) sched_yield();
    engine_rig_start(&waits);
    ck_assert(engine_rig_await_waiting(engine, 2)); /* the first's second span, and the one in line */
    kv_engine_drain(engine);
    engine_rig_run(&late);
    ck_assert_int_eq(late.err.fault, KV_DRAINING);
    fake.held = 0;
    engine_rig_join(&first);
    engine_rig_join(&waits);
    assert_served(&first);
    assert_served(&waits);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_never_fits)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.limits = {.pool_bytes = 1 << 20}});
    struct kv_job job = {0};
    struct kv_error err = {0};
    ck_assert(!kv_engine_accepts(engine, 1 << 20, &err));
    ck_assert_int_eq(err.fault, KV_PAYLOAD_TOO_LARGE);
    err = (struct kv_error){0};
    ck_assert(!kv_engine_admit(engine, &job, UINT64_MAX, &err));
    ck_assert_int_eq(err.fault, KV_PAYLOAD_TOO_LARGE);
    engine_rig_close(engine);
}
END_TEST

START_TEST(test_given_up)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request busy = {.engine = engine, .tokens = 5, .seed = 1};
    struct engine_rig_request late = {.engine = engine, .tokens = 6, .deadline_us = kv_now_us() + 50000};
    struct engine_rig_request gone = {.engine = engine, .tokens = 7};
    fake.held = 1;
    engine_rig_start(&busy);
    while (fake.batches == 0) sched_yield();
    engine_rig_start(&late);
    engine_rig_start(&gone);
    engine_rig_join(&late);
    ck_assert_int_eq(late.err.fault, KV_DEADLINE_EXCEEDED);
    gone.hung_up = 1;
    engine_rig_join(&gone);
    ck_assert_int_eq(gone.err.fault, KV_CLIENT_GONE);
    fake.held = 0;
    engine_rig_join(&busy);
    assert_served(&busy);
    struct kv_engine_stats stats;
    kv_engine_stats(engine, &stats);
    ck_assert_uint_eq(stats.gone, 1);
    ck_assert_int_eq(fake.rows, 5); /* the other two never reached the device */
    engine_rig_close(engine);
}
END_TEST

/* A deadline that passes while the body comes in: an idle device is not asked either. */
START_TEST(test_deadline_passes_in_the_upload)
{
    struct kv_engine *engine = engine_rig_open((struct kv_engine_options){.spin_us = 0});
    struct engine_rig_request late = {
        .engine = engine, .tokens = 5, .hold = 1, .deadline_us = kv_now_us() + 200000};
    engine_rig_start(&late);
    await_jobs(engine, 1);
    usleep(250000);
    late.hold = 0;
    engine_rig_join(&late);
    ck_assert_int_eq(late.err.fault, KV_DEADLINE_EXCEEDED);
    ck_assert_int_eq(fake.batches, 0);
    engine_rig_close(engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/admission");
    TCase *cases = tcase_create("admission");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_queue_full);
    tcase_add_test(cases, test_memory_in_turn);
    tcase_add_test(cases, test_line_is_bounded_in_bytes);
    tcase_add_test(cases, test_admitted_is_computed);
    tcase_add_test(cases, test_line_is_drained);
    tcase_add_test(cases, test_never_fits);
    tcase_add_test(cases, test_given_up);
    tcase_add_test(cases, test_deadline_passes_in_the_upload);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
