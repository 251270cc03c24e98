/* Connecting, and moving bytes over a non-blocking socket with time limits. Knows no HTTP. */
#include "client/channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t kv_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until `until_ms` of the clock (0: no limit), through interruptions. 0: time is up. */
static short wait_until(int fd, short events, int64_t until_ms)
{
    struct pollfd entry = {.fd = fd, .events = events};
    for (;;) {
        int wait = -1;
        if (until_ms > 0) {
            int64_t left = until_ms - kv_clock_ms();
            wait = left <= 0 ? 0 : left > 1000000 ? 1000000 : (int)left;
        }
        int count = poll(&entry, 1, wait);
        if (count > 0) return entry.revents;
        if (count < 0 && errno != EINTR && errno != EAGAIN) return POLLERR;
        if (until_ms > 0 && kv_clock_ms() >= until_ms) return 0;
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    if (a == 0) return b;
    if (b == 0) return a;
    return a < b ? a : b;
}

/* Starts one connection; returns its descriptor or -1 with the cause in errno. */
static int dial(const struct sockaddr *address, socklen_t bytes, int family, int64_t until_ms)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int cause = 0;
    if (connect(fd, address, bytes) != 0) {
        cause = errno;
        if (cause == EINPROGRESS || cause == EINTR) {
            socklen_t size = sizeof cause;
            if (wait_until(fd, POLLOUT, until_ms) == 0) {
                cause = ETIMEDOUT;
            } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &size) != 0) {
                cause = errno;
            }
        }
    }
    if (cause == 0) return fd;
    close(fd);
    errno = cause;
    return -1;
}

static bool unreachable(const struct kv_channel *channel, const char *why, struct kv_error *err)
{
    return kv_fail_param(err, KV_SERVICE_UNREACHABLE, "url", "Cannot connect to %s: %s", channel->url->text,
                         why);
}

static bool connect_unix(struct kv_channel *channel, int64_t until_ms, struct kv_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static_assert(sizeof address.sun_path == KV_URL_PATH_BYTES, "a parsed path fits");
    memcpy(address.sun_path, channel->url->path, sizeof address.sun_path);
    channel->fd = dial((const struct sockaddr *)&address, sizeof address, AF_UNIX, until_ms);
    /* A full backlog makes a non-blocking connect fail at once instead of waiting. */
    while (channel->fd < 0 && errno == EAGAIN && kv_clock_ms() < until_ms) {
        const struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        channel->fd = dial((const struct sockaddr *)&address, sizeof address, AF_UNIX, until_ms);
    }
    if (channel->fd < 0) return unreachable(channel, strerror(errno), err);
    return true;
}

static bool connect_tcp(struct kv_channel *channel, int32_t connect_ms, struct kv_error *err)
{
    struct addrinfo *found = NULL;
    const struct addrinfo want = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int status = getaddrinfo(channel->url->host, channel->url->port, &want, &found);
    if (status != 0)
        return unreachable(channel, status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status), err);
    int cause = ECONNREFUSED;
    for (const struct addrinfo *one = found; one && channel->fd < 0; one = one->ai_next) {
        int64_t until_ms = earlier(kv_clock_ms() + connect_ms, channel->deadline_ms);
        channel->fd = dial(one->ai_addr, one->ai_addrlen, one->ai_family, until_ms);
        if (channel->fd < 0) cause = errno;
    }
    freeaddrinfo(found);
    if (channel->fd < 0) return unreachable(channel, strerror(cause), err);
    int on = 1;
    (void)setsockopt(channel->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return true;
}

bool kv_channel_connect(struct kv_channel *channel, int32_t connect_ms, struct kv_error *err)
{
    assert(channel->fd < 0);
    if (!channel->url->is_unix) return connect_tcp(channel, connect_ms, err);
    return connect_unix(channel, earlier(kv_clock_ms() + connect_ms, channel->deadline_ms), err);
}

void kv_channel_close(struct kv_channel *channel)
{
    if (channel->fd >= 0) close(channel->fd);
    channel->fd = -1;
}

bool kv_channel_is_stale(const struct kv_channel *channel)
{
    struct pollfd entry = {.fd = channel->fd, .events = POLLIN};
    int ready;
    do ready = poll(&entry, 1, 0); /* a pending signal interrupts even a poll that does not wait */
    while (ready < 0 && errno == EINTR);
    return ready != 0;
}

enum kv_moved kv_channel_send(struct kv_channel *channel, const struct iovec *parts, int32_t part_count,
                              size_t *count, int *cause)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)part_count};
    for (;;) {
        ssize_t sent = sendmsg(channel->fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            *count = (size_t)sent;
            return KV_MOVED_SOME;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return KV_MOVED_NONE;
        if (errno == EINTR) continue;
        *cause = errno;
        return KV_MOVED_BROKEN;
    }
}

enum kv_moved kv_channel_receive(struct kv_channel *channel, void *to, size_t bytes, size_t *count,
                                 int *cause)
{
    assert(bytes > 0);
    for (;;) {
        ssize_t got = recv(channel->fd, to, bytes, 0);
        if (got > 0) {
            *count = (size_t)got;
            return KV_MOVED_SOME;
        }
        if (got == 0) return KV_MOVED_END;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return KV_MOVED_NONE;
        if (errno == EINTR) continue;
        *cause = errno;
        return KV_MOVED_BROKEN;
    }
}

bool kv_channel_wait(struct kv_channel *channel, short events, short *ready, struct kv_error *err)
{
    int64_t silence = kv_clock_ms() + channel->silence_ms;
    *ready = wait_until(channel->fd, events, earlier(silence, channel->deadline_ms));
    if (*ready != 0) return true;
    if (channel->deadline_ms > 0 && channel->deadline_ms <= kv_clock_ms()) {
        return kv_fail_param(err, KV_SERVICE_UNREACHABLE, "url", "The time limit for the call to %s passed",
                             channel->url->text);
    }
    return kv_fail_param(err, KV_SERVICE_UNREACHABLE, "url", "No byte moved to or from %s for %d ms",
                         channel->url->text, channel->silence_ms);
}
