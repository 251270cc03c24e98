/* The daemon's options: one table of flag, range, default and help; flag beats environment beats default. */
#ifndef KV_SERVER_OPTIONS_H
#define KV_SERVER_OPTIONS_H

#include "server/listener.h"

#include <stdio.h>

struct kv_options {
    const char *model;
    const char *listen[KV_LISTENERS_MAX];
    int32_t listens;
    char listen_text[1024];   /* what `listen` points into where it comes from the environment */
    const char *admin_listen; /* NULL: none */
    const char *device, *name;
    const char *api_key_file, *tls_cert, *tls_key; /* paths; NULL: none */
    int64_t unix_mode;
    int64_t max_position, max_tokens, max_body, pool_bytes, max_queue, max_connections, max_batch_tokens,
        batch_delay_us, spin_us;
    double rope_theta, rope_attention_factor;                         /* 0 and -1: from the config */
    int64_t drain_timeout, drain_grace, idle_timeout, device_timeout; /* seconds */
    bool tune, log_json, allow_anonymous, check, version, help;
};

/* Reads the environment, then the arguments. Strings are borrowed from them and from *out, which must not be
 * moved. option_invalid names the option, what was expected and what was got. */
bool kv_options_parse(struct kv_options *out, int argc, char *const *argv,
                      struct kv_error *err) KV_MUST_CHECK;

/* Splits --device: "cuda:1" is "cuda" and ordinal 1. Parsed options always pass. */
bool kv_options_device(const struct kv_options *options, char name[16], int32_t *ordinal,
                       struct kv_error *err) KV_MUST_CHECK;

void kv_options_print_help(FILE *to);

#endif
