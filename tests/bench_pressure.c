/* Many connections at once over a device that computes nothing: the rate of small requests and how late
 * /health is under load, beside libmicrohttpd with a bare handler; and what becomes of three times the load
 * that the device can serve. Interleaved, medians. */
#include "server/http.h"
#include "server/log.h"
#include "tests/bare_http.h"
#include "tests/bench.h"
#include "tests/fake_backend.h"
#include "tests/load.h"
#include "tests/processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 3, CONNECTIONS = 64, UPLOADS = 2, UPLOAD_BYTES = 250 << 20, OVERLOAD = 3 };

/* One token is 512 bytes up and 512 down, beside two headers. */
static const struct kv_geometry small = {
    .layers = 2,
    .kv_heads = 1,
    .head_dim = 64,
    .rotary_dim = 64,
    .hidden = 256,
    .positions = 40960,
    .dtype = KV_BF16,
    .value_scale = 1,
    .attention_factor = 1,
};

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    exit(1);
}

static int port_of(const struct kv_listener *listener)
{
    return (int)strtol(strrchr(listener->url, ':') + 1, NULL, 10);
}

/* Both servers over one geometry, and a request of one token for them. */
struct pair {
    struct kv_geometry geometry;
    struct kv_engine *engine;
    struct kv_http *http;
    struct bare_http *bare;
    struct kv_listener listener[2]; /* ours, the bare one's */
    float eps[2];
    unsigned char *wire;
    size_t bytes;
};

/* A request as bytes on the wire. */
static unsigned char *make_request(const struct kv_geometry *geometry, int64_t tokens, size_t *bytes)
{
    unsigned char head[4096];
    size_t head_bytes = 0, data = (size_t)tokens * ((size_t)geometry->hidden * 2 + 8);
    must(kv_request_encode(head, sizeof head, geometry, KV_HIDDEN_STATES, KV_BF16, KV_I64, tokens,
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

static void open_pair(struct pair *pair, const struct kv_geometry *geometry, struct kv_limits limits)
{
    limits.tokens_max = 1 << 20;
    limits.body_bytes_max = 1u << 30;
    limits.connections_max = 1024;
    limits.idle_seconds = limits.upload_seconds = limits.reply_seconds = 60;
    const struct kv_engine_options options = {.spin_us = 50, .limits = limits};
    *pair = (struct pair){.geometry = *geometry, .eps = {1e-6f, 1e-6f}};
    processor_run_on(1);
    struct kv_backend *backend = fake_open(&pair->geometry);
    pair->engine = kv_engine_open(&options);
    must(pair->engine && backend && kv_engine_start(pair->engine, &fake_ops, backend, &pair->geometry, NULL),
         "kv_engine_start");
    for (int i = 0; i < 2; i++)
        must(kv_listener_open(&pair->listener[i], "127.0.0.1:0", NULL, NULL), "listen");
    const struct kv_http_options http = {pair->engine, pair->listener, 1, "bench", "bench", false, NULL};
    const struct kv_description description = {.name = "bench",
                                               .fingerprint = "00000000000000000000000000000000",
                                               .geometry = pair->geometry,
                                               .eps = pair->eps};
    must(kv_http_open(&pair->http, &http, NULL), "kv_http_open");
    kv_http_describe(pair->http, &description);
    kv_engine_open_doors(pair->engine);
    size_t reply_bytes = KV_DOCUMENT_PREFIX_BYTES + 312 + 2 * (size_t)kv_reply_part_bytes(geometry, 1);
    pair->bare = bare_http_open(&pair->listener[1], reply_bytes, 1024);
    processor_run_on(0);
    pair->wire = make_request(geometry, 1, &pair->bytes);
}

static void close_pair(struct pair *pair)
{
    kv_http_close(pair->http);
    bare_http_close(pair->bare);
    for (int i = 0; i < 2; i++) kv_listener_close(&pair->listener[i]);
    kv_engine_close(pair->engine);
    free(pair->wire);
}

static void assert_all_good(const struct load_result *result)
{
    bool ok = result->good > 0 && result->busy == 0 && result->other == 0 && result->lost == 0;
    if (!ok)
        fprintf(stdout, "%ld sent, %ld good, %ld busy, %ld other, %ld lost\n", result->sent, result->good,
                result->busy, result->other, result->lost);
    must(ok, "a request was not answered with 200");
}

static void measure_rate(const char *csv)
{
    struct pair pair;
    double ms[2][ROUNDS];
    open_pair(&pair, &small,
              (struct kv_limits){.pool_bytes = 64 << 20, .queue_max = 256, .batch_tokens_max = 64});
    for (int i = -1; i < ROUNDS; i++) {
        for (int bare = 0; bare < 2; bare++) {
            struct load_result result;
            const struct load_plan plan = {.port = port_of(&pair.listener[bare]),
                                           .wire = pair.wire,
                                           .bytes = pair.bytes,
                                           .connections = CONNECTIONS,
                                           .seconds = 1};
            load_run(&plan, &result);
            assert_all_good(&result);
            if (i >= 0) ms[bare][i] = result.seconds * 1000 / (double)result.good;
            load_free(&result);
        }
    }
    double ours = bench_median(ms[0], ROUNDS), theirs = bench_median(ms[1], ROUNDS);
    printf("Requests of one token (%zu bytes), %d connections, servers on one processor\n", pair.bytes,
           CONNECTIONS);
    printf("%14s %14s %14s\n", "kvmat 1/s", "bare 1/s", "rate's ratio");
    printf("%14.0f %14.0f %14.2f\n\n", 1000 / ours, 1000 / theirs, theirs / ours);
    bench_csv(csv, "http_64_connections", 1, ours, theirs);
    close_pair(&pair);
}

/* Uploads of UPLOAD_BYTES, over and over, or small requests over CONNECTIONS, until told to stop. */
struct noise {
    const struct load_plan *plan;
    long done;
    pthread_t thread;
};

static void *upload(void *of)
{
    struct noise *noise = of;
    static char room[UPLOADS][1 << 20];
    static _Atomic int turn;
    char *mine = room[turn++ % UPLOADS];
    int fd = load_connect(noise->plan->port);
    for (; !*noise->plan->stop; noise->done++)
        must(load_ask(fd, noise->plan->wire, noise->plan->bytes, mine, sizeof room[0]) == 200, "an upload");
    close(fd);
    return NULL;
}

static void *ask_small(void *of)
{
    struct noise *noise = of;
    struct load_result result;
    load_run(noise->plan, &result);
    assert_all_good(&result);
    noise->done = result.good;
    load_free(&result);
    return NULL;
}

/* The 99th percentile of /health on fresh connections, in ms, while all that goes on. */
static double health_ms(int port, const struct pair *pair, const void *large, size_t large_bytes)
{
    enum { PROBES = 300 };
    static const char probe[] = "GET /health HTTP/1.1\r\nHost: bench\r\n\r\n";
    static double ms[PROBES];
    char room[4096];
    _Atomic int stop = 0;
    const struct load_plan plan[2] = {{.port = port, .wire = large, .bytes = large_bytes, .stop = &stop},
                                      {.port = port,
                                       .wire = pair->wire,
                                       .bytes = pair->bytes,
                                       .connections = CONNECTIONS,
                                       .seconds = 600,
                                       .stop = &stop}};
    struct noise noise[UPLOADS + 1];
    for (int i = 0; i <= UPLOADS; i++) {
        noise[i] = (struct noise){.plan = &plan[i == UPLOADS]};
        must(pthread_create(&noise[i].thread, NULL, i == UPLOADS ? ask_small : upload, &noise[i]) == 0,
             "pthread_create");
    }
    usleep(300000);
    for (int i = 0; i < PROBES; i++) {
        double began = bench_now_ms();
        int fd = load_connect(port);
        must(load_ask(fd, probe, sizeof probe - 1, room, sizeof room) == 200, "/health");
        ms[i] = bench_now_ms() - began;
        close(fd);
        usleep(2000);
    }
    stop = 1;
    for (int i = 0; i <= UPLOADS; i++) pthread_join(noise[i].thread, NULL);
    return load_percentile(ms, PROBES, 0.99);
}

static void measure_health(const char *csv)
{
    struct pair pair;
    struct kv_geometry wide = small;
    size_t large_bytes;
    double ms[2][ROUNDS];
    wide.hidden = 4096; /* so that the body is the larger part of a request */
    wide.layers = 1;
    open_pair(&pair, &wide,
              (struct kv_limits){.pool_bytes = 900u << 20, .queue_max = 256, .batch_tokens_max = 65536});
    unsigned char *large = make_request(&wide, UPLOAD_BYTES / (wide.hidden * 2 + 8), &large_bytes);
    for (int i = 0; i < ROUNDS; i++)
        for (int bare = 0; bare < 2; bare++)
            ms[bare][i] = health_ms(port_of(&pair.listener[bare]), &pair, large, large_bytes);
    double ours = bench_median(ms[0], ROUNDS), theirs = bench_median(ms[1], ROUNDS);
    printf("99th percentile of GET /health on a fresh connection, beside %d uploads of %d MB and %d busy "
           "connections\n",
           UPLOADS, UPLOAD_BYTES >> 20, CONNECTIONS);
    printf("%14s %14s %14s\n", "kvmat ms", "bare ms", "ratio");
    printf("%14.2f %14.2f %14.2f\n\n", ours, theirs, ours / theirs);
    bench_csv(csv, "health_p99_loaded", CONNECTIONS, ours, theirs);
    free(large);
    close_pair(&pair);
}

static void measure_overload(const char *csv)
{
    enum { DELAY_US = 8000, BATCH = 4, QUEUE = 64, LINES = 400 };
    struct pair pair;
    struct load_result result;
    double p99[2][ROUNDS], busy_ms = 0;
    long sent = 0, good = 0, busy = 0, other = 0, lost = 0;
    open_pair(&pair, &small,
              (struct kv_limits){.pool_bytes = 64 << 20, .queue_max = QUEUE, .batch_tokens_max = BATCH});
    fake.delay_us = DELAY_US;
    struct load_plan plan = {.port = port_of(&pair.listener[0]),
                             .wire = pair.wire,
                             .bytes = pair.bytes,
                             .connections = QUEUE,
                             .seconds = 2};
    load_run(&plan, &result);
    assert_all_good(&result);
    double capacity = (double)result.good / result.seconds;
    load_free(&result);
    plan.connections = LINES;
    for (int i = 0; i < ROUNDS; i++) {
        for (int over = 0; over < 2; over++) {
            plan.rate = over ? OVERLOAD * capacity : capacity;
            load_run(&plan, &result);
            p99[over][i] = load_percentile(result.good_ms, result.good, 0.99);
            if (over) {
                sent += result.sent, good += result.good, busy += result.busy;
                if (result.busy_ms > busy_ms) busy_ms = result.busy_ms;
            }
            other += result.other, lost += result.lost;
            load_free(&result);
        }
    }
    double at = bench_median(p99[0], ROUNDS), beyond = bench_median(p99[1], ROUNDS);
    printf("An open loop at the %.0f requests a second that the device can serve, and at %d times as many; "
           "--max-queue %d\n",
           capacity, OVERLOAD, QUEUE);
    printf("%14s %14s %8s %10s %10s %10s %8s %8s\n", "p99 ms at 1x", "p99 ms at 3x", "ratio", "sent",
           "served", "429", "other", "lost");
    printf("%14.1f %14.1f %8.2f %10ld %10ld %10ld %8ld %8ld\n", at, beyond, beyond / at, sent, good, busy,
           other, lost);
    printf("the last 429 came %.1f ms after its request was due\n", busy_ms);
    bench_csv(csv, "overload_p99", OVERLOAD, beyond, at);
    fake.delay_us = 0;
    close_pair(&pair);
    must(other == 0 && lost == 0, "a request was neither served nor refused");
}

int main(int argc, char **argv)
{
    const char *csv = argc == 3 && strcmp(argv[1], "--csv") == 0 ? argv[2] : NULL;
    fake.copy_only = true;
    fake.span_rows = 65536;
    must(freopen("/dev/null", "w", stderr) != NULL, "stderr"); /* the log is written, as in service, but not
                                                                  shown */
    measure_rate(csv);
    measure_health(csv);
    measure_overload(csv);
    return 0;
}
