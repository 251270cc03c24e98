/* What a daemon says of itself: /v1/model and the report of `kvmatd --check`. Structs in, JSON text out. */
#ifndef KV_PROTOCOL_DESCRIPTION_H
#define KV_PROTOCOL_DESCRIPTION_H

#include "protocol/message.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every bound of the service in one place; /v1/model shows them. */
struct kv_limits {
    int64_t tokens_max;       /* of a request */
    uint64_t body_bytes_max;  /* of a request */
    uint64_t pool_bytes;      /* bodies and replies in flight */
    int32_t queue_max;        /* requests waiting */
    int64_t batch_tokens_max; /* rows of one device batch */
    int64_t span_tokens_max;  /* rows of one request in one device batch */
    int32_t connections_max;  /* open at once, over all addresses */
    int32_t idle_seconds;     /* a silent connection is closed after this */
    int32_t upload_seconds;   /* a body must be in after this and a second for each 256 KiB */
    int32_t reply_seconds;    /* a reply must be taken after this and a second for each 256 KiB */
    int32_t device_seconds;   /* a batch that is with the device for longer has lost it; 0: no limit */
    int32_t drain_seconds;    /* requests in flight have so long at SIGTERM */
    int32_t rate_seconds;     /* over every so long, bodies and replies must move at least */
    int64_t rate_bytes;       /* so many bytes a second; 0: no such rule */
};

struct kv_rope_info {
    char type[16]; /* "default", "linear", "yarn", "llama3" */
    double theta;
    double attention_factor;
    bool interleaved;
    int64_t positions; /* valid are [0, positions) */
};

struct kv_device_info {
    char kind[16];                    /* "cpu", "cuda" */
    char name[128];                   /* of the processor or the GPU */
    uint64_t memory_bytes;            /* that the weights and buffers take on it */
    uint64_t total_bytes, free_bytes; /* of its memory, whoever uses it; 0: not known */
};

struct kv_description {
    const char *name;        /* of the model */
    const char *fingerprint; /* "" until it is known */
    bool ready;
    struct kv_geometry geometry;
    const float *eps; /* [layers] */
    struct kv_rope_info rope;
    const struct kv_device_info *device; /* NULL: left out */
    const struct kv_limits *limits;      /* NULL: left out */
};

/* One fault of a checkpoint. error.param is the tensor or config key. */
struct kv_finding {
    int32_t layer; /* -1: none */
    struct kv_error error;
};

/* /v1/model. free() the text; NULL only when memory is out. */
char *kv_description_encode(const struct kv_description *description);

/* `--check`: {"ok": true, "model": {... without device}, "warnings": [...]} where count is 0, else {"ok":
 * false, "errors": [...]} and neither `description` nor `warning` is looked at. free() the text. */
char *kv_check_encode(const struct kv_description *description, const char *const *warning, int32_t warnings,
                      const struct kv_finding *findings, int32_t count);

#ifdef __cplusplus
}
#endif
#endif
