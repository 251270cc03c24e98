/* Open connections, their places and their deadlines. The HTTP library only knows timeouts of silence: a
 * client that trickles a byte a second would hold memory for ever. One thread looks at all connections and
 * cuts the late ones and the slow ones. What comes beyond the limit of connections is let in as a spare, on
 * which only probes are answered. */
#ifndef KV_SERVER_HTTP_LINKS_H
#define KV_SERVER_HTTP_LINKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_link_phase {
    KV_LINK_IDLE,   /* between requests, or a head on its way */
    KV_LINK_UPLOAD, /* a body on its way in */
    KV_LINK_WORK,   /* no deadline: the engine watches */
    KV_LINK_REPLY,  /* a reply on its way out */
    KV_LINK_CUT     /* was late; nothing more is to be sent */
};

/* Why a link was cut. */
enum kv_cut {
    KV_CUT_IDLE,    /* silent between requests for too long */
    KV_CUT_UPLOAD,  /* its body was late */
    KV_CUT_REPLY,   /* it did not take its reply in time */
    KV_CUT_ROOM,    /* the one that was idle longest, for a new one at the limit */
    KV_CUT_FULL,    /* the new one itself: none was idle */
    KV_CUT_REFUSED, /* a refused body that did not end */
    KV_CUT_STOP,    /* the daemon stopped */
    KV_CUT_COUNT
};

struct kv_links;

/* Zeros: no such limit. */
struct kv_links_limits {
    int32_t count_max; /* with a place of their own; one more takes that of the one that has been idle longest
                        */
    int32_t spares_max;   /* beyond, while none is idle; one more takes that of the oldest spare */
    int32_t rate_seconds; /* over so long, bodies and replies move at least */
    int64_t rate_bytes;   /* so many bytes a second */
};

struct kv_link {
    struct kv_links *links;
    struct kv_link *next, *previous;
    int fd;
    bool tls; /* no byte of ours may go into the socket */
    enum kv_link_phase phase;
    int64_t deadline_us;
    const void *exchange;   /* whose body is on its way, in KV_LINK_UPLOAD */
    _Atomic uint64_t moved; /* bytes of that body that are in; told by its thread */
    _Atomic bool spare;     /* has no place of its own */

    int64_t window_us; /* when the rate is looked at next; 0: it has not been looked at in this phase */
    uint64_t window_moved;
};

/* Writes the whole answer to an exchange whose body is late, at most `room` bytes, and returns how many. */
typedef size_t kv_late_answer(const void *exchange, char *to, size_t room);

struct kv_links {
    struct kv_links_limits limits;
    int32_t places, spares; /* taken by links that are not cut */
    kv_late_answer *late_answer;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stopping;
    struct kv_link *first;
    uint64_t cuts[KV_CUT_COUNT]; /* since the start */
};

bool kv_links_open(struct kv_links *links, const struct kv_links_limits *limits, kv_late_answer *late_answer)
    __attribute__((warn_unused_result));
void kv_links_close(struct kv_links *links); /* every link is closed before */

/* NULL when memory is out. */
struct kv_link *kv_link_open(struct kv_links *links, int fd, bool tls, int64_t deadline_us);
void kv_link_close(struct kv_link *link); /* NULL is fine */

/* Enters a phase with a deadline (0: none); `exchange` is for KV_LINK_UPLOAD. A spare that begins a request
 * gets a place where there is one again. False: the link was cut already. */
bool kv_link_enter(struct kv_link *link, enum kv_link_phase phase, int64_t deadline_us, const void *exchange);
/* Cuts a link now, with the answer of a late upload where it is in that phase and speaks no TLS. */
void kv_link_cut(struct kv_link *link);
/* Cuts every link in this phase now. */
void kv_links_cut(struct kv_links *links, enum kv_link_phase phase);
void kv_links_cuts(struct kv_links *links, uint64_t cuts[KV_CUT_COUNT]);
/* Has the peer closed its side? */
bool kv_link_gone(void *link);

#endif
