/* Requests that are wrong on purpose, what must come of each, and conversations in raw bytes over the sockets
 * of tests/http_rig.h to see it. Behind whatever was sent stands a good request: it is answered with the
 * right bits, or the connection ends, and nothing hangs. */
#ifndef KV_TESTS_HOSTILE_H
#define KV_TESTS_HOSTILE_H

#include "tests/http_rig.h"

enum hostile_after {
    HOSTILE_KEPT,  /* one answer, and the good request behind is answered, too */
    HOSTILE_ENDED, /* the connection ends, and what stands behind is not answered */
    HOSTILE_EITHER /* one of the two */
};

/* Statuses that are no promise of ours: the HTTP library may answer in words of its own. */
enum {
    HOSTILE_REFUSED = 0, /* 4xx or 5xx, or no answer at all */
    HOSTILE_ANY = -1     /* a lenient reader may even serve it */
};

/* One request as bytes, and what must come of it. */
struct hostile {
    const char *bytes;
    size_t count;
    int status;       /* of the first answer, or one of the two above */
    const char *code; /* NULL: not looked at */
    enum hostile_after after;
};

/* One body by its header, for the geometry of the rig: hidden 8, positions under 100000. Always answered in
 * our words, and the connection goes on. */
struct hostile_body {
    const char *header;
    size_t header_bytes;
    size_t data_bytes; /* all 0 */
    int status;        /* 200: the body is good */
    const char *code;  /* NULL with 200 */
};

const struct hostile *hostile_heads(int32_t *count);
const struct hostile_body *hostile_bodies(int32_t *count);

/* POST /v1/materialize with this body as bytes on the wire; free() it. */
unsigned char *hostile_post(const void *body, size_t body_bytes, const char *extra, size_t *count);
/* The body itself; free() it. */
unsigned char *hostile_document(const struct hostile_body *body, size_t *bytes);

/* How the bytes are sent. */
enum talk_pieces { TALK_WHOLE, TALK_BYTES /* one at a time */ };
enum { TALK_REPLIES_MAX = 8 };

struct talk {
    int replies; /* whole ones, without interim ones and without the last good request's */
    int status[TALK_REPLIES_MAX];
    char code[TALK_REPLIES_MAX][32]; /* "" where the answer has none */
    bool in_step;                    /* the good request behind was answered, with the right bits */
    bool swallowed;                  /* it was answered wrongly: what was sent ran into it */
    bool ended;                      /* the peer closed the connection */
    bool smuggled;                   /* something in a body was taken for a request: X-Request-Id: smuggled */
};

/* Sends the bytes and the good request on a connection of their own, and reads until that one is answered or
 * the connection ends; neither within a minute is a hang. */
struct talk talk_with(const struct http_rig *rig, bool over_unix, const void *bytes, size_t count,
                      enum talk_pieces pieces);
/* The same on a connection that is open; only reads what comes. Closes it. */
struct talk talk_read(int fd);

/* What does not fit the promise, or NULL. */
const char *hostile_verdict(const struct hostile *promise, const struct talk *talk);
/* The bytes as text for a message, cut to fit. Returns `to`. */
const char *hostile_print(const void *bytes, size_t count, char *to, size_t to_bytes);

#endif
