/* What config.json says, as plain numbers: every published spelling in, one meaning out. Finds all its
 * faults. Knows no tensors and no files but config.json. */
#ifndef KV_SERVER_CONFIG_H
#define KV_SERVER_CONFIG_H

#include "server/checkpoint.h"
#include "server/notes.h"
#include "server/rope.h"

/* The bounds of what is taken for a model. All sizes that follow from them fit 64 bits. */
enum {
    KV_CONFIG_BYTES_MAX = 1024 * 1024,
    KV_LAYERS_MAX = 1024,
    KV_HIDDEN_MAX = 1 << 20,
    KV_HEADS_MAX = 1 << 16,
    KV_HEAD_DIM_MAX = 1024,
    KV_TAPS_MAX = 1024,
    KV_POSITIONS_MAX = INT32_MAX
};

/* 0 where a number is not known; then a finding says why, and the rest can still be looked at. */
struct kv_config {
    int32_t layers, heads, kv_heads, head_dim;
    int64_t hidden;
    int64_t positions; /* valid are [0, positions), options heeded */
    double eps;
    bool attention_bias;   /* K and V biases are promised */
    double value_scale;    /* 1 when absent */
    int32_t target_layers; /* whose outputs fc takes; -1: not said */
    bool rope_known;
    struct kv_rope rope; /* of every layer, options heeded */
};

/* Reads folder/config.json. What is wrong becomes findings; `config` is filled as far as it is known. */
void kv_config_read(struct kv_config *config, int folder, const struct kv_checkpoint_options *options,
                    struct kv_notes *notes, struct kv_findings *findings);

#endif
