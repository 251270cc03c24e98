/* Is the daemon really alive? Asked at half the time that a service manager's watchdog gives, and said to it
 * only when the answer is yes. Three things are looked at, none of which the asking thread does itself:
 * - the engine can be spoken to: its lock is not held by a thread that is stuck in the device;
 * - no batch has been with the device for longer than the watchdog's time;
 * - the HTTP server took a connection of ours to its first address, and ended it when we hung up.
 * The connection says nothing, so it is no request: it stands in no log line and in no count of requests. At
 * the limit of connections it takes the place of an idle one, as any new one does. */
#ifndef KV_SERVER_PULSE_H
#define KV_SERVER_PULSE_H

#include "server/engine.h"
#include "server/notify.h"

struct kv_pulse {
    const struct kv_notify *notify;
    struct kv_engine *engine;
    int listener;   /* of the first address; -1: it takes nobody any more, and is not asked */
    int knock;      /* our connection to it; -1: none */
    int64_t due_us; /* when to ask next */
    bool well;      /* as of the last time */
};

/* All is borrowed. The listener's socket is only asked for its address. */
void kv_pulse_open(struct kv_pulse *pulse, const struct kv_notify *notify, struct kv_engine *engine,
                   int listener);
/* Call it at least every quarter of the watchdog's time; never waits for what it asks. */
void kv_pulse_beat(struct kv_pulse *pulse);
/* The listener is shut from here on. */
void kv_pulse_forget_listener(struct kv_pulse *pulse);
void kv_pulse_close(struct kv_pulse *pulse);

#endif
