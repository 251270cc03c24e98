/* Inputs of the CPU backend: rows at any stride and alignment, of any float dtype, become tiles of float32
 * whose values are exact in the weights' dtype. Where there is fc, its output is normed here. Knows no layers
 * and no heads. */
#include "kernels/cpu_backend.h"
#include "kernels/item_check.h"
#include "kernels/norm_rope.h"

enum {
    CHUNK = 256
}; /* columns that are converted at once: their part of a tile stays in the nearest cache */

/* To `to` [columns], every `apart`-th float: the place of one row in a tile. */
static void spread(const float *from, int64_t columns, float *to, int64_t apart)
{
    for (int64_t i = 0; i < columns; i++) to[i * apart] = from[i];
}

static void pack_row(enum kv_dtype to_dtype, enum kv_dtype from_dtype, const unsigned char *from,
                     int64_t columns, float *to, int64_t apart)
{
    float chunk[CHUNK];
    uint16_t bits[CHUNK];
    kv_to_f32(from_dtype, from, columns, chunk);
    if (to_dtype != from_dtype) {
        kv_from_f32(to_dtype, chunk, columns, bits);
        kv_to_f32(to_dtype, bits, columns, chunk);
    }
    spread(chunk, columns, to, apart);
}

static int64_t find_place(const struct kv_output *out, int64_t t)
{
    int64_t slot;
    if (out->slots.mem)
        memcpy(&slot, out->slots.mem->region.base + out->slots.offset + (uint64_t)t * sizeof slot,
               sizeof slot);
    else
        slot = out->slot_first + t;
    /* Checked before, but slots may lie in memory of others: never write where the check did not look. */
    if (slot < 0 || slot >= out->slots_max) return -1;
    if (out->layer_begin == out->layer_end || out->head_begin == out->head_end) return -1;
    return slot / out->block_tokens * out->block_stride + slot % out->block_tokens * out->token_stride;
}

void kv_cpu_pack_tile(struct kv_backend *backend, int64_t tile)
{
    const struct kv_geometry *geometry = &backend->geometry;
    const struct kv_tiling *tiling = &backend->pass.tiling;
    int64_t begin = kv_tiling_row(tiling, tile), rows = kv_tiling_row(tiling, tile + 1) - begin;
    int64_t columns = geometry->hidden * (backend->kind == KV_TARGET_HIDDEN ? geometry->taps : 1);
    float *to = (backend->kind == KV_TARGET_HIDDEN ? backend->target : backend->x) + begin * columns;
    for (int64_t r = 0; r < rows; r++) {
        struct kv_row *row = &backend->row[begin + r];
        int64_t half = (begin + r) * (geometry->rotary_dim / 2);
        row->place = find_place(&row->item->out, row->t);
        kv_rope_angles(geometry, backend->resident.inv_freq, kv_input_position(&row->item->in, row->t),
                       backend->cosines + half, backend->sines + half);
    }
    for (int64_t i = 0; i < columns; i += CHUNK) {
        int64_t count = columns - i < CHUNK ? columns - i : CHUNK;
        for (int64_t r = 0; r < rows; r++) {
            const struct kv_row *row = &backend->row[begin + r];
            const struct kv_input *in = &row->item->in;
            const unsigned char *from = in->rows.mem->region.base + in->rows.offset +
                                        row->t * in->row_stride + i * (int64_t)kv_dtype_bytes(in->dtype);
            pack_row(geometry->dtype, in->dtype, from, count, to + i * rows + r, rows);
        }
    }
}

void kv_cpu_norm_tile(struct kv_backend *backend, int64_t tile, float *line)
{
    const struct kv_geometry *geometry = &backend->geometry;
    const struct kv_tiling *tiling = &backend->pass.tiling;
    int64_t begin = kv_tiling_row(tiling, tile), rows = kv_tiling_row(tiling, tile + 1) - begin;
    int64_t hidden = geometry->hidden;
    float *to = backend->x + begin * hidden;
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *bits = backend->reduced + (begin + r) * hidden;
        kv_to_f32(geometry->dtype, bits, hidden, line);
        kv_rms_norm(backend->resident.hidden_norm, geometry->hidden_norm_eps, hidden, line);
        kv_from_f32(geometry->dtype, line, hidden, bits);
        kv_to_f32(geometry->dtype, bits, hidden, line);
        spread(line, hidden, to + r, rows);
    }
}
