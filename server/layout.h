/* Where each part of the weights lies in the files, and whether the tensors fit the config and one another.
 * Knows shapes and dtypes; reads no values. */
#ifndef KV_SERVER_LAYOUT_H
#define KV_SERVER_LAYOUT_H

#include "kernels/backend.h"
#include "server/config.h"
#include "server/shards.h"

enum {
    KV_LAYER_PLACES = KV_PART_K_NORM + 1
}; /* the parts of a layer that are stored come first in enum kv_part */

/* A part, or the tensor that holds it among others. */
struct kv_place {
    const struct kv_stored *stored; /* NULL: the checkpoint does not have it */
    bool fused;                     /* its rows are some of qkv_proj's */
    bool unreadable;                /* its file is broken: nothing can be said of it */
    uint64_t first, elements;       /* of the part within the tensor, in elements */
};

/* Zero-initialise. Borrows from the shards. */
struct kv_layout {
    struct kv_geometry geometry;
    bool dtype_known;       /* geometry.dtype is that of a projection */
    struct kv_place *place; /* [layers][KV_LAYER_PLACES] */
    struct kv_place fc, hidden_norm;
};

/* False with findings. */
bool kv_layout_make(struct kv_layout *layout, const struct kv_shards *shards, const struct kv_config *config,
                    struct kv_notes *notes, struct kv_findings *findings) KV_MUST_CHECK;

/* Between kv_layout_find and kv_layout_check and kv_layout_fc lies no other step; they are the parts of
 * kv_layout_make. `explained` as in forms.h. */
void kv_layout_find(struct kv_layout *layout, const struct kv_shards *shards, const struct kv_config *config,
                    const bool *explained, struct kv_findings *findings);
void kv_layout_check(struct kv_layout *layout, const struct kv_config *config, struct kv_findings *findings);
void kv_layout_fc(struct kv_layout *layout, const struct kv_config *config, struct kv_findings *findings);

/* The place of a layer's part. */
static inline struct kv_place *kv_layout_place(const struct kv_layout *layout, int32_t layer,
                                               enum kv_part part)
{
    return &layout->place[(size_t)layer * KV_LAYER_PLACES + (size_t)part];
}

void kv_layout_free(struct kv_layout *layout);

#endif
