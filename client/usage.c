/* Parses the command line of a command from its table of options. Knows no command. */
#include "client/usage.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_COLUMN = 28, LINE_BYTES = 80 };

bool kv_integer_read(const char *text, int64_t *out)
{
    char *end = NULL;
    size_t digits = strspn(text + (*text == '-'), "0123456789");
    if (digits == 0) return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') return false;
    *out = value;
    return true;
}

bool kv_real_read(const char *text, double *out)
{
    char *end = NULL;
    if (*text == '\0' || !strchr("0123456789.-+", *text)) return false;
    errno = 0;
    double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value)) return false;
    *out = value;
    return true;
}

static bool is_word(const char *words, const char *value)
{
    size_t bytes = strlen(value);
    for (const char *at = words; *at;) {
        size_t word = strcspn(at, "|");
        if (word == bytes && memcmp(at, value, bytes) == 0) return true;
        at += word + (at[word] == '|');
    }
    return false;
}

static bool out_of_range(const struct kv_option *option, const char *value, struct kv_error *err)
{
    char range[KV_TEXT_BYTES];
    const char *kind = option->kind == KV_OPTION_INTEGER ? "a whole number" : "a number";
    if (option->max >= 9e15) {
        snprintf(range, sizeof range, "%s of at least %.15g", kind, option->min);
    } else {
        snprintf(range, sizeof range, "%s from %.15g to %.15g", kind, option->min, option->max);
    }
    return kv_fail_values(err, KV_OPTION_INVALID, option->name, kv_text(range), kv_text(value), "%s",
                          option->name);
}

static bool take(const struct kv_option *option, const char *value, struct kv_error *err)
{
    int64_t integer;
    double real;
    switch (option->kind) {
    case KV_OPTION_FLAG: *(bool *)option->to = true; break;
    case KV_OPTION_TEXT:
        if (*value == '\0')
            return kv_fail_param(err, KV_OPTION_INVALID, option->name, "%s: empty", option->name);
        *(const char **)option->to = value;
        break;
    case KV_OPTION_INTEGER:
        if (!kv_integer_read(value, &integer) || (double)integer < option->min ||
            (double)integer > option->max) {
            return out_of_range(option, value, err);
        }
        *(int64_t *)option->to = integer;
        break;
    case KV_OPTION_REAL:
        if (!kv_real_read(value, &real) || real < option->min || real > option->max) {
            return out_of_range(option, value, err);
        }
        *(double *)option->to = real;
        break;
    case KV_OPTION_CHOICE:
        if (!is_word(option->words, value)) {
            return kv_fail_values(err, KV_OPTION_INVALID, option->name, kv_text(option->words),
                                  kv_text(value), "%s", option->name);
        }
        *(const char **)option->to = value;
        break;
    }
    if (option->given) *option->given = true;
    return true;
}

static const struct kv_option *find(const struct kv_usage *usage, const char *name, size_t bytes)
{
    for (int32_t i = 0; i < usage->option_count; i++) {
        const struct kv_option *option = &usage->options[i];
        if (strlen(option->name) == bytes && memcmp(option->name, name, bytes) == 0) return option;
    }
    return NULL;
}

/* One option at argv[*at]; steps over its value. */
static bool take_argument(const struct kv_usage *usage, int argc, char **argv, int *at, struct kv_error *err)
{
    const char *argument = argv[*at], *equals = strchr(argument, '=');
    size_t bytes = equals ? (size_t)(equals - argument) : strlen(argument);
    const struct kv_option *option = find(usage, argument, bytes);
    if (!option)
        return kv_fail_param(err, KV_OPTION_INVALID, argument, "Unknown option %.*s", (int)bytes, argument);
    if (option->kind == KV_OPTION_FLAG) {
        if (equals)
            return kv_fail_param(err, KV_OPTION_INVALID, option->name, "%s takes no value", option->name);
        return take(option, "", err);
    }
    if (equals) return take(option, equals + 1, err);
    if (*at + 1 >= argc) {
        return kv_fail_param(err, KV_OPTION_INVALID, option->name, "%s needs a value: %s", option->name,
                             option->value);
    }
    return take(option, argv[++*at], err);
}

enum kv_parsed kv_usage_parse(const struct kv_usage *usage, int argc, char **argv, const char **operands,
                              int32_t *operand_count, struct kv_error *err)
{
    bool ended = false;
    int32_t count = 0;
    for (int at = 1; at < argc; at++) {
        if (ended || argv[at][0] != '-' || argv[at][1] == '\0') {
            if (count == usage->operands_max) {
                kv_fail(err, KV_OPTION_INVALID, "Unexpected argument %s", argv[at]);
                return KV_PARSED_WRONG;
            }
            operands[count++] = argv[at];
        } else if (strcmp(argv[at], "--") == 0) {
            ended = true;
        } else if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            kv_usage_print(usage, stdout);
            return KV_PARSED_HELP;
        } else if (!take_argument(usage, argc, argv, &at, err)) {
            return KV_PARSED_WRONG;
        }
    }
    if (operand_count) *operand_count = count;
    if (count >= usage->operands_min) return KV_PARSED_RUN;
    kv_fail_values(err, KV_OPTION_INVALID, "", kv_text(usage->operands), kv_none(), "Missing argument");
    return KV_PARSED_WRONG;
}

/* Text that begins at a column, broken between words. */
static void print_wrapped(FILE *to, const char *text, int column)
{
    int used = 0;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (used > 0 && column + used + 1 + word > LINE_BYTES) {
            fprintf(to, "\n%*s", column, "");
            used = 0;
        }
        used += fprintf(to, "%s%.*s", used > 0 ? " " : "", word, text);
        text += word;
        while (*text == ' ') text++;
    }
    fputc('\n', to);
}

void kv_usage_print(const struct kv_usage *usage, FILE *to)
{
    fprintf(to, "Usage: %s [options]%s%s\n", usage->command, *usage->operands ? " " : "", usage->operands);
    print_wrapped(to, usage->summary, 0);
    fprintf(to, "\nOptions:\n");
    for (int32_t i = 0; i < usage->option_count; i++) {
        const struct kv_option *option = &usage->options[i];
        char left[NAME_COLUMN * 3];
        const char *value = option->kind == KV_OPTION_CHOICE ? option->words : option->value;
        int bytes =
            snprintf(left, sizeof left, "  %s%s%s", option->name, value ? " " : "", value ? value : "");
        if (bytes >= NAME_COLUMN) {
            fprintf(to, "%s\n%*s", left, NAME_COLUMN, "");
        } else {
            fprintf(to, "%-*s", NAME_COLUMN, left);
        }
        print_wrapped(to, option->help, NAME_COLUMN);
    }
    fprintf(to, "%-*s", NAME_COLUMN, "  --help");
    print_wrapped(to, "show this", NAME_COLUMN);
    if (usage->notes) fprintf(to, "\n%s\n", usage->notes);
}
