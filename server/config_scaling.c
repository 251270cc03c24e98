/* What one rope dict, and the keys beside it, say: theta, rotary_dim, pairing, type and scaling, in every
 * spelling. A value that is given in two places must be the same in both. Knows one layer type at a time. */
#include "server/config_sections.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include <jansson.h>

enum {
    TOP = 1 << KV_ROPE_TOP,
    DICTS = 1 << KV_ROPE_PARAMETERS | 1 << KV_ROPE_SCALING,
    ANY = TOP | DICTS | 1 << KV_ROPE_DFLASH | 1 << KV_ROPE_ROOT
};

static const double positive = (double)FLT_MIN, largest = 1e30;
static const char over_zero[] = "a number over 0, at most 1e30";

/* Where a key is missing: a layer only if layers have dicts of their own. */
static int32_t layer_of(const struct kv_rope_group *group)
{
    return group->layer_type[0] ? group->first_layer : -1;
}

static void disagree(const char *first_path, const char *path, struct kv_value first, struct kv_value second,
                     const char *hint, struct kv_findings *findings)
{
    struct kv_error error = {0};
    kv_fail_values(&error, KV_CONFIG_INVALID, path, first, second, "%s and %s disagree", first_path, path);
    kv_error_hint(&error, "%s", hint);
    kv_findings_add(findings, -1, &error);
}

enum kv_key kv_rope_group_number(const struct kv_rope_group *group, unsigned sources, const char *key,
                                 double min, const char *expected, bool settled, double *out,
                                 char path[KV_PARAM_BYTES], struct kv_findings *findings)
{
    enum kv_key result = KV_KEY_ABSENT;
    for (int32_t i = 0; i < KV_ROPE_SOURCES; i++) {
        double number = 0;
        if (!(sources & 1u << i)) continue;
        enum kv_key found = kv_key_number(&group->source[i], key, min, largest, expected, &number, findings);
        if (found == KV_KEY_WRONG) result = KV_KEY_WRONG;
        if (found != KV_KEY_FOUND || result == KV_KEY_WRONG) continue;
        char here[KV_PARAM_BYTES];
        kv_key_path(&group->source[i], key, here);
        if (result == KV_KEY_ABSENT) {
            memcpy(path, here, sizeof here);
            *out = number;
            result = KV_KEY_FOUND;
        } else if (number != *out && !settled) {
            bool theta = strcmp(key, "rope_theta") == 0;
            disagree(
                path, here, kv_real(*out), kv_real(number),
                theta ? "Exports exist whose flat value is a stale default: find out which one the model was "
                        "trained with and give it with --rope-theta, or take the other out of config.json."
                      : "Take the wrong one out of config.json.",
                findings);
            result = KV_KEY_WRONG;
        }
    }
    return result;
}

static void read_theta(struct kv_rope_group *group, bool settled, struct kv_findings *findings)
{
    enum kv_key key = kv_rope_group_number(group, TOP | DICTS, "rope_theta", positive, over_zero, settled,
                                           &group->rope.theta, group->theta_path, findings);
    group->theta_known = key == KV_KEY_FOUND;
    if (key != KV_KEY_ABSENT || settled) return;
    char path[KV_PARAM_BYTES];
    struct kv_error error = {0};
    kv_key_path(&group->source[KV_ROPE_TOP], "rope_theta", path);
    kv_fail_values(&error, KV_CONFIG_MISSING_KEY, path, kv_text("a number above 0"), kv_text("nothing"),
                   "config.json gives no %s%s%s", path, group->layer_type[0] ? " for layers of type " : "",
                   group->layer_type);
    kv_error_hint(&error, "Add %s to config.json, or give it with --rope-theta.", path);
    kv_findings_add(findings, layer_of(group), &error);
}

/* Both keys, in every place, must say the same. */
static void read_pairing(struct kv_rope_group *group, struct kv_findings *findings)
{
    static const char *const keys[] = {"rope_is_neox_style", "is_neox_style"};
    bool neox = true, said = false;
    char first[KV_PARAM_BYTES] = "", here[KV_PARAM_BYTES];
    group->pairing_known = true;
    for (int32_t i = 0; i < KV_ROPE_SOURCES; i++) {
        for (int32_t k = 0; k < 2; k++) {
            bool value = true;
            enum kv_key key = kv_key_flag(&group->source[i], keys[k], &value, findings);
            if (key == KV_KEY_WRONG) group->pairing_known = false;
            if (key != KV_KEY_FOUND) continue;
            kv_key_path(&group->source[i], keys[k], here);
            if (said && value != neox) {
                disagree(first, here, kv_text(neox ? "true" : "false"), kv_text(value ? "true" : "false"),
                         "Take the wrong one out of config.json.", findings);
                group->pairing_known = false;
            } else if (!said) {
                memcpy(first, here, sizeof first);
                neox = value;
                said = true;
            }
        }
    }
    group->rope.interleaved = !neox;
}

static void refuse_rotary(const struct kv_rope_group *group, const struct kv_config *config,
                          const char *param, double rotary, struct kv_findings *findings)
{
    char expected[KV_TEXT_BYTES];
    bool whole = fabs(rotary) < 1e15;
    snprintf(expected, sizeof expected, "an even number from 2 to head_dim %d", (int)config->head_dim);
    kv_findings_fail(findings, group->first_layer, KV_ROTARY_DIM_INVALID, param, kv_text(expected),
                     whole ? kv_integer((int64_t)rotary) : kv_real(rotary),
                     "rotary_dim (head_dim * partial_rotary_factor) does not fit heads of %d",
                     (int)config->head_dim);
}

/* An explicit rotary_dim is no spelling that decides, but one that contradicts must not pass unseen. */
static void read_rotary(struct kv_rope_group *group, const struct kv_config *config,
                        struct kv_findings *findings)
{
    double partial = 1, explicit_dim = 0;
    char path[KV_PARAM_BYTES] = "head_dim", explicit_path[KV_PARAM_BYTES];
    enum kv_key key = kv_rope_group_number(group, TOP | DICTS, "partial_rotary_factor", -largest, "a number",
                                           false, &partial, path, findings);
    if (key == KV_KEY_WRONG || config->head_dim == 0) return;
    double rotary = trunc(config->head_dim * partial);
    if (!(rotary >= 2 && rotary <= config->head_dim) || fmod(rotary, 2) != 0) {
        refuse_rotary(group, config, path, rotary, findings);
        return;
    }
    group->rope.rotary_dim = (int64_t)rotary;
    group->rotary_known = true;
    key = kv_rope_group_number(group, TOP | DICTS, "rotary_dim", -largest, "a number", false, &explicit_dim,
                               explicit_path, findings);
    if (key != KV_KEY_FOUND || explicit_dim == rotary) return;
    struct kv_error error = {0};
    kv_fail_values(&error, KV_ROTARY_DIM_INVALID, explicit_path, kv_integer(group->rope.rotary_dim),
                   kv_real(explicit_dim), "%s is not head_dim * partial_rotary_factor", explicit_path);
    kv_error_hint(&error,
                  "Say which part of a head is rotated with partial_rotary_factor = rotary_dim / head_dim.");
    kv_findings_add(findings, group->first_layer, &error);
}

void kv_rope_group_read(struct kv_rope_group *group, const struct kv_config *config, bool theta_settled,
                        struct kv_findings *findings)
{
    group->rope.attention_factor = 1;
    group->attention_from = "default";
    read_theta(group, theta_settled, findings);
    read_pairing(group, findings);
    read_rotary(group, config, findings);
    kv_rope_group_scaling(group, config, findings);
}

static bool refuse_type(const struct kv_rope_group *group, const char *path, const char *type,
                        struct kv_findings *findings)
{
    return kv_findings_fail(findings, group->first_layer, KV_ROPE_TYPE_UNSUPPORTED, path,
                            kv_text("default, linear, yarn or llama3"), kv_text(type),
                            "the rope type %.64s is not computed here", type);
}

/* False when the type is not known; then a finding says why. */
static bool read_type(struct kv_rope_group *group, struct kv_findings *findings)
{
    static const char *const keys[] = {"rope_type", "type"};
    const char *said = NULL;
    char first[KV_PARAM_BYTES] = "", here[KV_PARAM_BYTES];
    bool scaled = false;
    for (int32_t i = KV_ROPE_PARAMETERS; i <= KV_ROPE_SCALING; i++) {
        const struct kv_object *dict = &group->source[i];
        const json_t *sections = json_object_get(dict->json, "mrope_section");
        if (sections && !json_is_null(sections))
            return refuse_type(group, kv_key_path(dict, "mrope_section", here), "mrope", findings);
        const json_t *factor = json_object_get(dict->json, "factor");
        if (factor && !json_is_null(factor)) scaled = true;
        for (int32_t k = 0; k < 2; k++) {
            const char *type = NULL;
            enum kv_key key = kv_key_text(dict, keys[k], &type, findings);
            if (key == KV_KEY_WRONG) return false;
            if (key == KV_KEY_ABSENT) continue;
            kv_key_path(dict, keys[k], here);
            if (!kv_rope_type_find(type, &group->rope.type)) return refuse_type(group, here, type, findings);
            if (said && strcmp(said, type) != 0) {
                disagree(first, here, kv_text(said), kv_text(type), "Take the wrong one out of config.json.",
                         findings);
                return false;
            }
            if (!said) memcpy(first, here, sizeof first);
            said = type;
        }
    }
    if (said || !scaled) return true;
    return kv_findings_fail(findings, layer_of(group), KV_CONFIG_MISSING_KEY, "rope_type",
                            kv_text("linear, yarn or llama3"), kv_text("nothing"),
                            "config.json scales RoPE by a factor and does not say of which rope_type");
}

/* A number that the type cannot do without. */
static bool required(struct kv_rope_group *group, const char *key, double min, const char *expected,
                     double *out, struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    enum kv_key found = kv_rope_group_number(group, DICTS, key, min, expected, false, out, path, findings);
    if (found != KV_KEY_ABSENT) return found == KV_KEY_FOUND;
    const struct kv_object *dict =
        &group->source[group->source[KV_ROPE_PARAMETERS].json ? KV_ROPE_PARAMETERS : KV_ROPE_SCALING];
    kv_key_path(dict, key, path);
    return kv_findings_fail(findings, layer_of(group), KV_CONFIG_MISSING_KEY, path, kv_text(expected),
                            kv_text("nothing"), "config.json has no %s, which rope type %s needs", path,
                            kv_rope_type_name(group->rope.type));
}

/* False when it is there and wrong. */
static bool optional(struct kv_rope_group *group, const char *key, double min, const char *expected,
                     double *out, struct kv_findings *findings)
{
    char path[KV_PARAM_BYTES];
    return kv_rope_group_number(group, DICTS, key, min, expected, false, out, path, findings) != KV_KEY_WRONG;
}

static bool read_original(struct kv_rope_group *group, const struct kv_config *config,
                          struct kv_findings *findings)
{
    static const char key[] = "original_max_position_embeddings";
    static const int32_t order[] = {KV_ROPE_PARAMETERS, KV_ROPE_SCALING, KV_ROPE_TOP};
    char first[KV_PARAM_BYTES] = "", here[KV_PARAM_BYTES];
    int64_t original = config->positions, value = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        enum kv_key found =
            kv_key_integer(&group->source[order[i]], key, 1, KV_POSITIONS_MAX, &value, findings);
        if (found == KV_KEY_WRONG) return false;
        if (found == KV_KEY_ABSENT) continue;
        kv_key_path(&group->source[order[i]], key, here);
        if (first[0] && value != original) {
            disagree(first, here, kv_integer(original), kv_integer(value),
                     "Take the wrong one out of config.json.", findings);
            return false;
        }
        memcpy(first, here, sizeof first);
        original = value;
    }
    group->rope.original_positions = (double)original;
    return original > 0;
}

static bool read_truncate(struct kv_rope_group *group, struct kv_findings *findings)
{
    char first[KV_PARAM_BYTES] = "", here[KV_PARAM_BYTES];
    bool value = true;
    group->rope.truncate = true;
    for (int32_t i = KV_ROPE_PARAMETERS; i <= KV_ROPE_SCALING; i++) {
        enum kv_key found = kv_key_flag(&group->source[i], "truncate", &value, findings);
        if (found == KV_KEY_WRONG) return false;
        if (found == KV_KEY_ABSENT) continue;
        kv_key_path(&group->source[i], "truncate", here);
        if (first[0] && value != group->rope.truncate) {
            disagree(first, here, kv_text(value ? "false" : "true"), kv_text(value ? "true" : "false"),
                     "Take the wrong one out of config.json.", findings);
            return false;
        }
        memcpy(first, here, sizeof first);
        group->rope.truncate = value;
    }
    return true;
}

static bool read_yarn(struct kv_rope_group *group, struct kv_findings *findings)
{
    struct kv_rope *rope = &group->rope;
    double mscale = 0, mscale_all_dim = 0, attention = -1;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    bool good = optional(group, "beta_fast", positive, over_zero, &rope->beta_fast, findings);
    good &= optional(group, "beta_slow", positive, over_zero, &rope->beta_slow, findings);
    good &= read_truncate(group, findings);
    good &= optional(group, "mscale", 0, "a number of at least 0", &mscale, findings);
    good &= optional(group, "mscale_all_dim", 0, "a number of at least 0", &mscale_all_dim, findings);
    good &= optional(group, "attention_factor", 0, "a number of at least 0", &attention, findings);
    if (!good) return false;
    bool ratio = mscale != 0 && mscale_all_dim != 0;
    rope->attention_factor =
        attention >= 0 ? attention : kv_rope_yarn_attention(rope->factor, mscale, mscale_all_dim);
    group->attention_from = attention >= 0 ? "attention_factor of the config"
                            : ratio        ? "mscale over mscale_all_dim"
                                           : "yarn's default";
    return true;
}

static bool read_llama3(struct kv_rope_group *group, struct kv_findings *findings)
{
    struct kv_rope *rope = &group->rope;
    bool low = required(group, "low_freq_factor", positive, over_zero, &rope->low_freq_factor, findings);
    bool high = required(group, "high_freq_factor", positive, over_zero, &rope->high_freq_factor, findings);
    if (!low || !high || rope->high_freq_factor > rope->low_freq_factor) return low && high;
    return kv_findings_fail(findings, layer_of(group), KV_CONFIG_INVALID, "high_freq_factor",
                            kv_text("more than low_freq_factor"), kv_real(rope->high_freq_factor),
                            "high_freq_factor is not over low_freq_factor %g", rope->low_freq_factor);
}

void kv_rope_group_scaling(struct kv_rope_group *group, const struct kv_config *config,
                           struct kv_findings *findings)
{
    group->type_known = read_type(group, findings);
    if (!group->type_known) return;
    bool good = true;
    enum kv_rope_type type = group->rope.type;
    if (type != KV_ROPE_DEFAULT)
        good = required(group, "factor", 1, "a number from 1 to 1e30", &group->rope.factor, findings);
    if (type == KV_ROPE_YARN || type == KV_ROPE_LLAMA3) good &= read_original(group, config, findings);
    if (type == KV_ROPE_YARN) good &= read_yarn(group, findings);
    if (type == KV_ROPE_LLAMA3) good &= read_llama3(group, findings);
    group->scaling_known = good;
}
