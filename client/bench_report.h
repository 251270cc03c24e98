/* What a measurement gave, for people, for scripts and as a picture. Knows no socket and no command line. */
#ifndef KV_CLIENT_BENCH_REPORT_H
#define KV_CLIENT_BENCH_REPORT_H

#include "client/bench.h"

#include <stdio.h>

struct kv_bench_run {
    double rate; /* 0: the closed loop */
    const struct kv_bench_result *result;
};

/* All is borrowed. */
struct kv_bench_report {
    const char *version;
    const char *input, *dtype;          /* of the requests: "hidden_states", "BF16" */
    const struct kv_bench_options *how; /* its rate is that of no run in particular */
    const struct kv_bench_run *run;     /* [runs], in the order of their rates as given */
    int32_t runs;
};

/* The parts of all that are shown, and how they are called. */
struct kv_bench_part {
    const char *name;
    double part;
};
enum { KV_BENCH_PARTS = 7 };
extern const struct kv_bench_part kv_bench_parts[KV_BENCH_PARTS];

/* A fault as a word for people: "queue_full", "connection lost". */
const char *kv_bench_answer_name(enum kv_fault fault);
/* "16:70,512:30", or "16". Returns `to`. */
const char *kv_bench_mix_print(const struct kv_mix *mix, char *to, size_t to_bytes);
enum { KV_BENCH_MIX_BYTES = KV_MIX_MAX * 20 };

/* One run as `name value` a line, each value a number. */
void kv_bench_lines(FILE *to, const struct kv_bench_report *report, const struct kv_bench_run *run);
/* One run as tables and a histogram of at most 80 columns. */
void kv_bench_table(FILE *to, const struct kv_bench_report *report, const struct kv_bench_run *run);
/* Of a sweep, one line for each run, the head first. */
void kv_bench_sweep_head(FILE *to, const struct kv_bench_report *report);
void kv_bench_sweep_line(FILE *to, const struct kv_bench_run *run);
/* All runs and settings as one JSON object and a line end. */
void kv_bench_json(FILE *to, const struct kv_bench_report *report);
/* Latency over rate as one SVG document, without scripts, fonts or other files. At least one run, each with a
 * rate. */
void kv_bench_svg(FILE *to, const struct kv_bench_report *report);

#endif
