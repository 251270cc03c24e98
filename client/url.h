/* Where a daemon listens, as the user writes it. Knows no socket. */
#ifndef KV_CLIENT_URL_H
#define KV_CLIENT_URL_H

#include "protocol/error.h"

enum { KV_URL_HOST_BYTES = 256, KV_URL_PATH_BYTES = 108, KV_URL_TEXT_BYTES = 320 };

struct kv_url {
    bool is_unix;
    char host[KV_URL_HOST_BYTES];      /* a name or an address, without brackets; "" for unix */
    char port[6];                      /* decimal, "" for unix */
    char path[KV_URL_PATH_BYTES];      /* of the unix socket, "" for TCP */
    char authority[KV_URL_TEXT_BYTES]; /* for the Host header */
    char text[KV_URL_TEXT_BYTES];      /* as messages show it */
};

/* Parses http://HOST:PORT, http://[IPV6]:PORT or unix:PATH; anything else is option_invalid. */
bool kv_url_parse(struct kv_url *url, const char *text, struct kv_error *err) KV_MUST_CHECK;

#endif
