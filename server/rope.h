/* Rotary embeddings as numbers: what a config says of them, resolved, and the inverse frequencies that
 * follow. Knows no JSON and no spelling. */
#ifndef KV_SERVER_ROPE_H
#define KV_SERVER_ROPE_H

#include "protocol/error.h"

enum kv_rope_type { KV_ROPE_DEFAULT, KV_ROPE_LINEAR, KV_ROPE_YARN, KV_ROPE_LLAMA3 };

/* Fields that a type does not use are 0 (attention_factor: 1). */
struct kv_rope {
    enum kv_rope_type type;
    double theta;
    int64_t rotary_dim; /* even, at most head_dim, once the config has passed */
    bool interleaved;   /* pairs are (2i, 2i+1) */
    double factor;
    double original_positions;   /* of the model before it was scaled: yarn and llama3 */
    double beta_fast, beta_slow; /* yarn */
    bool truncate;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double attention_factor;                  /* multiplies cos and sin */
};

const char *kv_rope_type_name(enum kv_rope_type type);
/* False when no type that is computed here has this name. */
bool kv_rope_type_find(const char *name, enum kv_rope_type *out) KV_MUST_CHECK;

/* yarn's own attention factor: mscale and mscale_all_dim both set (not 0) give their ratio, else 0.1
 * ln(factor) + 1. */
double kv_rope_yarn_attention(double factor, double mscale, double mscale_all_dim);

/* yarn's ramp: pairs up to `low` keep their frequency, those from `high` are interpolated. Not finite when
 * theta is 1. */
void kv_rope_yarn_range(const struct kv_rope *rope, double *low, double *high);

/* The inverse frequencies, every operation in float32 as engines do it. config_invalid when one is not
 * finite. */
bool kv_rope_frequencies(const struct kv_rope *rope, float *to /* [rotary_dim / 2] */,
                         struct kv_error *err) KV_MUST_CHECK;

#endif
