/* The messages: a request (hidden states and positions) and a reply (K and V of every layer), both
 * safetensors documents; and the one JSON object that every error is. kv_request_decode is the only
 * validation of a request: after it, later code asserts. Knows no HTTP: a status and its reason are handed
 * in. */
#ifndef KV_PROTOCOL_MESSAGE_H
#define KV_PROTOCOL_MESSAGE_H

#include "protocol/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A valid request. Borrows from the body it was decoded from. */
struct kv_request {
    enum kv_input_kind kind;
    int64_t tokens;           /* T, 0 is valid */
    struct kv_view hidden;    /* [T, hidden] or [T, taps * hidden], BF16, F16 or F32 */
    struct kv_view positions; /* [T] I64 or I32, every one in [0, geometry.positions) */
};

/* Bounds that one request must keep. */
struct kv_request_limits {
    int64_t tokens_max;
};

bool kv_request_decode(struct kv_request *request, const void *body, uint64_t body_bytes,
                       const struct kv_geometry *geometry, const struct kv_request_limits *limits,
                       struct kv_error *err) KV_MUST_CHECK;

/* The most tokens that a body of this many bytes can carry for this geometry (at least 2 bytes an element of
 * the narrowest input, and 4 a position): what the reply is reserved for before the body is read. At most
 * tokens_max. */
int64_t kv_request_tokens_bound(const struct kv_geometry *geometry, uint64_t body_bytes, int64_t tokens_max);

/* Writes a request's prefix and header for T tokens (the client's side); the data that follows is hidden,
 * then positions: `hidden` first keeps both aligned. */
bool kv_request_encode(void *to, size_t capacity, const struct kv_geometry *geometry, enum kv_input_kind kind,
                       enum kv_dtype hidden_dtype, enum kv_dtype positions_dtype, int64_t tokens,
                       size_t *written, struct kv_error *err) KV_MUST_CHECK;

enum { KV_REQUEST_ID_BYTES = 129, KV_FINGERPRINT_BYTES = 33, KV_REPLY_HEADER_BYTES_MAX = 4096 };

/* Writes a reply's prefix and header for K and V [layers, T, kv_heads, head_dim]: *written bytes, a multiple
 * of 64, then K's bytes, then V's. At most KV_REPLY_HEADER_BYTES_MAX where `model` is at most 512 bytes. */
bool kv_reply_encode(void *to, size_t capacity, const struct kv_geometry *geometry, int64_t tokens,
                     const char *model, const char *fingerprint, const char *request_id, size_t *written,
                     struct kv_error *err) KV_MUST_CHECK;
/* Bytes of K, or of V, in a reply for T tokens. The geometry was validated at load, T is at most 2^31:
 * asserts. */
uint64_t kv_reply_part_bytes(const struct kv_geometry *geometry, int64_t tokens);

/* The error as its JSON object (WIRE: error, code, status, title, type, detail, param, expected, got, hint,
 * request_id; members that are not known are null). Free the text with free(); NULL only when memory is out.
 * `request_id` may be NULL. */
char *kv_error_encode(const struct kv_error *err, int status, const char *reason, const char *request_id);

/* The catalogue as JSON: {"errors": [row, ...]}, or one row. `status_of` gives a row's HTTP status (0: none,
 * shown as null). free() the text. */
char *kv_catalogue_encode(int (*status_of)(enum kv_class kind));
char *kv_catalogue_row_encode(enum kv_fault fault, int (*status_of)(enum kv_class kind));

#ifdef __cplusplus
}
#endif
#endif
