/* Which request goes out when: sizes by weight, and the times of arrivals that wait for nobody. Everything
 * follows from the seed. Knows no clock and no socket. */
#ifndef KV_CLIENT_SCHEDULE_H
#define KV_CLIENT_SCHEDULE_H

#include "client/noise.h"
#include "protocol/error.h"

enum { KV_MIX_MAX = 16, KV_MIX_WEIGHT_MAX = 1000000, KV_RATES_MAX = 64, KV_RATE_MAX = 1000000 };

/* Sizes in tokens, and how often each comes beside the others. */
struct kv_mix {
    int32_t count;
    int64_t tokens[KV_MIX_MAX], weight[KV_MIX_MAX];
};

/* Reads "16:70,512:25,2048:5"; a weight that is left out is 1. option_invalid: not of this form, a size
 * twice, or more than KV_MIX_MAX. */
bool kv_mix_read(const char *text, struct kv_mix *mix, struct kv_error *err) KV_MUST_CHECK;

/* Reads "100,200,400": rates over 0, at most KV_RATE_MAX, one after the other. */
bool kv_rates_read(const char *text, double *rates /* [KV_RATES_MAX] */, int32_t *count,
                   struct kv_error *err) KV_MUST_CHECK;

/* Made by kv_schedule_open; not thread-safe. */
struct kv_schedule {
    const struct kv_mix *mix;
    struct kv_noise sizes, gaps;
    int64_t weights;  /* of the mix in all */
    double rate;      /* arrivals a second; 0: a request goes out when a connection is free */
    double seconds;   /* no arrival at or after this; 0: no end */
    int64_t requests; /* no more than these; 0: no end */
    bool poisson;     /* random gaps instead of equal ones */
    int64_t taken;
    double at_s; /* of the last arrival with random gaps */
};

/* `mix` is borrowed. Sizes and gaps are two streams: the sizes are the same at every rate. */
struct kv_schedule kv_schedule_open(const struct kv_mix *mix, uint64_t seed);

struct kv_turn {
    int32_t size;     /* index into the mix */
    int64_t after_ns; /* from the beginning; 0 without a rate */
};

/* The next request. False: there is none. */
bool kv_schedule_next(struct kv_schedule *schedule, struct kv_turn *turn);

#endif
