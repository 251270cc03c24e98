/* The requests of a measurement, made in memory. Knows no socket. */
#ifndef KV_CLIENT_BENCH_REQUESTS_H
#define KV_CLIENT_BENCH_REQUESTS_H

#include "client/client.h"
#include "client/schedule.h"

/* One for each size of the mix, with random rows and random positions out of all that the model takes, as the
 * seed gives them. option_invalid: the model has no fc, or there is no memory. On success *document
 * [mix->count] is the caller's, to be freed with kv_bench_requests_free. */
bool kv_bench_requests_make(const struct kv_client_model *model, const struct kv_mix *mix,
                            enum kv_input_kind kind, enum kv_dtype dtype, uint64_t seed,
                            struct iovec **document, struct kv_error *err) KV_MUST_CHECK;
void kv_bench_requests_free(struct iovec *document, int32_t count); /* NULL is fine */

#endif
