/* Makes the requests that a measurement sends. */
#include "client/bench_requests.h"

#include "client/request_shape.h"

#include <stdlib.h>
#include <string.h>

static bool make_one(const struct kv_request_shape *shape, struct iovec *document, struct kv_error *err)
{
    char head[KV_REQUEST_HEAD_BYTES];
    size_t head_bytes = 0;
    uint64_t bytes = 0;
    if (!kv_request_shape_head(shape, head, &head_bytes, &bytes, err)) return false;
    char *to = malloc((size_t)bytes);
    if (!to) {
        return kv_fail_values(err, KV_OPTION_INVALID, "--tokens", kv_none(), kv_integer((int64_t)bytes),
                              "There is no memory for a request of this many bytes");
    }
    struct kv_noise hidden = kv_request_shape_hidden(shape), positions = kv_request_shape_positions(shape);
    size_t rows = (size_t)(shape->tokens * shape->width) * kv_dtype_bytes(shape->dtype);
    memcpy(to, head, head_bytes);
    kv_noise_fill(&hidden, shape->dtype, 0, 1, shape->tokens * shape->width, to + head_bytes);
    kv_request_shape_fill_positions(shape, &positions, 0, shape->tokens, to + head_bytes + rows);
    *document = (struct iovec){to, (size_t)bytes};
    return true;
}

bool kv_bench_requests_make(const struct kv_client_model *model, const struct kv_mix *mix,
                            enum kv_input_kind kind, enum kv_dtype dtype, uint64_t seed,
                            struct iovec **document, struct kv_error *err)
{
    *document = NULL;
    if (kind == KV_TARGET_HIDDEN && model->taps == 0)
        return kv_fail(err, KV_OPTION_INVALID, "--target: the model %s has no fc", model->name);
    struct iovec *made = calloc((size_t)mix->count, sizeof *made);
    if (!made) return kv_fail(err, KV_OPTION_INVALID, "There is no memory for the requests");
    for (int32_t i = 0; i < mix->count; i++) {
        const struct kv_request_shape shape = {
            .kind = kind,
            .dtype = dtype,
            .positions_dtype = KV_I64,
            .tokens = mix->tokens[i],
            .width = kind == KV_TARGET_HIDDEN ? model->taps * model->hidden : model->hidden,
            .position_max = model->positions,
            .seed = seed,
        };
        if (make_one(&shape, &made[i], err)) continue;
        kv_bench_requests_free(made, mix->count);
        return false;
    }
    *document = made;
    return true;
}

void kv_bench_requests_free(struct iovec *document, int32_t count)
{
    for (int32_t i = 0; document && i < count; i++) free(document[i].iov_base);
    free(document);
}
