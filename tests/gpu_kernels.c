/* The CUDA kernels alone, launch by launch, against the arithmetic in norm_rope.c: without cuBLAS beside
 * them, so that compute-sanitizer judges nothing but them. Outputs are poisoned, and guarded on both sides.
 */
#include "kernels/cuda_kernels.h"
#include "kernels/norm_rope.h"
#include "tests/tested_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed;

enum { HEADS = 10, TURNS = 3, GUARD = 256, POISON = 0xff };

static void must(cudaError_t status)
{
    ck_assert_msg(status == cudaSuccess, "%s", cudaGetErrorString(status));
}

/* Host bytes on the device, with guards; the host's copy stays the caller's. */
struct array {
    unsigned char *device; /* of GUARD + bytes + GUARD */
    size_t bytes;
};

static struct array array_make(const void *host /* NULL: poison */, size_t bytes)
{
    struct array array = {NULL, bytes};
    must(cudaMalloc((void **)&array.device, bytes + 2 * GUARD));
    must(cudaMemset(array.device, POISON, bytes + 2 * GUARD));
    if (host) must(cudaMemcpy(array.device + GUARD, host, bytes, cudaMemcpyHostToDevice));
    return array;
}

static void *at(const struct array *array)
{
    return array->device + GUARD;
}

/* Takes the bytes back, if they are wanted, and frees; the guards must be as they were. */
static void array_end(struct array *array, void *host)
{
    unsigned char guard[GUARD];
    for (int side = 0; side < 2; side++) {
        const unsigned char *from = array->device + (side == 0 ? 0 : GUARD + array->bytes);
        must(cudaMemcpy(guard, from, GUARD, cudaMemcpyDeviceToHost));
        for (int i = 0; i < GUARD; i++) ck_assert_msg(guard[i] == POISON, "written outside the output");
    }
    if (host) must(cudaMemcpy(host, at(array), array->bytes, cudaMemcpyDeviceToHost));
    must(cudaFree(array->device));
}

static float *random_floats(uint64_t *state, float deviation, int64_t count)
{
    float *floats = malloc((size_t)count * sizeof *floats);
    ck_assert_ptr_nonnull(floats);
    for (int64_t i = 0; i < count; i++) floats[i] = random_float(state, deviation);
    return floats;
}

/* What kv_cuda_finish works on, as the host has it. */
struct products {
    struct kv_geometry geometry;
    int64_t rows, outputs, count; /* count: elements of K, and of V */
    float *sums;                  /* [2][layers][rows][outputs]; without biases they fit 16 bits */
    float *bias[2], *norm, *eps, *inv_freq;
    int32_t *positions;
    uint16_t *expected, *got; /* [2][layers][rows][outputs] */
};

static struct products products_make(const struct kv_geometry *geometry, int64_t rows, uint64_t *state)
{
    const struct kv_geometry *g = geometry;
    struct products p = {.geometry = *g, .rows = rows, .outputs = (int64_t)g->kv_heads * g->head_dim};
    p.count = g->layers * rows * p.outputs;
    p.sums = random_floats(state, 1.0f, 2 * p.count);
    p.bias[0] = random_floats(state, 0.3f, g->layers * p.outputs);
    p.bias[1] = random_floats(state, 0.3f, g->layers * p.outputs);
    p.norm = random_floats(state, 1.0f, (int64_t)g->layers * g->head_dim);
    p.eps = random_floats(state, 1e-5f, g->layers);
    p.inv_freq = random_floats(state, 0.1f, g->rotary_dim / 2);
    p.positions = malloc((size_t)rows * sizeof *p.positions);
    p.expected = malloc(2 * (size_t)p.count * sizeof *p.expected);
    p.got = malloc(2 * (size_t)p.count * sizeof *p.got);
    ck_assert(p.positions && p.expected && p.got);
    for (int32_t i = 0; i < g->layers; i++) p.eps[i] = fabsf(p.eps[i]);
    /* Beyond both ends too: the kernel takes the nearest that there is. */
    for (int64_t t = 0; t < rows; t++) p.positions[t] = (int32_t)(random_below(state, g->positions + 10) - 5);
    kv_from_f32(g->dtype, p.sums, 2 * p.count, p.got);
    if (!g->k_bias && !g->v_bias) kv_to_f32(g->dtype, p.got, 2 * p.count, p.sums);
    return p;
}

static void products_free(struct products *p)
{
    void *all[] = {p->sums,     p->bias[0],   p->bias[1],  p->norm, p->eps,
                   p->inv_freq, p->positions, p->expected, p->got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void expect(struct products *p)
{
    const struct kv_geometry *g = &p->geometry;
    float cosines[KV_HEAD_DIM_MAX], sines[KV_HEAD_DIM_MAX], row[KV_HEAD_DIM_MAX];
    for (int64_t t = 0; t < p->rows; t++) {
        int64_t position = p->positions[t] < 0 ? 0 : p->positions[t];
        if (position > g->positions - 1) position = g->positions - 1;
        kv_rope_angles(g, p->inv_freq, position, cosines, sines);
        for (int32_t head = 0; head < g->layers * g->kv_heads; head++) {
            int64_t layer = head / g->kv_heads, column = (int64_t)(head % g->kv_heads) * g->head_dim;
            int64_t to = (layer * p->rows + t) * p->outputs + column, bias = layer * p->outputs + column;
            memcpy(row, p->sums + to, (size_t)g->head_dim * sizeof *row);
            kv_k_row(g, g->k_bias ? p->bias[0] + bias : NULL,
                     g->k_norm ? p->norm + layer * g->head_dim : NULL, p->eps[layer], cosines, sines, row,
                     p->expected + to);
            memcpy(row, p->sums + p->count + to, (size_t)g->head_dim * sizeof *row);
            kv_v_row(g, g->v_bias ? p->bias[1] + bias : NULL, row, p->expected + p->count + to);
        }
    }
}

static void finish(struct products *p)
{
    const struct kv_geometry *g = &p->geometry;
    bool biased = g->k_bias || g->v_bias;
    size_t outputs = (size_t)(g->layers * p->outputs) * sizeof(float);
    struct array out = array_make(biased ? NULL : p->got, 2 * (size_t)p->count * 2);
    struct array sums = array_make(p->sums, 2 * (size_t)p->count * sizeof(float));
    struct array bias[2] = {array_make(p->bias[0], outputs), array_make(p->bias[1], outputs)};
    struct array norm = array_make(p->norm, (size_t)g->layers * (size_t)g->head_dim * sizeof(float));
    struct array eps = array_make(p->eps, (size_t)g->layers * sizeof(float));
    struct array inv_freq = array_make(p->inv_freq, (size_t)g->rotary_dim / 2 * sizeof(float));
    struct array positions = array_make(p->positions, (size_t)p->rows * sizeof(int32_t));
    const struct kv_cuda_products finish = {.geometry = *g,
                                            .rows = p->rows,
                                            .out = at(&out),
                                            .sums = biased ? at(&sums) : NULL,
                                            .k_bias = g->k_bias ? at(&bias[0]) : NULL,
                                            .v_bias = g->v_bias ? at(&bias[1]) : NULL,
                                            .k_norm = g->k_norm ? at(&norm) : NULL,
                                            .eps = at(&eps),
                                            .inv_freq = at(&inv_freq),
                                            .positions = at(&positions)};
    must(kv_cuda_finish(&finish, NULL));
    must(cudaDeviceSynchronize());
    struct array *inputs[] = {&sums, &bias[0], &bias[1], &norm, &eps, &inv_freq, &positions};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) array_end(inputs[i], NULL);
    array_end(&out, p->got);
}

/* V must be the same bits. K differs where sums in another order, or another cosine in the last place, round
 * to the other side: rarely, and by little. */
static void judge(const struct products *p)
{
    const struct kv_geometry *g = &p->geometry;
    double wrong = 0, whole = 0;
    int64_t equal = 0;
    ck_assert_msg(memcmp(p->got + p->count, p->expected + p->count, (size_t)p->count * 2) == 0,
                  "V has other bits");
    for (int64_t i = 0; i < p->count; i++) {
        float a, b;
        kv_to_f32(g->dtype, &p->got[i], 1, &a);
        kv_to_f32(g->dtype, &p->expected[i], 1, &b);
        wrong += ((double)a - b) * ((double)a - b);
        whole += (double)b * b;
        equal += p->got[i] == p->expected[i];
    }
    double distance = sqrt(wrong / whole), share = (double)equal / (double)p->count;
    ck_assert_msg(whole > 0 && distance < (g->dtype == KV_BF16 ? 5e-4 : 1e-4) && share > 0.95,
                  "K: distance %.2e, %.3f equal", distance, share);
}

/* _i: which head size, and how its pairs lie. */
static struct kv_geometry form(int32_t number, uint64_t *state)
{
    static const int32_t head_dims[HEADS] = {18, 32, 64, 80, 96, 112, 128, 192, 256, 320};
    struct kv_geometry g = {.layers = 1 + (int32_t)random_below(state, 3),
                            .kv_heads = 1 + (int32_t)random_below(state, 9),
                            .head_dim = head_dims[number / TURNS],
                            .positions = 2 + random_below(state, 1 << 20),
                            .dtype = random_below(state, 2) ? KV_BF16 : KV_F16,
                            .k_norm = random_below(state, 4) > 0,
                            .k_bias = random_below(state, 3) == 0,
                            .v_bias = random_below(state, 3) == 0,
                            .interleaved = number % TURNS == 1,
                            .value_scale = random_below(state, 2) ? 1.0f : 0.7f,
                            .attention_factor = random_below(state, 2) ? 1.0f : 1.3f};
    g.rotary_dim = g.head_dim;
    if (number % TURNS == 2) g.rotary_dim = 2 * (1 + (int32_t)random_below(state, g.head_dim / 2 - 1));
    return g;
}

static void check_finish(const struct kv_geometry *geometry, int64_t rows, uint64_t *state)
{
    struct products p = products_make(geometry, rows, state);
    expect(&p);
    finish(&p);
    judge(&p);
    products_free(&p);
}

START_TEST(every_form_is_finished)
{
    uint64_t state = seed + 1000003 * (uint64_t)_i;
    struct kv_geometry geometry = form(_i, &state);
    for (int64_t rows = 1; rows < 40; rows += 1 + random_below(&state, 20))
        check_finish(&geometry, rows, &state);
}
END_TEST

/* So many rows that a block takes several, and their number odd, so that the last has fewer. */
START_TEST(many_rows_are_finished)
{
    uint64_t state = seed + 2000003 * (uint64_t)_i;
    struct kv_geometry geometry = form(_i, &state);
    geometry.layers = 2;
    geometry.kv_heads = 1;
    check_finish(&geometry, 4097, &state);
}
END_TEST

START_TEST(rows_are_converted)
{
    static const enum kv_dtype from[] = {KV_F32, KV_F16, KV_BF16}, to[] = {KV_F16, KV_BF16};
    enum kv_dtype from_dtype = from[_i % 3], to_dtype = to[_i / 3];
    uint64_t state = seed + 3000017 * (uint64_t)_i;
    int64_t rows = 1 + random_below(&state, 9), columns = 1 + random_below(&state, 700);
    int64_t pitch = (columns + 7) / 8 * 8, count = rows * columns;
    float *values = random_floats(&state, 1.0f, count);
    uint16_t *expected = malloc((size_t)count * 2), *got = malloc((size_t)(rows * pitch) * 2);
    unsigned char *source = malloc((size_t)count * 4);
    ck_assert(expected && got && source);
    if (from_dtype == KV_F32)
        memcpy(source, values, (size_t)count * sizeof *values);
    else
        kv_from_f32(from_dtype, values, count, source);
    kv_to_f32(from_dtype, source, count, values);
    kv_from_f32(to_dtype, values, count, expected);
    struct array in = array_make(source, (size_t)count * kv_dtype_bytes(from_dtype));
    struct array out = array_make(NULL, (size_t)(rows * pitch) * 2);
    must(kv_cuda_convert(at(&in), from_dtype, rows, columns, at(&out), to_dtype, pitch, NULL));
    must(cudaDeviceSynchronize());
    array_end(&in, NULL);
    array_end(&out, got);
    for (int64_t row = 0; row < rows; row++) {
        ck_assert_mem_eq(got + row * pitch, expected + row * columns, (size_t)columns * 2);
        for (int64_t i = columns; i < pitch; i++) ck_assert_uint_eq(got[row * pitch + i], 0xffff);
    }
    free(values);
    free(expected);
    free(got);
    free(source);
}
END_TEST

START_TEST(rows_are_normed)
{
    enum kv_dtype dtype = _i ? KV_F16 : KV_BF16;
    uint64_t state = seed + 4000037 * (uint64_t)_i;
    int64_t rows = 1 + random_below(&state, 5), columns = 1 + random_below(&state, 3000);
    float *values = random_floats(&state, 2.0f, rows * columns),
          *weight = random_floats(&state, 1.0f, columns);
    uint16_t *expected = malloc((size_t)(rows * columns) * 2), *got = malloc((size_t)(rows * columns) * 2);
    ck_assert(expected && got);
    kv_from_f32(dtype, values, rows * columns, got);
    kv_to_f32(dtype, got, rows * columns, values);
    for (int64_t row = 0; row < rows; row++) kv_rms_norm(weight, 1e-6f, columns, values + row * columns);
    kv_from_f32(dtype, values, rows * columns, expected);
    struct array at_rows = array_make(got, (size_t)(rows * columns) * 2);
    struct array at_weight = array_make(weight, (size_t)columns * sizeof(float));
    must(kv_cuda_norm_rows(at(&at_rows), dtype, rows, columns, columns, at(&at_weight), 1e-6f, NULL));
    must(cudaDeviceSynchronize());
    array_end(&at_weight, NULL);
    array_end(&at_rows, got);
    int64_t equal = 0;
    for (int64_t i = 0; i < rows * columns; i++) {
        equal += got[i] == expected[i];
        ck_assert_int_le(abs((int)got[i] - (int)expected[i]), 1); /* neighbours in their dtype */
    }
    ck_assert_msg((double)equal > 0.9 * (double)(rows * columns), "%lld of %lld are equal", (long long)equal,
                  (long long)(rows * columns));
    free(values);
    free(weight);
    free(expected);
    free(got);
}
END_TEST

START_TEST(differences_are_counted)
{
    enum { BATCH = 3, ROWS = 5, MORE = 2, COLUMNS = 300 };
    const int32_t element_bytes = _i ? 4 : 2;
    const size_t element = (size_t)element_bytes, row = COLUMNS * element;
    uint64_t state = seed + 5000011 * (uint64_t)_i;
    size_t a_bytes = BATCH * (ROWS + MORE) * row, b_bytes = BATCH * ROWS * row;
    unsigned char *a = malloc(a_bytes), *b = malloc(b_bytes);
    unsigned long long differing = 0, counted = 0;
    ck_assert(a && b);
    for (size_t i = 0; i < a_bytes; i++) a[i] = (unsigned char)random_below(&state, 256);
    for (size_t batch = 0; batch < BATCH; batch++)
        memcpy(b + batch * ROWS * row, a + batch * (ROWS + MORE) * row, ROWS * row);
    for (size_t i = 0; i < BATCH * ROWS * COLUMNS; i++) {
        if (random_below(&state, 50) > 0) continue;
        size_t byte = i * element + (size_t)random_below(&state, element_bytes);
        b[byte] ^= (unsigned char)(1 + random_below(&state, 255));
        differing++;
    }
    struct array at_a = array_make(a, a_bytes);
    struct array at_b = array_make(b, b_bytes);
    struct array at_count = array_make(&counted, sizeof counted);
    must(kv_cuda_compare(at(&at_a), ROWS + MORE, at(&at_b), ROWS, ROWS, BATCH, COLUMNS, element_bytes,
                         at(&at_count), NULL));
    must(cudaDeviceSynchronize());
    array_end(&at_a, NULL);
    array_end(&at_b, NULL);
    array_end(&at_count, &counted);
    ck_assert_uint_eq(counted, differing);
    free(a);
    free(b);
}
END_TEST

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        puts("skip: no CUDA device");
        return 77;
    }
    seed = random_seed();
    Suite *suite = suite_create("gpu: kernels");
    TCase *kernels = tcase_create("small"); /* all of it: compute-sanitizer runs the case of that name */
    tcase_add_loop_test(kernels, every_form_is_finished, 0, HEADS * TURNS);
    tcase_add_loop_test(kernels, many_rows_are_finished, 0, HEADS * TURNS);
    tcase_add_loop_test(kernels, rows_are_converted, 0, 6);
    tcase_add_loop_test(kernels, rows_are_normed, 0, 2);
    tcase_add_loop_test(kernels, differences_are_counted, 0, 2);
    suite_add_tcase(suite, kernels);
    return tested_run(suite);
}
