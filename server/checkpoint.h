/* A draft checkpoint: config.json and safetensors files in, a validated geometry and parts to pull out.
 * Finds all faults of a checkpoint, not only the first. Knows no device, no HTTP. */
#ifndef KV_SERVER_CHECKPOINT_H
#define KV_SERVER_CHECKPOINT_H

#include "kernels/backend.h"
#include "protocol/description.h"
#include "server/findings.h"

struct kv_checkpoint;

struct kv_checkpoint_options {
    const char *directory;
    int64_t positions_max;   /* --max-position; 0: max_position_embeddings */
    double rope_theta;       /* --rope-theta; 0: from the config */
    double attention_factor; /* --rope-attention-factor; negative: from the config (0 is a value) */
};

/* Reads config.json, the index and every file's header (no weights), and checks all that MODEL asks for but
 * the values. False with at least one finding; then *out is NULL. Close what was opened. The findings must
 * outlive the checkpoint, which adds to them while its parts are pulled. */
bool kv_checkpoint_open(struct kv_checkpoint **out, const struct kv_checkpoint_options *options,
                        struct kv_findings *findings) KV_MUST_CHECK;

/* The geometry and the reader of the parts. `read` takes pieces of any size, and begins a part anew at offset
 * 0, so that a second device can pull after a first one failed. It converts (F32 weights to BF16, norms and
 * biases to float32), hashes and looks for NaN and infinity: a value that is not finite becomes a finding and
 * reading goes on, so that all are listed; a file that cannot be read is an error. The checkpoint must
 * outlive its use. */
struct kv_weights kv_checkpoint_weights(struct kv_checkpoint *checkpoint);

/* Pulls every part once and drops the values: what --check does in a device's place. False: there are
 * findings. */
bool kv_checkpoint_scan(struct kv_checkpoint *checkpoint) KV_MUST_CHECK;

/* After every part was pulled at least once: makes the fingerprint and says whether all values were finite.
 * The fingerprint is XXH3-128, in hexadecimal, over geometry (but not the number of positions, on which no K
 * or V depends), rope, and the digests of all parts in canonical order (layer by layer, parts in the order of
 * enum kv_part), hence independent of files, shards, spelling and the order of pulling. */
bool kv_checkpoint_finish(struct kv_checkpoint *checkpoint) KV_MUST_CHECK;

/* Fills geometry, eps, rope and fingerprint; borrows from the checkpoint. */
void kv_checkpoint_describe(const struct kv_checkpoint *checkpoint, struct kv_description *out);

/* What the log should say of this checkpoint: notes such as "F32 weights are converted to BF16". NULL after
 * the last. */
const char *kv_checkpoint_note(const struct kv_checkpoint *checkpoint, int32_t index);

/* After kv_checkpoint_finish: what is valid and still looks wrong, such as weights that are all zero. NULL
 * after the last. */
const char *kv_checkpoint_warning(const struct kv_checkpoint *checkpoint, int32_t index);

/* Closes the files: nothing can be pulled any more, all else stays. */
void kv_checkpoint_settle(struct kv_checkpoint *checkpoint);

void kv_checkpoint_close(struct kv_checkpoint *checkpoint); /* NULL is fine */

#endif
