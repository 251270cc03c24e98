/* See soak_callers.h. */
#include "tests/soak_callers.h"

#include "tests/hostile.h"
#include "tests/http_rig.h"
#include "tests/random_weights.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 4096,
    PATIENCE_S = 60,
    CALLS_ON_A_CONNECTION = 20,
    REST_US = 12000, /* between two calls of one honest caller, at most */
    SLOW_STEPS = 60,
    SLOW_STEP_US = 20000
};

static void fault(struct soak *soak, int32_t place, const char *id, const char *what)
{
    if (atomic_fetch_add(&soak->counts[place].faults, 1) < 20) printf("FAULT: %s: %s\n", id, what);
}

int soak_connect(const struct soak_place *place, bool over_unix)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(place->port)};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(over_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    memcpy(un.sun_path, place->unix_path, sizeof place->unix_path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if ((over_unix ? connect(fd, (struct sockaddr *)&un, sizeof un)
                   : connect(fd, (struct sockaddr *)&in, sizeof in)) == 0)
        return fd;
    close(fd);
    return -1;
}

static int write_head(char head[HEAD_BYTES], const char *id, size_t body_bytes)
{
    return snprintf(
        head, HEAD_BYTES,
        "POST /v1/materialize HTTP/1.1\r\nHost: soak\r\nX-Request-Id: %s\r\nContent-Length: %zu\r\n\r\n", id,
        body_bytes);
}

/* The rest of a reply whose head is in `text`. */
static int read_body(int fd, const char *text, size_t got, unsigned char **body, size_t *bytes)
{
    const char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\nContent-Length:");
    if (!end || !length || length > end) return -1;
    size_t head_bytes = (size_t)(end + 4 - text), held = got - head_bytes;
    *bytes = strtoull(length + strlen("\r\nContent-Length:"), NULL, 10);
    if (held > *bytes || !(*body = malloc(*bytes + 1))) return -1;
    memcpy(*body, text + head_bytes, held);
    while (held < *bytes) {
        ssize_t more = recv(fd, *body + held, *bytes - held, 0);
        if (more <= 0) return -1;
        held += (size_t)more;
    }
    return (int)strtol(text + strlen("HTTP/1.1 "), NULL, 10);
}

int soak_call(int fd, const char *id, const struct soak_request *request, unsigned char **body, size_t *bytes)
{
    char head[HEAD_BYTES];
    int head_bytes = write_head(head, id, request->body_bytes);
    *body = NULL;
    /* A refusal may come, and the connection end, before all is sent: what counts is what can be read. */
    if (http_rig_send(fd, head, (size_t)head_bytes))
        (void)http_rig_send(fd, request->body, request->body_bytes);
    size_t got = 0;
    do {
        ssize_t more = recv(fd, head + got, sizeof head - 1 - got, 0);
        if (more <= 0) return more < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? -1 : got == 0 ? 0 : -1;
        got += (size_t)more;
        head[got] = '\0';
    } while (!strstr(head, "\r\n\r\n") && got < sizeof head - 1);
    int status = read_body(fd, head, got, body, bytes);
    if (status < 0) {
        free(*body);
        *body = NULL;
    }
    return status;
}

size_t soak_tensors_at(const unsigned char *body, size_t bytes)
{
    uint64_t header = 0;
    if (bytes < 8) return 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | body[i];
    return header > bytes - 8 ? 0 : 8 + (size_t)header;
}

/* Books what came of one honest call. True: the connection can take another one. */
static bool judge(struct soak *soak, int32_t place, const char *id, const struct soak_request *request,
                  int status, const unsigned char *body, size_t bytes)
{
    struct soak_counts *counts = &soak->counts[place];
    bool restarts = soak->place[place].restarts;
    if (status == 200) {
        size_t at = soak_tensors_at(body, bytes);
        bool right = at > 0 && bytes - at == request->tensor_bytes &&
                     memcmp(body + at, request->tensors, request->tensor_bytes) == 0;
        if (right)
            atomic_fetch_add(&counts->right, 1);
        else
            fault(soak, place, id, "the answer has wrong bits");
        return right;
    }
    if (status == 429 || (status == 503 && restarts)) {
        atomic_fetch_add(&counts->refused, 1);
        return false;
    }
    if (status == 0 && restarts) {
        atomic_fetch_add(&counts->away, 1);
        return false;
    }
    char what[96];
    snprintf(what, sizeof what,
             status > 0    ? "status %d"
             : status == 0 ? "no answer, from a daemon that does not restart"
                           : "the answer stopped, or none came in a minute",
             status);
    fault(soak, place, id, what);
    return false;
}

/* Between two calls: where all are to rest, this one does. False: the end. */
static bool go_on(struct soak_caller *caller)
{
    struct soak *soak = caller->soak;
    do {
        atomic_store(&caller->calling, false);
        while (atomic_load(&soak->resting) && !atomic_load(&soak->ending)) usleep(5000);
        atomic_store(&caller->calling, !atomic_load(&soak->ending));
    } while (atomic_load(&soak->resting) && !atomic_load(&soak->ending));
    return !atomic_load(&soak->ending);
}

/* A few calls on one connection, or fewer when it ends. */
static void call_honestly(struct soak_caller *caller, uint64_t *calls)
{
    struct soak *soak = caller->soak;
    int32_t place = (int32_t)random_below(&caller->state, SOAK_PLACES);
    int64_t left = 1 + random_below(&caller->state, CALLS_ON_A_CONNECTION);
    int fd = soak_connect(&soak->place[place], random_below(&caller->state, 2) == 0);
    if (fd < 0) {
        if (soak->place[place].restarts)
            atomic_fetch_add(&soak->counts[place].away, 1);
        else
            fault(soak, place, "connect", strerror(errno));
        usleep(REST_US);
        return;
    }
    bool more = true;
    while (more && left-- > 0 && !atomic_load(&soak->resting)) {
        const struct soak_request *request = &soak->request[random_below(&caller->state, SOAK_REQUESTS)];
        char id[SOAK_ID_BYTES];
        unsigned char *body = NULL;
        size_t bytes = 0;
        snprintf(id, sizeof id, "honest-%d-%llu", caller->number, (unsigned long long)(*calls)++);
        int status = soak_call(fd, id, request, &body, &bytes);
        more = judge(soak, place, id, request, status, body, bytes);
        free(body);
        usleep((useconds_t)random_below(&caller->state, REST_US));
    }
    close(fd);
}

void *soak_honest(void *of)
{
    struct soak_caller *caller = of;
    uint64_t calls = 0;
    while (go_on(caller)) call_honestly(caller, &calls);
    return NULL;
}

static void leave(int fd, bool reset)
{
    const struct linger at_once = {.l_onoff = 1};
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

/* A connection to a random place over a random kind of socket, without much patience; -1 where nobody is. */
static int go_somewhere(struct soak_caller *caller)
{
    const struct timeval patience = {.tv_sec = 2};
    struct soak *soak = caller->soak;
    int32_t place = (int32_t)random_below(&caller->state, SOAK_PLACES);
    atomic_fetch_add(&soak->counts[place].hostile, 1);
    int fd = soak_connect(&soak->place[place], random_below(&caller->state, 2) == 0);
    if (fd < 0)
        usleep(REST_US);
    else
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

void *soak_vanishing(void *of)
{
    enum { PHASES = 6 };
    struct soak_caller *caller = of;
    uint64_t *state = &caller->state;
    while (go_on(caller)) {
        const struct soak_request *request = &caller->soak->request[random_below(state, SOAK_REQUESTS)];
        char head[HEAD_BYTES], some[4096];
        size_t head_bytes = (size_t)write_head(head, "vanishing", request->body_bytes);
        size_t body_bytes = request->body_bytes;
        int64_t phase = random_below(state, PHASES);
        int fd = go_somewhere(caller);
        if (fd < 0) continue;
        if (phase == 1) head_bytes = (size_t)random_below(state, (int64_t)head_bytes);
        if (phase <= 2) body_bytes = 0;
        if (phase == 3) body_bytes = (size_t)random_below(state, (int64_t)body_bytes);
        if (phase > 0 && http_rig_send(fd, head, head_bytes) &&
            http_rig_send(fd, request->body, body_bytes)) {
            if (phase == 4) usleep((useconds_t)random_below(state, 3000));
            for (int64_t i = 0; phase == 5 && i < 1 + random_below(state, 8); i++)
                if (recv(fd, some, sizeof some, 0) < (ssize_t)sizeof some) break;
        }
        leave(fd, random_below(state, 2) == 0);
        usleep((useconds_t)random_below(state, REST_US));
    }
    return NULL;
}

void *soak_slow(void *of)
{
    struct soak_caller *caller = of;
    uint64_t *state = &caller->state;
    while (go_on(caller)) {
        const struct soak_request *request = &caller->soak->request[SOAK_REQUESTS - 1]; /* the largest */
        char head[HEAD_BYTES], some[1024];
        size_t head_bytes = (size_t)write_head(head, "slow", request->body_bytes), at = 0;
        bool reads = random_below(state, 2) == 0;
        int fd = go_somewhere(caller);
        if (fd < 0) continue;
        bool open = !reads || (http_rig_send(fd, head, head_bytes) &&
                               http_rig_send(fd, request->body, request->body_bytes));
        for (int step = 0; open && step < SLOW_STEPS && !atomic_load(&caller->soak->resting); step++) {
            size_t piece = 1 + (size_t)random_below(state, 16);
            if (!reads && at + piece > head_bytes) break;
            open = reads ? recv(fd, some, sizeof some, 0) > 0 : http_rig_send(fd, head + at, piece);
            at += piece;
            usleep(SLOW_STEP_US);
        }
        leave(fd, random_below(state, 2) == 0);
    }
    return NULL;
}

void *soak_garbage(void *of)
{
    struct soak_caller *caller = of;
    uint64_t *state = &caller->state;
    int32_t heads = 0;
    const struct hostile *hostile = hostile_heads(&heads);
    while (go_on(caller)) {
        unsigned char noise[512];
        char some[4096];
        const void *bytes = noise;
        size_t count = (size_t)random_below(state, sizeof noise);
        for (size_t i = 0; i < count; i++) noise[i] = (unsigned char)random_bits(state);
        if (random_below(state, 4) != 0) {
            const struct hostile *one = &hostile[random_below(state, heads)];
            bytes = one->bytes;
            count = one->count;
        }
        int fd = go_somewhere(caller);
        if (fd < 0) continue;
        if (http_rig_send(fd, bytes, count)) shutdown(fd, SHUT_WR);
        while (recv(fd, some, sizeof some, 0) > 0) continue;
        close(fd);
        usleep((useconds_t)random_below(state, REST_US));
    }
    return NULL;
}
