/* kvmat bench as a command: run with its two outputs caught. Header-only: each test program is one file. */
#ifndef KV_TESTS_BENCH_COMMAND_H
#define KV_TESTS_BENCH_COMMAND_H

#include "client/command.h"
#include "tests/bench_service.h"

#include <check.h>

enum { ARGUMENTS_MAX = 24, TEXT_BYTES = 1 << 20 };

static char text[TEXT_BYTES]; /* "\n" and what the last command wrote to standard output */
static char said[TEXT_BYTES]; /* the same of standard error */

static inline void read_all(FILE *from, char *to)
{
    rewind(from);
    to[0] = '\n';
    size_t bytes = fread(to + 1, 1, TEXT_BYTES - 2, from);
    to[1 + bytes] = '\0';
}

/* Turns a standard stream to a file of its own; *kept is where it went. */
static inline FILE *turn(FILE *stream, int *kept)
{
    FILE *file = tmpfile();
    fflush(stream);
    *kept = dup(fileno(stream));
    ck_assert(file && *kept >= 0 && dup2(fileno(file), fileno(stream)) >= 0);
    return file;
}

static inline void turn_back(FILE *stream, int kept, FILE *file, char *to)
{
    fflush(stream);
    ck_assert(dup2(kept, fileno(stream)) >= 0);
    close(kept);
    read_all(file, to);
    fclose(file);
}

/* Runs `kvmat bench` with words separated by spaces; returns its exit status. */
static inline int bench(const char *url, const char *words)
{
    char copy[512], *argv[ARGUMENTS_MAX] = {"bench", "--url", (char *)(uintptr_t)url};
    int argc = 3, out, err;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest, *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        ck_assert_int_lt(argc, ARGUMENTS_MAX - 1);
        argv[argc++] = word;
    }
    FILE *output = turn(stdout, &out), *errors = turn(stderr, &err);
    int status = kv_command_bench(argc, argv);
    turn_back(stdout, out, output, text);
    turn_back(stderr, err, errors, said);
    return status;
}

/* The same against a service that answers so. */
static inline int bench_served(void (*answer)(struct fake *, int, int64_t), const char *words)
{
    struct fake *fake = bench_service_start(answer);
    int status = bench(fake->url, words);
    bench_service_stop(fake);
    return status;
}

#endif
