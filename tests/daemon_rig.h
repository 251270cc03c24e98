/* The real daemon as a child process: started, spoken to over its sockets, stopped; its log is kept. */
#ifndef KV_TESTS_DAEMON_RIG_H
#define KV_TESTS_DAEMON_RIG_H

#include "client/client.h"

#include <sys/types.h>

struct daemon {
    pid_t pid;
    char url[160], unix_url[160]; /* loopback TCP on a free port, and a unix socket */
    char log_path[160];
};

/* Where the binaries of this build are, from a test's argv[0]. Call it first. */
void daemon_find(const char *argv0);
const char *daemon_path(const char *program); /* "kvmatd", "kvmat" */

/* Starts kvmatd for a model with more arguments (NULL ends them), and waits until it listens. Aborts when it
 * does not: for daemons that are to refuse, use daemon_run. */
void daemon_start(struct daemon *daemon, const char *model, const char *const *arguments);
/* The same with a process that runs a function of the test's instead of kvmatd; it returns the exit status.
 */
void daemon_start_with(struct daemon *daemon, int (*run)(int argc, char *const *argv), const char *model,
                       const char *const *arguments);
/* Waits for /ready, at most 60 s. */
bool daemon_await_ready(const struct daemon *daemon);
/* Sends a signal; reaps and returns the exit status, or 128 + the signal that killed it. */
int daemon_stop(struct daemon *daemon, int signal);
int daemon_reap(struct daemon *daemon);
/* Does its log say this? */
bool daemon_logged(const struct daemon *daemon, const char *text);
/* Resident memory in KiB; its threads. */
long daemon_status(const struct daemon *daemon, const char *field);

/* Runs a program to its end, at most 60 s. *output (free it) is standard output, *errors standard error;
 * either may be NULL. Returns the exit status. */
int daemon_run(const char *program, const char *const *arguments, char **output, char **errors);

#endif
