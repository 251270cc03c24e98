/* The list of all faults of one checkpoint. Knows nothing of checkpoints. Safe to add to from several
 * threads. */
#ifndef KV_SERVER_FINDINGS_H
#define KV_SERVER_FINDINGS_H

#include "protocol/description.h"

#include <pthread.h>

enum { KV_FINDINGS_MAX = 1000 };

/* Begin with kv_findings_init, end with kv_findings_free; not to be moved in between. */
struct kv_findings {
    pthread_mutex_t lock;
    int32_t count; /* of `item`; at most KV_FINDINGS_MAX, later ones are dropped */
    int32_t room;
    struct kv_finding *item;
    struct kv_finding first; /* where the list begins, so that one finding is kept even without memory */
};

void kv_findings_init(struct kv_findings *findings);
void kv_findings_free(struct kv_findings *findings);

/* Adds one fault; layer -1: none. kv_findings_add takes an error as it is; the second composes one like
 * kv_fail_values. Both return false always. When memory is out the fault takes the place of the list's last.
 */
bool kv_findings_add(struct kv_findings *findings, int32_t layer, const struct kv_error *error);
bool kv_findings_fail(struct kv_findings *findings, int32_t layer, enum kv_fault fault, const char *param,
                      struct kv_value expected, struct kv_value got, const char *format, ...) KV_PRINTF(7, 8);

#endif
