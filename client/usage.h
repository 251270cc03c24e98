/* The command line of a command: one table of options gives its parsing, its complaints and its --help.
 * Knows no command. */
#ifndef KV_CLIENT_USAGE_H
#define KV_CLIENT_USAGE_H

#include "protocol/error.h"

#include <stdio.h>

enum kv_option_kind {
    KV_OPTION_FLAG,    /* to: bool */
    KV_OPTION_TEXT,    /* to: const char * */
    KV_OPTION_INTEGER, /* to: int64_t, in [min, max] */
    KV_OPTION_REAL,    /* to: double, finite, in [min, max] */
    KV_OPTION_CHOICE   /* to: const char *, one of `words` */
};

struct kv_option {
    const char *name;  /* with its dashes */
    const char *value; /* what it takes, for the help; NULL for a flag */
    enum kv_option_kind kind;
    void *to;
    double min, max;   /* exact for integers up to 2^53 */
    const char *words; /* of a choice, separated by | */
    const char *help;
    bool *given; /* set when the option is there; NULL: not asked for */
};

struct kv_usage {
    const char *command;  /* "kvmat compare" */
    const char *operands; /* "A B", "" */
    const char *summary;  /* one paragraph, without line ends */
    const struct kv_option *options;
    int32_t option_count;
    int32_t operands_min, operands_max;
    const char *notes; /* after the options; NULL: none */
};

enum kv_parsed { KV_PARSED_RUN, KV_PARSED_HELP, KV_PARSED_WRONG };

/* Reads argv[1..]: `--name value`, `--name=value`, operands anywhere, `--` ends the options. operands
 * [operands_max] borrow from argv; *operand_count of them. --help: writes the help to standard output. Wrong:
 * err holds the complaint, option_invalid. Later options win. */
enum kv_parsed kv_usage_parse(const struct kv_usage *usage, int argc, char **argv, const char **operands,
                              int32_t *operand_count, struct kv_error *err) KV_MUST_CHECK;

void kv_usage_print(const struct kv_usage *usage, FILE *to);

/* Reads a whole number or a real without anything behind it. */
bool kv_integer_read(const char *text, int64_t *out) KV_MUST_CHECK;
bool kv_real_read(const char *text, double *out) KV_MUST_CHECK;

#endif
