/* The commands of `kvmat` and what they share: exit codes, how an error is shown, where the daemon is.
 * Each takes its own argv (argv[0] is its name) and returns the exit code. */
#ifndef KV_CLIENT_COMMAND_H
#define KV_CLIENT_COMMAND_H

#include "client/client.h"
#include "client/usage.h"

enum {
    KV_EXIT_OK = 0,
    KV_EXIT_NO = 1,         /* a negative answer: not ready, not equal, refused */
    KV_EXIT_USAGE = 2,      /* the command line, or a file that it names */
    KV_EXIT_UNREACHABLE = 3 /* no service, or not one of ours */
};

#define KV_URL_HELP                                                                                          \
    "http://HOST:PORT, http://[IPV6]:PORT or unix:PATH (default: KVMAT_URL, else http://127.0.0.1:8600)"

#define KV_EXIT_NOTES                                                                                        \
    "Exit status: 0 yes, 1 no (not ready, not equal, refused), 2 usage or a file,\n"                         \
    "3 no reply.\n"                                                                                          \
    "KVMAT_URL in the environment is the default of --url; KVMAT_API_KEY is the key\n"                       \
    "that is sent to a daemon that asks for one."

int kv_command_health(int argc, char **argv);
int kv_command_ready(int argc, char **argv);
int kv_command_model(int argc, char **argv);
int kv_command_materialize(int argc, char **argv);
int kv_command_bench(int argc, char **argv);
int kv_command_compare(int argc, char **argv);
int kv_command_explain(int argc, char **argv);
int kv_command_make_model(int argc, char **argv);
int kv_command_make_request(int argc, char **argv);

/* Writes the error with its code and hint to standard error and returns the exit code that it stands for. */
int kv_command_failed(const char *command, const struct kv_error *err);

/* The daemon's address from the environment, or the default. */
const char *kv_command_url(void);

/* The API key from the environment, which other users cannot read as they can a command line; or NULL. */
const char *kv_command_key(void);

/* Ends a command line that was not to be run: help or a complaint. */
int kv_command_parsed(const struct kv_usage *usage, enum kv_parsed parsed, const struct kv_error *err);

/* "v1.2", or "unknown". */
const char *kv_command_version(void);

#endif
