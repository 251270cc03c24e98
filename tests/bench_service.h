/* A service for measurements, on top of the fake one: a thread for each connection, /v1/model, and whatever a
 * test answers to the requests for K and V. Header-only: each test program is one file. */
#ifndef KV_TESTS_BENCH_SERVICE_H
#define KV_TESTS_BENCH_SERVICE_H

#include "protocol/message.h"
#include "protocol/safetensors.h"
#include "tests/fake_service.h"

#include <netinet/tcp.h>
#include <stdatomic.h>

/* What the model's name has that JSON and XML escape. */
#define BENCH_MODEL_NAME "a<b>&\"c"

enum { BENCH_SERVICE_CONNECTIONS = 64 };

static const struct kv_geometry bench_geometry = {.layers = 2,
                                                  .kv_heads = 3,
                                                  .head_dim = 4,
                                                  .hidden = 6,
                                                  .rotary_dim = 4,
                                                  .positions = 100,
                                                  .dtype = KV_BF16};

/* Answers request `number` (from 0, over all connections) for so many tokens. */
static void (*bench_answer)(struct fake *connection, int number, int64_t tokens);
static atomic_int bench_requests;

/* K and V of zeros, but the byte at `changed` (-1: none) of V; the id in the header is another one each time.
 */
static inline void bench_reply(struct fake *connection, int number, int64_t tokens, int changed)
{
    char head[KV_REPLY_HEADER_BYTES_MAX], lines[256], id[32];
    size_t bytes = 0, part = (size_t)kv_reply_part_bytes(&bench_geometry, tokens);
    snprintf(id, sizeof id, "id-%d", number);
    bool made = kv_reply_encode(head, sizeof head, &bench_geometry, tokens, "draft",
                                "00112233445566778899aabbccddeeff", id, &bytes, NULL);
    char *data = calloc(2 * part + 1, 1);
    assert(made && data);
    if (changed >= 0) data[part + (size_t)changed] = 1;
    snprintf(lines, sizeof lines,
             "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nServer-Timing: queue;dur=0.5, device;dur=2\r\n\r\n",
             bytes + 2 * part);
    fake_send(connection, lines);
    fake_send_bytes(connection, head, bytes);
    fake_send_bytes(connection, data, 2 * part);
    free(data);
}

static inline int64_t bench_tokens_of(const struct fake *connection)
{
    struct kv_document document = {0};
    bool opened =
        kv_document_open(&document, connection->body, connection->body_bytes, KV_DOCUMENT_REQUEST, NULL);
    assert(opened);
    const struct kv_tensor *positions = kv_document_find(&document, "positions");
    assert(positions);
    int64_t tokens = kv_document_view(&document, positions, connection->body).dims[0];
    kv_document_close(&document);
    return tokens;
}

static inline void *bench_serve_connection(void *argument)
{
    static const char model[] =
        "{\"name\": \"a<b>&\\\"c\", \"fingerprint\": \"00112233445566778899aabbccddeeff\", \"ready\": true, "
        "\"dtype\": \"BF16\", \"rope\": {\"positions\": 100}, "
        "\"geometry\": {\"layers\": 2, \"hidden\": 6, \"kv_heads\": 3, \"head_dim\": 4, \"taps\": 0}}";
    struct fake *connection = argument;
    while (connection->fd >= 0 && fake_read(connection)) {
        if (strncmp(connection->head, "GET /v1/model ", 14) == 0) {
            fake_reply(connection, 200, "", model);
        } else {
            bench_answer(connection, atomic_fetch_add(&bench_requests, 1), bench_tokens_of(connection));
        }
    }
    fake_hang_up(connection);
    free(connection->body);
    free(connection);
    return NULL;
}

/* The script: until the listener is shut down. */
static inline void bench_serve(struct fake *fake)
{
    pthread_t threads[BENCH_SERVICE_CONNECTIONS];
    int count = 0;
    for (int fd; (fd = accept(fake->listener, NULL, NULL)) >= 0;) {
        static const int on = 1; /* a reply in pieces is not to wait for acknowledgements */
        struct fake *connection = fake_new();
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection->fd = fd;
        fake->accepted++;
        assert(count < BENCH_SERVICE_CONNECTIONS);
        int status = pthread_create(&threads[count++], NULL, bench_serve_connection, connection);
        assert(status == 0);
    }
    while (count > 0) pthread_join(threads[--count], NULL);
}

static inline struct fake *bench_service_start(void (*answer)(struct fake *connection, int number,
                                                              int64_t tokens))
{
    bench_answer = answer;
    atomic_store(&bench_requests, 0);
    return fake_start(bench_serve);
}

/* The clients' connections must have been closed. Returns how many there were. */
static inline int bench_service_stop(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    return fake_stop(fake);
}

static inline void answer_well(struct fake *connection, int number, int64_t tokens)
{
    bench_reply(connection, number, tokens, -1);
}

static inline void answer_full(struct fake *connection, const char *retry_after)
{
    fake_reply(connection, 429, retry_after, "{\"error\": \"full\", \"code\": \"queue_full\"}");
}

/* Of each four: K and V, 429, 503, and a reply that ends in its middle. */
static inline void answer_in_turns(struct fake *connection, int number, int64_t tokens)
{
    switch (number % 4) {
    case 0: answer_well(connection, number, tokens); break;
    case 1: answer_full(connection, "Retry-After: 1\r\n"); break;
    case 2: fake_reply(connection, 503, "", "{\"error\": \"ending\", \"code\": \"draining\"}"); break;
    default:
        fake_send(connection, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        fake_hang_up(connection);
    }
}

/* V's last byte but one of the fourth reply is another one. */
static inline void answer_changed_once(struct fake *connection, int number, int64_t tokens)
{
    int last = (int)kv_reply_part_bytes(&bench_geometry, tokens) - 2;
    bench_reply(connection, number, tokens, number == 3 ? last : -1);
}

#endif
