/* A socket of our own instead of a library: the protocol is one sendto. */
#include "server/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A positive number and nothing else, or 0. */
static int64_t number(const char *text)
{
    char *end = NULL;
    if (!text || text[0] < '0' || text[0] > '9') return 0;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno || *end ? 0 : value;
}

/* "/path" or "@abstract", whose first byte on the wire is NUL. */
static bool read_address(struct kv_notify *notify, const char *text)
{
    size_t bytes = text ? strlen(text) : 0;
    if (bytes < 2 || bytes >= sizeof notify->to.sun_path || (text[0] != '/' && text[0] != '@')) return false;
    notify->to.sun_family = AF_UNIX;
    memcpy(notify->to.sun_path, text, bytes);
    if (text[0] == '@') notify->to.sun_path[0] = '\0';
    bool ends = text[0] == '/'; /* a path ends with NUL, an abstract name with its length */
    notify->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + ends);
    return true;
}

void kv_notify_open(struct kv_notify *notify)
{
    const char *pid = getenv("WATCHDOG_PID");
    *notify = (struct kv_notify){.fd = -1};
    if (read_address(notify, getenv("NOTIFY_SOCKET")))
        notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (notify->fd >= 0 && (!pid || number(pid) == getpid()))
        notify->watchdog_us = number(getenv("WATCHDOG_USEC"));
    /* They were meant for this process alone. */
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

bool kv_notify_send(const struct kv_notify *notify, const char *format, ...)
{
    char text[512];
    if (notify->fd < 0) return true;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (wanted < 0) return false;
    size_t bytes = (size_t)wanted < sizeof text ? (size_t)wanted : sizeof text - 1;
    return sendto(notify->fd, text, bytes, MSG_NOSIGNAL, (const struct sockaddr *)&notify->to,
                  notify->to_bytes) == (ssize_t)bytes;
}

void kv_notify_close(struct kv_notify *notify)
{
    if (notify->fd >= 0) close(notify->fd);
    notify->fd = -1;
}
