/* One request and its reply over a connected channel. Knows no address, no retry and no meaning of a body. */
#ifndef KV_CLIENT_ROUNDTRIP_H
#define KV_CLIENT_ROUNDTRIP_H

#include "client/channel.h"
#include "client/client.h"
#include "client/head.h"

/* What a client keeps between calls so that they do not allocate: received bytes and the body's memory. */
struct kv_roundtrip {
    struct kv_channel channel;
    uint64_t reply_bytes_max;
    void *body; /* [body_room], aligned to 64; grows, freed by kv_roundtrip_free */
    uint64_t body_room;
    bool replied; /* a byte of the reply was read in the last run */
    bool keep;    /* after a run: the channel may carry another one */
    bool sent;    /* the whole request went out in the last run */
    bool gone;    /* the other side ended the connection in the last run */
    int cause;    /* errno of a connection that broke in the last run, or 0 */
    size_t in_bytes;
    char in[KV_CLIENT_HEAD_BYTES_MAX];
};

/* Sends the parts (head and body; they are consumed) and reads a reply. `bodiless`: the reply to HEAD. False:
 * the channel is of no more use, and err says what happened. */
bool kv_roundtrip_run(struct kv_roundtrip *trip, struct iovec *parts, int32_t part_count, bool bodiless,
                      struct kv_response *response, struct kv_error *err) KV_MUST_CHECK;

/* Frees the body and closes the channel. */
void kv_roundtrip_free(struct kv_roundtrip *trip);

#endif
