/* The device, watched from outside: a batch that does not come back, and whether the engine can be left in
 * order. Nothing here waits for the device, or for long for a thread that does. */
#include "server/engine_state.h"

#include <time.h>

/* True with the lock held, false when it cannot be had within a second: submit runs under it, and a driver
 * that hangs there keeps it for ever. */
static bool lock_soon(struct kv_engine *engine)
{
    enum { TRIES = 100, NAP_NS = 10 * 1000 * 1000 };
    for (int32_t i = 0; i < TRIES; i++) {
        if (pthread_mutex_trylock(&engine->lock) == 0) return true;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return false;
}

int64_t kv_engine_busy_us(const struct kv_engine *engine)
{
    int64_t oldest_us = atomic_load(&engine->oldest_us);
    return oldest_us ? kv_now_us() - oldest_us : 0;
}

bool kv_engine_watch(struct kv_engine *engine, struct kv_error *err)
{
    const int32_t seconds = engine->options.limits.device_seconds;
    int64_t busy_us = kv_engine_busy_us(engine);
    if (seconds == 0 || busy_us <= seconds * 1000000LL) return true;
    struct kv_error why = {0};
    kv_fail(&why, KV_DEVICE_LOST,
            "a batch has been with the device for %.1f s, longer than --device-timeout %d",
            (double)busy_us / 1e6, seconds);
    if (lock_soon(engine)) {
        kv_engine_lose(engine, &why);
        pthread_mutex_unlock(&engine->lock);
    }
    *err = why;
    return false;
}

bool kv_engine_responds(struct kv_engine *engine)
{
    bool locked = lock_soon(engine);
    if (locked) pthread_mutex_unlock(&engine->lock);
    return locked;
}

bool kv_engine_settle(struct kv_engine *engine)
{
    if (!lock_soon(engine)) return false;
    for (int32_t i = 0; i < engine->flights; i++) {
        struct kv_flight *flight = &engine->flight[i];
        struct kv_error why = {0};
        if (flight->stranded &&
            engine->ops->wait(engine->backend, &flight->batch, 0, &why) != KV_WAIT_PENDING)
            kv_flight_set_busy(engine, flight, false);
    }
    bool settled = engine->flights_busy == 0;
    pthread_mutex_unlock(&engine->lock);
    return settled;
}
