/* One request of a measurement: sent, its reply checked against the model and, where asked, against earlier
 * replies. Knows no clock and counts nothing. */
#ifndef KV_CLIENT_BENCH_CALL_H
#define KV_CLIENT_BENCH_CALL_H

#include "client/bench.h"

#include <pthread.h>

/* K and V of the first reply to each request. Shared by all threads. */
struct kv_bench_replies {
    pthread_mutex_t lock; /* over the pointers; what they point to never changes */
    void *first[KV_MIX_MAX];
};

void kv_bench_replies_open(struct kv_bench_replies *replies);
void kv_bench_replies_close(struct kv_bench_replies *replies);

/* Sends the request of this size. True: 200, and K and V of the model's shape for its tokens. `response` says
 * the status and Retry-After in any case. */
bool kv_bench_call(struct kv_client *client, const struct kv_bench_options *options, int32_t size,
                   struct kv_response *response, struct kv_reply_view *reply,
                   struct kv_error *err) KV_MUST_CHECK;

/* reply_changed where K and V are not, bit for bit, those of the first reply of this size. */
bool kv_bench_verify(struct kv_bench_replies *replies, int32_t size, const struct kv_reply_view *reply,
                     struct kv_error *err) KV_MUST_CHECK;

#endif
