/* A random checkpoint: which tensors it has, in which files, and its config. Knows no command line. */
#ifndef KV_CLIENT_MODEL_SHAPE_H
#define KV_CLIENT_MODEL_SHAPE_H

#include "client/output.h"
#include "protocol/safetensors.h"

enum { KV_SHARDS_MAX = 64, KV_MODEL_NAME_BYTES = 64, KV_CONFIG_BYTES = 4096 };

struct kv_model_shape {
    int64_t layers, hidden, heads, kv_heads, head_dim, rotary_dim, taps, positions, shards, seed;
    double theta, eps, value_scale; /* value_scale 1: left out */
    double yarn;                    /* the factor; 0: none */
    enum kv_dtype dtype;
    bool bias, k_norm, interleaved;
};

/* One tensor to be written. */
struct kv_model_tensor {
    char name[KV_MODEL_NAME_BYTES];
    int32_t rank;
    int64_t dims[2];
    int64_t elements;
    float mean, deviation;
};

/* option_invalid, with the option's name, where no checkpoint could have this shape. */
bool kv_model_shape_check(const struct kv_model_shape *shape, struct kv_error *err) KV_MUST_CHECK;

/* How many tensors it has, and the one at `index`. The shape was checked. */
int32_t kv_model_shape_count(const struct kv_model_shape *shape);
void kv_model_shape_tensor(const struct kv_model_shape *shape, int32_t index, struct kv_model_tensor *out);

/* Writes config.json's text; returns its bytes. */
size_t kv_model_shape_config(const struct kv_model_shape *shape, char *to, size_t to_bytes);

#endif
