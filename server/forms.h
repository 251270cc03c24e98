/* What the names of tensors alone give away: forms with another computation, and quantized forms, refused by
 * name. Knows no shapes and no values. */
#ifndef KV_SERVER_FORMS_H
#define KV_SERVER_FORMS_H

#include "server/notes.h"
#include "server/shards.h"

/* Finds every such form in layers [0, layers). explained[2 * layer] (K) and [2 * layer + 1] (V) become true
 * where a finding says why the plain projection is not there. */
void kv_forms_check(const struct kv_shards *shards, int32_t layers, bool *explained /* [2 * layers] */,
                    struct kv_notes *notes, struct kv_findings *findings);

#endif
