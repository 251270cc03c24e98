/* The header and the values of a random request. */
#include "client/request_shape.h"

bool kv_request_shape_head(const struct kv_request_shape *shape, char *to, size_t *head_bytes,
                           uint64_t *bytes, struct kv_error *err)
{
    const char *name = shape->kind == KV_TARGET_HIDDEN ? "target_hidden" : "hidden_states";
    const struct kv_entry entries[] = {{name, shape->dtype, 2, {shape->tokens, shape->width}},
                                       {"positions", shape->positions_dtype, 1, {shape->tokens}}};
    int64_t first = shape->position_max > 0 ? 0 : shape->position_start;
    int64_t last =
        shape->position_max > 0 ? shape->position_max - 1 : shape->position_start + shape->tokens - 1;
    if (shape->positions_dtype == KV_I32 && (first < INT32_MIN || last > INT32_MAX)) {
        return kv_fail(err, KV_OPTION_INVALID, "Positions from %lld to %lld do not fit I32", (long long)first,
                       (long long)last);
    }
    uint64_t data = 0;
    if (!kv_tensor_bytes(shape->dtype, 2, entries[0].dims, &data) || data > INT64_MAX / 2) {
        return kv_fail(err, KV_OPTION_INVALID, "The request would be larger than any file");
    }
    if (!kv_document_encode(to, KV_REQUEST_HEAD_BYTES, entries, 2, NULL, 0, head_bytes, &data, err))
        return false;
    *bytes = *head_bytes + data;
    return true;
}

struct kv_noise kv_request_shape_hidden(const struct kv_request_shape *shape)
{
    return kv_noise_open(shape->seed, "hidden");
}

struct kv_noise kv_request_shape_positions(const struct kv_request_shape *shape)
{
    return kv_noise_open(shape->seed, "positions");
}

void kv_request_shape_fill_positions(const struct kv_request_shape *shape, struct kv_noise *noise,
                                     int64_t first, int64_t count, void *to)
{
    size_t element = kv_dtype_bytes(shape->positions_dtype);
    for (int64_t t = 0; t < count; t++) {
        int64_t position = shape->position_max > 0
                               ? (int64_t)(kv_noise_next(noise) % (uint64_t)shape->position_max)
                               : shape->position_start + first + t;
        int32_t narrow = (int32_t)position;
        const void *from = element == sizeof narrow ? (const void *)&narrow : (const void *)&position;
        memcpy((char *)to + (size_t)t * element, from, element);
    }
}
