/* Device time of the whole stage beside cuBLASLt's product alone and beside the floor, in one interleaved
 * run: weights rotate over three L2 caches, all data is random, and each number of rows is measured twice:
 * under sustained load, where power limits the clocks, and after idling. Rows that are wrong are not timed.
 * gpu_bench [--csv FILE] [--device N] [--shape NAME] [--budget MS]: milliseconds for each measurement. */
#include "tests/gpu_bench_stage.h"

#include <unistd.h>

enum { SECONDS_MAX = 500 };

static const struct shape {
    const char *name;
    int32_t layers;
    int64_t hidden;
} shapes[] = {{"L5_H4096", 5, 4096}, {"L5_H2560", 5, 2560}, {"L6_H7168", 6, 7168}};

static const int64_t row_counts[] = {1, 16, 64, 128, 256, 512, 1024, 2048, 8192, 16384};

struct options {
    const char *csv, *shape;
    int device;
    double budget_ms;
};

struct row {
    const char *shape;
    int64_t rows;
    enum mode mode;
    double ours_us, first_us, best_us, floor_us;
    const struct plan *first, *best;
};

static void append_csv(const struct options *options, const struct row *row)
{
    char date[32], driver[32];
    time_t now = time(NULL);
    struct tm utc;
    struct cudaDeviceProp device;
    int version = 0;
    const char *commit = getenv("KVMAT_COMMIT"), *given = getenv("KVMAT_DRIVER");
    FILE *file = options->csv ? fopen(options->csv, "a") : NULL;
    if (!file) {
        if (options->csv) perror(options->csv);
        return;
    }
    CUDA(cudaGetDeviceProperties(&device, options->device));
    CUDA(cudaDriverGetVersion(&version));
    snprintf(driver, sizeof driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) == 0)
        fputs("date,commit,gpu,driver,shape,T,mode,what,us,gemm_first_us,gemm_best_us,floor_us,ratio\n",
              file);
    fprintf(file, "%s,%s,%s,%s,%s,%lld,%s,kvmat,%.2f,%.2f,%.2f,%.2f,%.3f\n", date,
            commit ? commit : "unknown", device.name, given ? given : driver, row->shape,
            (long long)row->rows, mode_names[row->mode], row->ours_us, row->first_us, row->best_us,
            row->floor_us, row->ours_us / row->best_us);
    fclose(file);
}

static void print_head(const struct shape *shape, const struct product *product,
                       const struct ceilings *ceilings)
{
    printf("\n%s: %lld x %lld BF16 weights, %d copies; microseconds, medians\n", shape->name,
           (long long)product->batch * product->outputs, (long long)product->depth, product->copies);
    for (int mode = 0; mode < MODES; mode++)
        printf("ceilings, %s: copy %.2f TB/s, read %.2f TB/s, product of %d^3 %.0f TFLOP/s\n",
               mode_names[mode], ceilings[mode].copy_bytes_per_us / 1e6,
               ceilings[mode].read_bytes_per_us / 1e6, CEILING_SIDE, ceilings[mode].flops_per_us / 1e6);
    printf("%6s %-9s %8s | %8s %-9s %8s %-14s | %8s | %7s %7s %7s %7s\n", "T", "", "kvmat", "GEMM 1st", "",
           "best", "", "floor", "x 1st", "x best", "+ us", "x floor");
}

static void print_row(const struct row *row)
{
    printf("%6lld %-9s %8.2f | %8.2f %-9s %8.2f %-9s %4d | %8.2f | %7.3f %7.3f %7.2f %7.3f\n",
           (long long)row->rows, mode_names[row->mode], row->ours_us, row->first_us,
           form_names[row->first->form], row->best_us, form_names[row->best->form], row->best->rank,
           row->floor_us, row->ours_us / row->first_us, row->ours_us / row->best_us,
           row->ours_us - row->best_us, row->ours_us / row->floor_us);
    fflush(stdout);
}

/* Every input read once and every output written once, or every operation, whichever takes longer. */
static double floor_us(const struct product *product, const struct ceilings *ceilings)
{
    double rows = (double)product->rows, depth = (double)product->depth;
    double columns = (double)(product->batch * product->outputs);
    double read = 2 * (columns * depth + rows * depth), written = 2 * rows * columns;
    double copied = read < written ? read : written; /* so much goes at the rate of a copy */
    double moving = 2 * copied / ceilings->copy_bytes_per_us + (read - copied) / ceilings->read_bytes_per_us +
                    (written - copied) / ceilings->copy_bytes_per_us;
    double computing = 2 * rows * columns * depth / ceilings->flops_per_us;
    return moving > computing ? moving : computing;
}

/* `plans` are what the candidates behind the first launch. "First" is the fastest of the first choices that
 * the heuristic makes for each form; "best" is the fastest of all. */
static struct row read_row(const struct candidate *candidates, int count, const struct plan *plans)
{
    struct row row = {
        .ours_us = candidates[0].median_us, .first_us = 1e9, .best_us = 1e9, .first = plans, .best = plans};
    for (int i = 0; i < count - 1; i++) {
        double us = candidates[i + 1].median_us;
        if (us < row.best_us) {
            row.best_us = us;
            row.best = &plans[i];
        }
        if (plans[i].rank == 0 && us < row.first_us) {
            row.first_us = us;
            row.first = &plans[i];
        }
    }
    return row;
}

static void measure_rows(struct timer *timer, const struct options *options, const char *shape,
                         struct stage *stage, const struct model *model, struct product *product,
                         const struct ceilings *ceilings)
{
    static struct setup setups[FORMS];
    struct plan plans[CHOSEN_MAX] = {0};
    struct candidate candidates[CANDIDATES_MAX] = {{.name = "kvmat", .launch = launch_stage, .of = stage}};
    check_stage(stage, model, timer->stream);
    int chosen = choose(timer, product, setups, plans), count = 1;
    launch_plan(&plans[BATCH_TN], 0, timer->stream);
    check_product(stage, model, product->out[0], timer->stream);
    for (int i = 0; i < chosen; i++)
        candidates[count++] = (struct candidate){.name = "product", .launch = launch_plan, .of = &plans[i]};
    for (int mode = 0; mode < MODES; mode++) {
        measure(timer, candidates, count, (enum mode)mode, plans[BATCH_TN].us, SETTLE_MS, options->budget_ms);
        struct row row = read_row(candidates, count, plans);
        row.shape = shape;
        row.rows = product->rows;
        row.mode = (enum mode)mode;
        row.floor_us = floor_us(product, &ceilings[mode]);
        print_row(&row);
        append_csv(options, &row);
    }
    for (int form = 0; form < FORMS; form++) setup_close(&setups[form]);
}

/* The same weights and inputs as ours; the other weight order reads the same numbers as another matrix. */
static void product_open(struct product *product, const struct model *model, int copies)
{
    *product = (struct product){.outputs = outputs_of(model),
                                .depth = model->geometry.hidden,
                                .batch = 2 * model->geometry.layers,
                                .copies = copies};
    size_t out_bytes = (size_t)(product->batch * product->outputs) * ROWS_MAX * 2;
    BLAS(cublasLtCreate(&product->blas));
    CUDA(cudaMalloc(&product->workspace, OPPONENT_WORKSPACE));
    for (int copy = 0; copy < copies; copy++) {
        CUDA(cudaMalloc(&product->x[copy], model->x_bytes));
        CUDA(cudaMalloc(&product->w[copy], model->weight_bytes));
        CUDA(cudaMalloc(&product->out[copy], out_bytes));
        CUDA(cudaMemcpy(product->x[copy], model->x, model->x_bytes, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(product->w[copy], model->weights, model->weight_bytes, cudaMemcpyHostToDevice));
        CUDA(cudaMemset(product->out[copy], 0xff, out_bytes));
    }
    CUDA(cudaDeviceSynchronize());
}

static void product_close(struct product *product)
{
    for (int copy = 0; copy < product->copies; copy++) {
        CUDA(cudaFree(product->x[copy]));
        CUDA(cudaFree(product->w[copy]));
        CUDA(cudaFree(product->out[copy]));
    }
    CUDA(cudaFree(product->workspace));
    BLAS(cublasLtDestroy(product->blas));
}

/* Copies of the weights that fill three L2 caches, at least two, of equal share in a graph. */
static int copies_for(const struct model *model, int device)
{
    struct cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, device));
    size_t cache = 3 * (size_t)properties.l2CacheSize;
    int copies = (int)((cache + model->weight_bytes - 1) / model->weight_bytes);
    if (copies < 2) copies = 2;
    if (copies > COPIES_MAX) copies = COPIES_MAX;
    while (LAUNCHES % copies != 0) copies++;
    return copies;
}

static void measure_shape(struct timer *timer, const struct options *options, const struct shape *shape,
                          const struct kv_backend_ops *ops, double settle_ms)
{
    uint64_t state = 20 + (uint64_t)shape->hidden;
    struct model model = model_make(shape->layers, shape->hidden, &state);
    struct stage stage;
    struct product product;
    struct ceilings ceilings[MODES];
    timer->copies = copies_for(&model, options->device);
    stage_open(&stage, ops, &model, timer->copies, options->device);
    product_open(&product, &model, timer->copies);
    for (int mode = 0; mode < MODES; mode++)
        ceilings[mode] = measure_ceilings(timer, product.blas, product.workspace, (enum mode)mode,
                                          model.weights, model.weight_bytes, settle_ms);
    print_head(shape, &product, ceilings);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        stage.rows = product.rows = row_counts[i];
        measure_rows(timer, options, shape->name, &stage, &model, &product, ceilings);
    }
    product_close(&product);
    stage_close(&stage);
    model_free(&model);
}

static struct options read_options(int argc, char **argv)
{
    struct options options = {.budget_ms = 500};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        must(value != NULL, "usage: gpu_bench [--csv FILE] [--device N] [--shape NAME] [--budget MS]");
        if (strcmp(argv[i], "--csv") == 0)
            options.csv = value;
        else if (strcmp(argv[i], "--shape") == 0)
            options.shape = value;
        else if (strcmp(argv[i], "--device") == 0)
            options.device = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--budget") == 0)
            options.budget_ms = strtod(value, NULL);
        else
            must(false, "usage: gpu_bench [--csv FILE] [--device N] [--shape NAME] [--budget MS]");
    }
    return options;
}

int main(int argc, char **argv)
{
    const struct options options = read_options(argc, argv);
    const struct kv_backend_ops *ops = kv_backend_find("cuda");
    struct timer timer;
    int devices = 0;
    if (!ops || cudaGetDeviceCount(&devices) != cudaSuccess || devices <= options.device) {
        puts("skip: no CUDA device");
        return 0;
    }
    alarm(SECONDS_MAX); /* rows that were measured by then are printed and appended */
    double begun = bench_now_ms();
    CUDA(cudaSetDevice(options.device));
    timer_open(&timer);
    printf(
        "Device time of the whole stage, and of cuBLASLt's product alone (1st: the heuristic's choice; "
        "best: of "
        "the\nheuristic's %d and, from T=%d to %d, every tile and cluster, for each form; its number among "
        "them). %d "
        "launches a graph.\n",
        ALGORITHMS_MAX, ENUMERATED_ROWS_MIN, ENUMERATED_ROWS_MAX, LAUNCHES);
    double settle_ms = 2000;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (options.shape && strcmp(options.shape, shapes[i].name) != 0) continue;
        measure_shape(&timer, &options, &shapes[i], ops, settle_ms);
        settle_ms = SETTLE_MS;
    }
    timer_close(&timer);
    printf("\n%.0f s\n", (bench_now_ms() - begun) / 1e3);
    return 0;
}
