/* Finds the tensors of every part: once each, in the file that the index says, all that are needed.
 * Knows names; shapes are layout_check.c's. */
#include "server/layout.h"

#include <stdio.h>

/* What to find, and where it goes. */
struct finder {
    struct kv_layout *layout;
    const struct kv_shards *shards;
    struct kv_findings *findings;
};

static void report_copies(const struct finder *finder, int32_t layer, const struct kv_stored *stored,
                          int32_t copies)
{
    for (int32_t i = 1; i < copies; i++)
        kv_findings_fail(finder->findings, layer, KV_WEIGHTS_DUPLICATE_TENSOR, stored[i].name, kv_integer(1),
                         kv_integer(copies), "%.90s in %.60s is also in %.60s as %.90s", stored[i].name,
                         stored[i].shard->file.name, stored[0].shard->file.name, stored[0].name);
}

/* Looks a tensor up, needed or not: what is there twice, or not where the index says, is a finding. */
static struct kv_place find(const struct finder *finder, int32_t layer, const char *key)
{
    int32_t copies = 0;
    bool readable = true;
    struct kv_place place = {.stored = kv_shards_find(finder->shards, key, &copies)};
    const char *promised = kv_shards_promised(finder->shards, key, &readable);
    if (copies > 1) report_copies(finder, layer, place.stored, copies);
    if (promised && !readable) place.unreadable = !place.stored;
    if (!promised || !readable) return place;
    for (int32_t i = 0; i < copies; i++)
        if (strcmp(place.stored[i].shard->file.name, promised) == 0) return place;
    kv_findings_fail(finder->findings, layer, KV_WEIGHTS_MISSING_TENSOR, key, kv_text(promised),
                     kv_text(copies ? place.stored->shard->file.name : "nowhere"),
                     "%.100s is not in the file where the index places it", key);
    place.unreadable = !place.stored;
    return place;
}

static struct kv_place find_in_layer(const struct finder *finder, int32_t layer, const char *name)
{
    char key[KV_PARAM_BYTES];
    snprintf(key, sizeof key, "layers.%d.self_attn.%s", (int)layer, name);
    return find(finder, layer, key);
}

static bool absent(const struct kv_place *place)
{
    return !place->stored && !place->unreadable;
}

static void report_missing(const struct finder *finder, int32_t layer, const char *name, const char *why,
                           const char *hint /* NULL: names and files */)
{
    char key[KV_PARAM_BYTES];
    if (layer >= 0)
        snprintf(key, sizeof key, "layers.%d.self_attn.%s", (int)layer, name);
    else
        snprintf(key, sizeof key, "%s", name);
    struct kv_error error = {0};
    kv_fail_values(&error, KV_WEIGHTS_MISSING_TENSOR, key, kv_text("one tensor"), kv_text("none"),
                   "%.100s is missing%s", key, why);
    if (hint) kv_error_hint(&error, "%s", hint);
    kv_error_hint(&error,
                  "Names are looked for as they stand here and with \"model.\" before them. Check that the "
                  "download is complete and that num_hidden_layers is right.");
    kv_findings_add(finder->findings, layer, &error);
}

static const char *const projections[2] = {"k_proj", "v_proj"};

/* weight (kind 0) or bias (kind 1) of K and V: their own tensors, or rows of the fused one; both is one too
 * many. */
static void find_projections(const struct finder *finder, int32_t layer, int32_t kind)
{
    static const char *const kinds[2] = {"weight", "bias"};
    static const enum kv_part parts[2][2] = {{KV_PART_K_WEIGHT, KV_PART_V_WEIGHT},
                                             {KV_PART_K_BIAS, KV_PART_V_BIAS}};
    char name[64];
    snprintf(name, sizeof name, "qkv_proj.%s", kinds[kind]);
    struct kv_place fused = find_in_layer(finder, layer, name);
    fused.fused = fused.stored != NULL;
    for (int32_t i = 0; i < 2; i++) {
        struct kv_place *place = kv_layout_place(finder->layout, layer, parts[kind][i]);
        snprintf(name, sizeof name, "%s.%s", projections[i], kinds[kind]);
        *place = find_in_layer(finder, layer, name);
        if (place->stored && fused.stored)
            kv_findings_fail(finder->findings, layer, KV_WEIGHTS_DUPLICATE_TENSOR, place->stored->name,
                             kv_integer(1), kv_integer(2),
                             "%.100s is stored beside %.100s, which holds its rows too", place->stored->name,
                             fused.stored->name);
        else if (absent(place))
            *place = fused;
    }
}

/* No layer has a V, and no fused tensor either: V is made from K, which is another computation. */
static bool v_from_k(const struct kv_layout *layout, int32_t layers)
{
    bool any_k = false;
    for (int32_t layer = 0; layer < layers; layer++) {
        if (!absent(kv_layout_place(layout, layer, KV_PART_V_WEIGHT))) return false;
        any_k |= kv_layout_place(layout, layer, KV_PART_K_WEIGHT)->stored != NULL;
    }
    return any_k;
}

static void require_projections(const struct finder *finder, int32_t layers, const bool *explained)
{
    bool shared = v_from_k(finder->layout, layers), v_explained = false;
    for (int32_t layer = 0; layer < layers; layer++) v_explained |= explained[2 * layer + 1];
    if (shared && !v_explained)
        kv_findings_fail(finder->findings, 0, KV_ARCHITECTURE_UNSUPPORTED, "layers.0.self_attn.v_proj.weight",
                         kv_text("a V projection in every layer"), kv_text("none"),
                         "no layer has a V projection: V is made from K, which is not computed "
                         "here");
    for (int32_t layer = 0; layer < layers; layer++) {
        if (absent(kv_layout_place(finder->layout, layer, KV_PART_K_WEIGHT)) && !explained[2 * layer])
            report_missing(finder, layer, "k_proj.weight", "", NULL);
        if (absent(kv_layout_place(finder->layout, layer, KV_PART_V_WEIGHT)) && !explained[2 * layer + 1] &&
            !shared)
            report_missing(finder, layer, "v_proj.weight", "", NULL);
    }
}

/* A part that all layers have or none; `promised`: the config says that they do. */
static void require_alike(const struct finder *finder, int32_t layers, enum kv_part part, const char *name,
                          bool promised)
{
    bool any = false;
    for (int32_t layer = 0; layer < layers; layer++)
        any |= !absent(kv_layout_place(finder->layout, layer, part));
    for (int32_t layer = 0; layer < layers && (any || promised); layer++)
        if (absent(kv_layout_place(finder->layout, layer, part)))
            report_missing(
                finder, layer, name, any ? ", while other layers have it" : ": attention_bias is true",
                any ? NULL
                    : "Set attention_bias to false in config.json if the model was trained without "
                      "biases; else fetch the files that hold them.");
}

void kv_layout_find(struct kv_layout *layout, const struct kv_shards *shards, const struct kv_config *config,
                    const bool *explained, struct kv_findings *findings)
{
    const struct finder finder = {layout, shards, findings};
    for (int32_t layer = 0; layer < config->layers; layer++) {
        find_projections(&finder, layer, 0);
        find_projections(&finder, layer, 1);
        *kv_layout_place(layout, layer, KV_PART_K_NORM) = find_in_layer(&finder, layer, "k_norm.weight");
    }
    require_projections(&finder, config->layers, explained);
    require_alike(&finder, config->layers, KV_PART_K_BIAS, "k_proj.bias", config->attention_bias);
    require_alike(&finder, config->layers, KV_PART_V_BIAS, "v_proj.bias", config->attention_bias);
    require_alike(&finder, config->layers, KV_PART_K_NORM, "k_norm.weight", false);
    layout->fc = find(&finder, -1, "fc.weight");
    layout->hidden_norm = find(&finder, -1, "hidden_norm.weight");
    if (!absent(&layout->fc) && absent(&layout->hidden_norm))
        report_missing(&finder, -1, "hidden_norm.weight", ", and fc's output cannot be used without it",
                       NULL);
}
