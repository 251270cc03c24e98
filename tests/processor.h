/* Which processor a benchmark's threads run on. */
#ifndef KV_TESTS_PROCESSOR_H
#define KV_TESTS_PROCESSOR_H

/* From here on, this thread and those it starts run on one processor of the process, by number: clients on
 * the first, servers on the second. Left to themselves, threads share a processor in one round and wake an
 * idle one in the next, and the difference is larger than what is measured. Does nothing where there is only
 * one. Not for two threads at once the first time. */
void processor_run_on(int processor);

#endif
