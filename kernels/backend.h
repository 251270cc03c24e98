/* The boundary to the devices: geometry and weights in once, batches of hidden states and positions in, K and
 * V out. It carries references instead of pointers (host pool, shared memory, GPU memory of a peer), one
 * output and one fault for each item, and weights that are pulled. Knows no JSON, no HTTP, no files. Headers
 * here are C11 and C++17. */
#ifndef KV_KERNELS_BACKEND_H
#define KV_KERNELS_BACKEND_H

#include "protocol/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kv_backend; /* an open device: resident weights, buffers, threads or streams */
struct kv_mem;     /* memory that a device can read and write; made and owned by the backend */

/* Where bytes are: `offset` bytes into `mem`. mem NULL: nowhere. */
struct kv_ref {
    struct kv_mem *mem;
    uint64_t offset;
};

struct kv_input {
    enum kv_input_kind kind;       /* the same for all items of a batch */
    enum kv_dtype dtype;           /* of the rows: KV_BF16, KV_F16 or KV_F32; rounded to the weights' dtype */
    struct kv_ref rows;            /* at any alignment */
    int64_t row_stride;            /* bytes */
    struct kv_ref positions;       /* [rows], at any alignment */
    enum kv_dtype positions_dtype; /* KV_I64 or KV_I32 */
    bool positions_checked; /* all are known to be in [0, geometry.positions); else the backend checks */
};

/* Element (layer, t, head) begins at
 *   base[layer] + (s / block_tokens) * block_stride + (s % block_tokens) * token_stride + head * head_stride
 * with s = slots ? slots[t] : slot_first + t, and is skipped where s < 0. That one formula is layer-major,
 * token-major and head-major buffers, and paged caches of either engine. Strides are in bytes; head_dim
 * elements are dense. */
struct kv_output {
    const struct kv_ref *k, *v; /* [layers]: one base for each, from layer 0 on whatever layer_begin is */
    int64_t block_tokens, block_stride, token_stride, head_stride;
    struct kv_ref slots;           /* I64 [rows]; mem NULL: slot_first + t */
    int64_t slot_first, slots_max; /* every slot written is under slots_max */
    enum kv_dtype dtype;
    const float *k_scale, *v_scale;                       /* [layers]; NULL: none */
    int32_t layer_begin, layer_end, head_begin, head_end; /* only these are written */
};

/* One request, or a span of its rows. */
struct kv_item {
    int64_t rows;
    struct kv_input in;
    struct kv_output out;
    enum kv_fault fault; /* set by the backend before wait says done: KV_OK or what befell this item alone */
};

/* What is computed together. The caller owns it and all it points to, unchanged until wait says done or
 * lost. */
struct kv_batch {
    int64_t rows; /* the sum over the items */
    int32_t items;
    struct kv_item *item; /* [items] */
    void *inflight;       /* the backend's own, between submit and the end of wait */
};

/* Parts of the weights, each dense and row-major. K, V and FC have the dtype of the geometry, the others are
 * float32. Parts that a geometry does not have (k_bias false, taps 0, ...) are never asked for. */
enum kv_part {
    KV_PART_K_WEIGHT,    /* [kv_heads * head_dim, hidden], for each layer */
    KV_PART_V_WEIGHT,    /* [kv_heads * head_dim, hidden], for each layer */
    KV_PART_K_BIAS,      /* [kv_heads * head_dim], for each layer */
    KV_PART_V_BIAS,      /* [kv_heads * head_dim], for each layer */
    KV_PART_K_NORM,      /* [head_dim], for each layer */
    KV_PART_EPS,         /* [1], for each layer: of the K norm */
    KV_PART_FC,          /* [hidden, taps * hidden] */
    KV_PART_HIDDEN_NORM, /* [hidden] */
    KV_PART_INV_FREQ,    /* [rotary_dim / 2]: angle = (float)position * inv_freq */
    KV_PART_COUNT
};

/* Weights are pulled, never stacked twice in memory. `read` copies `bytes` at byte `offset` of a part;
 * `layer` is -1 for the parts without a layer. It may be called from several threads at once, but each (part,
 * layer) is to be read once, front to back without gaps, by one thread at a time: values are checked and
 * fingerprinted as they pass. */
struct kv_weights {
    struct kv_geometry geometry;
    void *source;
    bool (*read)(void *source, int32_t layer, enum kv_part part, uint64_t offset, void *to, size_t bytes,
                 struct kv_error *err);
};

/* Bytes of a whole part for this geometry; 0 for a part it does not have, UINT64_MAX when they overflow. */
uint64_t kv_part_bytes(const struct kv_geometry *geometry, enum kv_part part);

struct kv_backend_options {
    int32_t device;    /* ordinal of a GPU; -1: the first that works */
    int32_t threads;   /* of the CPU backend; 0: one for each CPU this process may run on */
    int64_t rows_max;  /* of a batch; buffers are reserved for it at open */
    int32_t items_max; /* of a batch */
    bool tune;         /* time algorithms at open */
};

/* What an open device is, and how it likes to be fed. */
struct kv_backend_description {
    char kind[16], name[128];
    uint64_t memory_bytes;            /* resident: weights, tables, buffers */
    uint64_t total_bytes, free_bytes; /* of a GPU's memory when it was asked, whoever uses it; 0: not known */
    int64_t span_rows;                /* a request is cut into spans of at most this many rows */
    int32_t batches_max;              /* that may be in flight at once, at least 1 */
    uint64_t pool_bytes;              /* a good size for the pool where the operator names none */
    int64_t spin_us; /* so long after submit, asking for a batch's end beats sleeping until it */
};

/* Memory made elsewhere, to be mapped: a file descriptor of shared memory, or a peer's 64-byte GPU handle. */
struct kv_handle {
    bool gpu;
    int fd;
    unsigned char bytes[64];
    uint64_t offset, length;
};

enum kv_wait { KV_WAIT_DONE, KV_WAIT_PENDING, KV_WAIT_LOST };

/* A device. None is optional. */
struct kv_backend_ops {
    const char *name;
    /* Pulls the weights and makes everything that later calls need: nothing below allocates in proportion to
     * a batch. device_unavailable when there is no such device, device_out_of_memory with needed and free
     * bytes. */
    bool (*open)(struct kv_backend **out, const struct kv_weights *weights,
                 const struct kv_backend_options *options, struct kv_error *err);
    /* Any thread, beside all others. */
    void (*describe)(const struct kv_backend *backend, struct kv_backend_description *out);
    /* Host memory that the device reads and writes well (pinned, for a GPU), pre-faulted; *host is its
     * address. */
    bool (*alloc)(struct kv_backend *backend, size_t bytes, struct kv_mem **out, void **host,
                  struct kv_error *err);
    bool (*import)(struct kv_backend *backend, const struct kv_handle *handle, struct kv_mem **out,
                   struct kv_error *err);
    void (*release)(struct kv_backend *backend, struct kv_mem *mem); /* of alloc or import; NULL is fine */
    /* Starts a batch and returns: any thread, but one at a time (the engine holds a lock); at most
     * batches_max in flight. False: nothing was started and the whole batch failed with `err`. */
    bool (*submit)(struct kv_backend *backend, struct kv_batch *batch, struct kv_error *err);
    /* Waits at most timeout_us (0: only looks, negative: no limit) for a submitted batch; beside submit, any
     * thread, one waiter for each batch. done: outputs are written, faults are set. lost: the device is gone
     * for good, and err says why. */
    enum kv_wait (*wait)(struct kv_backend *backend, struct kv_batch *batch, int64_t timeout_us,
                         struct kv_error *err);
    void (*close)(struct kv_backend *backend); /* nothing may be in flight; NULL is fine */
};

/* The backends in this build, in order of preference; the last entry is NULL. The only place that knows
 * which. */
const struct kv_backend_ops *const *kv_backends(void);
/* The backend of this name, or NULL. */
const struct kv_backend_ops *kv_backend_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
