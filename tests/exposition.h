/* A strict reader of the Prometheus text format, 0.0.4, and of the conventions for names. Written from the
 * format's documentation, knows none of our metrics. */
#ifndef KV_TESTS_EXPOSITION_H
#define KV_TESTS_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>

/* What is wrong with the text, with its line, or "". */
const char *exposition_fault(const char *text);

/* The value of a series as it stands in the text, `name{label="value",...}`; -1: there is none. */
double exposition_value(const char *text, const char *series);
/* The sum over all series of a family whose labels hold this text ("" for all). */
double exposition_sum(const char *text, const char *name, const char *labels_hold);

#endif
