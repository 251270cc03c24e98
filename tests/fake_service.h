/* A service of one thread on a loopback or unix socket that does exactly what a test's script says, however
 * rude. Header-only: each test program is one file. Knows no more HTTP than finding the end of a request. */
#ifndef KV_TESTS_FAKE_SERVICE_H
#define KV_TESTS_FAKE_SERVICE_H

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fake {
    int listener, fd; /* fd: the accepted connection, -1 between them */
    int accepted;
    char url[160];
    char path[108]; /* of a unix socket, or "" */
    void (*script)(struct fake *fake);
    pthread_t thread;
    char head[65536]; /* of the last request, terminated */
    char *body;       /* of the last request, or NULL */
    size_t body_bytes;
};

static inline void fake_accept(struct fake *fake)
{
    if (fake->fd >= 0) close(fake->fd);
    fake->fd = accept(fake->listener, NULL, NULL);
    assert(fake->fd >= 0);
    fake->accepted++;
}

static inline void fake_hang_up(struct fake *fake)
{
    if (fake->fd >= 0) close(fake->fd);
    fake->fd = -1;
}

/* Reads one request's head, byte by byte so that nothing behind it is taken. False at the end of the
 * connection. */
static inline bool fake_read_head(struct fake *fake)
{
    size_t count = 0;
    while (count < sizeof fake->head - 1) {
        if (recv(fake->fd, fake->head + count, 1, 0) != 1) return false;
        fake->head[++count] = '\0';
        if (count >= 4 && strcmp(fake->head + count - 4, "\r\n\r\n") == 0) return true;
    }
    return false;
}

/* Reads one request with its body. False at the end of the connection. */
static inline bool fake_read(struct fake *fake)
{
    if (!fake_read_head(fake)) return false;
    const char *length = strcasestr(fake->head, "\r\nContent-Length:");
    fake->body_bytes = length ? strtoull(length + 17, NULL, 10) : 0;
    free(fake->body);
    fake->body = malloc(fake->body_bytes + 1);
    assert(fake->body);
    for (size_t have = 0; have < fake->body_bytes;) {
        ssize_t got = recv(fake->fd, fake->body + have, fake->body_bytes - have, 0);
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return true;
}

static inline void fake_send_bytes(struct fake *fake, const void *bytes, size_t count)
{
    for (size_t sent = 0; sent < count;) {
        ssize_t now = send(fake->fd, (const char *)bytes + sent, count - sent, MSG_NOSIGNAL);
        if (now <= 0) return;
        sent += (size_t)now;
    }
}

static inline void fake_send(struct fake *fake, const char *text)
{
    fake_send_bytes(fake, text, strlen(text));
}

/* A whole reply. */
static inline void fake_reply(struct fake *fake, int status, const char *headers, const char *body)
{
    char head[1024];
    snprintf(head, sizeof head, "HTTP/1.1 %d Reason\r\nContent-Length: %zu\r\n%s\r\n", status, strlen(body),
             headers);
    fake_send(fake, head);
    fake_send(fake, body);
}

static inline void *fake_run(void *argument)
{
    struct fake *fake = argument;
    sigset_t all; /* a test's signals are for the client: this side's calls take none */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    fake->script(fake);
    fake_hang_up(fake);
    return NULL;
}

static inline void fake_begin(struct fake *fake, void (*script)(struct fake *fake))
{
    int status = listen(fake->listener, 16);
    assert(status == 0);
    fake->script = script;
    status = pthread_create(&fake->thread, NULL, fake_run, fake);
    assert(status == 0);
}

static inline struct fake *fake_new(void)
{
    struct fake *fake = calloc(1, sizeof *fake);
    assert(fake);
    fake->fd = fake->listener = -1;
    return fake;
}

/* Starts a service on 127.0.0.1 and a free port. */
static inline struct fake *fake_start(void (*script)(struct fake *fake))
{
    struct fake *fake = fake_new();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    fake->listener = socket(AF_INET, SOCK_STREAM, 0);
    int status = bind(fake->listener, (const struct sockaddr *)&address, sizeof address);
    assert(status == 0);
    status = getsockname(fake->listener, (struct sockaddr *)&address, &bytes);
    assert(status == 0);
    snprintf(fake->url, sizeof fake->url, "http://127.0.0.1:%d", ntohs(address.sin_port));
    fake_begin(fake, script);
    return fake;
}

/* Starts a service on a unix socket in the temporary folder. */
static inline struct fake *fake_start_unix(void (*script)(struct fake *fake))
{
    struct fake *fake = fake_new();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(fake->path, sizeof fake->path, "/tmp/kvmat-fake-%d.sock", (int)getpid());
    unlink(fake->path);
    memcpy(address.sun_path, fake->path, sizeof fake->path);
    snprintf(fake->url, sizeof fake->url, "unix:%s", fake->path);
    fake->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    int status = bind(fake->listener, (const struct sockaddr *)&address, sizeof address);
    assert(status == 0);
    fake_begin(fake, script);
    return fake;
}

/* Waits for the script to end; returns how many connections it accepted. */
static inline int fake_stop(struct fake *fake)
{
    pthread_join(fake->thread, NULL);
    int accepted = fake->accepted;
    close(fake->listener);
    if (fake->path[0]) unlink(fake->path);
    free(fake->body);
    free(fake);
    return accepted;
}

#endif
