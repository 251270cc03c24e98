/* The parts of a measurement that need no service: latencies in buckets, mixes of sizes, arrivals. */
#include "client/latency.h"
#include "client/noise.h"
#include "client/schedule.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 20000 };

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The value that a part of the sorted values does not exceed. */
static uint64_t exact(const uint64_t *sorted, double part)
{
    size_t rank = (size_t)ceil(part * COUNT * (1 - 1e-12));
    return sorted[rank > 0 ? rank - 1 : 0];
}

START_TEST(percentiles_are_within_a_hundredth)
{
    uint64_t *values = calloc(COUNT, sizeof *values);
    struct kv_latencies *all = calloc(1, sizeof *all), *odd = calloc(1, sizeof *odd);
    ck_assert(values && all && odd);
    struct kv_noise noise = kv_noise_open((uint64_t)_i, "latencies");
    double sum = 0;
    for (int i = 0; i < COUNT; i++) {
        /* Over ten decades, so that each percentile falls into buckets of another width. */
        double part = (double)(kv_noise_next(&noise) >> 11) * 0x1p-53;
        values[i] = (uint64_t)pow(10, part * 10);
        sum += (double)values[i];
        kv_latencies_add(i % 2 ? odd : all, values[i]);
    }
    kv_latencies_merge(all, odd);
    qsort(values, COUNT, sizeof *values, by_value);
    static const double parts[] = {0, 0.001, 0.1, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t want = exact(values, parts[i]), got = kv_latencies_at(all, parts[i]);
        ck_assert_msg(got >= want && (double)(got - want) <= 0.01 * (double)want, "%g: %llu for %llu",
                      parts[i], (unsigned long long)got, (unsigned long long)want);
    }
    ck_assert_uint_eq(all->count, COUNT);
    ck_assert_uint_eq(all->min, values[0]);
    ck_assert_uint_eq(all->max, values[COUNT - 1]);
    ck_assert_uint_eq(kv_latencies_at(all, 1), values[COUNT - 1]);
    ck_assert_double_eq_tol(kv_latencies_mean(all), sum / COUNT, sum / COUNT * 1e-9);
    free(values);
    free(all);
    free(odd);
}
END_TEST

START_TEST(nothing_has_no_latency)
{
    struct kv_latencies *none = calloc(1, sizeof *none), *some = calloc(1, sizeof *some);
    struct kv_latency_bucket bucket = {0};
    ck_assert(none && some);
    ck_assert_uint_eq(kv_latencies_at(none, 0.5), 0);
    ck_assert_double_eq(kv_latencies_mean(none), 0);
    ck_assert(!kv_latencies_next(none, &bucket));
    kv_latencies_add(some, 7);
    kv_latencies_merge(some, none);
    ck_assert(some->count == 1 && some->min == 7 && some->max == 7);
    kv_latencies_merge(none, some);
    ck_assert(none->count == 1 && none->min == 7 && none->max == 7);
    free(none);
    free(some);
}
END_TEST

/* Each edge lies in the bucket that says so, and all buckets together hold them all. */
START_TEST(every_latency_has_a_bucket)
{
    static const uint64_t edges[] = {0,         1, 127, 128, 129, 255, 256, 257, 1ull << 40, UINT64_MAX - 1,
                                     UINT64_MAX};
    enum { EDGES = sizeof edges / sizeof *edges };
    struct kv_latencies *latencies = calloc(1, sizeof *latencies);
    ck_assert_ptr_nonnull(latencies);
    uint64_t counted = 0, before = 0;
    for (int i = 0; i < EDGES; i++) kv_latencies_add(latencies, edges[i]);
    ck_assert_uint_eq(kv_latencies_at(latencies, 1), UINT64_MAX);
    for (struct kv_latency_bucket bucket = {0}; kv_latencies_next(latencies, &bucket);
         before = bucket.last_ns) {
        uint64_t in = 0;
        for (int i = 0; i < EDGES; i++) in += edges[i] >= bucket.first_ns && edges[i] <= bucket.last_ns;
        ck_assert_uint_eq(in, bucket.count);
        ck_assert(counted == 0 || bucket.first_ns > before);
        counted += bucket.count;
    }
    ck_assert_uint_eq(counted, EDGES);
    free(latencies);
}
END_TEST

START_TEST(mixes_are_read)
{
    struct kv_mix mix;
    ck_assert(kv_mix_read("16:70,512,2048:5", &mix, NULL));
    ck_assert_int_eq(mix.count, 3);
    ck_assert(mix.tokens[0] == 16 && mix.tokens[1] == 512 && mix.tokens[2] == 2048);
    ck_assert(mix.weight[0] == 70 && mix.weight[1] == 1 && mix.weight[2] == 5);
    static const char *const wrong[] = {"",
                                        ",",
                                        "16:",
                                        "16:0",
                                        "16,",
                                        "16:-1",
                                        "16:1,16:2",
                                        "a",
                                        "16:1;2",
                                        "16:1000001",
                                        " 16",
                                        "16777217:1",
                                        "16:1,",
                                        "16:1:1",
                                        "99999999999999999999",
                                        "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct kv_error err = {0};
        ck_assert_msg(!kv_mix_read(wrong[i], &mix, &err), "'%s' was read", wrong[i]);
        ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
        ck_assert_str_eq(err.param, "--mix");
    }
}
END_TEST

START_TEST(rates_are_read)
{
    double rates[KV_RATES_MAX];
    int32_t count = 0;
    ck_assert(kv_rates_read("100,2.5,1e3", rates, &count, NULL));
    ck_assert_int_eq(count, 3);
    ck_assert(rates[0] == 100 && rates[1] == 2.5 && rates[2] == 1000);
    static const char *const wrong[] = {"", ",", "1,", "0", "-1", "1,nan", "inf", "1;2", "1000001", "1 ,2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct kv_error err = {0};
        ck_assert_msg(!kv_rates_read(wrong[i], rates, &count, &err), "'%s' was read", wrong[i]);
        ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
    }
}
END_TEST

/* Sizes come as often as their weights say, the same for a seed at any rate, and others for another one. */
START_TEST(sizes_follow_weights_and_seed)
{
    enum { TURNS = 10000 };
    struct kv_mix mix;
    ck_assert(kv_mix_read("1:70,2:25,3:5", &mix, NULL));
    struct kv_schedule one = kv_schedule_open(&mix, 7), same = kv_schedule_open(&mix, 7),
                       other = kv_schedule_open(&mix, 8);
    same.rate = 10;
    same.poisson = true;
    int seen[3] = {0}, differing = 0;
    for (int i = 0; i < TURNS; i++) {
        struct kv_turn a, b, c;
        ck_assert(kv_schedule_next(&one, &a) && kv_schedule_next(&same, &b) && kv_schedule_next(&other, &c));
        ck_assert_int_eq(a.size, b.size);
        ck_assert_int_eq(a.after_ns, 0);
        differing += a.size != c.size;
        seen[a.size]++;
    }
    /* Five deviations of a binomial distribution. */
    ck_assert_double_eq_tol(seen[0], 7000, 230);
    ck_assert_double_eq_tol(seen[1], 2500, 217);
    ck_assert_double_eq_tol(seen[2], 500, 109);
    ck_assert_int_gt(differing, 1000);
}
END_TEST

START_TEST(constant_arrivals_do_not_drift)
{
    const struct kv_mix mix = {.count = 1, .tokens = {1}, .weight = {1}};
    struct kv_schedule schedule = kv_schedule_open(&mix, 0);
    struct kv_turn turn;
    schedule.rate = 3;
    schedule.seconds = 1000;
    for (int i = 0; i < 3000; i++) {
        ck_assert(kv_schedule_next(&schedule, &turn));
        ck_assert_int_eq(turn.after_ns, (int64_t)(i / 3.0 * 1e9));
    }
    ck_assert(!kv_schedule_next(&schedule, &turn));
    schedule = kv_schedule_open(&mix, 0);
    schedule.requests = 2;
    ck_assert(kv_schedule_next(&schedule, &turn) && kv_schedule_next(&schedule, &turn));
    ck_assert(!kv_schedule_next(&schedule, &turn));
}
END_TEST

/* Of exponentially distributed gaps, mean and deviation are the same, and a part of 1/e is over the mean. */
START_TEST(poisson_gaps_are_exponential)
{
    enum { GAPS = 20000 };
    const struct kv_mix mix = {.count = 1, .tokens = {1}, .weight = {1}};
    struct kv_schedule schedule = kv_schedule_open(&mix, 3);
    struct kv_turn turn = {0};
    schedule.rate = 1000;
    schedule.poisson = true;
    double sum = 0, squares = 0;
    int over = 0;
    for (int i = 0; i < GAPS; i++) {
        int64_t before = turn.after_ns;
        ck_assert(kv_schedule_next(&schedule, &turn));
        double gap_ms = (double)(turn.after_ns - before) / 1e6;
        ck_assert_double_ge(gap_ms, 0);
        sum += gap_ms;
        squares += gap_ms * gap_ms;
        over += gap_ms > 1;
    }
    double mean = sum / GAPS;
    ck_assert_double_eq_tol(mean, 1, 0.04);
    ck_assert_double_eq_tol(sqrt(squares / GAPS - mean * mean), 1, 0.05);
    ck_assert_double_eq_tol((double)over / GAPS, exp(-1), 0.02);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client latency");
    TCase *tests = tcase_create("latency");
    tcase_add_loop_test(tests, percentiles_are_within_a_hundredth, 0, 5);
    tcase_add_test(tests, nothing_has_no_latency);
    tcase_add_test(tests, every_latency_has_a_bucket);
    tcase_add_test(tests, mixes_are_read);
    tcase_add_test(tests, rates_are_read);
    tcase_add_test(tests, sizes_follow_weights_and_seed);
    tcase_add_test(tests, constant_arrivals_do_not_drift);
    tcase_add_test(tests, poisson_gaps_are_exponential);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
