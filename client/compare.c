/* Measures how far apart two tensors are, in float64, a block at a time. */
#include "client/compare.h"

#include <assert.h>
#include <math.h>

enum { BLOCK = 1024 };

bool kv_dtype_is_real(enum kv_dtype dtype)
{
    return dtype == KV_BF16 || dtype == KV_F16 || dtype == KV_F32 || dtype == KV_F64;
}

static void read_block(const struct kv_view *view, int64_t first, int64_t count, double *to)
{
    const char *from = (const char *)view->data + (size_t)first * kv_dtype_bytes(view->dtype);
    if (view->dtype == KV_F64) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    float narrow[BLOCK];
    kv_to_f32(view->dtype, from, count, narrow);
    for (int64_t i = 0; i < count; i++) to[i] = (double)narrow[i];
}

/* Counts elements whose bytes differ. */
static uint64_t count_differing(const struct kv_view *a, const struct kv_view *b, size_t element)
{
    uint64_t count = 0;
    const char *x = a->data, *y = b->data;
    for (uint64_t at = 0; at < a->bytes; at += element) count += memcmp(x + at, y + at, element) != 0;
    return count;
}

void kv_difference_measure(struct kv_difference *difference, const struct kv_view *a, const struct kv_view *b)
{
    *difference = (struct kv_difference){.elements = a->bytes * 8 / kv_dtype_bits(a->dtype)};
    bool same = a->dtype == b->dtype;
    if (same) {
        size_t element = kv_dtype_bits(a->dtype) % 8 == 0 ? kv_dtype_bytes(a->dtype) : 1;
        if (a->bytes > 0) difference->differing = count_differing(a, b, element);
        if (!kv_dtype_is_real(a->dtype)) {
            difference->rel_l2 = difference->differing ? HUGE_VAL : 0;
            return;
        }
    }
    assert(kv_dtype_is_real(a->dtype) && kv_dtype_is_real(b->dtype));
    double x[BLOCK], y[BLOCK], apart = 0, norm = 0;
    int64_t elements = (int64_t)difference->elements;
    for (int64_t first = 0; first < elements; first += BLOCK) {
        int64_t count = elements - first < BLOCK ? elements - first : BLOCK;
        read_block(a, first, count, x);
        read_block(b, first, count, y);
        for (int64_t i = 0; i < count; i++) {
            if (isfinite(x[i]) && isfinite(y[i])) {
                double delta = fabs(x[i] - y[i]);
                apart += delta * delta;
                norm += y[i] * y[i];
                if (delta > difference->max_abs) difference->max_abs = delta;
                if (!same && delta > 0) difference->differing++;
            } else if (!(isnan(x[i]) && isnan(y[i])) && !(x[i] >= y[i] && x[i] <= y[i])) {
                difference->broken++;
                if (!same) difference->differing++;
            }
        }
    }
    difference->rel_l2 = apart > 0 ? sqrt(apart) / sqrt(norm) : 0;
}
