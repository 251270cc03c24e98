/* A load generator of one thread: small requests over many kept connections, closed loop or open loop, each
 * answer counted and timed. */
#ifndef KV_TESTS_LOAD_H
#define KV_TESTS_LOAD_H

#include <stdatomic.h>
#include <stddef.h>

struct load_plan {
    int port; /* on loopback */
    const void *wire;
    size_t bytes;    /* of one request; they fit a socket's buffer */
    int connections; /* closed loop: all are always busy; open loop: as many as may be at once */
    double rate;     /* open loop: requests a second, at random moments (Poisson); 0: closed loop */
    double seconds;  /* that requests are sent for; NULL or not, `stop` ends them earlier */
    const _Atomic int *stop;
};

struct load_result {
    long sent, good, busy, other; /* answered 200, 429, anything else */
    long lost;                    /* not answered at all, 10 s after the last was sent */
    double seconds;
    double *good_ms; /* [good] from the moment when it should have been sent; load_free */
    double busy_ms;  /* the longest wait for a 429 */
};

/* Aborts when a connection cannot be made. */
void load_run(const struct load_plan *plan, struct load_result *out);
void load_free(struct load_result *result);

/* Sorts the values; `part` is 0.99 for the 99th percentile. 0 of nothing. */
double load_percentile(double *values, long count, double part);

int load_connect(int port);
/* Sends one request, reads the whole answer into `room` over and over; returns the status, 0 when it ended
 * early. */
int load_ask(int fd, const void *wire, size_t bytes, void *room, size_t room_bytes);

#endif
