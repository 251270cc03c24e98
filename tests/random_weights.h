/* Random weights in memory as a source that a backend pulls from, and the random numbers of the kernel tests.
 * Watches how it is pulled. */
#ifndef KV_TESTS_RANDOM_WEIGHTS_H
#define KV_TESTS_RANDOM_WEIGHTS_H

#include "kernels/backend.h"

/* KV_SEED from the environment or else the clock; says which on stdout, so that a failure can be had again.
 */
uint64_t random_seed(void);
uint64_t random_bits(uint64_t *state);
/* 0 .. below - 1 */
int64_t random_below(uint64_t *state, int64_t below);
/* About normal, with this standard deviation. */
float random_float(uint64_t *state, float deviation);
/* The same, as `count` elements of a dtype: KV_BF16, KV_F16 or KV_F32. */
void random_fill(uint64_t *state, enum kv_dtype dtype, float deviation, int64_t count, void *to);

/* A small geometry with everything at random: biases, norms, scale, pairing, rotary part, fc; head_dim from
 * the sizes that models have, hidden seldom a multiple of anything. */
struct kv_geometry random_geometry(uint64_t *state);

struct random_weights;

/* Every part that the geometry has. Aborts when memory is out. */
struct random_weights *random_weights_make(const struct kv_geometry *geometry, uint64_t *state);
struct kv_weights random_weights_source(struct random_weights *weights);
const void *random_weights_part(const struct random_weights *weights, int32_t layer, enum kv_part part);
/* The n-th read from now on fails; -1: none does. */
void random_weights_fail_at(struct random_weights *weights, int64_t reads);
/* Was every part read once, front to back, without gaps? */
bool random_weights_pulled_once(const struct random_weights *weights);
void random_weights_free(struct random_weights *weights);

#endif
