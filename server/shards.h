/* The safetensors files of a checkpoint: which there are, and one table of the tensors in all of them.
 * Knows no tensor's meaning and reads no tensor's values. */
#ifndef KV_SERVER_SHARDS_H
#define KV_SERVER_SHARDS_H

#include "protocol/safetensors.h"
#include "server/file.h"
#include "server/findings.h"
#include "server/index.h"

struct kv_shard {
    struct kv_file file;
    uint64_t data_begin; /* bytes before the first tensor */
    struct kv_document document;
};

/* One tensor of a file. */
struct kv_stored {
    const char *key; /* its name without a leading "model.": what it is found by */
    const char *name;
    const struct kv_shard *shard;
    const struct kv_tensor *tensor;
};

/* Zero-initialise. Everything is owned here until kv_shards_close. */
struct kv_shards {
    bool sharded; /* there is an index */
    struct kv_index index;
    int32_t count;
    struct kv_shard *shard; /* [count]; one that is broken is not open and holds nothing */
    int32_t tensors;
    struct kv_stored *stored; /* [tensors], sorted by key */
};

/* Opens every file and reads its header. False when nothing can be said of any tensor; faults become
 * findings. */
bool kv_shards_open(struct kv_shards *shards, int folder, struct kv_findings *findings) KV_MUST_CHECK;

/* The tensors of this key: the first of *copies that lie side by side, or NULL. */
const struct kv_stored *kv_shards_find(const struct kv_shards *shards, const char *key, int32_t *copies);

/* The file that the index says holds this key, or NULL. *readable: that file is open. */
const char *kv_shards_promised(const struct kv_shards *shards, const char *key, bool *readable);

void kv_shards_close(struct kv_shards *shards);

#endif
