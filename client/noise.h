/* Random values that are the same on every machine: a counter through a mixer, four 16-bit pieces summed to
 * something near a normal distribution, scaled by one float32 multiplication. Knows no file. */
#ifndef KV_CLIENT_NOISE_H
#define KV_CLIENT_NOISE_H

#include "protocol/tensor.h"

struct kv_noise {
    uint64_t counter;
};

/* A stream of its own for each seed and name, so that a tensor's values do not depend on what is written
 * before it. */
struct kv_noise kv_noise_open(uint64_t seed, const char *name);

uint64_t kv_noise_next(struct kv_noise *noise);

/* `count` values of mean `mean` and standard deviation `deviation` to an array of BF16, F16 or F32 at any
 * alignment. */
void kv_noise_fill(struct kv_noise *noise, enum kv_dtype dtype, float mean, float deviation, int64_t count,
                   void *to);

#endif
