/* What HTTP costs: a round trip through the server over a device that computes nothing, beside a bare socket
 * that reads as many bytes and writes as many back. Same client code, same sockets, interleaved; medians in
 * one table. */
#include "server/http.h"
#include "tests/bench.h"
#include "tests/fake_backend.h"
#include "tests/processor.h"
#include "server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A published 8B draft: 8,192 bytes of hidden states and 20,480 of K and V for each token. */
static const struct kv_geometry geometry = {
    .layers = 5,
    .kv_heads = 8,
    .head_dim = 128,
    .rotary_dim = 128,
    .hidden = 4096,
    .positions = 40960,
    .dtype = KV_BF16,
    .k_norm = true,
    .value_scale = 1,
    .attention_factor = 1,
};

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    exit(1);
}

static void send_all(int fd, const unsigned char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        must(sent > 0, "send");
        bytes += sent;
        count -= (size_t)sent;
    }
}

static void receive_all(int fd, unsigned char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t got = recv(fd, bytes, count, 0);
        must(got > 0, "recv");
        bytes += got;
        count -= (size_t)got;
    }
}

/* The bare opponent: reads in_bytes into one buffer, writes out_bytes from another, for ever. */
struct echo {
    int listener, port;
    size_t in_bytes, out_bytes;
    unsigned char *in, *out;
    pthread_t thread;
};

static void *echo_serve(void *of)
{
    struct echo *echo = of;
    int on = 1, fd = accept(echo->listener, NULL, NULL);
    if (fd < 0) return NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (;;) {
        size_t got = 0;
        while (got < echo->in_bytes) {
            ssize_t n = recv(fd, echo->in + got, echo->in_bytes - got, 0);
            if (n <= 0) {
                close(fd);
                return NULL;
            }
            got += (size_t)n;
        }
        send_all(fd, echo->out, echo->out_bytes);
    }
}

static int connect_port(int port)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&in, sizeof in) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static int port_of(const struct kv_listener *listener)
{
    return (int)strtol(strrchr(listener->url, ':') + 1, NULL, 10);
}

/* One request as bytes on the wire, hidden states of a mild pattern. */
static unsigned char *make_request(int64_t tokens, size_t *bytes)
{
    unsigned char head[4096];
    size_t head_bytes = 0, data = (size_t)tokens * ((size_t)geometry.hidden * 2 + 8);
    must(kv_request_encode(head, sizeof head, &geometry, KV_HIDDEN_STATES, KV_BF16, KV_I64, tokens,
                           &head_bytes, NULL),
         "kv_request_encode");
    unsigned char *wire = calloc(1, data + 8192);
    must(wire != NULL, "calloc");
    int http = snprintf((char *)wire, 4096,
                        "POST /v1/materialize HTTP/1.1\r\nHost: bench\r\nContent-Length: %zu\r\n\r\n",
                        head_bytes + data);
    memcpy(wire + http, head, head_bytes);
    *bytes = (size_t)http + head_bytes + data;
    return wire;
}

/* Reads one reply; its size is learnt from the first and asserted after. */
static size_t read_reply(int fd, unsigned char *room, size_t room_bytes)
{
    size_t got = 0, head = 0, total = 0;
    while (total == 0 || got < total) {
        ssize_t n = recv(fd, room + got, room_bytes - got, 0);
        must(n > 0, "recv");
        got += (size_t)n;
        if (total == 0) {
            const char *end = memmem(room, got, "\r\n\r\n", 4);
            if (!end) continue;
            head = (size_t)(end - (char *)room) + 4;
            const char *length = memmem(room, head, "Content-Length: ", 16);
            must(length && memcmp(room, "HTTP/1.1 200", 12) == 0, "not a 200 reply");
            total = head + strtoull(length + 16, NULL, 10);
        }
    }
    return got;
}

struct times {
    double http_ms, echo_ms;
    size_t in_bytes, out_bytes;
};

static struct times measure(int64_t tokens, int rounds, int http_port)
{
    struct times times;
    size_t room_bytes = (size_t)tokens * 20480 + 65536;
    unsigned char *room = malloc(room_bytes), *wire = make_request(tokens, &times.in_bytes);
    double *http = calloc((size_t)rounds, sizeof *http), *bare = calloc((size_t)rounds, sizeof *bare);
    must(room && http && bare, "malloc");
    memset(room, 1, room_bytes);
    int fd = connect_port(http_port);
    for (int i = 0; i < 3; i++) {
        send_all(fd, wire, times.in_bytes);
        times.out_bytes = read_reply(fd, room, room_bytes);
    }
    must(times.in_bytes > 0 && times.out_bytes > 0, "an empty message");
    struct kv_listener listener;
    must(kv_listener_open(&listener, "127.0.0.1:0", NULL, NULL), "listen");
    struct echo echo = {.listener = listener.fd, .in_bytes = times.in_bytes, .out_bytes = times.out_bytes};
    echo.in = malloc(times.in_bytes);
    echo.out = malloc(times.out_bytes);
    must(echo.in && echo.out, "malloc");
    memset(echo.in, 1, times.in_bytes);
    memset(echo.out, 1, times.out_bytes);
    processor_run_on(1);
    must(pthread_create(&echo.thread, NULL, echo_serve, &echo) == 0, "pthread_create");
    processor_run_on(0);
    int echo_fd = connect_port(port_of(&listener));
    for (int i = -2; i < rounds; i++) {
        double began = bench_now_ms();
        send_all(echo_fd, wire, times.in_bytes);
        receive_all(echo_fd, room, times.out_bytes);
        double middle = bench_now_ms();
        send_all(fd, wire, times.in_bytes);
        must(read_reply(fd, room, room_bytes) == times.out_bytes, "a reply of another size");
        if (i < 0) continue;
        bare[i] = middle - began;
        http[i] = bench_now_ms() - middle;
    }
    times.http_ms = bench_median(http, rounds);
    times.echo_ms = bench_median(bare, rounds);
    close(fd);
    close(echo_fd);
    pthread_join(echo.thread, NULL);
    kv_listener_close(&listener);
    free(room);
    free(wire);
    free(http);
    free(bare);
    free(echo.in);
    free(echo.out);
    return times;
}

static void serve_and_measure(struct kv_engine *engine, struct kv_listener *listener, const char *csv)
{
    static const struct {
        int64_t tokens;
        int rounds;
    } sizes[] = {{1, 3000}, {16, 3000}, {512, 300}, {2340, 60}, {8192, 20}};
    static const float eps[5] = {1e-6f, 1e-6f, 1e-6f, 1e-6f, 1e-6f};
    const struct kv_http_options options = {engine, listener, 1, "bench", "bench", false, NULL};
    const struct kv_description description = {
        .name = "bench", .fingerprint = "00000000000000000000000000000000", .geometry = geometry, .eps = eps};
    struct kv_http *http = NULL;
    must(kv_http_open(&http, &options, NULL), "kv_http_open");
    kv_http_describe(http, &description);
    kv_engine_open_doors(engine);
    processor_run_on(0);
    printf("HTTP round trip, loopback TCP, one kept connection, L5 H4096 Hkv8 D128, a device that computes "
           "nothing\n");
    printf("%8s %14s %12s %12s %8s\n", "T", "bytes in+out", "kvmat ms", "echo ms", "ratio");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct times times = measure(sizes[i].tokens, sizes[i].rounds, port_of(listener));
        size_t bytes = times.in_bytes + times.out_bytes;
        printf("%8d %14zu %12.3f %12.3f %8.2f\n", (int)sizes[i].tokens, bytes, times.http_ms, times.echo_ms,
               times.http_ms / times.echo_ms);
        bench_csv(csv, "http", (int)sizes[i].tokens, times.http_ms, times.echo_ms);
    }
    kv_http_quiesce(http);
    kv_http_close(http);
}

int main(int argc, char **argv)
{
    const char *csv = argc == 3 && strcmp(argv[1], "--csv") == 0 ? argv[2] : NULL;
    const struct kv_engine_options options = {.spin_us = 50,
                                              .limits = {.tokens_max = 16384,
                                                         .body_bytes_max = 1u << 30,
                                                         .pool_bytes = 1u << 30,
                                                         .queue_max = 16,
                                                         .batch_tokens_max = 16384,
                                                         .connections_max = 16,
                                                         .idle_seconds = 60,
                                                         .upload_seconds = 60,
                                                         .reply_seconds = 60}};
    struct kv_listener listener;
    fake.copy_only = true;
    fake.span_rows = 16384;
    must(freopen("/dev/null", "w", stderr) != NULL, "stderr"); /* the log is written, as in service, but not
                                                                  shown */
    processor_run_on(1);
    struct kv_engine *engine = kv_engine_open(&options);
    struct kv_backend *backend = fake_open(&geometry);
    must(engine && backend && kv_engine_start(engine, &fake_ops, backend, &geometry, NULL),
         "kv_engine_start");
    must(kv_listener_open(&listener, "127.0.0.1:0", NULL, NULL), "listen");
    serve_and_measure(engine, &listener, csv);
    kv_listener_close(&listener);
    kv_engine_close(engine);
    return 0;
}
