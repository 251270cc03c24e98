/* Deadlines of connections. Sockets stay the HTTP library's: here they are only shut down, never closed. */
#include "server/http_links.h"

#include "server/engine.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { LOOK_MS = 250 };

static void cut(struct kv_link *link, enum kv_cut why)
{
    link->links->cuts[why]++;
    if (link->phase == KV_LINK_UPLOAD) {
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

static void *look(void *of)
{
    struct kv_links *links = of;
    pthread_mutex_lock(&links->lock);
    while (!links->stopping) {
        int64_t now_us = kv_now_us();
        for (struct kv_link *link = links->first; link; link = link->next)
            if (link->phase != KV_LINK_CUT && link->deadline_us && now_us >= link->deadline_us)
                cut(link, late(link->phase));
        int64_t until_us = now_us + LOOK_MS * 1000;
        struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
        pthread_cond_timedwait(&links->wake, &links->lock, &until);
    }
    pthread_mutex_unlock(&links->lock);
    return NULL;
}

bool kv_links_open(struct kv_links *links, int32_t count_max, kv_late_answer *late_answer)
{
    pthread_condattr_t monotonic;
    *links = (struct kv_links){.count_max = count_max, .late_answer = late_answer};
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

/* The one that has been silent longest between requests, but not `self`. */
static struct kv_link *idlest(struct kv_links *links, const struct kv_link *self)
{
    struct kv_link *found = NULL;
    for (struct kv_link *link = links->first; link; link = link->next)
        if (link != self && link->phase == KV_LINK_IDLE && (!found || link->deadline_us < found->deadline_us))
            found = link;
    return found;
}

struct kv_link *kv_link_open(struct kv_links *links, int fd, int64_t deadline_us)
{
    struct kv_link *link = calloc(1, sizeof *link);
    if (!link) return NULL;
    link->links = links;
    link->fd = fd;
    link->deadline_us = deadline_us;
    pthread_mutex_lock(&links->lock);
    link->next = links->first;
    if (link->next) link->next->previous = link;
    links->first = link;
    links->count++;
    if (links->count > links->count_max) {
        struct kv_link *idle = idlest(links, link);
        cut(idle ? idle : link, idle ? KV_CUT_ROOM : KV_CUT_FULL);
    }
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
    links->count--;
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
