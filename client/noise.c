/* The random values of make-model, make-request and bench. */
#include "client/noise.h"

enum { BLOCK = 1024, PIECES = 4 };

/* The variance of one uniform 16-bit piece is (65536^2 - 1) / 12, of the sum of four a third of 65536^2: a
 * deviation of 65536 / sqrt(3). */
static const float one_deviation = 1.0f / 37837.227f;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct kv_noise kv_noise_open(uint64_t seed, const char *name)
{
    uint64_t hash = mix(seed + 0x9e3779b97f4a7c15u);
    for (const char *at = name; *at; at++) hash = mix(hash ^ (unsigned char)*at);
    return (struct kv_noise){hash};
}

uint64_t kv_noise_next(struct kv_noise *noise)
{
    noise->counter += 0x9e3779b97f4a7c15u;
    return mix(noise->counter);
}

void kv_noise_fill(struct kv_noise *noise, enum kv_dtype dtype, float mean, float deviation, int64_t count,
                   void *to)
{
    static const int32_t middle = PIECES * 65535 / 2; /* PIECES is even */
    float values[BLOCK], scale = deviation * one_deviation;
    while (count > 0) {
        int64_t now = count < BLOCK ? count : BLOCK;
        for (int64_t i = 0; i < now; i++) {
            uint64_t bits = kv_noise_next(noise);
            int32_t sum =
                (int32_t)((bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48));
            values[i] = mean + (float)(sum - middle) * scale;
        }
        if (dtype == KV_F32) {
            memcpy(to, values, (size_t)now * sizeof *values);
        } else {
            kv_from_f32(dtype, values, now, to);
        }
        to = (char *)to + (size_t)now * kv_dtype_bytes(dtype);
        count -= now;
    }
}
