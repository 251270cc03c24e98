/* How every libcheck program ends: the suite is run, and its failures are the exit status. */
#ifndef KV_TESTS_SUITE_H
#define KV_TESTS_SUITE_H

#include <check.h>

static inline int suite_run_as(Suite *suite, enum fork_status fork_status)
{
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, fork_status);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

/* Each test in a process of its own, unless CK_FORK=no. */
static inline int suite_run(Suite *suite)
{
    return suite_run_as(suite, CK_FORK_GETENV);
}

#endif
