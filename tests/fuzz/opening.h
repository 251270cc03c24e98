/* What must hold when a folder is opened as a checkpoint, whatever is in it: a refusal says why, and what was
 * taken has a geometry that kernels may rely on and parts that can all be read. */
#ifndef KV_TESTS_FUZZ_OPENING_H
#define KV_TESTS_FUZZ_OPENING_H

#include "server/checkpoint.h"
#include "server/config.h"
#include "tests/fuzz/promise.h"

#include <math.h>

static inline bool fuzz_printable(const char *text, size_t room)
{
    char copy[2 * KV_MESSAGE_BYTES];
    return strlen(text) < room && strcmp(kv_text_print(text, copy, sizeof copy), text) == 0;
}

/* Each finding has a code of start-up, a sentence and a hint, all printable; together they are one JSON. */
static inline void fuzz_findings(const struct kv_findings *findings)
{
    FUZZ_CHECK(findings->count >= 0 && findings->count <= KV_FINDINGS_MAX);
    for (int32_t i = 0; i < findings->count; i++) {
        const struct kv_finding *finding = &findings->item[i];
        const struct kv_error *error = &finding->error;
        char hint[KV_MESSAGE_BYTES];
        FUZZ_CHECK(error->fault != KV_OK && kv_fault_info(error->fault)->kind == KV_CLASS_STARTUP);
        FUZZ_CHECK(finding->layer >= -1 && finding->layer < KV_LAYERS_MAX);
        FUZZ_CHECK(error->message[0] != '\0' && fuzz_printable(error->message, sizeof error->message));
        FUZZ_CHECK(fuzz_printable(error->param, sizeof error->param));
        FUZZ_CHECK(kv_error_hint_print(error, hint, sizeof hint)[0] != '\0');
        FUZZ_CHECK(fuzz_printable(hint, sizeof hint));
    }
    if (findings->count == 0) return;
    char *json = kv_check_encode(NULL, NULL, 0, findings->item, findings->count < 8 ? findings->count : 8);
    FUZZ_CHECK(json != NULL);
    free(json);
}

static inline void fuzz_geometry(const struct kv_geometry *geometry)
{
    FUZZ_CHECK(geometry->layers >= 1 && geometry->layers <= KV_LAYERS_MAX);
    FUZZ_CHECK(geometry->kv_heads >= 1 && geometry->kv_heads <= KV_HEADS_MAX);
    FUZZ_CHECK(geometry->head_dim >= 1 && geometry->head_dim <= KV_HEAD_DIM_MAX);
    FUZZ_CHECK(geometry->rotary_dim >= 2 && geometry->rotary_dim <= geometry->head_dim);
    FUZZ_CHECK(geometry->rotary_dim % 2 == 0);
    FUZZ_CHECK(geometry->hidden >= 1 && geometry->hidden <= KV_HIDDEN_MAX);
    FUZZ_CHECK(geometry->positions >= 1 && geometry->positions <= KV_POSITIONS_MAX);
    FUZZ_CHECK(geometry->taps >= 0 && geometry->taps <= KV_TAPS_MAX);
    FUZZ_CHECK(geometry->dtype == KV_BF16 || geometry->dtype == KV_F16);
    FUZZ_CHECK(isfinite(geometry->value_scale) && isfinite(geometry->attention_factor));
    FUZZ_CHECK(isfinite(geometry->hidden_norm_eps) && geometry->hidden_norm_eps > 0);
}

/* Reads every part to its end in pieces that fit no element and no block. */
static inline void fuzz_parts(const struct kv_weights *weights)
{
    enum { PIECE_BYTES = 4093 };
    static unsigned char piece[PIECE_BYTES];
    for (int32_t layer = -1; layer < weights->geometry.layers; layer++) {
        int32_t begin = layer < 0 ? KV_PART_FC : 0, end = layer < 0 ? KV_PART_COUNT : KV_PART_FC;
        for (int32_t part = begin; part < end; part++) {
            uint64_t bytes = kv_part_bytes(&weights->geometry, (enum kv_part)part);
            for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
                struct kv_error err = {0};
                size_t now = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
                FUZZ_CHECK(weights->read(weights->source, layer, (enum kv_part)part, at, piece, now, &err));
                FUZZ_CHECK(err.fault == KV_OK);
            }
        }
    }
}

static inline void fuzz_description(const struct kv_checkpoint *checkpoint,
                                    struct kv_description *description)
{
    *description = (struct kv_description){.name = "fuzz"};
    kv_checkpoint_describe(checkpoint, description);
    FUZZ_CHECK(strspn(description->fingerprint, "0123456789abcdef") == KV_FINGERPRINT_BYTES - 1);
    FUZZ_CHECK(description->rope.type[0] != '\0' && description->rope.theta > 0);
    for (int32_t layer = 0; layer < description->geometry.layers; layer++)
        FUZZ_CHECK(description->eps[layer] > 0 && isfinite(description->eps[layer]));
    char *json = kv_description_encode(description);
    FUZZ_CHECK(json != NULL);
    free(json);
}

static inline void fuzz_taken(struct kv_checkpoint *checkpoint, const struct kv_findings *findings)
{
    const struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    fuzz_geometry(&weights.geometry);
    for (int32_t i = 0; kv_checkpoint_note(checkpoint, i); i++) {
        const char *note = kv_checkpoint_note(checkpoint, i);
        FUZZ_CHECK(note[0] != '\0' && fuzz_printable(note, KV_NOTE_BYTES));
    }
    bool finite = kv_checkpoint_scan(checkpoint);
    FUZZ_CHECK(finite == (findings->count == 0));
    for (int32_t i = 0; i < findings->count; i++)
        FUZZ_CHECK(findings->item[i].error.fault == KV_WEIGHTS_NOT_FINITE);
    fuzz_findings(findings);
    if (finite) {
        struct kv_description first, again;
        char fingerprint[KV_FINGERPRINT_BYTES];
        fuzz_description(checkpoint, &first);
        memcpy(fingerprint, first.fingerprint, sizeof fingerprint);
        fuzz_parts(&weights);
        FUZZ_CHECK(kv_checkpoint_finish(checkpoint));
        fuzz_description(checkpoint, &again);
        FUZZ_CHECK(strcmp(again.fingerprint, fingerprint) == 0);
    } else {
        fuzz_parts(&weights);
    }
    kv_checkpoint_settle(checkpoint);
}

/* Opens the folder, and closes it. What was found is left in `findings`, which the caller frees. */
static inline bool fuzz_opening(const struct kv_checkpoint_options *options, struct kv_findings *findings)
{
    struct kv_checkpoint *checkpoint = NULL;
    kv_findings_init(findings);
    bool taken = kv_checkpoint_open(&checkpoint, options, findings);
    FUZZ_CHECK(taken == (findings->count == 0) && taken == (checkpoint != NULL));
    if (taken)
        fuzz_taken(checkpoint, findings);
    else
        fuzz_findings(findings);
    kv_checkpoint_close(checkpoint);
    return taken;
}

#endif
