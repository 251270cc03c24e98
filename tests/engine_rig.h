/* An engine over the fake device, and requests to it with answers that can be checked. */
#ifndef KV_TESTS_ENGINE_RIG_H
#define KV_TESTS_ENGINE_RIG_H

#include "server/engine.h"
#include "tests/fake_backend.h"

extern const struct kv_geometry engine_rig_geometry;

/* Resets the fake device, then opens and starts an engine with these options (zeros: defaults for tests). */
struct kv_engine *engine_rig_open(struct kv_engine_options options);
/* The same in two steps: an engine that has no device yet, and the device for it. */
struct kv_engine *engine_rig_open_cold(struct kv_engine_options options);
void engine_rig_warm(struct kv_engine *engine);
/* Closes it and checks that the device got everything back. */
void engine_rig_close(struct kv_engine *engine);

/* One request: admitted, filled, decoded, run, checked against fake_element, released. */
struct engine_rig_request {
    struct kv_engine *engine;
    int64_t tokens;
    uint32_t seed;
    int64_t deadline_us;
    _Atomic int32_t hold;    /* while set, the body does not come in after admission */
    _Atomic int32_t hung_up; /* what gone() says */
    struct kv_error err;     /* of the step that failed */
    bool ok, right;          /* answered; and with the right bits */
    int64_t queue_us, device_us, done_at_us;
    pthread_t thread;
};

void engine_rig_run(struct engine_rig_request *request);
void engine_rig_start(struct engine_rig_request *request); /* engine_rig_run on a thread of its own */
void engine_rig_join(struct engine_rig_request *request);
/* Writes the request as a safetensors document of *bytes. */
void engine_rig_fill(const struct engine_rig_request *request, unsigned char *body, size_t *bytes);
/* Has the reply (K [layers, T, kv_heads, head_dim], then V) the bits that the fake device gives for this
 * request? */
bool engine_rig_is_right(const struct engine_rig_request *request, const unsigned char *reply);
/* Bytes of pool memory that a request holds, its own encoding and worst-case reply together. */
uint64_t engine_rig_request_bytes(int64_t tokens);
/* Waits (at most 10 s) until so many requests wait in the engine. */
bool engine_rig_await_waiting(struct kv_engine *engine, int32_t waiting);

#endif
