/* RoPE of all layers: one dict, or one for each layer type; what differs between layers is found here, and
 * options are heeded after that. What one dict says is config_scaling.c's. */
#include "server/config_sections.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

enum { GROUPS_MAX = 64 }; /* of one dict */

/* How the config lays its dicts out, and which group each layer belongs to. */
struct plan {
    struct kv_object dict[2]; /* rope_parameters, rope_scaling */
    bool by_type[2];          /* it holds one dict for each layer type */
    int32_t groups;
    struct kv_rope_group *group; /* [groups] */
    const json_t *layer_types;   /* NULL: not there, or no use */
    int32_t reference;           /* the group of layer 0; without layer types the first */
};

static const char *const dict_names[2] = {"rope_parameters", "rope_scaling"};

/* Finds one dict and its form; mixing values and dicts is no form. */
static bool find_dict(struct plan *plan, int32_t which, const struct kv_object *decoder,
                      struct kv_findings *findings)
{
    struct kv_object *dict = &plan->dict[which];
    enum kv_key found = kv_key_object(decoder, dict_names[which], dict, findings);
    if (found != KV_KEY_FOUND) return found == KV_KEY_ABSENT;
    int32_t dicts = 0, values = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)dict->json, key, value)
    {
        if (json_is_object(value))
            dicts++;
        else if (!json_is_null(value))
            values++;
    }
    plan->by_type[which] = dicts > 0;
    if (dicts > 0 && values > 0)
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, dict->path,
                                kv_text("either values, or one object for each layer type"), kv_text("both"),
                                "%s cannot be used", dict->path);
    if (dicts > GROUPS_MAX)
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, dict->path, kv_integer(GROUPS_MAX),
                                kv_integer(dicts), "%s has too many layer types", dict->path);
    return true;
}

static void fill_sources(struct kv_rope_group *group, const struct plan *plan,
                         const struct kv_sections *sections, struct kv_findings *findings)
{
    group->source[KV_ROPE_TOP] = sections->decoder;
    group->source[KV_ROPE_DFLASH] = sections->dflash;
    group->source[KV_ROPE_ROOT] = sections->root;
    for (int32_t which = 0; which < 2; which++) {
        struct kv_object *source = &group->source[KV_ROPE_PARAMETERS + which];
        if (plan->by_type[which])
            kv_key_object(&plan->dict[which], group->layer_type, source, findings);
        else
            *source = plan->dict[which];
    }
}

static int32_t find_group(const struct plan *plan, const char *layer_type)
{
    if (!plan->by_type[0] && !plan->by_type[1]) return 0;
    for (int32_t i = 0; i < plan->groups; i++)
        if (strcmp(plan->group[i].layer_type, layer_type) == 0) return i;
    return -1;
}

/* A layer type counts in whichever dict names it. */
static bool add_groups(struct plan *plan, int32_t which, const struct kv_sections *sections,
                       struct kv_findings *findings)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)plan->dict[which].json, key, value)
    {
        if (!json_is_object(value) || find_group(plan, key) >= 0) continue;
        struct kv_rope_group *group = &plan->group[plan->groups++];
        snprintf(group->layer_type, sizeof group->layer_type, "%s", key);
        if (strlen(key) >= sizeof group->layer_type)
            return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, plan->dict[which].path, kv_none(),
                                    kv_text(key), "the name of a layer type is too long");
        group->first_layer = -1;
        fill_sources(group, plan, sections, findings);
    }
    return true;
}

static bool make_groups(struct plan *plan, const struct kv_sections *sections, struct kv_findings *findings)
{
    plan->group = calloc((size_t)2 * GROUPS_MAX, sizeof *plan->group);
    if (!plan->group)
        return kv_findings_fail(findings, -1, KV_INTERNAL, NULL, kv_none(), kv_none(),
                                "out of memory for RoPE");
    if (plan->by_type[0] || plan->by_type[1])
        return (!plan->by_type[0] || add_groups(plan, 0, sections, findings)) &&
               (!plan->by_type[1] || add_groups(plan, 1, sections, findings));
    plan->groups = 1;
    fill_sources(&plan->group[0], plan, sections, findings);
    return true;
}

/* The group of a layer, -1 when its type names none. */
static int32_t group_of(const struct plan *plan, int32_t layer)
{
    if (!plan->layer_types) return plan->reference;
    return find_group(plan, json_string_value(json_array_get(plan->layer_types, (size_t)layer)));
}

static bool check_layer_types(struct plan *plan, const struct kv_config *config,
                              const struct kv_object *decoder, struct kv_findings *findings)
{
    const json_t *types = NULL;
    char path[KV_PARAM_BYTES];
    enum kv_key found = kv_key_array(decoder, "layer_types", &types, findings);
    if (found != KV_KEY_FOUND || config->layers == 0) return found != KV_KEY_WRONG;
    kv_key_path(decoder, "layer_types", path);
    if (json_array_size(types) != (size_t)config->layers)
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, path, kv_integer(config->layers),
                                kv_integer((int64_t)json_array_size(types)),
                                "%s does not have one entry for each layer", path);
    bool good = true;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const json_t *type = json_array_get(types, (size_t)layer);
        int32_t index = json_is_string(type) ? find_group(plan, json_string_value(type)) : -1;
        if (index >= 0) {
            if (plan->group[index].first_layer < 0) plan->group[index].first_layer = layer;
            continue;
        }
        good =
            kv_findings_fail(findings, layer, KV_CONFIG_INVALID, path,
                             kv_text(json_is_string(type) ? "a layer type that has a rope dict" : "a string"),
                             kv_json_value(type), "%s names no rope dict for layer %d", path, (int)layer);
    }
    if (good) plan->layer_types = types;
    return good;
}

static void differs(const struct kv_rope_group *group, int32_t layer, const char *key,
                    struct kv_value expected, struct kv_value got, struct kv_findings *findings)
{
    const struct kv_object *dict = &group->source[KV_ROPE_PARAMETERS];
    char path[KV_PARAM_BYTES];
    if (!dict->json) dict = &group->source[KV_ROPE_SCALING];
    struct kv_error error = {0};
    kv_fail_values(&error, KV_ROPE_CONFIG_MISMATCH, kv_key_path(dict, key, path), expected, got,
                   layer < 0 ? "%s of %s differs from the other layer types'"
                             : "%s of %s is not that of layer 0",
                   key, group->layer_type);
    kv_error_hint(&error,
                  "All layers are rotated alike here. A layer type that no layer uses can be taken out of "
                  "config.json; layers that truly differ cannot be served.");
    kv_findings_add(findings, layer, &error);
}

/* Every value in which two groups differ, as far as both are known. */
static void compare(const struct kv_rope_group *want, const struct kv_rope_group *got, int32_t layer,
                    struct kv_findings *findings)
{
    static const struct {
        const char *key;
        size_t at;
    } numbers[] = {
        {"factor", offsetof(struct kv_rope, factor)},
        {"original_max_position_embeddings", offsetof(struct kv_rope, original_positions)},
        {"beta_fast", offsetof(struct kv_rope, beta_fast)},
        {"beta_slow", offsetof(struct kv_rope, beta_slow)},
        {"low_freq_factor", offsetof(struct kv_rope, low_freq_factor)},
        {"high_freq_factor", offsetof(struct kv_rope, high_freq_factor)},
        {"attention_factor", offsetof(struct kv_rope, attention_factor)},
    };
    const struct kv_rope *a = &want->rope, *b = &got->rope;
    if (want->rotary_known && got->rotary_known && a->rotary_dim != b->rotary_dim)
        differs(got, layer, "rotary_dim", kv_integer(a->rotary_dim), kv_integer(b->rotary_dim), findings);
    if (want->pairing_known && got->pairing_known && a->interleaved != b->interleaved)
        differs(got, layer, "rope_is_neox_style", kv_text(a->interleaved ? "false" : "true"),
                kv_text(b->interleaved ? "false" : "true"), findings);
    if (want->theta_known && got->theta_known && a->theta != b->theta)
        differs(got, layer, "rope_theta", kv_real(a->theta), kv_real(b->theta), findings);
    if (want->type_known && got->type_known && a->type != b->type) {
        differs(got, layer, "rope_type", kv_text(kv_rope_type_name(a->type)),
                kv_text(kv_rope_type_name(b->type)), findings);
        return;
    }
    if (!want->scaling_known || !got->scaling_known) return;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double x, y;
        memcpy(&x, (const char *)a + numbers[i].at, sizeof x);
        memcpy(&y, (const char *)b + numbers[i].at, sizeof y);
        if (x != y) differs(got, layer, numbers[i].key, kv_real(x), kv_real(y), findings);
    }
    if (a->truncate != b->truncate)
        differs(got, layer, "truncate", kv_text(a->truncate ? "true" : "false"),
                kv_text(b->truncate ? "true" : "false"), findings);
}

static void compare_layers(const struct plan *plan, const struct kv_config *config,
                           struct kv_findings *findings)
{
    const struct kv_rope_group *want = &plan->group[plan->reference];
    if (plan->layer_types)
        for (int32_t layer = 1; layer < config->layers; layer++)
            if (group_of(plan, layer) != plan->reference)
                compare(want, &plan->group[group_of(plan, layer)], layer, findings);
    for (int32_t i = 0; i < plan->groups; i++)
        if (i != plan->reference && plan->group[i].first_layer < 0)
            compare(want, &plan->group[i], -1, findings);
}

static void settle(struct kv_config *config, const struct kv_rope_group *group, double backbone,
                   bool backbone_known, const struct kv_checkpoint_options *options, struct kv_notes *notes)
{
    struct kv_rope *rope = &config->rope;
    *rope = group->rope;
    const char *from = group->theta_known ? group->theta_path : NULL;
    if (backbone_known) {
        if (from && backbone != rope->theta)
            kv_notes_add(notes, "dflash_config.backbone_rotary_base %.10g overrides %s %.10g", backbone, from,
                         rope->theta);
        rope->theta = backbone;
        from = "dflash_config.backbone_rotary_base";
    }
    if (options->rope_theta > 0) {
        if (from && options->rope_theta != rope->theta)
            kv_notes_add(notes, "--rope-theta %.10g overrides %s %.10g", options->rope_theta, from,
                         rope->theta);
        rope->theta = options->rope_theta;
    }
    if (options->attention_factor >= 0) {
        kv_notes_add(notes, "--rope-attention-factor %g overrides %g (%s)", options->attention_factor,
                     rope->attention_factor, group->attention_from);
        rope->attention_factor = options->attention_factor;
    } else if (rope->type == KV_ROPE_YARN) {
        kv_notes_add(notes, "rope attention factor %g (%s)", rope->attention_factor, group->attention_from);
    }
    if (rope->interleaved) kv_notes_add(notes, "rotation pairs are interleaved: (2i, 2i+1)");
    config->rope_known = group->rotary_known && group->scaling_known && group->pairing_known &&
                         (group->theta_known || backbone_known || options->rope_theta > 0);
}

void kv_config_rope(struct kv_config *config, const struct kv_sections *sections,
                    const struct kv_checkpoint_options *options, struct kv_notes *notes,
                    struct kv_findings *findings)
{
    struct plan plan = {0};
    double backbone = 0;
    bool backbone_known = kv_key_number(&sections->dflash, "backbone_rotary_base", 1e-37, 1e30,
                                        "a number over 0, at most 1e30", &backbone, findings) == KV_KEY_FOUND;
    bool sound = find_dict(&plan, 0, &sections->decoder, findings);
    sound &= find_dict(&plan, 1, &sections->decoder, findings);
    if (sound && make_groups(&plan, sections, findings)) {
        if (check_layer_types(&plan, config, &sections->decoder, findings) && plan.layer_types)
            plan.reference = group_of(&plan, 0);
        for (int32_t i = 0; i < plan.groups; i++)
            kv_rope_group_read(&plan.group[i], config, backbone_known || options->rope_theta > 0, findings);
        compare_layers(&plan, config, findings);
        settle(config, &plan.group[plan.reference], backbone, backbone_known, options, notes);
    }
    free(plan.group);
}
