/* The head of an HTTP/1.x reply: status line and headers, read from bytes. Knows no socket. */
#ifndef KV_CLIENT_HEAD_H
#define KV_CLIENT_HEAD_H

#include "client/client.h"

/* What the client needs of a reply's head. */
struct kv_head {
    int32_t status;
    bool keep; /* the connection may carry another request */
    bool has_length;
    uint64_t length; /* of the body */
    int32_t retry_after_s;
    double queue_ms, device_ms;
    char content_type[KV_TEXT_BYTES];
    char request_id[KV_REQUEST_ID_BYTES];
};

/* Bytes up to and including the empty line that ends a head, or 0 when it is not there yet. */
size_t kv_head_find_end(const char *bytes, size_t count);

/* Parses a head of `count` bytes, its end included. reply_malformed when it is not HTTP/1.x, a header is not
 * one, a Content-Length is no number or comes twice with different values, or the body is framed in another
 * way. */
bool kv_head_parse(struct kv_head *head, const char *bytes, size_t count, struct kv_error *err) KV_MUST_CHECK;

#endif
