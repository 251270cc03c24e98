/* Deadlines of connections. Sockets stay the HTTP library's: here they are only shut down, never closed. */
#include "server/http_links.h"

#include "server/engine.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { LOOK_MS = 250 };

static void leave_place(struct kv_link *link)
{
    if (link->phase == KV_LINK_CUT) return; /* it left when it was cut */
    if (link->spare)
        link->links->spares--;
    else
        link->links->places--;
}

static void cut(struct kv_link *link, enum kv_cut why)
{
    leave_place(link);
    link->links->cuts[why]++;
    if (link->phase == KV_LINK_UPLOAD && !link->tls) {
        char answer[4096];
        size_t bytes = link->links->late_answer(link->exchange, answer, sizeof answer);
        send(link->fd, answer, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    link->phase = KV_LINK_CUT;
    shutdown(link->fd, SHUT_RDWR);
}

/* Of a link whose deadline has passed. */
static enum kv_cut late(enum kv_link_phase phase)
{
    return phase == KV_LINK_UPLOAD ? KV_CUT_UPLOAD : phase == KV_LINK_REPLY ? KV_CUT_REPLY : KV_CUT_IDLE;
}

/* Bytes that have moved in this phase, or of which only differences count. False: not known. How much of a
 * reply was taken is known of TCP alone; a unix socket's peer is on this machine, and has the deadline. */
static bool measure(const struct kv_link *link, uint64_t *moved)
{
    if (link->phase == KV_LINK_UPLOAD) {
        *moved = atomic_load_explicit(&link->moved, memory_order_relaxed);
        return true;
    }
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (link->phase != KV_LINK_REPLY || getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked)
        return false;
    *moved = info.tcpi_bytes_acked;
    return true;
}

/* Has less moved in the window that ends now than the rate asks for? Windows follow each other, so that a
 * pause which fits in one is forgiven. */
static bool is_slow(struct kv_link *link, int64_t now_us)
{
    const struct kv_links_limits *limits = &link->links->limits;
    uint64_t moved;
    if (limits->rate_bytes == 0 || now_us < link->window_us || !measure(link, &moved)) return false;
    uint64_t least = (uint64_t)limits->rate_bytes * (uint64_t)limits->rate_seconds;
    bool slow = link->window_us != 0 && moved - link->window_moved < least;
    link->window_us = now_us + limits->rate_seconds * 1000000LL;
    link->window_moved = moved;
    return slow;
}

static void *look(void *of)
{
    struct kv_links *links = of;
    pthread_mutex_lock(&links->lock);
    while (!links->stopping) {
        int64_t now_us = kv_now_us();
        for (struct kv_link *link = links->first; link; link = link->next)
            if (link->phase != KV_LINK_CUT && link->deadline_us &&
                (now_us >= link->deadline_us || is_slow(link, now_us)))
                cut(link, late(link->phase));
        int64_t until_us = now_us + LOOK_MS * 1000;
        struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
        pthread_cond_timedwait(&links->wake, &links->lock, &until);
    }
    pthread_mutex_unlock(&links->lock);
    return NULL;
}

bool kv_links_open(struct kv_links *links, const struct kv_links_limits *limits, kv_late_answer *late_answer)
{
    pthread_condattr_t monotonic;
    *links = (struct kv_links){.limits = *limits, .late_answer = late_answer};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&links->lock, NULL);
    pthread_cond_init(&links->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    links->started = pthread_create(&links->thread, NULL, look, links) == 0;
    return links->started;
}

void kv_links_close(struct kv_links *links)
{
    if (links->started) {
        pthread_mutex_lock(&links->lock);
        links->stopping = true;
        pthread_cond_signal(&links->wake);
        pthread_mutex_unlock(&links->lock);
        pthread_join(links->thread, NULL);
    }
    pthread_cond_destroy(&links->wake);
    pthread_mutex_destroy(&links->lock);
}

/* The one that has been silent longest between requests, among those with a place or among the spares; of
 * spares also the refused whose body is still on its way: cut, they are sent their refusal. */
static struct kv_link *idlest(struct kv_links *links, bool spare)
{
    struct kv_link *found = NULL;
    for (struct kv_link *link = links->first; link; link = link->next)
        if (link->spare == spare &&
            (link->phase == KV_LINK_IDLE || (spare && link->phase == KV_LINK_UPLOAD)) &&
            (!found || link->deadline_us < found->deadline_us))
            found = link;
    return found;
}

static bool take_place(struct kv_links *links)
{
    if (links->limits.count_max > 0 && links->places >= links->limits.count_max) return false;
    links->places++;
    return true;
}

/* A place for a new link: a free one, an idle one's, or else it is a spare; the new one is not in the list
 * yet. False: there is no room even for that. */
static bool seat(struct kv_links *links, struct kv_link *link)
{
    if (take_place(links)) return true;
    struct kv_link *idle = idlest(links, false);
    if (idle) {
        cut(idle, KV_CUT_ROOM);
        return take_place(links);
    }
    if (links->spares >= links->limits.spares_max) {
        struct kv_link *oldest = idlest(links, true);
        if (!oldest) return false;
        cut(oldest, KV_CUT_ROOM);
    }
    link->spare = true;
    links->spares++;
    return true;
}

struct kv_link *kv_link_open(struct kv_links *links, int fd, bool tls, int64_t deadline_us)
{
    struct kv_link *link = calloc(1, sizeof *link);
    if (!link) return NULL;
    link->links = links;
    link->fd = fd;
    link->tls = tls;
    link->deadline_us = deadline_us;
    pthread_mutex_lock(&links->lock);
    if (!seat(links, link)) {
        links->cuts[KV_CUT_FULL]++;
        link->phase = KV_LINK_CUT;
        shutdown(fd, SHUT_RDWR);
    }
    link->next = links->first;
    if (link->next) link->next->previous = link;
    links->first = link;
    pthread_mutex_unlock(&links->lock);
    return link;
}

void kv_link_close(struct kv_link *link)
{
    if (!link) return;
    struct kv_links *links = link->links;
    pthread_mutex_lock(&links->lock);
    *(link->previous ? &link->previous->next : &links->first) = link->next;
    if (link->next) link->next->previous = link->previous;
    leave_place(link);
    pthread_mutex_unlock(&links->lock);
    free(link);
}

bool kv_link_enter(struct kv_link *link, enum kv_link_phase phase, int64_t deadline_us, const void *exchange)
{
    pthread_mutex_lock(&link->links->lock);
    bool alive = link->phase != KV_LINK_CUT;
    if (alive) {
        link->phase = phase;
        link->deadline_us = deadline_us;
        link->exchange = exchange;
        link->window_us = 0;
        if (phase == KV_LINK_UPLOAD) link->moved = 0;
        if (phase == KV_LINK_WORK && link->spare && take_place(link->links)) {
            link->spare = false;
            link->links->spares--;
        }
    }
    pthread_mutex_unlock(&link->links->lock);
    return alive;
}

void kv_link_cut(struct kv_link *link)
{
    pthread_mutex_lock(&link->links->lock);
    if (link->phase != KV_LINK_CUT) cut(link, KV_CUT_REFUSED);
    pthread_mutex_unlock(&link->links->lock);
}

void kv_links_cut(struct kv_links *links, enum kv_link_phase phase)
{
    pthread_mutex_lock(&links->lock);
    for (struct kv_link *link = links->first; link; link = link->next)
        if (link->phase == phase) cut(link, KV_CUT_STOP);
    pthread_mutex_unlock(&links->lock);
}

void kv_links_cuts(struct kv_links *links, uint64_t cuts[KV_CUT_COUNT])
{
    pthread_mutex_lock(&links->lock);
    memcpy(cuts, links->cuts, sizeof links->cuts);
    pthread_mutex_unlock(&links->lock);
}

bool kv_link_gone(void *of)
{
    struct kv_link *link = of;
    struct pollfd seen = {.fd = link->fd, .events = POLLRDHUP};
    return poll(&seen, 1, 0) > 0 && (seen.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
