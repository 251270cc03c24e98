/* The four rope types. The order of operations and their width are part of the result: a table made in double
 * differs from the one that engines rotate Q with, visibly so at far positions. */
#include "server/rope.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const names[] = {"default", "linear", "yarn", "llama3"};
static const double pi = 3.14159265358979323846;

const char *kv_rope_type_name(enum kv_rope_type type)
{
    return names[type];
}

bool kv_rope_type_find(const char *name, enum kv_rope_type *out)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (enum kv_rope_type)i;
        return true;
    }
    return false;
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double kv_rope_yarn_attention(double factor, double mscale, double mscale_all_dim)
{
    if (mscale == 0 || mscale_all_dim == 0) return yarn_scale(factor, 1);
    return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
}

/* The pair (as a real number, in dimensions) that turns this many times over the original positions. */
static double yarn_dimension(const struct kv_rope *rope, double rotations)
{
    return (double)rope->rotary_dim * log(rope->original_positions / (rotations * 2 * pi)) /
           (2 * log(rope->theta));
}

void kv_rope_yarn_range(const struct kv_rope *rope, double *low, double *high)
{
    *low = yarn_dimension(rope, rope->beta_fast);
    *high = yarn_dimension(rope, rope->beta_slow);
    if (rope->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    double last = (double)(rope->rotary_dim - 1);
    if (*low < 0) *low = 0;
    if (*high > last) *high = last;
}

static void scale_yarn(const struct kv_rope *rope, const float *powers, float *to, int64_t pairs)
{
    double low, high;
    kv_rope_yarn_range(rope, &low, &high);
    if (low == high) high += 0.001;
    float begin = (float)low, width = (float)(high - low), factor = (float)rope->factor;
    for (int64_t i = 0; i < pairs; i++) {
        float ramp = ((float)i - begin) / width;
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float keep = 1 - ramp;
        float interpolated = 1 / (factor * powers[i]), kept = 1 / powers[i];
        to[i] = interpolated * (1 - keep) + kept * keep;
    }
}

static void scale_llama3(const struct kv_rope *rope, float *to, int64_t pairs)
{
    float factor = (float)rope->factor, positions = (float)rope->original_positions;
    float low = (float)rope->low_freq_factor, span = (float)(rope->high_freq_factor - rope->low_freq_factor);
    float longest = (float)(rope->original_positions / rope->low_freq_factor);
    float shortest = (float)(rope->original_positions / rope->high_freq_factor);
    for (int64_t i = 0; i < pairs; i++) {
        float wave = 1 / to[i] * (float)(2 * pi);
        if (wave < shortest) continue;
        if (wave > longest) {
            to[i] = to[i] / factor;
            continue;
        }
        float smooth = (1 / wave * positions - low) / span;
        to[i] = (1 - smooth) * to[i] / factor + smooth * to[i];
    }
}

bool kv_rope_frequencies(const struct kv_rope *rope, float *to, struct kv_error *err)
{
    enum { PAIRS_MAX = 512 };
    float powers[PAIRS_MAX];
    int64_t pairs = rope->rotary_dim / 2;
    assert(pairs > 0 && pairs <= PAIRS_MAX);
    for (int64_t i = 0; i < pairs; i++) {
        float exponent = (float)(2 * i) / (float)rope->rotary_dim;
        powers[i] = powf((float)rope->theta, exponent);
        to[i] = 1 / powers[i];
    }
    switch (rope->type) {
    case KV_ROPE_DEFAULT: break;
    case KV_ROPE_LINEAR:
        for (int64_t i = 0; i < pairs; i++) to[i] = to[i] / (float)rope->factor;
        break;
    case KV_ROPE_YARN: scale_yarn(rope, powers, to, pairs); break;
    case KV_ROPE_LLAMA3: scale_llama3(rope, to, pairs); break;
    }
    for (int64_t i = 0; i < pairs; i++)
        if (!isfinite(to[i]) || (rope->type == KV_ROPE_YARN && rope->theta == 1))
            return kv_fail_values(err, KV_CONFIG_INVALID, "rope_theta", kv_none(), kv_real(rope->theta),
                                  "rope theta gives rotation pair %" PRId64 " no finite frequency", i);
    return true;
}
