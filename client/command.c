/* What the commands share. Knows no command. */
#include "client/command.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef KV_VERSION
#define KV_VERSION "unknown"
#endif

const char *kv_command_version(void)
{
    return KV_VERSION;
}

const char *kv_command_url(void)
{
    const char *url = getenv("KVMAT_URL");
    return url && *url ? url : "http://127.0.0.1:8600";
}

const char *kv_command_key(void)
{
    const char *key = getenv("KVMAT_API_KEY");
    return key && *key ? key : NULL;
}

static int exit_of(const struct kv_error *err)
{
    switch ((int)err->fault) {
    case KV_OPTION_INVALID:
    case KV_FILE_UNUSABLE: return KV_EXIT_USAGE;
    case KV_SERVICE_UNREACHABLE:
    case KV_REPLY_MALFORMED: return KV_EXIT_UNREACHABLE;
    default: return KV_EXIT_NO;
    }
}

int kv_command_failed(const char *command, const struct kv_error *err)
{
    char hint[KV_MESSAGE_BYTES];
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", command, err->message);
    fprintf(stderr, "  code: %s\n", kv_fault_info(err->fault)->code);
    fprintf(stderr, "  hint: %s\n", kv_error_hint_print(err, hint, sizeof hint));
    return exit_of(err);
}

int kv_command_parsed(const struct kv_usage *usage, enum kv_parsed parsed, const struct kv_error *err)
{
    if (parsed == KV_PARSED_HELP) return KV_EXIT_OK;
    fprintf(stderr, "%s: %s\nTry `%s --help`.\n", usage->command, err->message, usage->command);
    return KV_EXIT_USAGE;
}
