/* A promise that is broken ends the program, loudly: that is what a fuzzer counts as a finding. */
#ifndef KV_TESTS_FUZZ_PROMISE_H
#define KV_TESTS_FUZZ_PROMISE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUZZ_CHECK(promise)                                                                                  \
    do {                                                                                                     \
        if (promise) break;                                                                                  \
        dprintf(fuzz_report_fd, "%s:%d: broken: %s\n", __FILE__, __LINE__, #promise);                        \
        abort();                                                                                             \
    } while (0)

/* Where broken promises are told; a target whose standard error is shut sets another. */
static int fuzz_report_fd __attribute__((unused)) = STDERR_FILENO;

#endif
