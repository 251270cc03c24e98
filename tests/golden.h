/* The golden cases: where they are, how far an answer may be from what others' code computed. */
#ifndef KV_TESTS_GOLDEN_H
#define KV_TESTS_GOLDEN_H

#include "protocol/safetensors.h"

enum { GOLDEN_CASES = 26 };

struct golden_case {
    const char *name;
    char folder[128];
    double k_bound, v_bound; /* rel-L2 against expected.safetensors */
    bool has_sglang;         /* expected_sglang.safetensors: rel-L2 at most 1e-3 */
};

/* Case 0 .. GOLDEN_CASES - 1, in alphabetical order. */
struct golden_case golden_case(int index);
/* A whole file; free() it. Aborts when it cannot be read. */
void *golden_read(const struct golden_case *golden, const char *file, uint64_t *bytes);
/* ||got - expected|| / ||expected|| over a tensor of two documents; infinity when one is missing, shapes
 * differ, or a difference is not a number. */
double golden_error(const void *got, uint64_t got_bytes, const void *expected, uint64_t expected_bytes,
                    const char *tensor);

#endif
