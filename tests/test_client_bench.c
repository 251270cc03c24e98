/* Measurements against a service that answers as a test says: pace, mix, codes, retries, and changed bits. */
#include "client/bench.h"

#include "client/bench_requests.h"
#include "tests/bench_service.h"
#include "tests/suite.h"

#include <time.h>

static struct kv_client_model model = {
    .hidden = 6, .layers = 2, .kv_heads = 3, .head_dim = 4, .dtype = KV_BF16, .positions = 100};

/* Runs against a service that answers so, and checks what holds for every run. The result is to be freed. */
static struct kv_bench_result *measure(void (*answer)(struct fake *, int, int64_t),
                                       struct kv_bench_options how, const char *mix)
{
    struct iovec *document;
    struct kv_bench_result *result = malloc(sizeof *result);
    struct kv_error err = {0};
    struct fake *fake = bench_service_start(answer);
    ck_assert_ptr_nonnull(result);
    ck_assert(kv_mix_read(mix, &how.mix, NULL));
    ck_assert(kv_bench_requests_make(&model, &how.mix, KV_HIDDEN_STATES, KV_BF16, 0, &document, NULL));
    how.url = fake->url;
    how.model = &model;
    how.document = document;
    if (how.connections == 0) how.connections = 1;
    if (how.call_ms == 0) how.call_ms = 60000;
    ck_assert_msg(kv_bench_run(&how, result, &err), "%s", err.message);
    kv_bench_requests_free(document, how.mix.count);
    bench_service_stop(fake);

    uint64_t refused = 0, by_size = 0;
    for (int i = 0; i < KV_FAULT_COUNT; i++) refused += result->refused[i].count;
    for (int i = 0; i < KV_MIX_MAX; i++) by_size += result->by_size[i].count;
    ck_assert_uint_eq(refused, result->failed + result->retried);
    ck_assert_uint_eq(by_size, result->requests);
    ck_assert_uint_eq(result->latency.count, result->requests);
    ck_assert_int_eq(result->failed > 0, result->first.fault != KV_OK);
    if (how.rate > 0) ck_assert_uint_eq(result->begun, result->requests + result->failed);
    return result;
}

static void sleep_ms(long ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

START_TEST(closed_loop_sends_as_many_as_asked)
{
    const struct kv_bench_options how = {.connections = 3, .requests = 50, .warmup = 2};
    struct kv_bench_result *result = measure(answer_well, how, "5");
    ck_assert_uint_eq(result->requests, 50);
    ck_assert_int_eq(atomic_load(&bench_requests), 50 + 3 * 2);
    ck_assert_uint_eq(result->tokens, 250);
    ck_assert(result->begun == 0 && result->reconnects == 0 && result->timed == 50);
    ck_assert_double_eq_tol(result->device_ms, 100, 1e-6);
    free(result);
}
END_TEST

/* Whatever the machine's speed, each arrival is either begun or said not to have been. */
START_TEST(open_loop_paces)
{
    const struct kv_bench_options how = {.connections = 4, .rate = 400, .seconds = 0.25};
    struct kv_bench_result *result = measure(answer_well, how, "5");
    ck_assert_uint_eq(result->begun + result->not_begun, 100);
    ck_assert_uint_gt(result->requests, 0);
    ck_assert_uint_eq(result->failed, 0);
    ck_assert_double_ge(result->seconds, 0.25);
    free(result);
    const struct kv_bench_options few = {.connections = 2, .rate = 1000, .requests = 20};
    result = measure(answer_well, few, "5");
    ck_assert(result->requests == 20 && result->not_begun == 0);
    ck_assert_double_ge(result->seconds, 0.019);
    free(result);
}
END_TEST

START_TEST(poisson_arrivals_are_the_seed_s)
{
    uint64_t due[3];
    for (uint64_t i = 0; i < 3; i++) {
        const struct kv_bench_options how = {
            .connections = 4, .rate = 400, .seconds = 0.25, .poisson = true, .seed = i / 2};
        struct kv_bench_result *result = measure(answer_well, how, "5");
        due[i] = result->begun + result->not_begun;
        free(result);
    }
    ck_assert_uint_eq(due[0], due[1]);
    ck_assert_uint_ne(due[0], due[2]);
    for (int i = 0; i < 3; i++) ck_assert(due[i] > 50 && due[i] < 150);
}
END_TEST

static void answer_stalling_first(struct fake *connection, int number, int64_t tokens)
{
    if (number == 0) sleep_ms(300);
    answer_well(connection, number, tokens);
}

/* Of the forty that are due in 400 ms, thirty are due while the service stalls: their wait counts. */
START_TEST(a_stall_is_not_flattered)
{
    const struct kv_bench_options how = {.rate = 100, .seconds = 0.4};
    struct kv_bench_result *result = measure(answer_stalling_first, how, "5");
    uint64_t waited = result->not_begun;
    for (struct kv_latency_bucket bucket = {0}; kv_latencies_next(&result->latency, &bucket);)
        waited += bucket.first_ns > 90000000 ? bucket.count : 0;
    ck_assert_uint_eq(result->begun + result->not_begun, 40);
    ck_assert_uint_ge(waited, 20);
    ck_assert_uint_ge(result->latency.max, 300000000);
    ck_assert_double_ge(result->late_ms_max, 280);
    free(result);
}
END_TEST

static void answer_slowly(struct fake *connection, int number, int64_t tokens)
{
    sleep_ms(50);
    answer_well(connection, number, tokens);
}

START_TEST(what_could_not_be_begun_is_said)
{
    const struct kv_bench_options how = {.rate = 200, .seconds = 0.3};
    struct kv_bench_result *result = measure(answer_slowly, how, "5");
    ck_assert_uint_eq(result->begun + result->not_begun, 60);
    ck_assert_uint_ge(result->not_begun, 53); /* one connection begins at most seven in that time */
    free(result);
}
END_TEST

static atomic_int sizes_seen[4];

static void answer_counting_sizes(struct fake *connection, int number, int64_t tokens)
{
    atomic_fetch_add(&sizes_seen[tokens], 1);
    answer_well(connection, number, tokens);
}

START_TEST(a_mix_is_sent_in_proportion)
{
    const struct kv_bench_options how = {.connections = 2, .requests = 400, .seed = (uint64_t)_i};
    for (int i = 0; i < 4; i++) atomic_store(&sizes_seen[i], 0);
    struct kv_bench_result *result = measure(answer_counting_sizes, how, "1:70,2:25,3:5");
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(result->by_size[i].count, (uint64_t)atomic_load(&sizes_seen[i + 1]));
    ck_assert_double_eq_tol((double)result->by_size[0].count, 280, 46); /* five deviations */
    ck_assert_double_eq_tol((double)result->by_size[1].count, 100, 44);
    ck_assert_double_eq_tol((double)result->by_size[2].count, 20, 20);
    ck_assert_uint_eq(result->tokens,
                      result->by_size[0].count + 2 * result->by_size[1].count + 3 * result->by_size[2].count);
    free(result);
}
END_TEST

START_TEST(answers_are_counted_by_code)
{
    const struct kv_bench_options how = {.requests = 40};
    struct kv_bench_result *result = measure(answer_in_turns, how, "5");
    const struct kv_bench_answer *full = &result->refused[KV_QUEUE_FULL],
                                 *ending = &result->refused[KV_DRAINING],
                                 *lost = &result->refused[KV_SERVICE_UNREACHABLE];
    ck_assert(result->requests == 10 && result->failed == 30 && result->retried == 0);
    ck_assert(full->count == 10 && full->status == 429);
    ck_assert(ending->count == 10 && ending->status == 503);
    ck_assert(lost->count == 10 && lost->status == 0);
    ck_assert_int_eq(result->first.fault, KV_QUEUE_FULL);
    ck_assert_uint_eq(result->reconnects, 9); /* nothing is sent after the tenth loss */
    free(result);
}
END_TEST

static void answer_full_twice(struct fake *connection, int number, int64_t tokens)
{
    if (number < 2) {
        answer_full(connection, "Retry-After: 0\r\n");
    } else {
        answer_well(connection, number, tokens);
    }
}

START_TEST(refusals_are_sent_again_only_with_retry)
{
    const struct kv_bench_options patient = {.requests = 5, .retry = true}, plain = {.requests = 5};
    struct kv_bench_result *result = measure(answer_full_twice, patient, "5");
    ck_assert(result->requests == 5 && result->failed == 0 && result->retried == 2);
    ck_assert_uint_eq(result->refused[KV_QUEUE_FULL].count, 2);
    ck_assert_uint_ge(result->latency.max, 20000000); /* both waits are the first request's */
    free(result);
    result = measure(answer_full_twice, plain, "5");
    ck_assert(result->requests == 3 && result->failed == 2 && result->retried == 0);
    free(result);
}
END_TEST

static void answer_full_always(struct fake *connection, int number, int64_t tokens)
{
    (void)number;
    answer_full(connection, tokens == 1 ? "Retry-After: 0\r\n" : "Retry-After: 100\r\n");
}

/* A service that is full for ever is not asked for ever, and not at all where it says too late. */
START_TEST(retries_end)
{
    const struct kv_bench_options how = {.requests = 1, .retry = true, .call_ms = 200};
    struct kv_bench_result *result = measure(answer_full_always, how, "1");
    ck_assert(result->requests == 0 && result->failed == 1);
    ck_assert(result->retried > 0 && result->retried <= 20);
    free(result);
    result = measure(answer_full_always, how, "2");
    ck_assert(result->failed == 1 && result->retried == 0);
    free(result);
}
END_TEST

START_TEST(a_changed_byte_is_caught)
{
    const struct kv_bench_options how = {.requests = 6, .verify = true}, blind = {.requests = 6};
    struct kv_bench_result *result = measure(answer_changed_once, how, "5");
    ck_assert(result->requests == 5 && result->failed == 1);
    ck_assert_uint_eq(result->refused[KV_REPLY_CHANGED].count, 1);
    ck_assert_int_eq(result->refused[KV_REPLY_CHANGED].status, 200);
    ck_assert_int_eq(result->first.fault, KV_REPLY_CHANGED);
    ck_assert_str_eq(result->first.param, "v");
    ck_assert(result->first.expected.integer == 0 && result->first.got.integer == 1);
    ck_assert_ptr_nonnull(strstr(result->first.message, "Byte 238 of v"));
    free(result);
    result = measure(answer_changed_once, blind, "5");
    ck_assert(result->requests == 6 && result->failed == 0);
    free(result);
}
END_TEST

static void answer_for_others(struct fake *connection, int number, int64_t tokens)
{
    bench_reply(connection, number, tokens + number % 2, -1);
}

START_TEST(a_reply_of_another_shape_is_no_success)
{
    const struct kv_bench_options how = {.requests = 6};
    struct kv_bench_result *result = measure(answer_for_others, how, "5");
    ck_assert(result->requests == 3 && result->failed == 3);
    ck_assert_uint_eq(result->refused[KV_REPLY_MALFORMED].count, 3);
    ck_assert_int_eq(result->first.got.shape[1], 6);
    free(result);
}
END_TEST

struct seen {
    int calls;
    uint64_t requests;
    double seconds;
};

static void note_progress(void *context, const struct kv_bench_result *so_far)
{
    struct seen *seen = context;
    seen->calls++;
    ck_assert_uint_ge(so_far->requests, seen->requests);
    ck_assert_double_gt(so_far->seconds, seen->seconds);
    ck_assert_uint_eq(so_far->latency.count, so_far->requests);
    seen->requests = so_far->requests;
    seen->seconds = so_far->seconds;
}

START_TEST(progress_is_told_while_it_runs)
{
    struct seen seen = {0};
    const struct kv_bench_options how = {
        .connections = 2, .rate = 50, .seconds = 1.3, .progress = note_progress, .context = &seen};
    struct kv_bench_result *result = measure(answer_well, how, "5");
    ck_assert_int_ge(seen.calls, 1);
    ck_assert(seen.requests > 0 && seen.requests <= result->requests);
    free(result);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client bench");
    TCase *tests = tcase_create("bench");
    tcase_add_test(tests, closed_loop_sends_as_many_as_asked);
    tcase_add_test(tests, open_loop_paces);
    tcase_add_test(tests, poisson_arrivals_are_the_seed_s);
    tcase_add_test(tests, a_stall_is_not_flattered);
    tcase_add_test(tests, what_could_not_be_begun_is_said);
    tcase_add_loop_test(tests, a_mix_is_sent_in_proportion, 0, 2);
    tcase_add_test(tests, answers_are_counted_by_code);
    tcase_add_test(tests, refusals_are_sent_again_only_with_retry);
    tcase_add_test(tests, retries_end);
    tcase_add_test(tests, a_changed_byte_is_caught);
    tcase_add_test(tests, a_reply_of_another_shape_is_no_success);
    tcase_add_test(tests, progress_is_told_while_it_runs);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
