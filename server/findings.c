/* The list of findings: grows by doubling, never loses the fact that something was found. */
#include "server/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void kv_findings_init(struct kv_findings *findings)
{
    *findings = (struct kv_findings){.room = 1, .item = &findings->first};
    pthread_mutex_init(&findings->lock, NULL);
}

void kv_findings_free(struct kv_findings *findings)
{
    if (findings->item != &findings->first) free(findings->item);
    pthread_mutex_destroy(&findings->lock);
    findings->item = NULL;
    findings->count = findings->room = 0;
}

static bool grow(struct kv_findings *findings)
{
    int32_t room = findings->room < 8 ? 16 : 2 * findings->room;
    if (room > KV_FINDINGS_MAX) room = KV_FINDINGS_MAX;
    struct kv_finding *item = malloc((size_t)room * sizeof *item);
    if (!item) return false;
    memcpy(item, findings->item, (size_t)findings->count * sizeof *item);
    if (findings->item != &findings->first) free(findings->item);
    findings->item = item;
    findings->room = room;
    return true;
}

bool kv_findings_add(struct kv_findings *findings, int32_t layer, const struct kv_error *error)
{
    pthread_mutex_lock(&findings->lock);
    if (findings->count < KV_FINDINGS_MAX) {
        if (findings->count == findings->room && !grow(findings)) findings->count--;
        findings->item[findings->count++] = (struct kv_finding){.layer = layer, .error = *error};
    }
    pthread_mutex_unlock(&findings->lock);
    return false;
}

bool kv_findings_fail(struct kv_findings *findings, int32_t layer, enum kv_fault fault, const char *param,
                      struct kv_value expected, struct kv_value got, const char *format, ...)
{
    char sentence[KV_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    struct kv_error error = {0};
    kv_fail_values(&error, fault, param, expected, got, "%s", sentence);
    return kv_findings_add(findings, layer, &error);
}
