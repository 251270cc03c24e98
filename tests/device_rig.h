/* A rig for tests of a backend: random inputs, one slab of its memory in which every array stands between
 * guard bytes and every output is poisoned, and items that name them. Failures end the test (libcheck). */
#ifndef KV_TESTS_DEVICE_RIG_H
#define KV_TESTS_DEVICE_RIG_H

#include "kernels/backend.h"
#include "tests/random_weights.h"

enum { RIG_GUARDS_MAX = 4096 };

/* Rows as a caller has them: dense, of any float dtype; and their positions. */
struct rig_input {
    enum kv_input_kind kind;
    enum kv_dtype dtype;
    int64_t rows, columns;
    unsigned char *bytes; /* [rows][columns] */
    int64_t *positions;   /* [rows] */
};
struct rig_input rig_input_make(const struct kv_geometry *geometry, enum kv_input_kind kind,
                                enum kv_dtype dtype, int64_t rows, uint64_t *state);
void rig_input_free(struct rig_input *input);

struct rig {
    const struct kv_backend_ops *ops;
    struct kv_backend *backend;
    struct kv_geometry geometry;
    struct kv_mem *mem;
    unsigned char *host;
    size_t bytes, used;
    uint64_t guard[RIG_GUARDS_MAX]; /* offsets of guards of RIG_GUARD_BYTES */
    int32_t guards;
};

/* `backend` is owned from here on. */
void rig_open(struct rig *rig, const struct kv_backend_ops *ops, struct kv_backend *backend,
              const struct kv_geometry *geometry, size_t bytes);
void rig_close(struct rig *rig);
/* Forgets all arrays. */
void rig_reset(struct rig *rig);
/* Memory between guards, filled with 0xff, `misalign` bytes off a multiple of 64. */
struct kv_ref rig_place(struct rig *rig, size_t bytes, size_t misalign);
void rig_check_guards(const struct rig *rig);

/* How an item's arrays lie in memory. Zero is dense and aligned. */
struct rig_layout {
    int64_t row_gap;       /* bytes between rows */
    size_t misalign;       /* of rows, positions and outputs */
    bool narrow_positions; /* I32 */
    bool positions_checked;
};
/* An item of the rows pick[0 .. rows - 1] of an input (pick NULL: the first ones), with a reply's output:
 * layer-major K, then V. bases [2 * layers] is the caller's and outlives the item. */
struct kv_item rig_item(struct rig *rig, const struct rig_input *input, const int64_t *pick, int64_t rows,
                        const struct rig_layout *layout, struct kv_ref *bases);
/* The head's elements [head_dim] that such an item, or any other, has for row t: by the formula of backend.h.
 */
void rig_head(const struct rig *rig, const struct kv_item *item, bool v, int32_t layer, int64_t t,
              int32_t head, uint16_t *to);
/* Submits and waits; faults are the caller's to look at. */
void rig_run(struct rig *rig, struct kv_item *items, int32_t count);

#endif
