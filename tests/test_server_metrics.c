/* The Prometheus text: every series once, every family announced, histograms that add up, labels escaped. */
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINES_MAX = 2000 };

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

static int split_lines(char *text, char **line)
{
    int count = 0;
    for (char *at = strtok_r(text, "\n", &text); at && count < LINES_MAX; at = strtok_r(NULL, "\n", &text))
        line[count++] = at;
    return count;
}

/* The family that a sample belongs to: its name, less what a histogram appends. */
static void family_of(const char *sample, char family[128])
{
    static const char *const ends[] = {"_bucket", "_sum", "_count"};
    size_t bytes = strcspn(sample, "{ ");
    snprintf(family, 128, "%.*s", (int)bytes, sample);
    for (int i = 0; i < 3; i++) {
        size_t cut = strlen(ends[i]);
        if (bytes > cut && strcmp(family + bytes - cut, ends[i]) == 0 && strstr(family, "_seconds_"))
            family[bytes - cut] = '\0';
    }
}

START_TEST(test_text)
{
    static char *line[LINES_MAX];
    char announced[128] = "", family[128];
    ck_assert(http_rig_alive(&rig));
    struct http_reply bad = http_rig_ask(&rig, "GET /v1/errors/none HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_reply reply = http_rig_ask(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_int_eq(reply.status, 200);
    int count = split_lines(reply.body, line);
    ck_assert_int_gt(count, 100);
    for (int i = 0; i < count; i++) {
        if (strncmp(line[i], "# TYPE ", 7) == 0) {
            snprintf(announced, sizeof announced, "%.*s", (int)strcspn(line[i] + 7, " "), line[i] + 7);
            continue;
        }
        if (line[i][0] == '#') continue;
        family_of(line[i], family);
        ck_assert_msg(strcmp(family, announced) == 0, "%s stands below # TYPE %s", line[i], announced);
        size_t series = (size_t)(strrchr(line[i], ' ') - line[i]);
        for (int j = 0; j < i; j++)
            ck_assert_msg(strncmp(line[i], line[j], series) != 0 || line[j][series] != ' ', "twice: %s",
                          line[i]);
    }
    http_reply_free(&bad);
    http_reply_free(&reply);
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
    ck_assert(has_line(&reply, "kvmat_batch_rows_total 15"));
    ck_assert(has_line(&reply, "kvmat_request_seconds_bucket{le=\"+Inf\"} 3"));
    ck_assert(has_line(&reply, "kvmat_request_seconds_count 3"));
    ck_assert(has_line(&reply, "kvmat_build_info{version=\"test\",model=\"rig\"} 1"));
    ck_assert(has_line(&reply, "kvmat_device_info{kind=\"fake\",name=\"no device at all\"} 1"));
    ck_assert(has_line(&reply, "kvmat_device_memory_bytes 1"));
    http_reply_free(&reply);
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
    struct kv_metrics metrics = {0};
    struct kv_engine_stats stats = {0};
    const struct kv_metrics_view view = {
        .metrics = &metrics, .engine = &stats, .model = "a\"b\\c\nd", .version = ""};
    char *text = kv_metrics_print(&view);
    ck_assert(strstr(text, "model=\"a\\\"b\\\\c?d\"}"));
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
    suite_add_tcase(suite, cases);
    TCase *alone = tcase_create("alone");
    tcase_add_test(alone, test_histogram);
    tcase_add_test(alone, test_labels);
    suite_add_tcase(suite, alone);
    return suite_run(suite);
}
