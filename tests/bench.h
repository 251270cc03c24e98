/* What the benchmarks share: a clock, a median, and a row of a results file. */
#ifndef KV_TESTS_BENCH_H
#define KV_TESTS_BENCH_H

double bench_now_ms(void); /* monotonic */
/* Sorts the values. */
double bench_median(double *values, int count);
/* Appends a row: date, commit, processor, what, size (T or MB), ours_ms, opponent_ms, ratio. `path` NULL:
 * nothing. The commit is the environment's KVMAT_COMMIT. */
void bench_csv(const char *path, const char *what, int size, double ours_ms, double opponent_ms);

#endif
