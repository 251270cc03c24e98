/* kvmat: the command table. Each command lives in its own file; this one knows their names only. */
#include "client/command.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"health", kv_command_health, "is a daemon alive"},
    {"ready", kv_command_ready, "is a daemon ready for requests; can wait until it is"},
    {"model", kv_command_model, "what a daemon serves, as JSON"},
    {"materialize", kv_command_materialize, "send a request file, store K and V"},
    {"bench", kv_command_bench, "drive a daemon with many connections and measure it"},
    {"compare", kv_command_compare, "how far apart the tensors of two files are"},
    {"explain", kv_command_explain, "what an error code means and what to do"},
    {"make-model", kv_command_make_model, "write a random checkpoint"},
    {"make-request", kv_command_make_request, "write a random request"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *to)
{
    fprintf(
        to,
        "Usage: kvmat COMMAND [options]\n"
        "The command line of kvmatd, the daemon that turns hidden states into a draft model's K and V.\n\n"
        "Commands (each has --help):\n");
    for (int i = 0; i < COMMANDS; i++) fprintf(to, "  %-14s%s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\n  --help        show this\n  --version     show the version\n\n%s\n", KV_EXIT_NOTES);
}

/* A command whose output nobody got has not worked: a full disk or a closed pipe. */
static int finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "kvmat: standard output could not be written\n");
    return code == KV_EXIT_OK ? KV_EXIT_USAGE : code;
}

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return KV_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return finish(KV_EXIT_OK);
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvmat %s\n", kv_command_version());
        return finish(KV_EXIT_OK);
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return finish(commands[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "kvmat: there is no command %s\nTry `kvmat --help`.\n", name);
    return KV_EXIT_USAGE;
}
