/* One connected stream socket with time limits. Knows no HTTP. Never raises SIGPIPE. */
#ifndef KV_CLIENT_CHANNEL_H
#define KV_CLIENT_CHANNEL_H

#include "client/url.h"

#include <sys/uio.h>

/* Set fd to -1 and url before the first call. */
struct kv_channel {
    int fd;                   /* -1: closed */
    const struct kv_url *url; /* for messages; must outlive the channel */
    int32_t silence_ms;       /* the longest wait for one byte to move */
    int64_t deadline_ms;      /* kv_clock_ms at which everything ends; 0: never */
};

/* Milliseconds of the monotonic clock. */
int64_t kv_clock_ms(void);

/* Connects to the first address of the URL that answers within connect_ms each. service_unreachable
 * otherwise. */
bool kv_channel_connect(struct kv_channel *channel, int32_t connect_ms, struct kv_error *err) KV_MUST_CHECK;
void kv_channel_close(struct kv_channel *channel);

/* True when an idle channel has been closed by the peer, or has bytes waiting that nobody asked for. */
bool kv_channel_is_stale(const struct kv_channel *channel);

/* What became of one attempt to move bytes. */
enum kv_moved {
    KV_MOVED_SOME,   /* *count bytes moved */
    KV_MOVED_NONE,   /* would block */
    KV_MOVED_END,    /* receiving: the peer has finished */
    KV_MOVED_BROKEN, /* the connection is gone: `errno` of the cause in *cause */
};

enum kv_moved kv_channel_send(struct kv_channel *channel, const struct iovec *parts, int32_t part_count,
                              size_t *count, int *cause);
enum kv_moved kv_channel_receive(struct kv_channel *channel, void *to, size_t bytes, size_t *count,
                                 int *cause);

/* Waits for any of the poll events. *ready holds those that came (errors and hang-ups included). False: a
 * time limit passed (service_unreachable). */
bool kv_channel_wait(struct kv_channel *channel, short events, short *ready,
                     struct kv_error *err) KV_MUST_CHECK;

#endif
