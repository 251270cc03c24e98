/* model.safetensors.index.json: which shards there are, and which shard is to hold a tensor. Knows no shard's
 * content. */
#ifndef KV_SERVER_INDEX_H
#define KV_SERVER_INDEX_H

#include "server/file.h"
#include "server/findings.h"

struct json_t;

enum { KV_INDEX_BYTES_MAX = 16 * 1024 * 1024, KV_SHARDS_MAX = 256 };

/* Zero-initialise; all names are owned by the index. */
struct kv_index {
    struct json_t *json;
    int32_t count;                    /* of `shard` */
    const char *shard[KV_SHARDS_MAX]; /* distinct names, none of which leaves the folder */
};

/* False with findings when the file is no index; shard names that leave the folder are findings too, and left
 * out. */
bool kv_index_read(struct kv_index *index, const struct kv_file *file,
                   struct kv_findings *findings) KV_MUST_CHECK;

/* The shard that is to hold the tensor of this name, or NULL; "" where the index has no name but another
 * value. */
const char *kv_index_find(const struct kv_index *index, const char *tensor);

void kv_index_close(struct kv_index *index);

#endif
