/* Sends a request while watching for an early reply, then reads the reply. The body lands once, where it
 * stays. */
#include "client/roundtrip.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From here on a body's memory is worth asking for large pages: page faults cost more than the copy. */
enum { HUGE_BYTES = 4 * 1024 * 1024, HUGE_ALIGNMENT = 2 * 1024 * 1024 };

static bool broken(struct kv_roundtrip *trip, struct kv_error *err)
{
    const char *when = trip->replied ? "in the middle of its reply"
                       : trip->sent  ? "without a reply"
                                     : "while the request was being sent";
    trip->gone = true;
    const char *why = trip->cause ? strerror(trip->cause) : "closed by the other side";
    return kv_fail_param(err, KV_SERVICE_UNREACHABLE, "url", "%s ended the connection %s (%s)",
                         trip->channel.url->text, when, why);
}

/* Reads what is there into the head buffer. False: the connection is over or the buffer is full. */
static bool receive_more(struct kv_roundtrip *trip, bool *moved, struct kv_error *err)
{
    *moved = false;
    if (trip->in_bytes == sizeof trip->in) {
        return kv_fail_values(err, KV_REPLY_MALFORMED, "", kv_integer((int64_t)sizeof trip->in), kv_none(),
                              "The reply's header section is longer than the client's bound in bytes");
    }
    size_t count = 0;
    switch (kv_channel_receive(&trip->channel, trip->in + trip->in_bytes, sizeof trip->in - trip->in_bytes,
                               &count, &trip->cause)) {
    case KV_MOVED_SOME:
        trip->in_bytes += count;
        trip->replied = true;
        *moved = true;
        return true;
    case KV_MOVED_NONE: return true;
    case KV_MOVED_END:
    case KV_MOVED_BROKEN: break;
    }
    return broken(trip, err);
}

/* Takes a final head out of what was received, past any 1xx. *done false: it is not complete yet. */
static bool take_head(struct kv_roundtrip *trip, struct kv_head *head, bool *done, struct kv_error *err)
{
    for (;;) {
        size_t bytes = kv_head_find_end(trip->in, trip->in_bytes);
        *done = bytes > 0;
        if (!*done) return true;
        if (!kv_head_parse(head, trip->in, bytes, err)) return false;
        trip->in_bytes -= bytes;
        memmove(trip->in, trip->in + bytes, trip->in_bytes);
        if (head->status >= 200) return true;
        if (head->status == 101) {
            return kv_fail(err, KV_REPLY_MALFORMED,
                           "The reply switches to another protocol, which nobody asked for");
        }
    }
}

static void advance(struct iovec **parts, int32_t *count, size_t sent)
{
    while (*count > 0 && sent >= (*parts)->iov_len) {
        sent -= (*parts)->iov_len;
        (*parts)++, (*count)--;
    }
    if (*count > 0) {
        (*parts)->iov_base = (char *)(*parts)->iov_base + sent;
        (*parts)->iov_len -= sent;
    }
}

/* Sends until all is out, a final head has come (*done), or the connection cannot be written to any more:
 * then a reply may still be there to be read. */
static bool send_parts(struct kv_roundtrip *trip, struct iovec *parts, int32_t count, struct kv_head *head,
                       bool *done, struct kv_error *err)
{
    advance(&parts, &count, 0);
    while (count > 0) {
        size_t sent = 0;
        enum kv_moved moved = kv_channel_send(&trip->channel, parts, count, &sent, &trip->cause);
        if (moved == KV_MOVED_SOME) {
            advance(&parts, &count, sent);
            continue;
        }
        if (moved != KV_MOVED_NONE) return true;
        short ready = 0;
        bool got = false;
        if (!kv_channel_wait(&trip->channel, POLLIN | POLLOUT, &ready, err)) return false;
        if (!(ready & POLLIN)) continue;
        if (!receive_more(trip, &got, err)) return false;
        if (!take_head(trip, head, done, err)) return false;
        if (*done) return true;
    }
    trip->sent = true;
    return true;
}

static bool receive_head(struct kv_roundtrip *trip, struct kv_head *head, struct kv_error *err)
{
    bool done = false;
    while (!done) {
        bool moved = false;
        short ready = 0;
        if (!receive_more(trip, &moved, err)) return false;
        if (!moved && !kv_channel_wait(&trip->channel, POLLIN, &ready, err)) return false;
        if (moved && !take_head(trip, head, &done, err)) return false;
    }
    return true;
}

static bool reserve(struct kv_roundtrip *trip, uint64_t bytes, struct kv_error *err)
{
    if (bytes > trip->reply_bytes_max) {
        return kv_fail_values(err, KV_REPLY_MALFORMED, "Content-Length",
                              kv_integer((int64_t)trip->reply_bytes_max), kv_integer((int64_t)bytes),
                              "The reply's body is larger than the client takes");
    }
    if (bytes <= trip->body_room) return true;
    free(trip->body);
    trip->body = NULL;
    trip->body_room = 0;
    size_t alignment = bytes >= HUGE_BYTES ? HUGE_ALIGNMENT : KV_DATA_ALIGNMENT;
    uint64_t room = (bytes + alignment - 1) / alignment * alignment;
    if (room > SIZE_MAX || posix_memalign(&trip->body, alignment, (size_t)room) != 0) {
        trip->body = NULL;
        return kv_fail_values(err, KV_SERVICE_UNREACHABLE, "", kv_integer((int64_t)bytes), kv_none(),
                              "There is no memory for a reply of this many bytes");
    }
    if (alignment == HUGE_ALIGNMENT) (void)madvise(trip->body, (size_t)room, MADV_HUGEPAGE);
    trip->body_room = room;
    return true;
}

static bool receive_body(struct kv_roundtrip *trip, uint64_t length, struct kv_error *err)
{
    if (!reserve(trip, length, err)) return false;
    uint64_t have = trip->in_bytes < length ? trip->in_bytes : length;
    if (have > 0) memcpy(trip->body, trip->in, (size_t)have);
    /* Bytes after the body belong to no request of ours. */
    if (trip->in_bytes > length) trip->keep = false;
    trip->in_bytes = 0;
    while (have < length) {
        size_t count = 0;
        short ready = 0;
        switch (kv_channel_receive(&trip->channel, (char *)trip->body + have, (size_t)(length - have), &count,
                                   &trip->cause)) {
        case KV_MOVED_SOME: have += count; break;
        case KV_MOVED_NONE:
            if (!kv_channel_wait(&trip->channel, POLLIN, &ready, err)) return false;
            break;
        case KV_MOVED_END:
        case KV_MOVED_BROKEN:
            broken(trip, err);
            kv_error_hint(err, "%llu of %llu bytes of the reply's body were read.", (unsigned long long)have,
                          (unsigned long long)length);
            return false;
        }
    }
    return true;
}

bool kv_roundtrip_run(struct kv_roundtrip *trip, struct iovec *parts, int32_t part_count, bool bodiless,
                      struct kv_response *response, struct kv_error *err)
{
    struct kv_head head;
    bool done = false;
    trip->replied = trip->sent = trip->keep = trip->gone = false;
    trip->cause = 0;
    trip->in_bytes = 0;
    if (!send_parts(trip, parts, part_count, &head, &done, err)) return false;
    if (!done && !receive_head(trip, &head, err)) return false;

    trip->keep = head.keep && trip->sent;
    uint64_t length = 0;
    if (!bodiless && head.status != 204 && head.status != 304) {
        if (!head.has_length) {
            return kv_fail(err, KV_REPLY_MALFORMED,
                           "The reply has no Content-Length, which the service always sends");
        }
        length = head.length;
    }
    if (!receive_body(trip, length, err)) return false;
    *response = (struct kv_response){.status = head.status,
                                     .retry_after_s = head.retry_after_s,
                                     .queue_ms = head.queue_ms,
                                     .device_ms = head.device_ms,
                                     .body = trip->body,
                                     .bytes = length};
    snprintf(response->content_type, sizeof response->content_type, "%s", head.content_type);
    snprintf(response->request_id, sizeof response->request_id, "%s", head.request_id);
    return true;
}

void kv_roundtrip_free(struct kv_roundtrip *trip)
{
    kv_channel_close(&trip->channel);
    free(trip->body);
    trip->body = NULL;
    trip->body_room = 0;
}
