/* The parts of the weights as backends pull them: read in pieces, converted, checked for NaN and infinity,
 * hashed as they pass. Knows where tensors lie; knows no config and no device. */
#ifndef KV_SERVER_PARTS_H
#define KV_SERVER_PARTS_H

#include "server/layout.h"
#include "server/notes.h"

struct kv_parts;

/* The layout, the shards under it, eps [layers], inv_freq [rotary_dim / 2] and the findings must outlive the
 * parts. False when memory is out. */
bool kv_parts_open(struct kv_parts **out, const struct kv_layout *layout, const float *eps,
                   const float *inv_freq, struct kv_findings *findings, struct kv_error *err) KV_MUST_CHECK;

/* kv_weights.read: `source` is a struct kv_parts. Pieces of any size; a read at offset 0 begins the part
 * anew, which makes a second pull possible. A value that is not finite becomes one finding for its tensor and
 * reading goes on. */
bool kv_parts_read(void *source, int32_t layer, enum kv_part part, uint64_t offset, void *to, size_t bytes,
                   struct kv_error *err) KV_MUST_CHECK;

/* Once every part was read to its end: the fingerprint, in hexadecimal. It covers what K and V depend on: not
 * the number of positions. Fails with KV_INTERNAL when a part was not read. */
bool kv_parts_fingerprint(const struct kv_parts *parts, char to[KV_FINGERPRINT_BYTES],
                          struct kv_error *err) KV_MUST_CHECK;

/* Once every part was read to its end: what holds only zeros, and so computes nothing though it is valid. One
 * line for each kind of part. */
void kv_parts_warn(const struct kv_parts *parts, struct kv_notes *warnings);

void kv_parts_close(struct kv_parts *parts); /* NULL is fine */

#endif
