/* What a service manager is told, by systemd's protocol: datagrams of NAME=value lines to the socket that the
 * environment names. Without such a socket every call does nothing. One thread. */
#ifndef KV_SERVER_NOTIFY_H
#define KV_SERVER_NOTIFY_H

#include "protocol/error.h"

#include <sys/socket.h>
#include <sys/un.h>

struct kv_notify {
    int fd; /* -1: nobody wants to know */
    struct sockaddr_un to;
    socklen_t to_bytes;
    int64_t watchdog_us; /* WATCHDOG=1 is to be said more often than this; 0: not at all */
};

/* Reads NOTIFY_SOCKET (a path, or '@' and an abstract name), WATCHDOG_USEC and WATCHDOG_PID, and takes them
 * out of the environment. What is not well-formed there is as if it were not there. */
void kv_notify_open(struct kv_notify *notify);
/* Sends lines, at most 511 bytes. False when they did not get there, now: call again. True without a socket.
 */
bool kv_notify_send(const struct kv_notify *notify, const char *format, ...) KV_PRINTF(2, 3);
void kv_notify_close(struct kv_notify *notify);

#endif
