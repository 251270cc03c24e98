/* See daemon_rig.h. */
#include "tests/daemon_rig.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 32, PATIENCE_MS = 60000 };

static char build[512] = "build/release";

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    abort();
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
}

void daemon_find(const char *argv0)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", argv0);
    snprintf(build, sizeof build, "%s/..", dirname(copy));
}

const char *daemon_path(const char *program)
{
    static char path[2][600];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", build, program);
    return path[turn];
}

typedef int run_function(int argc, char *const *argv);

/* Runs a function, or where it is NULL a program, in a process of its own. */
static pid_t spawn(const char *program, run_function *run, const char *const *arguments, const char *out_path,
                   const char *err_path)
{
    const char *argv[ARGUMENTS_MAX + 2] = {program};
    int count = 0;
    while (arguments && arguments[count] && count < ARGUMENTS_MAX) {
        argv[count + 1] = arguments[count];
        count++;
    }
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid > 0) return pid;
    int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600),
        err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (out < 0 || err < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    if (run) _exit(run(count + 1, (char *const *)(uintptr_t)argv));
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    must(text != NULL, "calloc");
    if (!file) return text;
    size_t got = fread(text, 1, (1 << 20) - 1, file);
    text[got] = '\0';
    fclose(file);
    return text;
}

/* The word behind the last "listening on " of the wanted kind. */
static bool find_url(const struct daemon *daemon, char url[160])
{
    char *log = read_text(daemon->log_path);
    const char *at = strstr(log, "listening on http://");
    const char *other = strstr(log, "listening on unix:");
    if (at) sscanf(at, "listening on %159s", url);
    free(log);
    return at && other;
}

void daemon_start(struct daemon *daemon, const char *model, const char *const *arguments)
{
    daemon_start_with(daemon, NULL, model, arguments);
}

void daemon_start_with(struct daemon *daemon, run_function *run, const char *model,
                       const char *const *arguments)
{
    static int count;
    const char *argv[ARGUMENTS_MAX] = {"--model",     model,      "--listen",
                                       "127.0.0.1:0", "--listen", daemon->unix_url};
    int at = 6;
    *daemon = (struct daemon){.pid = -1};
    snprintf(daemon->unix_url, sizeof daemon->unix_url, "unix:/tmp/kvmat_daemon_%d_%d.sock", (int)getpid(),
             ++count);
    snprintf(daemon->log_path, sizeof daemon->log_path, "/tmp/kvmat_daemon_%d_%d.log", (int)getpid(), count);
    for (int i = 0; arguments && arguments[i] && at < ARGUMENTS_MAX - 1; i++) argv[at++] = arguments[i];
    daemon->pid = spawn(daemon_path("kvmatd"), run, argv, "/dev/null", daemon->log_path);
    for (int waited = 0; !find_url(daemon, daemon->url); waited += 2) {
        if (waited > PATIENCE_MS || waitpid(daemon->pid, NULL, WNOHANG) != 0) {
            char *log = read_text(daemon->log_path);
            fprintf(stderr, "the daemon does not listen: %s\n", log);
            abort();
        }
        nap();
    }
}

bool daemon_await_ready(const struct daemon *daemon)
{
    struct kv_client *client = NULL;
    bool ready = false;
    if (!kv_client_open(&client, daemon->unix_url, NULL, NULL)) return false;
    for (int waited = 0; !ready && waited < PATIENCE_MS; waited += 2) {
        struct kv_response response;
        ready = kv_client_call(client, "GET", "/ready", NULL, 0, NULL, 0, &response, NULL) &&
                response.status == 200;
        if (!ready) nap();
    }
    kv_client_close(client);
    return ready;
}

int daemon_reap(struct daemon *daemon)
{
    int status = 0;
    for (int waited = 0; waitpid(daemon->pid, &status, WNOHANG) == 0; waited += 2) {
        if (waited > PATIENCE_MS) kill(daemon->pid, SIGKILL);
        nap();
    }
    daemon->pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int daemon_stop(struct daemon *daemon, int signal)
{
    kill(daemon->pid, signal);
    int status = daemon_reap(daemon);
    if (status == 0) unlink(daemon->log_path); /* kept when something went wrong */
    return status;
}

bool daemon_logged(const struct daemon *daemon, const char *text)
{
    char *log = read_text(daemon->log_path);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

long daemon_status(const struct daemon *daemon, const char *field)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)daemon->pid);
    char *text = read_text(path);
    const char *at = strstr(text, field);
    long value = at ? strtol(at + strlen(field) + 1, NULL, 10) : -1;
    free(text);
    return value;
}

int daemon_run(const char *program, const char *const *arguments, char **output, char **errors)
{
    char out_path[64], err_path[64];
    snprintf(out_path, sizeof out_path, "/tmp/kvmat_run_%d.out", (int)getpid());
    snprintf(err_path, sizeof err_path, "/tmp/kvmat_run_%d.err", (int)getpid());
    struct daemon run = {.pid = spawn(program, NULL, arguments, out_path, err_path)};
    int status = daemon_reap(&run);
    if (output) *output = read_text(out_path);
    if (errors) *errors = read_text(err_path);
    unlink(out_path);
    unlink(err_path);
    return status;
}
