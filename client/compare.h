/* How far apart two tensors are. Knows no file and no tolerance. */
#ifndef KV_CLIENT_COMPARE_H
#define KV_CLIENT_COMPARE_H

#include "protocol/tensor.h"

struct kv_difference {
    uint64_t elements;
    uint64_t differing; /* of one dtype: elements whose bits differ; of two: elements whose values differ */
    uint64_t broken;    /* NaN or infinity on one side only, or of different sign */
    double rel_l2; /* ||a - b|| / ||b|| over the finite elements; 0 where both are 0, infinity where only b is
                    */
    double max_abs;
};

/* True for the dtypes whose values can be compared: BF16, F16, F32, F64. Others are compared by their bits.
 */
bool kv_dtype_is_real(enum kv_dtype dtype);

/* `a` and `b` have one shape; both are real or both of one dtype. */
void kv_difference_measure(struct kv_difference *difference, const struct kv_view *a,
                           const struct kv_view *b);

#endif
