/* From names, shapes and the config to a geometry and the places of its parts. */
#include "server/layout.h"

#include "server/forms.h"

#include <stdlib.h>

/* Parts are told by elements: those of V follow K's, and K's follow Q's, where the tensor is fused. */
static void measure(struct kv_layout *layout, const struct kv_config *config)
{
    uint64_t hidden = (uint64_t)config->hidden;
    uint64_t q_rows = (uint64_t)config->heads * (uint64_t)config->head_dim;
    uint64_t rows = (uint64_t)config->kv_heads * (uint64_t)config->head_dim;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        for (int32_t part = 0; part < KV_LAYER_PLACES; part++) {
            struct kv_place *place = kv_layout_place(layout, layer, (enum kv_part)part);
            bool weight = part == KV_PART_K_WEIGHT || part == KV_PART_V_WEIGHT;
            bool v = part == KV_PART_V_WEIGHT || part == KV_PART_V_BIAS;
            uint64_t columns = weight ? hidden : 1;
            place->first = place->fused ? (q_rows + (v ? rows : 0)) * columns : 0;
            place->elements = part == KV_PART_K_NORM ? (uint64_t)config->head_dim : rows * columns;
        }
    }
    layout->fc.elements = hidden * (uint64_t)layout->geometry.taps * hidden;
    layout->hidden_norm.elements = hidden;
}

static void describe(struct kv_layout *layout, const struct kv_config *config, struct kv_notes *notes)
{
    struct kv_geometry *geometry = &layout->geometry;
    if (geometry->dtype == KV_F32) {
        kv_notes_add(notes, "weights are F32: converted to BF16");
        geometry->dtype = KV_BF16;
    } else if (layout->fc.stored && layout->fc.stored->tensor->dtype == KV_F32) {
        kv_notes_add(notes, "fc is F32: converted to %s", kv_dtype_name(geometry->dtype));
    }
    geometry->layers = config->layers;
    geometry->kv_heads = config->kv_heads;
    geometry->head_dim = config->head_dim;
    geometry->rotary_dim = (int32_t)config->rope.rotary_dim;
    geometry->hidden = config->hidden;
    geometry->positions = config->positions;
    geometry->k_norm = kv_layout_place(layout, 0, KV_PART_K_NORM)->stored != NULL;
    geometry->k_bias = kv_layout_place(layout, 0, KV_PART_K_BIAS)->stored != NULL;
    geometry->v_bias = kv_layout_place(layout, 0, KV_PART_V_BIAS)->stored != NULL;
    geometry->interleaved = config->rope.interleaved;
    geometry->value_scale = (float)config->value_scale;
    geometry->attention_factor = (float)config->rope.attention_factor;
    geometry->hidden_norm_eps = (float)config->eps;
    if ((geometry->k_bias || geometry->v_bias) && !config->attention_bias)
        kv_notes_add(notes, "K or V biases are stored, so they are used, though attention_bias is not true");
    if (!geometry->k_norm) kv_notes_add(notes, "no k_norm is stored: K is not normed");
    if (config->value_scale != 1)
        kv_notes_add(notes, "V is multiplied by attention_value_scale %g", config->value_scale);
    if (geometry->taps == 0)
        kv_notes_add(notes, "no fc is stored: requests bring hidden_states, not target_hidden");
}

bool kv_layout_make(struct kv_layout *layout, const struct kv_shards *shards, const struct kv_config *config,
                    struct kv_notes *notes, struct kv_findings *findings)
{
    int32_t before = findings->count;
    /* Names give much away though it is not known how many layers there are to be. */
    int32_t layers = config->layers ? config->layers : KV_LAYERS_MAX;
    bool *explained = calloc(2 * (size_t)layers, sizeof *explained);
    layout->place = calloc((size_t)layers * KV_LAYER_PLACES, sizeof *layout->place);
    if (explained && layout->place) {
        kv_forms_check(shards, layers, explained, notes, findings);
        kv_layout_find(layout, shards, config, explained, findings);
        kv_layout_check(layout, config, findings);
        kv_layout_fc(layout, config, findings);
    } else {
        kv_findings_fail(findings, -1, KV_INTERNAL, NULL, kv_none(), kv_none(),
                         "out of memory for the layout");
    }
    free(explained);
    if (config->layers == 0 || findings->count > before) return false;
    measure(layout, config);
    describe(layout, config, notes);
    return true;
}

void kv_layout_free(struct kv_layout *layout)
{
    free(layout->place);
    *layout = (struct kv_layout){0};
}
