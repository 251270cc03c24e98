/* What an item may ask of a backend whose memory the host can read: what is built, and what lies inside the
 * memory that it names. A fault is the item's own. Nothing has been written when it is found. */
#include "kernels/item_check.h"

static bool inside(const struct kv_ref *ref, uint64_t bytes)
{
    if (!ref->mem) return false;
    uint64_t room = kv_mem_at(ref->mem)->bytes;
    return ref->offset <= room && bytes <= room - ref->offset;
}

/* Do `count` elements of `bytes`, `stride` apart, lie inside? */
static bool array_inside(const struct kv_ref *ref, int64_t count, int64_t stride, uint64_t bytes)
{
    uint64_t last;
    return stride >= 0 && kv_mul((uint64_t)(count - 1), (uint64_t)stride, &last) &&
           !__builtin_add_overflow(last, bytes, &last) && inside(ref, last);
}

static bool input_inside(const struct kv_geometry *geometry, const struct kv_item *item)
{
    const struct kv_input *in = &item->in;
    int64_t columns = geometry->hidden * (in->kind == KV_TARGET_HIDDEN ? geometry->taps : 1);
    int64_t position_bytes = (int64_t)kv_dtype_bytes(in->positions_dtype);
    return array_inside(&in->rows, item->rows, in->row_stride,
                        (uint64_t)columns * kv_dtype_bytes(in->dtype)) &&
           array_inside(&in->positions, item->rows, position_bytes, (uint64_t)position_bytes);
}

static bool positions_valid(const struct kv_geometry *geometry, const struct kv_item *item)
{
    const struct kv_input *in = &item->in;
    bool valid = true;
    for (int64_t t = 0; t < item->rows; t++) {
        int64_t position = kv_input_position(in, t);
        valid &= position >= 0 && position < geometry->positions;
    }
    return valid;
}

static bool slots_valid(const struct kv_item *item)
{
    const struct kv_output *out = &item->out;
    int64_t last;
    if (out->slots_max < 0) return false;
    if (!out->slots.mem) /* the last slot is the highest */
        return !__builtin_add_overflow(out->slot_first, item->rows - 1, &last) && last < out->slots_max;
    if (!array_inside(&out->slots, item->rows, sizeof(int64_t), sizeof(int64_t))) return false;
    const unsigned char *from = kv_ref_host(&out->slots);
    bool valid = true;
    for (int64_t t = 0; t < item->rows; t++) {
        int64_t slot;
        memcpy(&slot, from + t * 8, sizeof slot);
        valid &= slot < out->slots_max;
    }
    return valid;
}

/* a * b + c */
static bool mul_add(int64_t a, int64_t b, uint64_t c, uint64_t *out)
{
    return kv_mul((uint64_t)a, (uint64_t)b, out) && !__builtin_add_overflow(*out, c, out);
}

/* Every slot below slots_max, of every layer and head asked for, must lie inside its memory: slots may come
 * from memory that others can write, and only this bound holds whatever they say. */
static bool output_inside(const struct kv_geometry *geometry, const struct kv_item *item)
{
    const struct kv_output *out = &item->out;
    if (out->block_tokens < 1 || out->block_stride < 0 || out->token_stride < 0 || out->head_stride < 0)
        return false;
    if (out->layer_begin == out->layer_end || out->head_begin == out->head_end || out->slots_max == 0)
        return true;
    int64_t last = out->slots_max - 1, block = last / out->block_tokens, token = last % out->block_tokens;
    uint64_t end, whole_end = 0;
    if (!mul_add(out->head_end - 1, out->head_stride, (uint64_t)geometry->head_dim * sizeof(uint16_t), &end))
        return false;
    /* The highest address is in the last block, or at the end of the one before it. */
    if (block > 0 && (!mul_add(out->block_tokens - 1, out->token_stride, end, &whole_end) ||
                      !mul_add(block - 1, out->block_stride, whole_end, &whole_end)))
        return false;
    if (!mul_add(token, out->token_stride, end, &end) || !mul_add(block, out->block_stride, end, &end))
        return false;
    if (whole_end > end) end = whole_end;
    for (int32_t layer = out->layer_begin; layer < out->layer_end; layer++)
        if (!inside(&out->k[layer], end) || !inside(&out->v[layer], end)) return false;
    return true;
}

enum kv_fault kv_item_check(const struct kv_geometry *geometry, enum kv_input_kind kind,
                            const struct kv_item *item)
{
    const struct kv_input *in = &item->in;
    const struct kv_output *out = &item->out;
    if (item->rows == 0) return KV_OK;
    if (item->rows < 0) return KV_PARAMETER_INVALID;
    if (in->kind != kind || (kind == KV_TARGET_HIDDEN && geometry->taps == 0)) return KV_UNSUPPORTED;
    if (in->dtype != KV_BF16 && in->dtype != KV_F16 && in->dtype != KV_F32) return KV_UNSUPPORTED;
    if (in->positions_dtype != KV_I64 && in->positions_dtype != KV_I32) return KV_UNSUPPORTED;
    if (out->dtype != geometry->dtype || out->k_scale || out->v_scale) return KV_UNSUPPORTED;
    if (out->layer_begin < 0 || out->layer_begin > out->layer_end || out->layer_end > geometry->layers ||
        out->head_begin < 0 || out->head_begin > out->head_end || out->head_end > geometry->kv_heads)
        return KV_PARAMETER_INVALID;
    if (!input_inside(geometry, item)) return KV_PARAMETER_INVALID;
    if (!slots_valid(item) || !output_inside(geometry, item)) return KV_PARAMETER_INVALID;
    if (!in->positions_checked && !positions_valid(geometry, item)) return KV_POSITION_OUT_OF_RANGE;
    return KV_OK;
}
