/* The mix of sizes, and arrivals. */
#include "client/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24 };

static bool not_a_mix(const char *text, struct kv_error *err)
{
    return kv_fail_values(err, KV_OPTION_INVALID, "--mix",
                          kv_text("TOKENS:WEIGHT,... with at most 16 sizes, each once"), kv_text(text),
                          "--mix");
}

/* A whole number in [min, max] at *at, which steps behind it. */
static bool take_number(const char **at, long long min, long long max, int64_t *to)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') return false;
    long long value = strtoll(*at, &end, 10); /* out of range: LLONG_MAX, which no limit allows */
    *at = end;
    *to = value;
    return value >= min && value <= max;
}

bool kv_mix_read(const char *text, struct kv_mix *mix, struct kv_error *err)
{
    *mix = (struct kv_mix){0};
    const char *at = text;
    do {
        if (mix->count == KV_MIX_MAX) return not_a_mix(text, err);
        int64_t *tokens = &mix->tokens[mix->count], *weight = &mix->weight[mix->count];
        at += mix->count > 0;
        *weight = 1;
        if (!take_number(&at, 0, TOKENS_MAX, tokens)) return not_a_mix(text, err);
        if (*at == ':') {
            at++;
            if (!take_number(&at, 1, KV_MIX_WEIGHT_MAX, weight)) return not_a_mix(text, err);
        }
        for (int32_t i = 0; i < mix->count; i++)
            if (mix->tokens[i] == *tokens) return not_a_mix(text, err);
        mix->count++;
    } while (*at == ',');
    return *at == '\0' || not_a_mix(text, err);
}

bool kv_rates_read(const char *text, double *rates, int32_t *count, struct kv_error *err)
{
    *count = 0;
    for (const char *at = text; *count < KV_RATES_MAX && *at >= '0' && *at <= '9'; at++) {
        char *end = NULL;
        double rate = strtod(at, &end);
        if (rate <= 0 || rate > KV_RATE_MAX) break;
        rates[(*count)++] = rate;
        if (*end == '\0') return true;
        if (*end != ',') break;
        at = end;
    }
    return kv_fail_values(err, KV_OPTION_INVALID, "--rates",
                          kv_text("RATE,RATE,... over 0, at most 64 of at most 1000000"), kv_text(text),
                          "--rates");
}

struct kv_schedule kv_schedule_open(const struct kv_mix *mix, uint64_t seed)
{
    struct kv_schedule schedule = {
        .mix = mix, .sizes = kv_noise_open(seed, "sizes"), .gaps = kv_noise_open(seed, "gaps")};
    for (int32_t i = 0; i < mix->count; i++) schedule.weights += mix->weight[i];
    return schedule;
}

static int32_t pick_size(struct kv_schedule *schedule)
{
    const struct kv_mix *mix = schedule->mix;
    int64_t left = (int64_t)(kv_noise_next(&schedule->sizes) % (uint64_t)schedule->weights);
    int32_t size = 0;
    while (left >= mix->weight[size]) left -= mix->weight[size++];
    return size;
}

bool kv_schedule_next(struct kv_schedule *schedule, struct kv_turn *turn)
{
    if (schedule->requests > 0 && schedule->taken >= schedule->requests) return false;
    double at_s = 0;
    if (schedule->rate > 0 && schedule->poisson) {
        double part = (double)(kv_noise_next(&schedule->gaps) >> 11) * 0x1p-53; /* in [0, 1) */
        at_s = schedule->at_s -= log1p(-part) / schedule->rate;
    } else if (schedule->rate > 0) {
        at_s = (double)schedule->taken / schedule->rate; /* never a sum: it would drift */
    }
    if (schedule->seconds > 0 && at_s >= schedule->seconds) return false;
    schedule->taken++;
    *turn = (struct kv_turn){.size = pick_size(schedule), .after_ns = (int64_t)(at_s * 1e9)};
    return true;
}
