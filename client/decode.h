/* The JSON that the client reads: an error of the service, /v1/model, a checkpoint's config.json. */
#ifndef KV_CLIENT_DECODE_H
#define KV_CLIENT_DECODE_H

#include "client/client.h"

/* Fails with what a refusal says. `status` decides the fault where the body has no code that is known here.
 */
bool kv_refusal_decode(int32_t status, const void *body, uint64_t bytes, struct kv_error *err);

/* Reads /v1/model. reply_malformed when a member is missing or of another type. */
bool kv_client_model_decode(struct kv_client_model *model, const void *body, uint64_t bytes,
                            struct kv_error *err) KV_MUST_CHECK;

/* hidden_size and the number of dflash_config.target_layer_ids (0: none) of a config.json, plain or nested
 * under transformer_layer_config. */
bool kv_config_decode(const char *text, size_t bytes, int64_t *hidden, int32_t *taps,
                      struct kv_error *err) KV_MUST_CHECK;

#endif
