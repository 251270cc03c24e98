/* Listening sockets: HOST:PORT or unix:PATH, bound before anything slow begins. Knows no HTTP and no TLS. */
#ifndef KV_SERVER_LISTENER_H
#define KV_SERVER_LISTENER_H

#include "protocol/error.h"

#include <sys/types.h>

enum { KV_LISTENERS_MAX = 8, KV_ADDRESS_BYTES = 256 };

struct kv_listener {
    int fd;                               /* listening; -1: none */
    bool tls;                             /* who accepts here speaks TLS; never on a unix socket */
    char url[KV_ADDRESS_BYTES];           /* as a client takes it, with the port that was really bound */
    char unlink_path[KV_ADDRESS_BYTES];   /* of a unix socket, "" for TCP */
    uint64_t unlink_device, unlink_inode; /* the path is removed only while it is still this socket */
};

/* How to listen. */
struct kv_listener_options {
    mode_t unix_mode;   /* rights of a unix socket */
    bool tls;           /* TCP listeners are https:// */
    bool loopback_only; /* a TCP address that others than this host reach is refused, as option_invalid */
};

/* Binds and listens. "127.0.0.1:8600", "[::1]:8600", "localhost:0" (any free port), "unix:/run/kvmat.sock". A
 * unix socket that nobody answers on is replaced; a live one, or a path that is no socket, is address_in_use.
 * An IPv6 address takes no IPv4. A malformed address is option_invalid. `options` NULL: 0660, plain, any
 * address. The process's umask changes for a moment: call it while no other thread makes files. */
bool kv_listener_open(struct kv_listener *out, const char *address, const struct kv_listener_options *options,
                      struct kv_error *err) KV_MUST_CHECK;

/* Lets no new client in; those connecting are refused. */
void kv_listener_shut(struct kv_listener *listener);
/* Closes and, for a unix socket, removes the path. */
void kv_listener_close(struct kv_listener *listener);

#endif
