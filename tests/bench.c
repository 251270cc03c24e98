/* See bench.h. */
#include "tests/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double bench_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* "model name : ..." of /proc/cpuinfo, without commas. */
static void name_processor(char *to, size_t bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(to, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(to, bytes, "%s", colon + 2);
        break;
    }
    if (file) fclose(file);
    for (char *c = to; *c; c++)
        if (*c == ',') *c = ' ';
}

void bench_csv(const char *path, const char *what, int size, double ours_ms, double opponent_ms)
{
    char date[32], processor[128];
    time_t now = time(NULL);
    struct tm utc;
    const char *commit = getenv("KVMAT_COMMIT");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) {
        if (path) perror(path);
        return;
    }
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    name_processor(processor, sizeof processor);
    fprintf(file, "%s,%s,%s,%s,%d,%.4f,%.4f,%.3f\n", date, commit ? commit : "unknown", processor, what, size,
            ours_ms, opponent_ms, ours_ms / opponent_ms);
    fclose(file);
}
