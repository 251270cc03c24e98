/* Random weights: deviations are chosen so that sums, norms and angles are of ordinary size. */
#include "tests/random_weights.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct part {
    unsigned char *bytes;
    uint64_t count;
    _Atomic uint64_t read;
};

struct random_weights {
    struct kv_geometry geometry;
    struct part *part; /* [layers + 1][KV_PART_COUNT]; the last row has no layer */
    atomic_bool out_of_order;
    _Atomic int64_t reads_left;
};

uint64_t random_seed(void)
{
    const char *given = getenv("KV_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    printf("KV_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_below(uint64_t *state, int64_t below)
{
    return (int64_t)(random_bits(state) % (uint64_t)below);
}

float random_float(uint64_t *state, float deviation)
{
    /* The sum of four even distributions is close enough to a bell. */
    uint64_t bits = random_bits(state);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)((bits >> (16 * i)) & 0xffffu) / 65535.0 - 0.5;
    return (float)(sum * sqrt(3.0)) * deviation;
}

void random_fill(uint64_t *state, enum kv_dtype dtype, float deviation, int64_t count, void *to)
{
    unsigned char *bytes = to;
    for (int64_t i = 0; i < count; i++) {
        float value = random_float(state, deviation);
        if (dtype == KV_F32)
            memcpy(bytes + 4 * i, &value, sizeof value);
        else
            kv_from_f32(dtype, &value, 1, bytes + 2 * i);
    }
}

struct kv_geometry random_geometry(uint64_t *state)
{
    static const int32_t head_dims[] = {32, 64, 80, 96, 112, 128, 192, 256, 2, 18};
    int32_t head_dim = head_dims[random_below(state, 10)];
    int32_t rotary_dim = 2 * (1 + (int32_t)random_below(state, head_dim / 2));
    if (random_below(state, 2)) rotary_dim = head_dim;
    return (struct kv_geometry){
        .layers = 1 + (int32_t)random_below(state, 3),
        .kv_heads = 1 + (int32_t)random_below(state, 3),
        .head_dim = head_dim,
        .rotary_dim = rotary_dim,
        .taps = random_below(state, 2) ? 0 : 1 + (int32_t)random_below(state, 3),
        .hidden = random_below(state, 4) ? 17 + random_below(state, 300) : 64 * (1 + random_below(state, 4)),
        .positions = 1 + random_below(state, 100000),
        .dtype = random_below(state, 3) ? KV_BF16 : KV_F16,
        .k_norm = random_below(state, 4) > 0,
        .k_bias = random_below(state, 2) > 0,
        .v_bias = random_below(state, 2) > 0,
        .interleaved = random_below(state, 3) == 0,
        .value_scale = random_below(state, 2) ? 1.0f : 0.7f,
        .attention_factor = random_below(state, 2) ? 1.0f : 1.2f,
        .hidden_norm_eps = 1e-5f,
    };
}

static struct part *find(const struct random_weights *weights, int32_t layer, enum kv_part part)
{
    bool layered = part <= KV_PART_EPS;
    assert(layered ? layer >= 0 && layer < weights->geometry.layers : layer == -1);
    return &weights->part[(layered ? layer : weights->geometry.layers) * KV_PART_COUNT + (int32_t)part];
}

static void fill_part(const struct kv_geometry *geometry, enum kv_part kind, struct part *part,
                      uint64_t *state)
{
    float *floats = (void *)part->bytes;
    int64_t count = (int64_t)(part->count / sizeof *floats);
    float depth = (float)geometry->hidden * (float)(kind == KV_PART_FC ? geometry->taps : 1);
    switch (kind) {
    case KV_PART_K_WEIGHT:
    case KV_PART_V_WEIGHT:
    case KV_PART_FC:
        random_fill(state, geometry->dtype, 1.0f / sqrtf(depth), (int64_t)(part->count / 2), part->bytes);
        break;
    case KV_PART_K_BIAS:
    case KV_PART_V_BIAS: random_fill(state, KV_F32, 0.5f, count, part->bytes); break;
    case KV_PART_K_NORM:
    case KV_PART_HIDDEN_NORM:
        for (int64_t i = 0; i < count; i++) floats[i] = 1.0f + random_float(state, 0.2f);
        break;
    case KV_PART_EPS: floats[0] = 1e-6f * (float)(1 + random_below(state, 10)); break;
    case KV_PART_INV_FREQ:
        for (int64_t i = 0; i < count; i++)
            floats[i] = 1.0f / powf(1e6f, (float)(2 * i) / (float)geometry->rotary_dim);
        break;
    case KV_PART_COUNT: break;
    }
}

struct random_weights *random_weights_make(const struct kv_geometry *geometry, uint64_t *state)
{
    struct random_weights *weights = calloc(1, sizeof *weights);
    if (!weights) abort();
    weights->geometry = *geometry;
    weights->part = calloc((size_t)(geometry->layers + 1) * KV_PART_COUNT, sizeof *weights->part);
    if (!weights->part) abort();
    atomic_store(&weights->reads_left, -1);
    for (int32_t layer = -1; layer < geometry->layers; layer++) {
        enum kv_part first = layer < 0 ? KV_PART_FC : KV_PART_K_WEIGHT;
        enum kv_part end = layer < 0 ? KV_PART_COUNT : KV_PART_FC;
        for (enum kv_part kind = first; kind < end; kind++) {
            struct part *part = find(weights, layer, kind);
            part->count = kv_part_bytes(geometry, kind);
            if (part->count == 0) continue;
            part->bytes = malloc((size_t)part->count);
            if (!part->bytes) abort();
            fill_part(geometry, kind, part, state);
        }
    }
    return weights;
}

static bool read_part(void *source, int32_t layer, enum kv_part kind, uint64_t offset, void *to, size_t bytes,
                      struct kv_error *err)
{
    struct random_weights *weights = source;
    struct part *part = find(weights, layer, kind);
    if (atomic_load(&weights->reads_left) >= 0 && atomic_fetch_sub(&weights->reads_left, 1) == 0)
        return kv_fail(err, KV_SAFETENSORS_MALFORMED, "this read was told to fail");
    if (offset != atomic_load(&part->read) || offset + bytes > part->count) {
        atomic_store(&weights->out_of_order, true);
        return kv_fail(err, KV_INTERNAL, "part %d of layer %d is read out of order", (int)kind, (int)layer);
    }
    memcpy(to, part->bytes + offset, bytes);
    atomic_store(&part->read, offset + bytes);
    return true;
}

struct kv_weights random_weights_source(struct random_weights *weights)
{
    return (struct kv_weights){.geometry = weights->geometry, .source = weights, .read = read_part};
}

const void *random_weights_part(const struct random_weights *weights, int32_t layer, enum kv_part part)
{
    return find(weights, layer, part)->bytes;
}

void random_weights_fail_at(struct random_weights *weights, int64_t reads)
{
    atomic_store(&weights->reads_left, reads);
    for (int32_t i = 0; i < (weights->geometry.layers + 1) * KV_PART_COUNT; i++)
        atomic_store(&weights->part[i].read, 0);
}

bool random_weights_pulled_once(const struct random_weights *weights)
{
    bool complete = !atomic_load(&weights->out_of_order);
    for (int32_t i = 0; i < (weights->geometry.layers + 1) * KV_PART_COUNT; i++)
        complete &= atomic_load(&weights->part[i].read) == weights->part[i].count;
    return complete;
}

void random_weights_free(struct random_weights *weights)
{
    if (!weights) return;
    for (int32_t i = 0; i < (weights->geometry.layers + 1) * KV_PART_COUNT; i++) free(weights->part[i].bytes);
    free(weights->part);
    free(weights);
}
