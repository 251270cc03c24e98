/* The Prometheus text: every series once, every family announced, histograms that add up, labels escaped. */
#include "tests/exposition.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct http_rig rig;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

/* The text, once every request before has been counted: that is when its connection has taken the answer, a
 * moment later. free() it. */
static char *scrape(void)
{
    for (int i = 0; i < 2000 && !kv_http_idle(rig.http); i++) usleep(5000);
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_int_eq(reply.status, 200);
    ck_assert(strstr(reply.head, "Content-Type: text/plain; version=0.0.4"));
    char *text = strdup(reply.body);
    http_reply_free(&reply);
    return text;
}

static void assert_sound(const char *text)
{
    const char *fault = exposition_fault(text);
    ck_assert_msg(!fault[0], "%s", fault);
}

/* Before there is a device, and with traffic behind it. */
START_TEST(test_text)
{
    char *text = scrape();
    assert_sound(text);
    free(text);
    ck_assert(http_rig_alive(&rig));
    struct http_reply bad = http_rig_ask(&rig, "GET /v1/errors/none HTTP/1.1\r\nHost: x\r\n\r\n");
    http_reply_free(&bad);
    text = scrape();
    assert_sound(text);
    free(text);
    http_rig_close(&rig);
    http_rig_open_cold(&rig, (struct kv_engine_options){.spin_us = 20});
    text = scrape();
    assert_sound(text);
    ck_assert(exposition_value(text, "kvmat_ready") == 0);
    ck_assert(exposition_value(text, "kvmat_device_memory_bytes") == -1);
    free(text);
}
END_TEST

/* The checker itself: each of these breaks one rule. */
START_TEST(test_the_checker)
{
#define A "# HELP a_total A.\n# TYPE a_total counter\n"
#define H "# HELP h H.\n# TYPE h histogram\n"
    static const char *const wrong[] = {
        "",
        "a_total 1\n",
        A,
        A "a_total 1",
        A "a_total\n",
        A "a_total x\n",
        A "a_total -1\n",
        A "a_total NaN\n",
        A "b_total 1\n",
        A "a_total 1\na_total 1\n",
        A "a_total{b=\"1\"} 1\na_total{b=\"1\"} 2\n",
        A "a_total{b=\"\\x\"} 1\n",
        A "a_total{b=\"\xff\"} 1\n",
        A "a_total{1=\"\"} 1\n",
        A "a_total{b=\"1\" 1\n",
        A "a_total 1\n\n",
        A "a_total 1\n" A "a_total 1\n",
        "# TYPE a_total counter\na_total 1\n",
        "# HELP a_total A.\na_total 1\n",
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n",
        "# HELP a_ms A.\n# TYPE a_ms gauge\na_ms 1\n",
        "# HELP a A.\n# TYPE a thing\na 1\n",
        H "h_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
        H "h_bucket{le=\"+Inf\"} 1\nh_count 1\n",
        H "h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
        H "h_bucket{le=\"2\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        H "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        H "h 1\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(exposition_fault(wrong[i])[0], "taken: %s", wrong[i]);
    assert_sound(A "a_total{b=\"\\\\ \\\" \\n\",c=\"\"} 1e3\n" H
                   "h_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 7\nh_count 3\n");
}
END_TEST

/* Requests of every kind, sent at once: each is counted once, under one code; the parts of a histogram agree.
 */
enum { SENDERS = 4, TURNS = 40, TOKENS = 5 };

static void *send_requests(void *of)
{
    (void)of;
    static const char *const refused[] = {
        "GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
        "DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    };
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn % 2 == 0) {
            if (!http_rig_alive(&rig)) abort();
            continue;
        }
        struct http_reply reply = http_rig_ask(&rig, refused[turn / 2 % 4]);
        if (reply.status < 400) abort();
        http_reply_free(&reply);
    }
    return NULL;
}

START_TEST(test_all_adds_up)
{
    pthread_t sender[SENDERS];
    for (int i = 0; i < SENDERS; i++)
        ck_assert_int_eq(pthread_create(&sender[i], NULL, send_requests, NULL), 0);
    for (int i = 0; i < SENDERS; i++) pthread_join(sender[i], NULL);
    char *text = scrape();
    const double sent = SENDERS * TURNS, served = sent / 2, each = sent / 8;
    assert_sound(text);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", ""), sent);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", "code=\"ok\""), served);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", "code=\"not_found\""), each);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", "code=\"method_not_allowed\""), each);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", "code=\"length_required\""), each);
    ck_assert_double_eq(exposition_sum(text, "kvmat_requests_total", "code=\"body_malformed\""), each);
    ck_assert_double_eq(exposition_value(text, "kvmat_request_seconds_count"), served);
    ck_assert_double_eq(exposition_value(text, "kvmat_queue_seconds_count"), served);
    ck_assert_double_eq(exposition_value(text, "kvmat_device_seconds_count"), served);
    ck_assert_double_eq(exposition_value(text, "kvmat_tokens_total"), served * TOKENS);
    ck_assert_double_eq(exposition_value(text, "kvmat_batch_rows_sum"), served * TOKENS);
    ck_assert_double_eq(exposition_value(text, "kvmat_batch_requests_sum"), served);
    double batches = exposition_value(text, "kvmat_batches_total");
    ck_assert_double_eq(exposition_value(text, "kvmat_batch_rows_count"), batches);
    ck_assert_double_eq(exposition_value(text, "kvmat_batch_requests_count"), batches);
    ck_assert_double_eq(exposition_value(text, "kvmat_requests_waiting"), 0);
    ck_assert_double_eq(exposition_value(text, "kvmat_requests_in_flight"), 0);
    ck_assert_double_eq(exposition_value(text, "kvmat_pool_used_bytes"), 0);
    ck_assert_double_eq(exposition_value(text, "kvmat_queued_rows"), 0);
    ck_assert_double_eq(exposition_value(text, "kvmat_device_oldest_batch_seconds"), 0);
    ck_assert_double_gt(exposition_value(text, "kvmat_pool_used_max_bytes"), 0);
    free(text);
}
END_TEST

/* What waits, and what is with the device, is seen while it does. */
START_TEST(test_gauges)
{
    size_t bytes;
    unsigned char *wire = http_rig_request(3, 1, "", &bytes, NULL);
    int busy = http_rig_connect(&rig, false), waits = http_rig_connect(&rig, true);
    fake.held = 1;
    ck_assert(http_rig_send(busy, wire, bytes));
    while (fake.batches == 0) usleep(1000);
    ck_assert(http_rig_send(waits, wire, bytes));
    ck_assert(engine_rig_await_waiting(rig.engine, 1));
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_requests_waiting"), 1);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_queued_rows"), 3);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_requests_in_flight"), 2);
    ck_assert_double_gt(exposition_value(reply.body, "kvmat_device_oldest_batch_seconds"), 0);
    ck_assert_double_gt(exposition_value(reply.body, "kvmat_pool_used_bytes"), 0);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_pool_bytes"), 16 << 20);
    ck_assert_double_ge(exposition_value(reply.body, "kvmat_connections"), 3);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_connections_max"), 128);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_requests_waiting_max"), 64);
    ck_assert_double_eq(exposition_value(reply.body, "kvmat_ready"), 1);
    ck_assert_double_gt(exposition_value(reply.body, "process_resident_memory_bytes"), 1 << 20);
    ck_assert_double_gt(exposition_value(reply.body, "process_open_fds"), 3);
    ck_assert_double_gt(exposition_value(reply.body, "process_max_fds"),
                        exposition_value(reply.body, "process_open_fds"));
    double age = (double)time(NULL) - exposition_value(reply.body, "process_start_time_seconds");
    ck_assert_msg(age >= 0 && age < 3600, "%g s old", age);
    http_reply_free(&reply);
    fake.held = 0;
    kv_http_retire(rig.http);
    char *text = scrape();
    ck_assert_double_eq(exposition_value(text, "kvmat_ready"), 0); /* as /ready says */
    free(text);
    close(busy);
    close(waits);
    free(wire);
}
END_TEST

static bool has_line(const struct http_reply *reply, const char *text)
{
    const char *at = strstr(reply->body, text);
    return at && (at == reply->body || at[-1] == '\n') && at[strlen(text)] == '\n';
}

START_TEST(test_counts)
{
    for (int i = 0; i < 3; i++) ck_assert(http_rig_alive(&rig)); /* 5 tokens each */
    struct http_reply reply = http_rig_ask(&rig, "POST /v1/materialize HTTP/1.1\r\nHost: x\r\n\r\n");
    http_reply_free(&reply);
    /* A request is counted when its connection has taken the answer, a moment later. */
    for (int i = 0; i < 200 && !kv_http_idle(rig.http); i++) usleep(5000);
    reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert(has_line(&reply, "kvmat_requests_total{route=\"materialize\",code=\"ok\"} 3"));
    ck_assert(has_line(&reply, "kvmat_requests_total{route=\"materialize\",code=\"length_required\"} 1"));
    ck_assert(has_line(&reply, "kvmat_tokens_total 15"));
    ck_assert(has_line(&reply, "kvmat_batches_total 3"));
    ck_assert(has_line(&reply, "kvmat_batch_rows_sum 15"));
    ck_assert(has_line(&reply, "kvmat_request_seconds_bucket{le=\"+Inf\"} 3"));
    ck_assert(has_line(&reply, "kvmat_request_seconds_count 3"));
    ck_assert(has_line(&reply, "kvmat_build_info{version=\"test\"} 1"));
    ck_assert(has_line(&reply,
                       "kvmat_model_info{name=\"rig\",fingerprint=\"0123456789abcdef0123456789abcdef\","
                       "dtype=\"BF16\",layers=\"3\",hidden=\"8\",kv_heads=\"2\",head_dim=\"4\","
                       "rotary_dim=\"4\",taps=\"0\"} 1"));
    ck_assert(has_line(&reply, "kvmat_batch_rows_bucket{le=\"4\"} 0"));
    ck_assert(has_line(&reply, "kvmat_batch_rows_bucket{le=\"8\"} 3"));
    ck_assert(has_line(&reply, "kvmat_device_info{kind=\"fake\",name=\"no device at all\"} 1"));
    ck_assert(has_line(&reply, "kvmat_device_memory_bytes 1"));
    http_reply_free(&reply);
}
END_TEST

static void setup_crowded(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.limits = {.connections_max = 4, .upload_seconds = 1}});
}

/* Why connections were ended by force: one whose body does not come, and the idle ones in front of a new one.
 */
START_TEST(test_cuts)
{
    enum { IDLE = 8 };
    int idle[IDLE], late = http_rig_connect(&rig, false);
    ck_assert(
        http_rig_say(late, "POST /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"));
    struct http_reply reply = http_rig_read(late);
    ck_assert_int_eq(reply.status, 408);
    http_reply_free(&reply);
    ck_assert(http_rig_closed(late));
    close(late);
    /* One listener takes them in their order; two would take them as their threads happen to run. */
    for (int i = 0; i < IDLE; i++) idle[i] = http_rig_connect(&rig, false);
    ck_assert(http_rig_closed(idle[0]));
    char *text = scrape();
    ck_assert_double_eq(exposition_value(text, "kvmat_connections_cut_total{reason=\"upload_late\"}"), 1);
    ck_assert_double_ge(exposition_value(text, "kvmat_connections_cut_total{reason=\"room\"}"), 1);
    ck_assert_double_eq(exposition_value(text, "kvmat_connections_cut_total{reason=\"full\"}"), 0);
    ck_assert_double_eq(exposition_value(text, "kvmat_connections_max"), 4);
    free(text);
    for (int i = 0; i < IDLE; i++) close(idle[i]);
}
END_TEST

START_TEST(test_histogram)
{
    static const int64_t us[] = {-1, 0, 50, 51, 30000000, 30000001};
    struct kv_histogram histogram = {0};
    for (size_t i = 0; i < sizeof us / sizeof us[0]; i++) kv_histogram_count(&histogram, us[i]);
    ck_assert_uint_eq(histogram.bucket[0], 3);                      /* up to 50 */
    ck_assert_uint_eq(histogram.bucket[1], 1);                      /* 51 */
    ck_assert_uint_eq(histogram.bucket[KV_LATENCY_BUCKETS - 1], 1); /* 30 s */
    ck_assert_uint_eq(histogram.bucket[KV_LATENCY_BUCKETS], 1);     /* over it */
    ck_assert_uint_eq(histogram.sum_us, 50 + 51 + 30000000 + 30000001);
}
END_TEST

START_TEST(test_labels)
{
    const struct kv_metrics metrics = {0};
    const struct kv_engine_stats stats = {0};
    const struct kv_limits limits = {0};
    const struct kv_process process = {0};
    const uint64_t cuts[KV_CUT_COUNT] = {0};
    const struct kv_description model = {
        .name = "a\"b\\c\nd\xff", .fingerprint = "", .geometry = {.dtype = KV_F16}};
    struct kv_device_info device = {.kind = "k", .total_bytes = 9, .free_bytes = 4};
    memset(device.name, '"', sizeof device.name - 1);
    const struct kv_metrics_view view = {.metrics = &metrics,
                                         .engine = &stats,
                                         .limits = &limits,
                                         .device = &device,
                                         .description = &model,
                                         .process = &process,
                                         .cuts = cuts,
                                         .routes = (const char *const[]){"route"},
                                         .route_count = 1,
                                         .version = "1\"\n"};
    char *text = kv_metrics_print(&view);
    ck_assert(strstr(text, "name=\"a\\\"b\\\\c?d?\","));
    ck_assert_double_eq(exposition_value(text, "kvmat_device_memory_free_bytes"), 4);
    assert_sound(text);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/metrics");
    TCase *cases = tcase_create("metrics");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_text);
    tcase_add_test(cases, test_counts);
    tcase_add_test(cases, test_all_adds_up);
    tcase_add_test(cases, test_gauges);
    suite_add_tcase(suite, cases);
    TCase *crowded = tcase_create("crowded");
    tcase_set_timeout(crowded, 60);
    tcase_add_checked_fixture(crowded, setup_crowded, teardown);
    tcase_add_test(crowded, test_cuts);
    suite_add_tcase(suite, crowded);
    TCase *alone = tcase_create("alone");
    tcase_add_test(alone, test_the_checker);
    tcase_add_test(alone, test_histogram);
    tcase_add_test(alone, test_labels);
    suite_add_tcase(suite, alone);
    return suite_run(suite);
}
