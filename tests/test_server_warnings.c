/* Checkpoints that are valid and compute nothing: weights that are all zero are said, in the log and by
 * --check, and served all the same. */
#include "tests/checkpoint_maker.h"
#include "tests/daemon_rig.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>

#define ATTN(layer) "layers." #layer ".self_attn."

static const struct {
    const char *commands;
    const char *warning; /* a part of it; NULL: none */
} zeros[] = {
    {NULL, NULL},
    {"zero " ATTN(1) "k_proj.weight", "the K projection is all zero in 1 of 3 layers, first in layers.1."},
    {"zero " ATTN(0) "v_proj.weight; zero " ATTN(2) "v_proj.weight",
     "the V projection is all zero in 2 of 3 layers, first in layers.0."},
    {"zero " ATTN(0) "k_norm.weight; zero " ATTN(1) "k_norm.weight; zero " ATTN(2) "k_norm.weight",
     "the norm of K is all zero in 3 of 3 layers"},
    {"dtype " ATTN(2) "k_norm.weight F32; zero " ATTN(2) "k_norm.weight; value " ATTN(
         2) "k_norm.weight 3 -0.0",
     "the norm of K is all zero in 1 of 3 layers"},
    {"zero " ATTN(1) "k_proj.weight; value " ATTN(1) "k_proj.weight 1023 1e-30", NULL},
    {"zero " ATTN(1) "k_proj.weight; value " ATTN(1) "k_proj.weight 1023 nan", NULL},
    {"zero " ATTN(1) "k_proj.weight; fuse 1", "the K projection is all zero in 1 of 3 layers"},
    {"biases; zero " ATTN(1) "k_proj.bias", NULL}, /* many models have such */
    {"fc 2; zero fc.weight", "fc is all zero in fc.weight"},
    {"fc 2; zero hidden_norm.weight", "hidden_norm is all zero in hidden_norm.weight"},
};

/* Valid, and computes nothing: said, not refused. */
START_TEST(values_that_are_all_zero_are_said)
{
    struct made made;
    struct kv_findings findings;
    made_begin(&made);
    made_change(&made, zeros[_i].commands);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s", made_report(&findings));
    for (int pulls = 0; pulls < 2; pulls++) {
        bool finite = kv_checkpoint_scan(checkpoint);
        ck_assert(finite || strstr(zeros[_i].commands, "nan"));
        const char *said = kv_checkpoint_warning(checkpoint, 0);
        if (zeros[_i].warning)
            ck_assert_msg(said && strstr(said, zeros[_i].warning), "%s: %s", zeros[_i].commands,
                          said ? said : "-");
        else
            ck_assert_msg(!said, "%s: %s", zeros[_i].commands ? zeros[_i].commands : "-", said);
        ck_assert_ptr_null(kv_checkpoint_warning(checkpoint, 1));
    }
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

START_TEST(the_daemon_says_it)
{
    static const char said[] =
        "the norm of K is all zero in 1 of 3 layers, first in layers.1.self_attn.k_norm.weight: "
        "K comes out as zero";
    struct made made;
    struct daemon daemon;
    char *report = NULL;
    made_begin(&made);
    made_change(&made, "zero " ATTN(1) "k_norm.weight");
    const char *folder = made_write(&made);
    const char *const check[] = {"--model", folder, "--check", NULL};
    ck_assert_int_eq(daemon_run(daemon_path("kvmatd"), check, &report, NULL), 0);
    ck_assert_msg(strstr(report, "\"warnings\"") && strstr(report, said), "%s", report);
    free(report);
    daemon_start(&daemon, folder, (const char *const[]){"--device", "cpu", NULL});
    ck_assert(daemon_await_ready(&daemon));
    ck_assert(daemon_logged(&daemon, said) && daemon_logged(&daemon, "warning"));
    ck_assert_int_eq(daemon_stop(&daemon, SIGTERM), 0);
    made_end(&made);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    Suite *suite = suite_create("warnings");
    TCase *tests = tcase_create("warnings");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, values_that_are_all_zero_are_said, 0, (int)(sizeof zeros / sizeof zeros[0]));
    tcase_add_test(tests, the_daemon_says_it);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
