/* The list of findings: order, bounds, several threads. */
#include "server/findings.h"
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>

START_TEST(keeps_what_is_added_in_order)
{
    struct kv_findings findings;
    kv_findings_init(&findings);
    struct kv_error error = {0};
    kv_fail_param(&error, KV_CONFIG_MISSING_KEY, "hidden_size", "first");
    ck_assert(!kv_findings_add(&findings, -1, &error));
    for (int32_t i = 0; i < 40; i++)
        ck_assert(!kv_findings_fail(&findings, i, KV_HEAD_DIM_MISMATCH, "k_norm", kv_integer(64),
                                    kv_integer(i), "layer %d", (int)i));
    ck_assert_int_eq(findings.count, 41);
    ck_assert_int_eq(findings.item[0].layer, -1);
    ck_assert_int_eq((int)findings.item[0].error.fault, (int)KV_CONFIG_MISSING_KEY);
    ck_assert_str_eq(findings.item[0].error.message, "first");
    for (int32_t i = 0; i < 40; i++) {
        const struct kv_finding *finding = &findings.item[i + 1];
        ck_assert_int_eq(finding->layer, i);
        ck_assert_int_eq(finding->error.expected.integer, 64);
        ck_assert_int_eq(finding->error.got.integer, i);
        ck_assert_str_eq(finding->error.param, "k_norm");
        ck_assert_ptr_nonnull(strstr(finding->error.message, "expected 64, got"));
    }
    kv_findings_free(&findings);
}
END_TEST

START_TEST(keeps_the_first_thousand)
{
    struct kv_findings findings;
    kv_findings_init(&findings);
    for (int32_t i = 0; i < 1500; i++)
        kv_findings_fail(&findings, i, KV_CONFIG_INVALID, NULL, kv_none(), kv_none(), "number %d", (int)i);
    ck_assert_int_eq(findings.count, 1000);
    ck_assert_int_eq(findings.item[0].layer, 0);
    ck_assert_int_eq(findings.item[999].layer, 999);
    kv_findings_free(&findings);
}
END_TEST

static void *add_some(void *to)
{
    for (int32_t i = 0; i < 100; i++)
        kv_findings_fail(to, i, KV_WEIGHTS_NOT_FINITE, "tensor", kv_none(), kv_none(), "of a thread");
    return NULL;
}

START_TEST(loses_nothing_between_threads)
{
    struct kv_findings findings;
    pthread_t threads[4];
    int32_t seen[100] = {0};
    kv_findings_init(&findings);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, add_some, &findings), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    ck_assert_int_eq(findings.count, 400);
    for (int32_t i = 0; i < 400; i++) seen[findings.item[i].layer]++;
    for (int32_t i = 0; i < 100; i++) ck_assert_int_eq(seen[i], 4);
    kv_findings_free(&findings);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("findings");
    TCase *tests = tcase_create("list");
    tcase_add_test(tests, keeps_what_is_added_in_order);
    tcase_add_test(tests, keeps_the_first_thousand);
    tcase_add_test(tests, loses_nothing_between_threads);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
