/* See processor.h. */
#include "tests/processor.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

void processor_run_on(int processor)
{
    static cpu_set_t allowed; /* as the process began */
    cpu_set_t one;
    int seen = 0;
    if (CPU_COUNT(&allowed) == 0 && sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (CPU_COUNT(&allowed) < 2) return;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &allowed) && seen++ == processor) CPU_SET(i, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}
