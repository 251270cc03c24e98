/* The parts of config.json that have a file of their own. Private to server/config*.c. */
#ifndef KV_SERVER_CONFIG_SECTIONS_H
#define KV_SERVER_CONFIG_SECTIONS_H

#include "server/config.h"
#include "server/config_json.h"

/* Where keys may be. In the plain layout `decoder` is the whole file and `root` is empty; in the speculators
 * layout `decoder` is transformer_layer_config and `root` what is around it. */
struct kv_sections {
    struct kv_object decoder, root, dflash;
};

enum { KV_ROPE_SOURCES = 5 };

/* What one layer type's dicts say of RoPE, and how much of it is known. */
struct kv_rope_group {
    char layer_type[64];                      /* "": there is one dict for all layers */
    int32_t first_layer;                      /* that names it; -1: none does */
    struct kv_object source[KV_ROPE_SOURCES]; /* in the order of enum kv_rope_source */
    struct kv_rope rope; /* as the config has it: no option and no backbone_rotary_base */
    bool theta_known, rotary_known, scaling_known, pairing_known, type_known;
    char theta_path[KV_PARAM_BYTES];
    const char *attention_from; /* where rope.attention_factor comes from, for the log */
};

enum kv_rope_source {
    KV_ROPE_TOP,        /* the decoder's own keys */
    KV_ROPE_PARAMETERS, /* the rope_parameters dict */
    KV_ROPE_SCALING,    /* the rope_scaling dict */
    KV_ROPE_DFLASH,     /* dflash_config */
    KV_ROPE_ROOT        /* around the decoder */
};

/* Fills group->rope and what is known of it from its sources. `theta_settled`: a base is given elsewhere, so
 * that its spellings may be absent or disagree. */
void kv_rope_group_read(struct kv_rope_group *group, const struct kv_config *config, bool theta_settled,
                        struct kv_findings *findings);

/* Scaling: the type and what the type needs. */
void kv_rope_group_scaling(struct kv_rope_group *group, const struct kv_config *config,
                           struct kv_findings *findings);

/* One number that several sources may give: bits of `sources` are 1 << enum kv_rope_source. Sources that
 * disagree are config_invalid unless `settled`. `path` gets where it was found. */
enum kv_key kv_rope_group_number(const struct kv_rope_group *group, unsigned sources, const char *key,
                                 double min, const char *expected, bool settled, double *out,
                                 char path[KV_PARAM_BYTES], struct kv_findings *findings);

/* Everything about RoPE: groups, layer types, differences between layers, options; fills config->rope. */
void kv_config_rope(struct kv_config *config, const struct kv_sections *sections,
                    const struct kv_checkpoint_options *options, struct kv_notes *notes,
                    struct kv_findings *findings);

/* weights_quantized when a quantization_config covers a K or V projection. */
void kv_config_quantized(const struct kv_config *config, const struct kv_sections *sections,
                         struct kv_findings *findings);

#endif
