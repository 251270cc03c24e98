/* See exposition.h. One pass over the lines; what belongs to the family that was announced last is kept. */
#include "tests/exposition.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, LINE_BYTES = 2048, FAMILIES_MAX = 200 };

struct family {
    char name[NAME_BYTES], type[16];
    bool helped, typed;
    int samples;
    /* Of a histogram. */
    double bound, cumulative, count, infinity;
    bool has_sum, has_count, has_infinity;
};

struct reader {
    struct family now;
    char seen[FAMILIES_MAX][NAME_BYTES];
    int families;
    const char *line; /* in the text */
    size_t bytes;
    const char *text;
};

static char fault[LINE_BYTES + 256];

static bool fail(const struct reader *reader, const char *why)
{
    snprintf(fault, sizeof fault, "%s: %.*s", why, (int)reader->bytes, reader->line);
    return false;
}

static size_t name_bytes(const char *at, bool colon)
{
    size_t bytes = 0;
    if (isdigit((unsigned char)at[0])) return 0;
    while (isalnum((unsigned char)at[bytes]) || at[bytes] == '_' || (colon && at[bytes] == ':')) bytes++;
    return bytes;
}

static bool ends_with(const char *name, const char *end)
{
    size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes > end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

static bool check_name(const struct reader *reader)
{
    static const char *const units[] = {"_ms", "_us", "_milliseconds", "_microseconds",
                                        "_kb", "_mb", "_kib",          "_mib"};
    const struct family *family = &reader->now;
    bool counter = strcmp(family->type, "counter") == 0;
    if (ends_with(family->name, "_total") != counter)
        return fail(reader, "_total is for counters, and for all");
    if (ends_with(family->name, "_bucket") || ends_with(family->name, "_count") ||
        ends_with(family->name, "_sum"))
        return fail(reader, "a name that is a histogram's own");
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (ends_with(family->name, units[i])) return fail(reader, "no base unit");
    for (const char *c = family->name; *c; c++)
        if (isupper((unsigned char)*c)) return fail(reader, "a name in upper case");
    return true;
}

/* The family that was read is complete. */
static bool close_family(const struct reader *reader)
{
    const struct family *family = &reader->now;
    if (!family->name[0]) return true;
    if (!family->helped || !family->typed) return fail(reader, "HELP or TYPE is missing before this line");
    if (family->samples == 0) return fail(reader, "a family without a sample before this line");
    if (strcmp(family->type, "histogram") != 0) return true;
    if (!family->has_sum || !family->has_count || !family->has_infinity)
        return fail(reader, "a histogram without _sum, _count or +Inf before this line");
    return family->count == family->infinity || fail(reader, "_count is not the bucket of +Inf");
}

static bool open_family(struct reader *reader, const char *name)
{
    if (!close_family(reader)) return false;
    for (int i = 0; i < reader->families; i++)
        if (strcmp(reader->seen[i], name) == 0) return fail(reader, "a family in two places");
    if (reader->families == FAMILIES_MAX) return fail(reader, "too many families");
    memcpy(reader->seen[reader->families++], name, NAME_BYTES);
    reader->now = (struct family){.bound = -1};
    memcpy(reader->now.name, name, NAME_BYTES);
    return true;
}

static bool read_comment(struct reader *reader)
{
    char name[NAME_BYTES] = "";
    bool help = strncmp(reader->line, "# HELP ", 7) == 0;
    if (!help && strncmp(reader->line, "# TYPE ", 7) != 0) return fail(reader, "neither HELP nor TYPE");
    size_t bytes = name_bytes(reader->line + 7, true);
    const char *rest = reader->line + 7 + bytes;
    if (bytes == 0 || bytes >= sizeof name || *rest != ' ') return fail(reader, "no name");
    memcpy(name, reader->line + 7, bytes);
    size_t rest_bytes = reader->bytes - 8 - bytes;
    if (rest_bytes == 0) return fail(reader, "says nothing");
    if (help) {
        if (!open_family(reader, name)) return false;
        reader->now.helped = true;
        return true;
    }
    if (strcmp(name, reader->now.name) != 0 || reader->now.typed)
        return fail(reader, "TYPE does not follow its HELP");
    snprintf(reader->now.type, sizeof reader->now.type, "%.*s", (int)(rest_bytes < 15 ? rest_bytes : 15),
             rest + 1);
    if (strcmp(reader->now.type, "counter") != 0 && strcmp(reader->now.type, "gauge") != 0 &&
        strcmp(reader->now.type, "histogram") != 0)
        return fail(reader, "no such type");
    reader->now.typed = true;
    return check_name(reader);
}

/* {name="value",...}; *end behind it, `le` the value of that label or "". */
static bool read_labels(const struct reader *reader, const char *at, const char **end, char le[32])
{
    le[0] = '\0';
    *end = at;
    if (*at != '{') return true;
    do {
        size_t bytes = name_bytes(++at, false);
        const char *name = at;
        at += bytes;
        if (bytes == 0 || at[0] != '=' || at[1] != '"') return fail(reader, "no label");
        const char *value = at += 2;
        for (; *at != '"'; at++) {
            if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f)
                return fail(reader, "a raw byte in a label");
            if (*at == '\\' && strchr("\\\"n", *++at) == NULL) return fail(reader, "an escape that is none");
        }
        if (bytes == 2 && strncmp(name, "le", 2) == 0) snprintf(le, 32, "%.*s", (int)(at - value), value);
        at++;
    } while (*at == ',');
    if (*at != '}') return fail(reader, "labels that do not end");
    *end = at + 1;
    return true;
}

static bool read_histogram(struct reader *reader, const char *part, const char *le, double value)
{
    struct family *family = &reader->now;
    if (strcmp(part, "_sum") == 0) {
        family->has_sum = true;
    } else if (strcmp(part, "_count") == 0) {
        family->has_count = true;
        family->count = value;
    } else if (strcmp(part, "_bucket") == 0 && le[0]) {
        char *end = NULL;
        bool infinity = strcmp(le, "+Inf") == 0;
        double bound = infinity ? 0 : strtod(le, &end);
        if (family->has_infinity || (!infinity && (*end || bound <= family->bound)))
            return fail(reader, "buckets out of order");
        if (value < family->cumulative) return fail(reader, "a bucket with less than the one before");
        family->has_infinity = infinity;
        family->infinity = family->cumulative = value;
        if (!infinity) family->bound = bound;
    } else {
        return fail(reader, "no part of a histogram");
    }
    return true;
}

/* Does the series stand in an earlier line? */
static bool is_twice(const struct reader *reader, size_t series_bytes)
{
    for (const char *at = reader->text; at < reader->line; at = strchr(at, '\n') + 1)
        if (strncmp(at, reader->line, series_bytes) == 0 && at[series_bytes] == ' ') return true;
    return false;
}

static bool read_sample(struct reader *reader)
{
    struct family *family = &reader->now;
    const char *at = reader->line, *end;
    char part[NAME_BYTES], le[32], *value_end = NULL;
    size_t bytes = name_bytes(at, true), family_bytes = strlen(family->name);
    bool histogram = strcmp(family->type, "histogram") == 0;
    if (!family->typed || bytes < family_bytes || strncmp(at, family->name, family_bytes) != 0)
        return fail(reader, "a sample outside its family");
    snprintf(part, sizeof part, "%.*s", (int)(bytes - family_bytes), at + family_bytes);
    if (!histogram && part[0]) return fail(reader, "a sample outside its family");
    if (!read_labels(reader, at + bytes, &end, le)) return false;
    if (*end != ' ' || is_twice(reader, (size_t)(end - at))) return fail(reader, "twice, or no value");
    double value = strtod(end + 1, &value_end);
    if (value_end == end + 1 || value_end != reader->line + reader->bytes) return fail(reader, "no number");
    if (!(value >= 0)) return fail(reader, "a negative number");
    family->samples++;
    return !histogram || read_histogram(reader, part, le, value);
}

const char *exposition_fault(const char *text)
{
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) abort();
    bool ok = true;
    reader->text = reader->line = text;
    fault[0] = '\0';
    while (ok && *reader->line) {
        const char *end = strchr(reader->line, '\n');
        reader->bytes = end ? (size_t)(end - reader->line) : strlen(reader->line);
        ok = end || fail(reader, "the last line does not end");
        if (ok) ok = *reader->line == '#' ? read_comment(reader) : read_sample(reader);
        if (ok) reader->line = end + 1;
    }
    if (ok) reader->bytes = 0;
    if (ok && (reader->families > 0 || fail(reader, "nothing at all"))) (void)close_family(reader);
    free(reader);
    return fault;
}

double exposition_value(const char *text, const char *series)
{
    size_t bytes = strlen(series);
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (strncmp(at, series, bytes) == 0 && at[bytes] == ' ') return strtod(at + bytes, NULL);
    return -1;
}

double exposition_sum(const char *text, const char *name, const char *labels_hold)
{
    double sum = 0;
    size_t bytes = strlen(name);
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL) {
        size_t series = strcspn(at, " \n");
        if (strncmp(at, name, bytes) != 0 || (at[bytes] != '{' && at[bytes] != ' ')) continue;
        if (labels_hold[0] && !memmem(at + bytes, series - bytes, labels_hold, strlen(labels_hold))) continue;
        sum += strtod(at + series, NULL);
    }
    return sum;
}
