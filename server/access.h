/* Who may call, as files say it: API keys, read again when asked to, and the certificate and key of TLS.
 * Knows no HTTP but an Authorization header's value; what a file holds is in no error and no log. */
#ifndef KV_SERVER_ACCESS_H
#define KV_SERVER_ACCESS_H

#include "protocol/error.h"

struct kv_access;

/* Paths, borrowed. */
struct kv_access_options {
    const char *key_file;           /* NULL: anybody may call */
    const char *tls_cert, *tls_key; /* both or neither */
};

/* Reads the files. One that is no regular file, cannot be read, is empty or holds something else, and one of
 * secrets that others than its owner and group may read, is option_invalid, which names the file. */
bool kv_access_open(struct kv_access **out, const struct kv_access_options *options,
                    struct kv_error *err) KV_MUST_CHECK;
/* Wipes and frees. NULL is fine. */
void kv_access_close(struct kv_access *access);

/* Reads the key file again: its keys hold at once, or, where it is bad, the old ones go on. Logs which. The
 * files of TLS are not read again. From one thread at a time. */
void kv_access_reload(struct kv_access *access);

/* May whoever sent `count` Authorization headers, `authorization` the last of them, call? False:
 * unauthorized. From any thread. */
bool kv_access_check(struct kv_access *access, int32_t count, const char *authorization,
                     struct kv_error *err) KV_MUST_CHECK;

/* Fails with option_invalid: the two files of TLS cannot be used, for this reason. */
bool kv_access_refuse_tls(const struct kv_access *access, const char *reason,
                          struct kv_error *err) KV_MUST_CHECK;
/* PEM texts, NULL without TLS; good until the access is closed. */
const char *kv_access_tls_cert(const struct kv_access *access);
const char *kv_access_tls_key(const struct kv_access *access);

#endif
