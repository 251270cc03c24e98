/* Loading: from the folder to resident, validated, fingerprinted weights on the CPU backend, beside reading
 * the same file and hashing it. Both from the page cache, interleaved; medians. */
#include "kernels/backend.h"
#include "server/checkpoint.h"
#include "tests/bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { ROUNDS = 15, PIECE_BYTES = 1 << 20 };

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    exit(1);
}

static double load(const char *folder)
{
    struct kv_findings findings;
    struct kv_checkpoint *checkpoint = NULL;
    struct kv_backend *backend = NULL;
    struct kv_description description = {0};
    const struct kv_checkpoint_options options = {.directory = folder, .attention_factor = -1};
    const struct kv_backend_options wanted = {.rows_max = 8192, .items_max = 64, .tune = true};
    double began = bench_now_ms();
    kv_findings_init(&findings);
    must(kv_checkpoint_open(&checkpoint, &options, &findings), "kv_checkpoint_open");
    struct kv_weights weights = kv_checkpoint_weights(checkpoint);
    const struct kv_backend_ops *ops = kv_backend_find("cpu");
    must(ops->open(&backend, &weights, &wanted, NULL), "open");
    must(kv_checkpoint_finish(checkpoint), "kv_checkpoint_finish");
    double took = bench_now_ms() - began;
    kv_checkpoint_describe(checkpoint, &description);
    must(strlen(description.fingerprint) == 32, "fingerprint");
    ops->close(backend);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    return took;
}

static double read_and_hash(const char *folder, uint64_t *bytes)
{
    char path[512];
    static unsigned char piece[PIECE_BYTES];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    double began = bench_now_ms();
    int fd = open(path, O_RDONLY);
    must(fd >= 0, path);
    XXH3_state_t *state = XXH3_createState();
    must(state && XXH3_128bits_reset(state) == XXH_OK, "XXH3");
    ssize_t got;
    *bytes = 0;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        XXH3_128bits_update(state, piece, (size_t)got);
        *bytes += (uint64_t)got;
    }
    must(got == 0 && XXH3_128bits_digest(state).low64 != 0, "read");
    XXH3_freeState(state);
    close(fd);
    return bench_now_ms() - began;
}

int main(int argc, char **argv)
{
    const char *csv = argc == 4 && strcmp(argv[2], "--csv") == 0 ? argv[3] : NULL;
    double loads[ROUNDS], reads[ROUNDS];
    uint64_t bytes = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_load MODEL_FOLDER [--csv FILE]\n");
        return 2;
    }
    read_and_hash(argv[1], &bytes);
    for (int i = 0; i < ROUNDS; i++) {
        loads[i] = load(argv[1]);
        reads[i] = read_and_hash(argv[1], &bytes);
    }
    double ours = bench_median(loads, ROUNDS), theirs = bench_median(reads, ROUNDS);
    printf("Loading to ready weights beside reading and hashing the file (page cache)\n");
    printf("%8s %12s %18s %8s\n", "MB", "load ms", "read and hash ms", "ratio");
    printf("%8.1f %12.2f %18.2f %8.2f\n", (double)bytes / 1e6, ours, theirs, ours / theirs);
    bench_csv(csv, "load", (int)(bytes / 1000000), ours, theirs);
    return 0;
}
