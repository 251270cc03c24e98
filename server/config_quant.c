/* quantization_config: does it cover a K or V projection? Only a list of exceptions that names them in words
 * or with simple patterns counts; what is not understood counts as covering. Knows no tensors. */
#include "server/config_sections.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

enum { PATTERN_BYTES = 256 };

/* Does the whole name fit a pattern in which * stands for any text and ? for one character? */
static bool fits(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

/* A regular expression of the plain kind as a pattern: literals, \. and ., .* and \d+; anchored at its start.
 * False for anything else. */
static bool pattern_of(const char *expression, char to[PATTERN_BYTES])
{
    size_t n = 0;
    if (*expression == '^') expression++;
    for (const char *at = expression; *at; at++) {
        if (n + 2 >= PATTERN_BYTES) return false;
        if (at[0] == '$' && at[1] == '\0') {
            to[n] = '\0';
            return true;
        }
        if (at[0] == '.' && (at[1] == '*' || at[1] == '+')) {
            to[n++] = '*';
            at++;
        } else if (at[0] == '\\' && at[1] == 'd') {
            to[n++] = at[2] == '+' || at[2] == '*' ? '*' : '?';
            at += at[2] == '+' || at[2] == '*' ? 2 : 1;
        } else if (at[0] == '\\' && at[1] == '.') {
            to[n++] = '.';
            at++;
        } else if (at[0] == '.') {
            to[n++] = '?';
        } else if (strchr("\\*+?()[]{}|^$", at[0])) {
            return false;
        } else {
            to[n++] = at[0];
        }
    }
    to[n++] = '*';
    to[n] = '\0';
    return true;
}

/* Do the words of `entry` between dots occur in a row in `module`? */
static bool names_part(const char *entry, const char *module)
{
    size_t length = strlen(entry);
    if (length == 0) return false;
    for (const char *at = strstr(module, entry); at; at = strstr(at + 1, entry))
        if ((at == module || at[-1] == '.') && (at[length] == '\0' || at[length] == '.')) return true;
    return false;
}

static bool excludes(const char *entry, const char *module /* begins with "model." */)
{
    const char *bare = module + strlen("model.");
    char pattern[PATTERN_BYTES];
    if (strcmp(entry, "Linear") == 0) return true;
    if (strlen(entry) >= PATTERN_BYTES) return false;
    if (strncmp(entry, "re:", 3) == 0)
        return pattern_of(entry + 3, pattern) && (fits(pattern, module) || fits(pattern, bare));
    if (strchr(entry, '*')) return fits(entry, module) || fits(entry, bare);
    return names_part(entry, module);
}

static bool list_excludes(const json_t *list, const char *module)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *entry = json_string_value(json_array_get(list, i));
        if (entry && excludes(entry, module)) return true;
    }
    return false;
}

static bool excluded(const json_t *quantization, int32_t layer, const char *projection)
{
    static const char *const keys[] = {"ignore", "modules_to_not_convert", "ignored_layers",
                                       "exclude_modules"};
    char module[PATTERN_BYTES];
    snprintf(module, sizeof module, "model.layers.%d.self_attn.%s", (int)layer, projection);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (list_excludes(json_object_get(quantization, keys[i]), module)) return true;
    return false;
}

void kv_config_quantized(const struct kv_config *config, const struct kv_sections *sections,
                         struct kv_findings *findings)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    const struct kv_object *const places[] = {&sections->decoder, &sections->root};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            struct kv_object quantization = {0};
            if (kv_key_object(places[i], keys[k], &quantization, findings) != KV_KEY_FOUND) continue;
            if (json_object_size(quantization.json) == 0) continue;
            int32_t layer = 0;
            while (layer < config->layers && (excluded(quantization.json, layer, "qkv_proj") ||
                                              (excluded(quantization.json, layer, "k_proj") &&
                                               excluded(quantization.json, layer, "v_proj"))))
                layer++;
            if (config->layers > 0 && layer == config->layers) continue;
            struct kv_value method = kv_json_value(json_object_get(quantization.json, "quant_method"));
            kv_findings_fail(findings, config->layers ? layer : -1, KV_WEIGHTS_QUANTIZED, quantization.path,
                             kv_text("K and V projections in its list of exceptions"), method,
                             "%s covers K and V projections", quantization.path);
        }
    }
}
