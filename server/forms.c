/* One pass over all names, two tables: forms of the model and forms of storage. */
#include "server/forms.h"

#include <stdio.h>
#include <string.h>

/* `name` is compared with what follows "layers.N.self_attn." (or with the whole key); ending in * it is a
 * beginning. */
struct form {
    bool in_layer;
    const char *name;
    bool replaces; /* the K and V projections */
    const char *why;
};

static const struct form forms[] = {
    {false, "aux_hidden_norms.*", false, "each tapped hidden state has a norm of its own"},
    {false, "fc.bias", false, "fc has a bias"},
    {false, "hidden_norm.bias", false, "hidden_norm has a bias"},
    {true, "g_proj.*", false, "attention is gated, and the context is normed in each layer"},
    {true, "key_layernorm.*", false, "K is rotated before it is normed"},
    {true, "k_proj_target.*", false, "K of the context has a projection of its own"},
    {true, "v_proj_target.*", false, "V of the context has a projection of its own"},
    {true, "kv_a_proj*", true, "K and V come from a latent (MLA)"},
    {true, "kv_b_proj*", true, "K and V come from a latent (MLA)"},
    {true, "k_norm.bias", false, "the norm of K has a bias"},
    {true, "v_norm.*", false, "V is normed"},
    {true, "k_proj.lora_*", false, "an adapter is not merged into the K projection"},
    {true, "v_proj.lora_*", false, "an adapter is not merged into the V projection"},
    {true, "qkv_proj.lora_*", false, "an adapter is not merged into the projections"},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* What lies beside a weight that is stored in another form than plain numbers; beginnings of names. */
static const char *const quantized[] = {"weight_", "weight.", "input_",    "output_scale", "qweight",
                                        "qzeros",  "scales",  "scale",     "biases",       "g_idx",
                                        "k_scale", "v_scale", "zero_point"};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool matches(const char *pattern, const char *name)
{
    size_t length = strlen(pattern);
    if (pattern[length - 1] == '*') return strncmp(pattern, name, length - 1) == 0;
    return strcmp(pattern, name) == 0;
}

/* "layers.N.rest": the layer, and *rest; else -1. */
static int32_t layer_of(const char *key, const char **rest)
{
    if (!begins(key, "layers.")) return -1;
    const char *at = key + strlen("layers.");
    int32_t layer = 0;
    if (*at == '0' && at[1] != '.') return -1;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (layer > 1000000) return -1;
        layer = 10 * layer + (*at - '0');
    }
    if (*at != '.' || at[-1] == '.') return -1;
    *rest = at + 1;
    return layer;
}

static bool is_quantized(const char *beside)
{
    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++)
        if (begins(beside, quantized[i])) return true;
    return false;
}

static void refuse_quantized(const struct kv_stored *stored, int32_t layer, struct kv_findings *findings)
{
    kv_findings_fail(findings, layer, KV_WEIGHTS_QUANTIZED, stored->name,
                     kv_text("weights without scales or packing"),
                     kv_text(kv_dtype_name(stored->tensor->dtype)),
                     "%.120s belongs to a quantized form of the weights", stored->name);
}

static void check_projection(const struct kv_stored *stored, int32_t layer, const char *name, bool *explained,
                             struct kv_findings *findings)
{
    static const struct {
        const char *prefix;
        bool k, v;
    } projections[] = {{"k_proj.", true, false}, {"v_proj.", false, true}, {"qkv_proj.", true, true}};
    for (size_t i = 0; i < sizeof projections / sizeof projections[0]; i++) {
        if (!begins(name, projections[i].prefix) || !is_quantized(name + strlen(projections[i].prefix)))
            continue;
        refuse_quantized(stored, layer, findings);
        if (projections[i].k) explained[2 * layer] = true;
        if (projections[i].v) explained[2 * layer + 1] = true;
    }
}

/* The lowest layer in which each form is met, and the tensor that shows it. */
struct sighting {
    const struct kv_stored *stored;
    int32_t layer;
};

static void see(struct sighting *sightings, const struct kv_stored *stored, int32_t layer, const char *name,
                bool *explained)
{
    for (int32_t i = 0; i < FORMS; i++) {
        if (forms[i].in_layer != (layer >= 0) || !matches(forms[i].name, name)) continue;
        struct sighting *sighting = &sightings[i];
        if (!sighting->stored || layer < sighting->layer) *sighting = (struct sighting){stored, layer};
        if (forms[i].replaces) explained[2 * layer] = explained[2 * layer + 1] = true;
    }
}

void kv_forms_check(const struct kv_shards *shards, int32_t layers, bool *explained, struct kv_notes *notes,
                    struct kv_findings *findings)
{
    static const char attention[] = "self_attn.";
    struct sighting sightings[FORMS] = {{NULL, -1}};
    int32_t surplus = -1;
    for (int32_t i = 0; i < shards->tensors; i++) {
        const struct kv_stored *stored = &shards->stored[i];
        const char *rest = NULL;
        int32_t layer = layer_of(stored->key, &rest);
        if (layer < 0) {
            see(sightings, stored, -1, stored->key, explained);
            if (begins(stored->key, "fc.") && is_quantized(stored->key + strlen("fc.")))
                refuse_quantized(stored, -1, findings);
        } else if (begins(rest, attention)) {
            const char *name = rest + strlen(attention);
            if (layer >= layers) {
                if (matches("k_proj.*", name) || matches("qkv_proj.*", name))
                    surplus = layer > surplus ? layer : surplus;
                continue;
            }
            see(sightings, stored, layer, name, explained);
            check_projection(stored, layer, name, explained, findings);
        }
    }
    for (int32_t i = 0; i < FORMS; i++)
        if (sightings[i].stored)
            kv_findings_fail(findings, sightings[i].layer, KV_ARCHITECTURE_UNSUPPORTED,
                             sightings[i].stored->name, kv_text("no such tensor"), kv_text("one"),
                             "%.100s: %s, which is not computed here", sightings[i].stored->name,
                             forms[i].why);
    if (surplus >= 0)
        kv_notes_add(notes,
                     "the weights hold layers up to %d, num_hidden_layers is %d: the others are left out",
                     (int)surplus, (int)layers);
}
