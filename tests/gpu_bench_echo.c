/* The bare opponent of the served path: reads as many bytes as a request has, writes as many as the reply
 * has, for ever; nothing is parsed but the length of a connection's first request. gpu_bench_echo MODEL
 * REPLY SOCKET: two files, each a whole HTTP reply: to GET, and to everything else; and where to make a unix
 * socket. Says its TCP port on standard output; ends with standard input. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct bytes {
    char *at;
    size_t count;
};

static struct bytes model, reply;

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    exit(1);
}

static struct bytes read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    must(file && fseek(file, 0, SEEK_END) == 0, path);
    long count = ftell(file);
    must(count > 0 && fseek(file, 0, SEEK_SET) == 0, path);
    struct bytes bytes = {malloc((size_t)count), (size_t)count};
    must(bytes.at && fread(bytes.at, 1, bytes.count, file) == bytes.count, path);
    fclose(file);
    return bytes;
}

static bool send_all(int fd, struct bytes bytes)
{
    while (bytes.count > 0) {
        ssize_t sent = send(fd, bytes.at, bytes.count, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.at += sent;
        bytes.count -= (size_t)sent;
    }
    return true;
}

/* Bytes of the first request on a connection, of which *got are in `room`; 0: it is a GET, or nothing came.
 */
static size_t learn_length(int fd, struct bytes room, size_t *got)
{
    *got = 0;
    while (*got < room.count) {
        ssize_t n = recv(fd, room.at + *got, room.count - *got, 0);
        if (n <= 0) return 0;
        *got += (size_t)n;
        const char *end = memmem(room.at, *got, "\r\n\r\n", 4);
        if (!end) continue;
        size_t head = (size_t)(end - room.at) + 4;
        const char *length = memmem(room.at, head, "Content-Length: ", 16);
        return length ? head + strtoull(length + 16, NULL, 10) : 0;
    }
    return 0;
}

static void *serve(void *of)
{
    enum { ROOM = 1 << 20 };
    int fd = (int)(intptr_t)of, on = 1;
    struct bytes room = {malloc(ROOM), ROOM};
    size_t got = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    must(room.at != NULL, "malloc");
    size_t request = learn_length(fd, room, &got);
    bool open = request > 0 || !send_all(fd, model);
    while (open && request > 0) {
        while (open && got < request) {
            size_t left = request - got;
            ssize_t n = recv(fd, room.at, left < room.count ? left : room.count, 0);
            open = n > 0;
            if (open) got += (size_t)n;
        }
        open = open && send_all(fd, reply);
        got = 0;
    }
    free(room.at);
    close(fd);
    return NULL;
}

/* Whoever started this went away. */
static void *watch(void *of)
{
    char byte;
    (void)of;
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
    exit(0);
}

static void *accept_all(void *of)
{
    int listener = (int)(intptr_t)of;
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0 && errno == EINTR) continue;
        must(fd >= 0, "accept");
        must(pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0, "pthread_create");
        pthread_detach(thread);
    }
    return NULL;
}

static int listen_at(const void *address, socklen_t bytes)
{
    const struct sockaddr *at = address;
    int listener = socket(at->sa_family, SOCK_STREAM, 0);
    must(listener >= 0 && bind(listener, at, bytes) == 0 && listen(listener, 256) == 0, "listen");
    return listener;
}

int main(int argc, char **argv)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof in;
    pthread_t thread;
    if (argc != 4 || strlen(argv[3]) >= sizeof un.sun_path) {
        fputs("usage: gpu_bench_echo MODEL REPLY SOCKET\n", stderr);
        return 2;
    }
    model = read_file(argv[1]);
    reply = read_file(argv[2]);
    memcpy(un.sun_path, argv[3], strlen(argv[3]));
    int over_tcp = listen_at(&in, sizeof in), over_unix = listen_at(&un, sizeof un);
    must(getsockname(over_tcp, (struct sockaddr *)&in, &bytes) == 0, "getsockname");
    printf("%d\n", ntohs(in.sin_port));
    fflush(stdout);
    must(pthread_create(&thread, NULL, watch, NULL) == 0, "pthread_create");
    must(pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)over_unix) == 0, "pthread_create");
    accept_all((void *)(intptr_t)over_tcp);
    return 0;
}
