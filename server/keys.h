/* API keys: what a file of them may hold, and whether a key is one of them, in a time that says nothing of
 * the keys. Knows no file, no HTTP, and never says a key in an error. */
#ifndef KV_SERVER_KEYS_H
#define KV_SERVER_KEYS_H

#include "protocol/error.h"

enum { KV_KEY_BYTES_MIN = 16, KV_KEY_BYTES_MAX = 256, KV_KEYS_MAX = 256 };

/* A set that does not change: from any thread. */
struct kv_keys;

/* Reads `text` [bytes], a key a line: 16 to 256 printable ASCII characters without spaces. Blank lines and
 * those that begin with # are left out. No key at all, more than 256, or a line that is no key is
 * option_invalid of `param`, with the number of the line and `name`, which says where the text is from. *out
 * is closed by the caller. */
bool kv_keys_parse(struct kv_keys **out, const char *text, size_t bytes, const char *param, const char *name,
                   struct kv_error *err) KV_MUST_CHECK;
int32_t kv_keys_count(const struct kv_keys *keys);
/* Wipes and frees. NULL is fine. */
void kv_keys_close(struct kv_keys *keys);

/* Is `key` [bytes] one of them? Takes as long for any key of a valid length, right or wrong. */
bool kv_keys_hold(const struct kv_keys *keys, const char *key, size_t bytes);

/* The key in the value of an Authorization header, "Bearer KEY", and its *bytes; NULL: it is no such value.
 */
const char *kv_bearer_find(const char *authorization, size_t *bytes);

#endif
