/* The callers of a soak: honest ones whose every answer is checked, and those that vanish, trickle, read
 * slowly or send garbage. Each is a thread that calls until it is told to end, and rests when it is told to.
 */
#ifndef KV_TESTS_SOAK_CALLERS_H
#define KV_TESTS_SOAK_CALLERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SOAK_REQUESTS = 12, SOAK_PLACES = 2, SOAK_ID_BYTES = 40 };

/* A request as its body, and the tensors of the only right answer. */
struct soak_request {
    unsigned char *body, *tensors;
    size_t body_bytes, tensor_bytes;
};

/* Where a daemon is; it may be away for a moment where `restarts` says so. */
struct soak_place {
    char unix_path[104];
    uint16_t port; /* of 127.0.0.1 */
    bool restarts;
};

/* What came of the honest calls. */
struct soak_counts {
    _Atomic uint64_t right;   /* 200, with the right bits */
    _Atomic uint64_t refused; /* 429, or 503 around a restart */
    _Atomic uint64_t away;    /* nobody listened, or the connection ended with no byte of an answer */
    _Atomic uint64_t faults;  /* what must not happen; each is said */
    _Atomic uint64_t hostile; /* calls of the others */
};

struct soak {
    struct soak_request request[SOAK_REQUESTS];
    struct soak_place place[SOAK_PLACES];
    struct soak_counts counts[SOAK_PLACES];
    _Atomic bool ending, resting;
};

struct soak_caller {
    struct soak *soak;
    pthread_t thread;
    int32_t number;
    _Atomic bool calling; /* in the middle of a call */
    uint64_t state;       /* of its random numbers */
};

/* Thread functions; `of` is a struct soak_caller. */
void *soak_honest(void *of);
void *soak_vanishing(void *of); /* leaves in a random phase, with or without a reset */
void *soak_slow(void *of);      /* trickles a request, or reads a reply a little at a time */
void *soak_garbage(void *of);

/* A connection with patience of a minute, or -1. */
int soak_connect(const struct soak_place *place, bool over_unix);
/* One honest call on an open connection. The status of the answer, with its body (free it; or NULL); 0: the
 * connection ended with no byte of an answer; -1: in the middle of it or after a minute. */
int soak_call(int fd, const char *id, const struct soak_request *request, unsigned char **body,
              size_t *bytes);
/* Where the tensors of a reply begin, or 0. */
size_t soak_tensors_at(const unsigned char *body, size_t bytes);

#endif
