/* See load.h. */
#include "tests/load.h"

#include "tests/bench.h"

#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES = 2048, EVENTS = 64, PATIENCE_MS = 10000 };

/* An answer as far as it has come. */
struct answer {
    char head[HEAD_BYTES];
    size_t have, total; /* total 0: the head is not through */
    int status;
};

struct line {
    int fd;
    bool busy;
    double due_ms;
    struct answer answer;
};

struct load {
    const struct load_plan *plan;
    struct load_result *out;
    struct line *line; /* [connections] */
    int open, flying, poller;
    long room;
    uint64_t random;
};

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    abort();
}

int load_connect(int port)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&in, sizeof in) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

double load_percentile(double *values, long count, double part)
{
    if (count == 0) return 0;
    (void)bench_median(values, (int)count); /* sorts */
    long at = (long)((double)count * part);
    return values[at < count ? at : count - 1];
}

/* Takes a piece of an answer, of which only the head is kept. True when the answer is whole. */
static bool take(struct answer *answer, const char *piece, size_t bytes)
{
    if (answer->total == 0) {
        size_t room = HEAD_BYTES - 1 - answer->have, kept = bytes < room ? bytes : room;
        memcpy(answer->head + answer->have, piece, kept);
        answer->head[answer->have + kept] = '\0';
        const char *end = strstr(answer->head, "\r\n\r\n");
        const char *length = strcasestr(answer->head, "\r\nContent-Length: ");
        must(end || kept == bytes, "an answer's head is too long");
        if (end) {
            must(length && length < end, "an answer without Content-Length");
            answer->status = (int)strtol(answer->head + strlen("HTTP/1.1 "), NULL, 10);
            answer->total = (size_t)(end - answer->head) + 4 + strtoull(length + 18, NULL, 10);
        }
    }
    answer->have += bytes;
    return answer->total > 0 && answer->have >= answer->total;
}

static bool send_all(int fd, const void *wire, size_t bytes)
{
    const char *at = wire;
    for (size_t sent = 0; sent < bytes;) {
        ssize_t now = send(fd, at + sent, bytes - sent, MSG_NOSIGNAL);
        if (now <= 0) return false;
        sent += (size_t)now;
    }
    return true;
}

int load_ask(int fd, const void *wire, size_t bytes, void *room, size_t room_bytes)
{
    struct answer answer = {.have = 0};
    if (!send_all(fd, wire, bytes)) return 0;
    for (;;) {
        ssize_t got = recv(fd, room, room_bytes, 0);
        if (got <= 0) return 0;
        if (take(&answer, room, (size_t)got)) return answer.status;
    }
}

static void begin(struct load *load, struct line *line, double due_ms)
{
    line->busy = true;
    line->due_ms = due_ms;
    line->answer.have = line->answer.total = 0;
    must(send_all(line->fd, load->plan->wire, load->plan->bytes), "send");
    load->flying++;
    load->out->sent++;
}

/* A free line; NULL when all are busy. Opened as they are needed. */
static struct line *free_line(struct load *load)
{
    for (int i = 0; i < load->open; i++)
        if (!load->line[i].busy) return &load->line[i];
    if (load->open == load->plan->connections) return NULL;
    struct line *line = &load->line[load->open++];
    line->fd = load_connect(load->plan->port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = line};
    must(epoll_ctl(load->poller, EPOLL_CTL_ADD, line->fd, &event) == 0, "epoll_ctl");
    return line;
}

static void count(struct load *load, struct line *line)
{
    struct load_result *out = load->out;
    double took_ms = bench_now_ms() - line->due_ms;
    line->busy = false;
    load->flying--;
    if (line->answer.status == 429) {
        out->busy++;
        if (took_ms > out->busy_ms) out->busy_ms = took_ms;
        return;
    }
    if (line->answer.status != 200) {
        out->other++;
        return;
    }
    if (out->good == load->room) {
        load->room = load->room ? 2 * load->room : 4096;
        out->good_ms = realloc(out->good_ms, (size_t)load->room * sizeof *out->good_ms);
        must(out->good_ms != NULL, "realloc");
    }
    out->good_ms[out->good++] = took_ms;
}

static void receive(struct load *load, int wait_ms)
{
    struct epoll_event event[EVENTS];
    char piece[16384];
    int events = epoll_wait(load->poller, event, EVENTS, wait_ms);
    for (int i = 0; i < events; i++) {
        struct line *line = event[i].data.ptr;
        ssize_t got = recv(line->fd, piece, sizeof piece, MSG_DONTWAIT);
        must(got > 0 || !line->busy, "recv");
        if (got > 0 && line->busy && take(&line->answer, piece, (size_t)got)) count(load, line);
    }
}

/* How long until the next request, in ms. */
static double pause_of(struct load *load)
{
    load->random = load->random * 6364136223846793005u + 1442695040888963407u;
    double uniform = (double)((load->random >> 11) + 1) / 9007199254740993.0;
    return -log(uniform) * 1000 / load->plan->rate;
}

static bool over(const struct load *load, double until_ms)
{
    return bench_now_ms() >= until_ms || (load->plan->stop && *load->plan->stop);
}

static void send_closed(struct load *load, double until_ms)
{
    while (!over(load, until_ms)) {
        struct line *line;
        while (load->flying < load->plan->connections && (line = free_line(load)) != NULL)
            begin(load, line, bench_now_ms());
        receive(load, 100);
    }
}

static void send_open(struct load *load, double until_ms)
{
    double due_ms = bench_now_ms();
    while (!over(load, until_ms)) {
        struct line *line = NULL;
        double now_ms = bench_now_ms();
        while (due_ms <= now_ms && (line = free_line(load)) != NULL) {
            begin(load, line, due_ms);
            due_ms += pause_of(load);
        }
        receive(load, due_ms > now_ms + 1 ? 1 : 0);
    }
}

void load_run(const struct load_plan *plan, struct load_result *out)
{
    struct load load = {.plan = plan, .out = out, .random = 1, .poller = epoll_create1(0)};
    *out = (struct load_result){0};
    load.line = calloc((size_t)plan->connections, sizeof *load.line);
    must(load.line && load.poller >= 0, "epoll_create1");
    double began_ms = bench_now_ms();
    if (plan->rate > 0)
        send_open(&load, began_ms + plan->seconds * 1000);
    else
        send_closed(&load, began_ms + plan->seconds * 1000);
    out->seconds = (bench_now_ms() - began_ms) / 1000;
    for (double last_ms = bench_now_ms(); load.flying > 0 && bench_now_ms() < last_ms + PATIENCE_MS;)
        receive(&load, 10);
    out->lost = load.flying;
    for (int i = 0; i < load.open; i++) close(load.line[i].fd);
    close(load.poller);
    free(load.line);
}

void load_free(struct load_result *result)
{
    free(result->good_ms);
    *result = (struct load_result){0};
}
