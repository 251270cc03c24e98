/* K and V in float64, written from the formulas alone: what a backend's results are measured against. Slow.
 */
#ifndef KV_TESTS_EXACT_KV_H
#define KV_TESTS_EXACT_KV_H

#include "tests/device_rig.h"

/* [layers][rows][kv_heads][head_dim] each; free both. Inputs are rounded to the weights' dtype; cosines and
 * sines are those of the float32 angle. `staged`: intermediate results and the last ones are rounded too,
 * wherever the model rounds, so that a result of float32 arithmetic with the same roundings is nearly the
 * same. */
void exact_kv(const struct kv_geometry *geometry, const struct random_weights *weights,
              const struct rig_input *input, bool staged, double **k, double **v);

/* Conversions made another way than the product's. */
double exact_from_bits(enum kv_dtype dtype, uint16_t bits);
double exact_round(enum kv_dtype dtype, double value);
/* One row of an input, as numbers, rounded to `to`. */
void exact_row(const struct rig_input *input, int64_t t, enum kv_dtype to, double *row);

#endif
