/* The device that the gpu_* programs prove: the CUDA backend, found by name, opened as the engine opens it,
 * and held against the CPU backend. Knows nothing of CUDA itself.
 *
 * To try these programs where there is no GPU, KVMAT_GPU_CHECK_BACKEND=cpu puts the CPU backend in its place:
 * that proves the programs, not the device. KVMAT_GPU_CHECK_REQUIRED=1 makes a missing device a failure.
 *
 * No test here runs in a forked child: a CUDA context does not outlive fork. */
#ifndef KV_TESTS_TESTED_DEVICE_H
#define KV_TESTS_TESTED_DEVICE_H

#include "tests/device_rig.h"

#include <check.h>

enum { TESTED_ROWS_MAX = 8192, TESTED_ITEMS_MAX = 64, TESTED_BASES_MAX = 16 };

/* "cuda", and what stands behind it; NULL where this build has no such backend. */
const char *tested_name(void);
const struct kv_backend_ops *tested_ops(void);

/* Opens the device once, with a tiny model, and prints what it is. 0: go on; else the exit status of the
 * program: 77 after `skip: no CUDA device`, 1 when there is one and it does not open. */
int tested_probe(void);

/* Opens a backend for random weights, which may be pulled again and again. Failures end the test. */
struct kv_backend *tested_open(const struct kv_backend_ops *ops, struct random_weights *weights, bool tune);

/* The seed of this run, printed by tested_probe. */
uint64_t tested_seed(void);

/* Bytes of a rig's slab for this many rows of a geometry in items of their own, with gaps and guards. */
size_t tested_slab_bytes(const struct kv_geometry *geometry, int64_t rows, int64_t items);

/* Runs the suite without fork; the exit status of the program. */
int tested_run(Suite *suite);

#endif
