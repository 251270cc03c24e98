/* Puts a checkpoint together: config, files, layout, parts. Each of them finds its own faults; all are heard
 * before the checkpoint is refused. */
#include "server/checkpoint.h"

#include "server/config.h"
#include "server/parts.h"
#include "server/shards.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SCAN_BYTES = 1024 * 1024 };

struct kv_checkpoint {
    struct kv_findings *findings;
    int32_t findings_before; /* that were not this checkpoint's */
    struct kv_config config;
    struct kv_shards shards;
    struct kv_layout layout;
    float *eps;      /* [layers] */
    float *inv_freq; /* [rotary_dim / 2] */
    struct kv_parts *parts;
    struct kv_notes notes, warnings;
    char fingerprint[KV_FINGERPRINT_BYTES];
};

static int open_folder(const char *directory, struct kv_findings *findings)
{
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) return folder;
    int reason = errno;
    struct kv_error error = {0};
    kv_fail_param(&error, KV_MODEL_NOT_FOUND, "--model", "the model's folder %.160s cannot be opened: %s",
                  directory, strerror(reason));
    if (reason == ENOTDIR)
        kv_error_hint(&error,
                      "Give the folder that holds config.json and model.safetensors, not a file in it.");
    kv_findings_add(findings, -1, &error);
    return -1;
}

static bool fail_memory(struct kv_findings *findings)
{
    return kv_findings_fail(findings, -1, KV_INTERNAL, NULL, kv_none(), kv_none(),
                            "out of memory for a checkpoint");
}

/* Files that hold nothing that is pulled are closed; their names and headers stay. */
static void close_unused(struct kv_checkpoint *checkpoint)
{
    bool used[KV_SHARDS_MAX] = {false};
    const struct kv_layout *layout = &checkpoint->layout;
    const struct kv_shard *first = checkpoint->shards.shard;
    for (int32_t i = 0; i < layout->geometry.layers * KV_LAYER_PLACES; i++)
        if (layout->place[i].stored) used[layout->place[i].stored->shard - first] = true;
    if (layout->fc.stored) used[layout->fc.stored->shard - first] = true;
    if (layout->hidden_norm.stored) used[layout->hidden_norm.stored->shard - first] = true;
    for (int32_t i = 0; i < checkpoint->shards.count; i++)
        if (!used[i]) kv_file_close(&checkpoint->shards.shard[i].file);
}

/* The parts that are computed, not stored, as far as the config is known: one that cannot be made is a fault
 * like any other. */
static void make_tables(struct kv_checkpoint *checkpoint)
{
    const struct kv_config *config = &checkpoint->config;
    struct kv_error error = {0};
    checkpoint->eps = calloc((size_t)config->layers + 1, sizeof *checkpoint->eps);
    checkpoint->inv_freq = calloc((size_t)config->rope.rotary_dim / 2 + 1, sizeof *checkpoint->inv_freq);
    if (!checkpoint->eps || !checkpoint->inv_freq) {
        fail_memory(checkpoint->findings);
        return;
    }
    for (int32_t layer = 0; layer < config->layers; layer++) checkpoint->eps[layer] = (float)config->eps;
    if (config->rope_known && !kv_rope_frequencies(&config->rope, checkpoint->inv_freq, &error))
        kv_findings_add(checkpoint->findings, -1, &error);
}

static bool load(struct kv_checkpoint *checkpoint, const struct kv_checkpoint_options *options)
{
    struct kv_findings *findings = checkpoint->findings;
    int folder = open_folder(options->directory, findings);
    if (folder < 0) return false;
    kv_config_read(&checkpoint->config, folder, options, &checkpoint->notes, findings);
    make_tables(checkpoint);
    bool found = kv_shards_open(&checkpoint->shards, folder, findings) &&
                 kv_layout_make(&checkpoint->layout, &checkpoint->shards, &checkpoint->config,
                                &checkpoint->notes, findings);
    close(folder);
    if (!found || findings->count > checkpoint->findings_before) return false;
    struct kv_error error = {0};
    assert(checkpoint->config.rope_known);
    close_unused(checkpoint);
    return kv_parts_open(&checkpoint->parts, &checkpoint->layout, checkpoint->eps, checkpoint->inv_freq,
                         findings, &error) ||
           kv_findings_add(findings, -1, &error);
}

bool kv_checkpoint_open(struct kv_checkpoint **out, const struct kv_checkpoint_options *options,
                        struct kv_findings *findings)
{
    *out = NULL;
    struct kv_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint) return fail_memory(findings);
    checkpoint->findings = findings;
    checkpoint->findings_before = findings->count;
    if (!load(checkpoint, options)) {
        kv_checkpoint_close(checkpoint);
        return false;
    }
    *out = checkpoint;
    return true;
}

struct kv_weights kv_checkpoint_weights(struct kv_checkpoint *checkpoint)
{
    return (struct kv_weights){
        .geometry = checkpoint->layout.geometry, .source = checkpoint->parts, .read = kv_parts_read};
}

static bool scan_part(struct kv_checkpoint *checkpoint, int32_t layer, enum kv_part part, void *buffer)
{
    uint64_t bytes = kv_part_bytes(&checkpoint->layout.geometry, part);
    struct kv_error error = {0};
    for (uint64_t offset = 0; offset < bytes; offset += SCAN_BYTES) {
        size_t piece = bytes - offset < SCAN_BYTES ? (size_t)(bytes - offset) : SCAN_BYTES;
        if (!kv_parts_read(checkpoint->parts, layer, part, offset, buffer, piece, &error))
            return kv_findings_add(checkpoint->findings, layer, &error);
    }
    return true;
}

bool kv_checkpoint_scan(struct kv_checkpoint *checkpoint)
{
    void *buffer = malloc(SCAN_BYTES);
    if (!buffer) return fail_memory(checkpoint->findings);
    bool read = true;
    for (int32_t layer = 0; layer < checkpoint->layout.geometry.layers; layer++)
        for (int32_t part = 0; part <= KV_PART_EPS; part++)
            read &= scan_part(checkpoint, layer, (enum kv_part)part, buffer);
    for (int32_t part = KV_PART_FC; part < KV_PART_COUNT; part++)
        read &= scan_part(checkpoint, -1, (enum kv_part)part, buffer);
    free(buffer);
    return read && kv_checkpoint_finish(checkpoint);
}

bool kv_checkpoint_finish(struct kv_checkpoint *checkpoint)
{
    struct kv_error error = {0};
    if (!kv_parts_fingerprint(checkpoint->parts, checkpoint->fingerprint, &error))
        kv_findings_add(checkpoint->findings, -1, &error);
    checkpoint->warnings.count = 0;
    kv_parts_warn(checkpoint->parts, &checkpoint->warnings);
    return checkpoint->findings->count == checkpoint->findings_before;
}

void kv_checkpoint_settle(struct kv_checkpoint *checkpoint)
{
    for (int32_t i = 0; i < checkpoint->shards.count; i++) kv_file_close(&checkpoint->shards.shard[i].file);
}

void kv_checkpoint_describe(const struct kv_checkpoint *checkpoint, struct kv_description *out)
{
    const struct kv_rope *rope = &checkpoint->config.rope;
    out->geometry = checkpoint->layout.geometry;
    out->eps = checkpoint->eps;
    out->fingerprint = checkpoint->fingerprint;
    out->rope = (struct kv_rope_info){.theta = rope->theta,
                                      .attention_factor = rope->attention_factor,
                                      .interleaved = rope->interleaved,
                                      .positions = checkpoint->layout.geometry.positions};
    snprintf(out->rope.type, sizeof out->rope.type, "%s", kv_rope_type_name(rope->type));
}

const char *kv_checkpoint_warning(const struct kv_checkpoint *checkpoint, int32_t index)
{
    return index >= 0 && index < checkpoint->warnings.count ? checkpoint->warnings.text[index] : NULL;
}

const char *kv_checkpoint_note(const struct kv_checkpoint *checkpoint, int32_t index)
{
    return index >= 0 && index < checkpoint->notes.count ? checkpoint->notes.text[index] : NULL;
}

void kv_checkpoint_close(struct kv_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    kv_parts_close(checkpoint->parts);
    kv_layout_free(&checkpoint->layout);
    kv_shards_close(&checkpoint->shards);
    free(checkpoint->eps);
    free(checkpoint->inv_freq);
    free(checkpoint);
}
