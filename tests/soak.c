/* Minutes of everything at once: soak SECONDS RESTARTS. Two daemons serve one model; one runs through, the
 * other is stopped and started again RESTARTS times in the middle of the load. Honest callers check every
 * bit, beside them others vanish, trickle and send garbage. At the end no accepted request is lost, what the
 * callers saw, what the daemons logged and what they counted agree, and the memory and descriptors of the
 * one that ran through are what they were. Ends with `N passed, N failed`. KVMAT_DEVICE chooses the device.
 */
#include "tests/daemon_rig.h"
#include "tests/hostile.h"
#include "tests/random_weights.h"
#include "tests/soak_callers.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCH_MEMORY = 0 }; /* a sanitizer keeps freed memory back */
#else
enum { WATCH_MEMORY = 1 };
#endif
enum {
    HONEST = 6,
    VANISHING = 3,
    SLOW = 2,
    GARBAGE = 2,
    CALLERS = HONEST + VANISHING + SLOW + GARBAGE,
    KIB_MORE_MAX = 8192, /* arenas of short-lived threads come and go */
    REST_S = 30,         /* by then all that was begun has ended */
    LOOKS = 20,
    AWAY_US = 20000
};

static struct soak soak;
static struct soak_caller callers[CALLERS];
static int passed, failed;
static char scratch[64];

static void check(bool ok, const char *what)
{
    *(ok ? &passed : &failed) += 1;
    printf("%s  %s\n", ok ? "ok  " : "FAIL", what);
    fflush(stdout);
}

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "soak: %s\n", what);
    exit(2);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    must(file && fseek(file, 0, SEEK_END) == 0, path);
    *bytes = (size_t)ftell(file);
    unsigned char *content = malloc(*bytes + 1);
    must(content && fseek(file, 0, SEEK_SET) == 0 && fread(content, 1, *bytes, file) == *bytes, path);
    fclose(file);
    return content;
}

/* A port that is free now: the daemon that restarts takes it again and again. */
static uint16_t free_port(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&in, sizeof in) == 0 &&
             getsockname(fd, (struct sockaddr *)&in, &bytes) == 0,
         "no free port");
    close(fd);
    return ntohs(in.sin_port);
}

/* Starts the daemon of a place, always at the same addresses. */
static void start(struct daemon *daemon, const char *model, const struct soak_place *place)
{
    char unix_at[128], tcp_at[32];
    const char *device = getenv("KVMAT_DEVICE");
    snprintf(unix_at, sizeof unix_at, "unix:%s", place->unix_path);
    snprintf(tcp_at, sizeof tcp_at, "127.0.0.1:%u", (unsigned)place->port);
    const char *const arguments[] = {"--device", device ? device : "cpu", "--listen", unix_at,  "--listen",
                                     tcp_at,     "--drain-timeout",       "15",       "--tune", "off",
                                     NULL};
    daemon_start(daemon, model, arguments);
    must(daemon_await_ready(daemon), "the daemon is not ready");
}

static void make_model(char model[80])
{
    snprintf(model, 80, "%s/model", scratch);
    const char *const arguments[] = {"make-model", "--layers",   "3",  "--hidden", "256", "--kv-heads",
                                     "2",          "--head-dim", "64", model,      NULL};
    must(daemon_run(daemon_path("kvmat"), arguments, NULL, NULL) == 0, "kvmat make-model");
}

/* Requests of many sizes, and the answer that a daemon with nothing else to do gives to each; the smallest
 * is also held against the independent computation. */
static void make_requests(const char *model)
{
    static const int tokens[SOAK_REQUESTS] = {1, 2, 3, 7, 16, 17, 33, 64, 129, 300, 512, 4000};
    char path[96], reply[96], want[96], number[16], seed[16];
    for (int i = 0; i < SOAK_REQUESTS; i++) {
        struct soak_request *request = &soak.request[i];
        snprintf(path, sizeof path, "%s/request", scratch);
        snprintf(number, sizeof number, "%d", tokens[i]);
        snprintf(seed, sizeof seed, "%d", 100 + i);
        unlink(path);
        const char *const make[] = {"make-request", "--model", model, "--tokens", number,
                                    "--seed",       seed,      path,  NULL};
        must(daemon_run(daemon_path("kvmat"), make, NULL, NULL) == 0, "kvmat make-request");
        request->body = read_file(path, &request->body_bytes);
        unsigned char *body = NULL;
        size_t bytes = 0;
        int fd = soak_connect(&soak.place[0], true);
        must(fd >= 0 && soak_call(fd, "alone", request, &body, &bytes) == 200, "the first answers");
        close(fd);
        size_t at = soak_tensors_at(body, bytes);
        must(at > 0, "the first answers are documents");
        if (i == 0) {
            snprintf(reply, sizeof reply, "%s/reply", scratch);
            snprintf(want, sizeof want, "%s/want", scratch);
            FILE *file = fopen(reply, "wb");
            must(file && fwrite(body, 1, bytes, file) == bytes && fclose(file) == 0, reply);
            const char *const exact[] = {"--model", model, "--input", path, "--output", want, NULL};
            const char *const compare[] = {"compare", "--tolerance", "1e-3", reply, want, NULL};
            check(daemon_run(daemon_path("tests/reference"), exact, NULL, NULL) == 0 &&
                      daemon_run(daemon_path("kvmat"), compare, NULL, NULL) == 0,
                  "an answer agrees with the independent computation");
        }
        request->tensor_bytes = bytes - at;
        request->tensors = malloc(request->tensor_bytes);
        must(request->tensors != NULL, "no memory");
        memcpy(request->tensors, body + at, request->tensor_bytes);
        free(body);
    }
}

/* Requests for K and V that a log says were answered: of the honest callers, whom a daemon may take for gone
 * where they hang up on a unix socket as soon as they have all of it, and of all that it calls ok. */
static void count_log(const char *path, uint64_t *honest, uint64_t *all)
{
    static char line[4096];
    FILE *file = fopen(path, "r");
    must(file != NULL, path);
    while (fgets(line, sizeof line, file)) {
        if (!strstr(line, " route=materialize ") || !strstr(line, " status=200 ")) continue;
        *all += strstr(line, " code=ok ") != NULL;
        *honest += strstr(line, " id=honest-") != NULL;
    }
    fclose(file);
}

static int descriptors_of(pid_t pid)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    must(folder != NULL, path);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* The value of a metric, with its labels as they are printed; -1: there is none. */
static double metric_of(const struct daemon *daemon, const char *name)
{
    struct kv_client *client = NULL;
    struct kv_response response;
    double value = -1;
    must(kv_client_open(&client, daemon->unix_url, NULL, NULL) &&
             kv_client_call(client, "GET", "/metrics", NULL, 0, NULL, 0, &response, NULL) &&
             response.status == 200,
         "no metrics");
    const char *at = strstr((const char *)response.body, name);
    if (at) value = strtod(at + strlen(name), NULL);
    kv_client_close(client);
    return value;
}

static int callers_calling(void)
{
    int count = 0;
    for (int i = 0; i < CALLERS; i++) count += atomic_load(&callers[i].calling);
    return count;
}

/* All callers between two calls, and the daemon done with what was begun. */
static bool come_to_rest(const struct daemon *daemon)
{
    double until = now_s() + REST_S;
    double pool = 1, connections = 2;
    atomic_store(&soak.resting, true);
    while (now_s() < until && (callers_calling() > 0 || pool > 0 || connections > 1)) {
        usleep(20000);
        pool = metric_of(daemon, "\nkvmat_pool_used_bytes ");
        connections = metric_of(daemon, "\nkvmat_connections ");
    }
    if (now_s() < until) return true;
    printf("      after %d s: %.0f bytes of the pool, %.0f connections, callers:", REST_S, pool, connections);
    for (int i = 0; i < CALLERS; i++)
        if (atomic_load(&callers[i].calling)) printf(" %d", i);
    printf("\n");
    return false;
}

/* What the daemon that runs through has at rest. */
struct rest {
    long kib, threads;
    int descriptors;
};

static struct rest look(const struct daemon *daemon, const char *when)
{
    check(come_to_rest(daemon), when);
    struct rest rest = {.threads = LONG_MAX, .descriptors = INT_MAX};
    for (int i = 0; i < LOOKS; i++) { /* a thread ends a little after its connection */
        long threads = daemon_status(daemon, "Threads");
        int descriptors = descriptors_of(daemon->pid);
        if (threads < rest.threads) rest.threads = threads;
        if (descriptors < rest.descriptors) rest.descriptors = descriptors;
        usleep(50000);
    }
    rest.kib = daemon_status(daemon, "VmRSS");
    printf("      %s: %ld KiB, %d descriptors, %ld threads\n", when, rest.kib, rest.descriptors,
           rest.threads);
    return rest;
}

static void start_callers(uint64_t seed)
{
    for (int i = 0; i < CALLERS; i++) {
        void *(*call)(void *) = i < HONEST                      ? soak_honest
                                : i < HONEST + VANISHING        ? soak_vanishing
                                : i < HONEST + VANISHING + SLOW ? soak_slow
                                                                : soak_garbage;
        callers[i].soak = &soak;
        callers[i].number = i;
        callers[i].state = seed + (uint64_t)i * 7919;
        must(pthread_create(&callers[i].thread, NULL, call, &callers[i]) == 0, "no thread");
    }
}

/* Stops the daemon that restarts and reads its log. */
static bool stop(struct daemon *daemon, uint64_t *honest, uint64_t *all)
{
    kill(daemon->pid, SIGTERM);
    int status = daemon_reap(daemon);
    count_log(daemon->log_path, honest, all);
    if (status == 0)
        unlink(daemon->log_path);
    else
        printf("      exit status %d after SIGTERM; its log: %s\n", status, daemon->log_path);
    return status == 0;
}

/* `honest` and `logged`: what the logs say was answered, to the honest callers of each place and to all of
 * the one that ran through; `counted`: what the latter's metrics say. */
static void judge(const uint64_t honest[SOAK_PLACES], uint64_t logged, double counted, bool clean,
                  double seconds, const struct rest *first, const struct rest *last)
{
    for (int i = 0; i < SOAK_PLACES; i++) {
        const struct soak_counts *of = &soak.counts[i];
        printf(
            "      %s: %llu answers with the right bits, %llu refused, %llu times nobody there, %llu hostile "
            "calls\n",
            i == 0 ? "running through" : "restarted", (unsigned long long)of->right,
            (unsigned long long)of->refused, (unsigned long long)of->away, (unsigned long long)of->hostile);
        check(of->right > (uint64_t)seconds, "honest callers were answered all the time");
        check(of->faults == 0, "every answer has the right bits, none was lost or stopped");
        check(of->right == honest[i], "the log says answered as often as the callers do");
    }
    check((double)logged == counted, "the metrics count as many answers as the log");
    check(clean, "every SIGTERM ended in exit status 0");
    check(!WATCH_MEMORY || last->kib <= first->kib + KIB_MORE_MAX,
          "the memory of the one that ran through is flat");
    check(last->descriptors == first->descriptors && last->threads == first->threads,
          "its descriptors and threads are what they were");
}

/* The model, the places and both daemons, and the requests with their answers. */
static void set_up(struct daemon *steady, struct daemon *restarted, char model[80])
{
    int32_t heads;
    (void)hostile_heads(&heads); /* made once, before there are threads */
    make_model(model);
    for (int i = 0; i < SOAK_PLACES; i++) {
        soak.place[i] = (struct soak_place){.port = free_port(), .restarts = i == 1};
        snprintf(soak.place[i].unix_path, sizeof soak.place[i].unix_path, "%s/daemon%d.sock", scratch, i);
    }
    start(steady, model, &soak.place[0]);
    start(restarted, model, &soak.place[1]);
    make_requests(model);
}

int main(int argc, char **argv)
{
    must(argc == 3, "usage: soak SECONDS RESTARTS");
    double seconds = strtod(argv[1], NULL);
    long restarts = strtol(argv[2], NULL, 10), clean = 0;
    must(seconds >= 5 && restarts >= 1, "at least 5 seconds and one restart");
    struct timespec time_of_day;
    clock_gettime(CLOCK_REALTIME, &time_of_day);
    uint64_t seed = (uint64_t)time_of_day.tv_nsec ^ (uint64_t)time_of_day.tv_sec;
    printf("soak: %.0f s, %ld restarts, seed %llu\n", seconds, restarts, (unsigned long long)seed);
    daemon_find(argv[0]);
    snprintf(scratch, sizeof scratch, "/tmp/kvmat_soak_XXXXXX");
    must(mkdtemp(scratch) != NULL, "no folder in /tmp");

    char model[80];
    struct daemon steady, restarted;
    set_up(&steady, &restarted, model);
    start_callers(seed);
    uint64_t honest[SOAK_PLACES] = {0}, all[SOAK_PLACES] = {0};
    struct rest first = {0};
    double began = now_s();
    for (long i = 1; i <= restarts; i++) {
        double until = began + seconds * (double)i / (double)(restarts + 1);
        while (now_s() < until) usleep(10000);
        clean += stop(&restarted, &honest[1], &all[1]);
        usleep(AWAY_US);
        start(&restarted, model, &soak.place[1]);
        if (first.kib == 0 && now_s() - began > seconds / 4) {
            first = look(&steady, "at rest after a quarter of the time");
            atomic_store(&soak.resting, false);
        }
    }
    while (now_s() < began + seconds) usleep(10000);
    struct rest last = look(&steady, "at rest at the end");
    double counted = metric_of(&steady, "\nkvmat_requests_total{route=\"materialize\",code=\"ok\"} ");
    atomic_store(&soak.ending, true);
    for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
    bool steady_clean = stop(&steady, &honest[0], &all[0]);
    clean += stop(&restarted, &honest[1], &all[1]);

    judge(honest, all[0], counted, steady_clean && clean == restarts + 1, seconds, &first, &last);
    const char *const remove_all[] = {"-rf", scratch, NULL};
    must(daemon_run("/bin/rm", remove_all, NULL, NULL) == 0, "the folder in /tmp stays");
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
