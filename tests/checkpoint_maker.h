/* Makes small checkpoints for tests: a sound base, changed by a few words, written into a fresh folder.
 * Everything that goes wrong in making one fails the test. */
#ifndef KV_TESTS_CHECKPOINT_MAKER_H
#define KV_TESTS_CHECKPOINT_MAKER_H

#include "protocol/safetensors.h"
#include "server/checkpoint.h"

struct made_tensor {
    char name[KV_PARAM_BYTES];
    enum kv_dtype dtype;
    int32_t rank;
    int64_t dims[KV_RANK_MAX];
    int64_t count;
    float *values; /* [count]; stored in dtype, or as zeros where that is no float format that is computed
                      with */
    int32_t shard;
};

struct made {
    struct json_t *config;
    const char *index; /* a JSON object to merge into the index, as text; or NULL */
    int32_t count;
    struct made_tensor tensor[128];
    int32_t shards; /* 0: one model.safetensors */
    char folder[64];
};

/* The base: 3 layers, hidden 32, 4 heads, 2 KV heads, head_dim 16, BF16, k_norm, default RoPE of theta 1e6.
 */
void made_begin(struct made *made);

/* Merges a JSON object into config.json (as text; a null is written as null). NULL is fine. */
void made_config(struct made *made, const char *patch);

/* Changes tensors, one command a line or after a semicolon; NULL is fine:
 *   drop NAME; add NAME DTYPE D,D; shape NAME D,D; dtype NAME DTYPE; rename OLD NEW; shard NAME N; value NAME
 * I X; zero NAME; fuse LAYER (K, V and their biases into qkv_proj); fc TAPS; biases; prefix (model. before
 * every name).
 */
void made_change(struct made *made, const char *commands);

struct made_tensor *made_find(struct made *made, const char *name);

/* Writes the files and returns the folder. */
const char *made_write(struct made *made);

/* The path of a file of the folder. Static. */
const char *made_path(const struct made *made, const char *file);

/* Removes the folder. */
void made_end(struct made *made);

/* Opens the folder; NULL options mean none. */
struct kv_checkpoint *made_open(const char *folder, const struct kv_checkpoint_options *options,
                                struct kv_findings *findings);

/* The first finding of this code (and layer, unless it is -2), or NULL. */
const struct kv_finding *made_found(const struct kv_findings *findings, const char *code, int32_t layer);

/* All findings as one text, for the message of a failed test. Static. */
const char *made_report(const struct kv_findings *findings);

#endif
