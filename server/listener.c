/* Port reuse is never asked for: two daemons on one address must not both believe they serve it. */
#include "server/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512 };

/* Is somebody answering on this unix socket? Also when it is not for us to ask: only a socket that refuses is
 * one that nobody has. */
static bool is_live(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return true;
    bool live = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno != ECONNREFUSED;
    close(fd);
    return live;
}

/* The socket's file has its rights from its first moment on. */
static bool bind_unix(int fd, const struct sockaddr_un *address, mode_t mode)
{
    mode_t before = umask(0777 & ~mode);
    bool ok = bind(fd, (const struct sockaddr *)address, sizeof *address) == 0;
    umask(before);
    return ok;
}

static bool open_unix(struct kv_listener *out, const char *path, mode_t mode, struct kv_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat there;
    if (path[0] == '\0' || strlen(path) >= sizeof address.sun_path)
        return kv_fail_values(err, KV_OPTION_INVALID, "--listen", kv_none(), kv_text(path),
                              "a unix socket's path has 1 to %zu bytes", sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (lstat(path, &there) == 0) {
        if (!S_ISSOCK(there.st_mode))
            return kv_fail_param(err, KV_ADDRESS_IN_USE, "--listen", "%s exists and is no socket", path);
        if (is_live(&address))
            return kv_fail_param(err, KV_ADDRESS_IN_USE, "--listen", "another process answers on unix:%s",
                                 path);
        unlink(path); /* left behind by a process that is gone */
    }
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (out->fd < 0 || !bind_unix(out->fd, &address, mode))
        return kv_fail_param(err, KV_ADDRESS_IN_USE, "--listen", "unix:%s cannot be bound: %s", path,
                             strerror(errno));
    if (lstat(path, &there) == 0) {
        snprintf(out->unlink_path, sizeof out->unlink_path, "%s", path);
        out->unlink_device = (uint64_t)there.st_dev;
        out->unlink_inode = (uint64_t)there.st_ino;
    }
    snprintf(out->url, sizeof out->url, "unix:%s", path);
    if (listen(out->fd, BACKLOG) != 0)
        return kv_fail_param(err, KV_ADDRESS_IN_USE, "--listen", "unix:%s cannot be listened on: %s", path,
                             strerror(errno));
    return true;
}

/* Splits HOST:PORT or [HOST]:PORT. */
static bool split(const char *address, char host[KV_ADDRESS_BYTES], char port[8], struct kv_error *err)
{
    const char *colon = strrchr(address, ':');
    const char *begin = address;
    const char *end = colon;
    bool bracketed = colon && address[0] == '[' && colon > address + 1 && colon[-1] == ']';
    if (bracketed) {
        begin++;
        end--;
    }
    bool ok = colon && end > begin && (size_t)(end - begin) < KV_ADDRESS_BYTES && strlen(colon + 1) > 0 &&
              strlen(colon + 1) <= 5 && strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
              (bracketed || !memchr(begin, ':', (size_t)(end - begin)));
    if (!ok)
        return kv_fail_values(err, KV_OPTION_INVALID, "--listen",
                              kv_text("HOST:PORT, [IPV6]:PORT or unix:PATH"), kv_text(address),
                              "the address to listen on is malformed");
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

/* The URL of what was bound; the kernel chose the port where 0 was asked for. */
static void name_bound(struct kv_listener *out, const char *host)
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    char port[8] = "0";
    if (getsockname(out->fd, (struct sockaddr *)&bound, &bytes) == 0)
        getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    bool brackets = strchr(host, ':') != NULL;
    snprintf(out->url, sizeof out->url, brackets ? "%s://[%.230s]:%s" : "%s://%.230s:%s",
             out->tls ? "https" : "http", host, port);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

/* Not even bound: nobody is to reach it for a moment. */
static bool refuse_open(const char *address, struct kv_error *err)
{
    kv_fail_values(err, KV_OPTION_INVALID, "--listen", kv_text("a loopback address or unix:PATH"),
                   kv_text(address), "anybody who reaches this address could call");
    kv_error_hint(err, "Give callers keys with --api-key-file, or say --allow-anonymous where only they can "
                       "reach it.");
    return false;
}

/* A listening socket, or -1 and the cause in errno. */
static int listen_at(const struct addrinfo *at)
{
    int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    /* Only lets a restart bind beside connections in TIME_WAIT; a second listener is refused all the same. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* [::] beside 0.0.0.0 on one port, and never an address that was not asked for. */
    if (at->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static bool open_tcp(struct kv_listener *out, const char *address, const struct kv_listener_options *options,
                     struct kv_error *err)
{
    char host[KV_ADDRESS_BYTES], port[8];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    if (!split(address, host, port, err)) return false;
    if (strtoul(port, NULL, 10) > 65535)
        return kv_fail_values(err, KV_OPTION_INVALID, "--listen", kv_text("0 to 65535"), kv_text(port),
                              "no such port");
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed == EAI_MEMORY) return kv_fail(err, KV_INTERNAL, "out of memory for the address %s", address);
    if (failed != 0)
        return kv_fail_param(err, KV_OPTION_INVALID, "--listen", "%s is no address of this host: %s", address,
                             gai_strerror(failed));
    int cause = 0;
    bool reachable = false;
    for (const struct addrinfo *at = found; at; at = at->ai_next)
        reachable = reachable || !is_loopback(at->ai_addr);
    bool refused = reachable && options->loopback_only;
    for (const struct addrinfo *at = found; at && out->fd < 0 && !refused; at = at->ai_next) {
        out->fd = listen_at(at);
        cause = errno;
    }
    freeaddrinfo(found);
    if (refused) return refuse_open(address, err);
    if (out->fd < 0)
        return kv_fail_param(err, KV_ADDRESS_IN_USE, "--listen", "%s cannot be bound: %s", address,
                             strerror(cause));
    out->tls = options->tls;
    name_bound(out, host);
    return true;
}

bool kv_listener_open(struct kv_listener *out, const char *address, const struct kv_listener_options *options,
                      struct kv_error *err)
{
    static const struct kv_listener_options defaults = {.unix_mode = 0660};
    if (!options) options = &defaults;
    *out = (struct kv_listener){.fd = -1};
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    if (is_unix ? open_unix(out, address + 5, options->unix_mode, err) : open_tcp(out, address, options, err))
        return true;
    kv_listener_close(out);
    return false;
}

void kv_listener_shut(struct kv_listener *listener)
{
    if (listener->fd >= 0) shutdown(listener->fd, SHUT_RDWR);
}

void kv_listener_close(struct kv_listener *listener)
{
    if (listener->fd >= 0) close(listener->fd);
    /* While this one drained, a successor may have put its own socket there. */
    struct stat there;
    if (listener->unlink_path[0] && lstat(listener->unlink_path, &there) == 0 &&
        (uint64_t)there.st_dev == listener->unlink_device && (uint64_t)there.st_ino == listener->unlink_inode)
        unlink(listener->unlink_path);
    *listener = (struct kv_listener){.fd = -1};
}
