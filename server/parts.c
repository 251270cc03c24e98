/* Reading parts. Values that need no conversion go from the file straight to where the caller wants them, in
 * blocks small enough that checking and hashing find them in the cache. Files and hosts are little-endian. */
#include "server/parts.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { BLOCK_BYTES = 256 * 1024, STAGE_ELEMENTS = 16 * 1024, LAYER_PARTS = KV_PART_EPS + 1, OTHER_PARTS = 3 };

/* One part of one layer, or of the model. Used by one thread at a time. */
struct part {
    const struct kv_place *place; /* NULL: it is in memory */
    const float *memory;
    int32_t layer;
    enum kv_dtype dtype;   /* as it is handed out */
    uint64_t bytes, next;  /* in all, and passed so far */
    XXH3_state_t *state;   /* while it is read */
    XXH128_hash_t digest;  /* once next == bytes */
    atomic_bool *reported; /* a finding was made for its tensor; K and V of a fused tensor share it */
    atomic_bool own_reported;
    bool carries; /* a value that is not zero has passed */
};

struct kv_parts {
    struct kv_geometry geometry;
    struct kv_findings *findings;
    int32_t count;
    struct part *part; /* [count]: layer by layer in the order of enum kv_part, then those without a layer */
};

static struct part *find(const struct kv_parts *parts, int32_t layer, enum kv_part part)
{
    if (part <= KV_PART_EPS) {
        assert(layer >= 0 && layer < parts->geometry.layers);
        return &parts->part[(size_t)layer * LAYER_PARTS + (size_t)part];
    }
    assert(part < KV_PART_COUNT);
    return &parts->part[(size_t)parts->geometry.layers * LAYER_PARTS + (size_t)(part - KV_PART_FC)];
}

static void place_part(struct part *part, const struct kv_place *place, enum kv_dtype dtype)
{
    if (!place->stored) return;
    part->place = place;
    part->dtype = dtype;
    part->bytes = place->elements * kv_dtype_bytes(dtype);
}

static void remember_part(struct part *part, const float *memory, uint64_t count)
{
    part->memory = memory;
    part->dtype = KV_F32;
    part->bytes = count * sizeof *memory;
}

static void lay_out(struct kv_parts *parts, const struct kv_layout *layout, const float *eps,
                    const float *inv_freq)
{
    const struct kv_geometry *geometry = &parts->geometry;
    for (int32_t i = 0; i < parts->count; i++) {
        parts->part[i].layer = -1;
        atomic_init(&parts->part[i].own_reported, false);
        parts->part[i].reported = &parts->part[i].own_reported;
    }
    for (int32_t layer = 0; layer < geometry->layers; layer++) {
        for (int32_t i = 0; i < KV_LAYER_PLACES; i++) {
            enum kv_part kind = (enum kv_part)i;
            const struct kv_place *place = kv_layout_place(layout, layer, kind);
            struct part *part = find(parts, layer, kind);
            part->layer = layer;
            place_part(part, place, kind <= KV_PART_V_WEIGHT ? geometry->dtype : KV_F32);
            if (place->fused && kind == KV_PART_V_WEIGHT)
                part->reported = &find(parts, layer, KV_PART_K_WEIGHT)->own_reported;
            if (place->fused && kind == KV_PART_V_BIAS)
                part->reported = &find(parts, layer, KV_PART_K_BIAS)->own_reported;
        }
        find(parts, layer, KV_PART_EPS)->layer = layer;
        remember_part(find(parts, layer, KV_PART_EPS), &eps[layer], 1);
    }
    if (geometry->taps > 0) {
        place_part(find(parts, -1, KV_PART_FC), &layout->fc, geometry->dtype);
        place_part(find(parts, -1, KV_PART_HIDDEN_NORM), &layout->hidden_norm, KV_F32);
    }
    remember_part(find(parts, -1, KV_PART_INV_FREQ), inv_freq, (uint64_t)geometry->rotary_dim / 2);
}

bool kv_parts_open(struct kv_parts **out, const struct kv_layout *layout, const float *eps,
                   const float *inv_freq, struct kv_findings *findings, struct kv_error *err)
{
    struct kv_parts *parts = calloc(1, sizeof *parts);
    *out = NULL;
    if (!parts) return kv_fail(err, KV_INTERNAL, "out of memory for the weights' reader");
    parts->geometry = layout->geometry;
    parts->findings = findings;
    parts->count = layout->geometry.layers * LAYER_PARTS + OTHER_PARTS;
    parts->part = calloc((size_t)parts->count, sizeof *parts->part);
    if (!parts->part) {
        free(parts);
        return kv_fail(err, KV_INTERNAL, "out of memory for the weights' reader");
    }
    lay_out(parts, layout, eps, inv_freq);
    *out = parts;
    return true;
}

/* The bits of an exponent that mark NaN and infinity when all are set, in every lane of a word. */
struct exponents {
    uint64_t mask, one, top; /* all exponent bits, the lowest of them, the bit above the highest */
};

static struct exponents exponents_of(enum kv_dtype dtype)
{
    static const struct exponents bf16 = {0x7f807f807f807f80u, 0x0080008000800080u, 0x8000800080008000u};
    static const struct exponents f16 = {0x7c007c007c007c00u, 0x0400040004000400u, 0x8000800080008000u};
    static const struct exponents f32 = {0x7f8000007f800000u, 0x0080000000800000u, 0x8000000080000000u};
    return dtype == KV_BF16 ? bf16 : dtype == KV_F16 ? f16 : f32;
}

/* Adding one to an exponent of all ones carries into the bit above, and no other exponent does: no branch, no
 * carry between lanes. */
static bool all_finite(enum kv_dtype dtype, const void *values, size_t bytes)
{
    typedef uint64_t lanes __attribute__((vector_size(16), aligned(1), may_alias));
    const struct exponents bits = exponents_of(dtype);
    const lanes *at = values;
    lanes a = {0}, b = {0}, c = {0}, d = {0}; /* four, for the sake of the processor's pipes */
    size_t i = 0;
    for (; i + 4 * sizeof a <= bytes; i += 4 * sizeof a, at += 4) {
        a |= (at[0] & bits.mask) + bits.one;
        b |= (at[1] & bits.mask) + bits.one;
        c |= (at[2] & bits.mask) + bits.one;
        d |= (at[3] & bits.mask) + bits.one;
    }
    a |= b | c | d;
    uint64_t found = a[0] | a[1];
    for (; i < bytes; i += sizeof found) {
        size_t rest = bytes - i < sizeof found ? bytes - i : sizeof found;
        uint64_t word = 0;
        memcpy(&word, (const unsigned char *)values + i, rest);
        found |= (word & bits.mask) + bits.one;
    }
    return (found & bits.top) == 0;
}

/* Is any value not a zero of either sign? Ends at the first, which is nearly always the first of all. */
static bool any_nonzero(enum kv_dtype dtype, const void *values, size_t bytes)
{
    const uint64_t magnitudes = dtype == KV_F32 ? 0x7fffffff7fffffffu : 0x7fff7fff7fff7fffu;
    for (size_t i = 0; i < bytes; i += sizeof magnitudes) {
        size_t rest = bytes - i < sizeof magnitudes ? bytes - i : sizeof magnitudes;
        uint64_t word = 0;
        memcpy(&word, (const unsigned char *)values + i, rest);
        if (word & magnitudes) return true;
    }
    return false;
}

/* `first` is the place of values[0] in the part, in elements. Only called where one is not finite. */
static void report(const struct kv_parts *parts, struct part *part, const void *values, uint64_t first,
                   size_t bytes)
{
    const struct kv_stored *stored = part->place->stored;
    const struct kv_tensor *tensor = stored->tensor;
    size_t size = kv_dtype_bytes(part->dtype), at = 0;
    if (atomic_exchange(part->reported, true)) return;
    while (at + size < bytes && all_finite(part->dtype, (const char *)values + at, size)) at += size;
    float value;
    kv_to_f32(part->dtype, (const char *)values + at, 1, &value);
    uint64_t element = part->place->first + first + at / size;
    uint64_t columns = tensor->rank == 2 ? (uint64_t)tensor->dims[1] : 1;
    struct kv_value place = tensor->rank == 2
                                ? kv_shape2((int64_t)(element / columns), (int64_t)(element % columns))
                                : kv_shape1((int64_t)element);
    char where[KV_TEXT_BYTES];
    kv_value_print(&place, where, sizeof where);
    bool converted = tensor->dtype != part->dtype && part->dtype != KV_F32;
    kv_findings_fail(parts->findings, part->layer, KV_WEIGHTS_NOT_FINITE, stored->name,
                     kv_text("a finite number"), kv_text(isnan(value) ? "NaN" : "infinity"),
                     "%.120s is not finite at %s%s%s", stored->name, where,
                     converted ? " once converted to " : "", converted ? kv_dtype_name(part->dtype) : "");
}

/* `count` elements from `first` on, as the part is handed out, to `to` at any alignment. */
static bool produce(const struct part *part, uint64_t first, size_t count, void *to, struct kv_error *err)
{
    const struct kv_stored *stored = part->place->stored;
    enum kv_dtype dtype = stored->tensor->dtype;
    size_t size = kv_dtype_bytes(dtype);
    uint64_t at = stored->shard->data_begin + stored->tensor->begin + (part->place->first + first) * size;
    if (dtype == part->dtype) return kv_file_read(&stored->shard->file, at, to, count * size, err);
    float stage[STAGE_ELEMENTS];
    uint16_t halves[STAGE_ELEMENTS];
    assert(count <= STAGE_ELEMENTS);
    void *raw = stage;
    if (dtype != KV_F32) raw = halves;
    if (!kv_file_read(&stored->shard->file, at, raw, count * size, err)) return false;
    if (dtype == KV_F32) {
        kv_from_f32(part->dtype, stage, (int64_t)count, to);
    } else {
        kv_to_f32(dtype, halves, (int64_t)count, stage);
        memcpy(to, stage, count * sizeof stage[0]);
    }
    return true;
}

/* Whole elements, produced and checked. */
static bool pass_elements(const struct kv_parts *parts, struct part *part, uint64_t first, size_t count,
                          void *to, struct kv_error *err)
{
    size_t bytes = count * kv_dtype_bytes(part->dtype);
    if (part->memory) {
        memcpy(to, part->memory + first, bytes);
        return true;
    }
    if (!produce(part, first, count, to, err)) return false;
    if (!all_finite(part->dtype, to, bytes)) report(parts, part, to, first, bytes);
    if (!part->carries) part->carries = any_nonzero(part->dtype, to, bytes);
    return true;
}

/* The next bytes of the part: at most a block of whole elements, or some bytes of one element where a piece
 * begins or ends within it. Returns how many, 0 on failure. */
static size_t pass(const struct kv_parts *parts, struct part *part, void *to, size_t bytes,
                   struct kv_error *err)
{
    size_t size = kv_dtype_bytes(part->dtype), within = (size_t)(part->next % size);
    uint64_t first = part->next / size;
    if (within > 0 || bytes < size) {
        unsigned char element[8];
        size_t wanted = bytes < size - within ? bytes : size - within;
        if (!pass_elements(parts, part, first, 1, element, err)) return 0;
        memcpy(to, element + within, wanted);
        return wanted;
    }
    bool direct = part->memory || part->place->stored->tensor->dtype == part->dtype;
    size_t most = direct ? BLOCK_BYTES / size : STAGE_ELEMENTS;
    size_t count = bytes / size < most ? bytes / size : most;
    return pass_elements(parts, part, first, count, to, err) ? count * size : 0;
}

static bool begin(struct part *part, struct kv_error *err)
{
    if (!part->state) part->state = XXH3_createState();
    if (!part->state) return kv_fail(err, KV_INTERNAL, "out of memory for a hash");
    part->next = 0;
    part->carries = false;
    XXH3_128bits_reset(part->state);
    return true;
}

bool kv_parts_read(void *source, int32_t layer, enum kv_part which, uint64_t offset, void *to, size_t bytes,
                   struct kv_error *err)
{
    const struct kv_parts *parts = source;
    struct part *part = find(parts, layer, which);
    if (part->bytes == 0 || offset > part->bytes || bytes > part->bytes - offset)
        return kv_fail(err, KV_INTERNAL, "part %d has %" PRIu64 " bytes, not %zu at %" PRIu64, (int)which,
                       part->bytes, bytes, offset);
    if (offset == 0 && bytes > 0 && !begin(part, err)) return false;
    if (offset != part->next)
        return kv_fail(err, KV_INTERNAL,
                       "part %d is read at byte %" PRIu64 " and not from front to back, at %" PRIu64,
                       (int)which, offset, part->next);
    unsigned char *at = to;
    while (bytes > 0) {
        size_t passed = pass(parts, part, at, bytes, err);
        if (passed == 0) return false;
        XXH3_128bits_update(part->state, at, passed);
        part->next += passed;
        at += passed;
        bytes -= passed;
    }
    if (part->next == part->bytes && part->state) {
        part->digest = XXH3_128bits_digest(part->state);
        XXH3_freeState(part->state);
        part->state = NULL;
    }
    return true;
}

static void hash_geometry(XXH3_state_t *state, const struct kv_geometry *geometry)
{
    const int64_t numbers[] = {
        geometry->layers,
        geometry->kv_heads,
        geometry->head_dim,
        geometry->rotary_dim,
        geometry->taps,
        geometry->hidden,
        geometry->dtype,
        geometry->k_norm,
        geometry->k_bias,
        geometry->v_bias,
        geometry->interleaved,
        kv_f32_to_bits(geometry->value_scale),
        kv_f32_to_bits(geometry->attention_factor),
        geometry->taps > 0 ? kv_f32_to_bits(geometry->hidden_norm_eps) : 0,
    };
    XXH3_128bits_update(state, numbers, sizeof numbers);
}

bool kv_parts_fingerprint(const struct kv_parts *parts, char to[KV_FINGERPRINT_BYTES], struct kv_error *err)
{
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t bytes;
    XXH3_state_t *state = XXH3_createState();
    if (!state) return kv_fail(err, KV_INTERNAL, "out of memory for a hash");
    XXH3_128bits_reset(state);
    hash_geometry(state, &parts->geometry);
    for (int32_t i = 0; i < parts->count; i++) {
        const struct part *part = &parts->part[i];
        if (part->next != part->bytes) {
            XXH3_freeState(state);
            return kv_fail(err, KV_INTERNAL, "a part of layer %d was read up to byte %" PRIu64 " of %" PRIu64,
                           (int)part->layer, part->next, part->bytes);
        }
        if (part->bytes == 0) continue;
        XXH128_canonicalFromHash(&bytes, part->digest);
        XXH3_128bits_update(state, &bytes, sizeof bytes);
    }
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    for (size_t i = 0; i < sizeof bytes.digest; i++) {
        to[2 * i] = digits[bytes.digest[i] >> 4];
        to[2 * i + 1] = digits[bytes.digest[i] & 15];
    }
    to[2 * sizeof bytes.digest] = '\0';
    return true;
}

void kv_parts_warn(const struct kv_parts *parts, struct kv_notes *warnings)
{
    static const struct {
        enum kv_part part;
        const char *what, *so;
    } watched[] = {
        {KV_PART_K_WEIGHT, "the K projection", "K carries nothing of the hidden states"},
        {KV_PART_V_WEIGHT, "the V projection", "V carries nothing of the hidden states"},
        {KV_PART_K_NORM, "the norm of K", "K comes out as zero"},
        {KV_PART_FC, "fc", "K and V carry nothing of target_hidden"},
        {KV_PART_HIDDEN_NORM, "hidden_norm", "K and V carry nothing of target_hidden"},
    };
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        bool in_layers = watched[i].part <= KV_PART_EPS;
        int32_t count = in_layers ? parts->geometry.layers : 1, zero = 0;
        const struct part *first = NULL;
        for (int32_t layer = 0; layer < count; layer++) {
            const struct part *part = find(parts, in_layers ? layer : -1, watched[i].part);
            if (!part->place || part->next != part->bytes || part->carries) continue;
            if (zero++ == 0) first = part;
        }
        if (zero == 0) continue;
        char more[64] = "";
        if (in_layers) snprintf(more, sizeof more, " in %d of %d layers, first", (int)zero, (int)count);
        kv_notes_add(warnings, "%s is all zero%s in %.100s: %s", watched[i].what, more,
                     first->place->stored->name, watched[i].so);
    }
}

void kv_parts_close(struct kv_parts *parts)
{
    if (!parts) return;
    for (int32_t i = 0; i < parts->count; i++) XXH3_freeState(parts->part[i].state);
    free(parts->part);
    free(parts);
}
