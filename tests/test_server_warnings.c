/* A checkpoint that is valid and computes nothing is served, and the daemon says so in its log and in the
 * report of --check. What is warned of: tests/vectors/accepted/zero_*.json. */
#include "tests/checkpoint_maker.h"
#include "tests/daemon_rig.h"
#include "tests/suite.h"

#include <signal.h>
#include <stdlib.h>

START_TEST(the_daemon_says_it)
{
    static const char said[] =
        "the norm of K is all zero in 1 of 3 layers, first in layers.1.self_attn.k_norm.weight: "
        "K comes out as zero";
    struct made made;
    struct daemon daemon;
    char *report = NULL;
    made_begin(&made);
    made_change(&made, "zero layers.1.self_attn.k_norm.weight");
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
    tcase_add_test(tests, the_daemon_says_it);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
