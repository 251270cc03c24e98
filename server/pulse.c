/* See pulse.h. A knock that was begun at one beat has to be over at the next. */
#include "server/pulse.h"

#include "server/log.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

void kv_pulse_open(struct kv_pulse *pulse, const struct kv_notify *notify, struct kv_engine *engine,
                   int listener)
{
    *pulse = (struct kv_pulse){
        .notify = notify, .engine = engine, .listener = listener, .knock = -1, .well = true};
}

/* Connects to the listener and hangs up our side, which the HTTP server answers by closing. A wildcard
 * address is one that can be connected to. */
static void knock(struct kv_pulse *pulse)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    if (pulse->listener < 0 || getsockname(pulse->listener, (struct sockaddr *)&address, &bytes) != 0) return;
    pulse->knock = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (pulse->knock < 0) return;
    if (connect(pulse->knock, (const struct sockaddr *)&address, bytes) == 0) {
        shutdown(pulse->knock, SHUT_WR);
    } else if (errno != EINPROGRESS) {
        close(pulse->knock);
        pulse->knock = -1;
    }
}

/* Has the HTTP server ended the connection, or said anything on it? */
static bool answered(const struct kv_pulse *pulse)
{
    if (pulse->listener < 0) return true;
    if (pulse->knock < 0) return false;
    char byte;
    ssize_t got = recv(pulse->knock, &byte, 1, MSG_DONTWAIT);
    return got >= 0 || errno == ECONNRESET;
}

/* A connection that was still in the making when it was begun: hangs up now. */
static void hang_up(const struct kv_pulse *pulse)
{
    struct pollfd made = {.fd = pulse->knock, .events = POLLOUT};
    if (pulse->knock >= 0 && poll(&made, 1, 0) == 1) shutdown(pulse->knock, SHUT_WR);
}

static const char *what_ails(const struct kv_pulse *pulse)
{
    if (!answered(pulse)) return "the HTTP server did not end a connection in time";
    if (kv_engine_busy_us(pulse->engine) > pulse->notify->watchdog_us)
        return "a batch has been with the device for longer than the watchdog's time";
    if (!kv_engine_responds(pulse->engine)) return "the engine's lock cannot be had";
    return NULL;
}

void kv_pulse_beat(struct kv_pulse *pulse)
{
    int64_t now_us = kv_now_us(), half_us = pulse->notify->watchdog_us / 2;
    if (half_us == 0) return;
    hang_up(pulse);
    if (now_us < pulse->due_us) return;
    const char *ailment = pulse->due_us ? what_ails(pulse) : NULL; /* nothing was asked before the first beat
                                                                    */
    pulse->due_us = now_us + half_us;
    if (!ailment && !kv_notify_send(pulse->notify, "WATCHDOG=1"))
        ailment = "the service manager's socket takes nothing";
    if (ailment && pulse->well) kv_log(KV_LOG_WARNING, "no sign of life for the watchdog: %s", ailment);
    pulse->well = !ailment;
    if (pulse->knock >= 0) close(pulse->knock);
    pulse->knock = -1;
    knock(pulse);
}

void kv_pulse_forget_listener(struct kv_pulse *pulse)
{
    pulse->listener = -1;
}

void kv_pulse_close(struct kv_pulse *pulse)
{
    if (pulse->knock >= 0) close(pulse->knock);
    pulse->knock = -1;
}
