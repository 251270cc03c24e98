/* A random request: its header and its values, piece by piece. Knows no file and no socket. */
#ifndef KV_CLIENT_REQUEST_SHAPE_H
#define KV_CLIENT_REQUEST_SHAPE_H

#include "client/noise.h"
#include "protocol/safetensors.h"

enum { KV_REQUEST_HEAD_BYTES = 1024 };

struct kv_request_shape {
    enum kv_input_kind kind;
    enum kv_dtype dtype, positions_dtype;
    int64_t tokens, width;  /* width: hidden, or taps * hidden */
    int64_t position_start; /* positions are start, start + 1, ... */
    int64_t position_max;   /* not 0: random in [0, position_max) instead */
    uint64_t seed;
};

/* Writes prefix and header; *bytes is the size of the whole document. option_invalid where it could not be.
 */
bool kv_request_shape_head(const struct kv_request_shape *shape, char *to /* [KV_REQUEST_HEAD_BYTES] */,
                           size_t *head_bytes, uint64_t *bytes, struct kv_error *err) KV_MUST_CHECK;

struct kv_noise kv_request_shape_hidden(const struct kv_request_shape *shape);
struct kv_noise kv_request_shape_positions(const struct kv_request_shape *shape);

/* The positions of tokens [first, first + count), one after the other, to an array of positions_dtype. */
void kv_request_shape_fill_positions(const struct kv_request_shape *shape, struct kv_noise *noise,
                                     int64_t first, int64_t count, void *to);

#endif
