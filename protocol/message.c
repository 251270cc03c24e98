/* Requests and replies. Decoding a request is its only validation, in a fixed order, so that one request
 * always gets the same answer: container, names, dtypes, shapes, token limit, positions. Knows no HTTP. */
#include "protocol/message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static const char hidden_states_name[] = "hidden_states";
static const char target_hidden_name[] = "target_hidden";
static const char positions_name[] = "positions";

enum { MODEL_BYTES_MAX = 512 };

static const char *name_of(enum kv_input_kind kind)
{
    return kind == KV_TARGET_HIDDEN ? target_hidden_name : hidden_states_name;
}

static int64_t columns_of(const struct kv_geometry *geometry, enum kv_input_kind kind)
{
    return kind == KV_TARGET_HIDDEN ? geometry->taps * geometry->hidden : geometry->hidden;
}

static bool refuse_target_hidden(const struct kv_geometry *geometry, struct kv_error *err)
{
    kv_fail_param(err, KV_TENSOR_UNEXPECTED, target_hidden_name,
                  "tensor \"%s\" needs a checkpoint with fc, and this one has none", target_hidden_name);
    kv_error_hint(err, "Send %s [T, %" PRId64 "], already projected and normalised.", hidden_states_name,
                  geometry->hidden);
    return false;
}

/* The tensors by name. The document names each at most once. */
struct parts {
    const struct kv_tensor *hidden_states, *target_hidden, *positions;
};

static bool find_parts(struct parts *parts, const struct kv_document *document,
                       const struct kv_geometry *geometry, struct kv_error *err)
{
    for (int32_t i = 0; i < document->count; i++) {
        const struct kv_tensor *tensor = &document->tensors[i];
        if (strcmp(tensor->name, hidden_states_name) == 0)
            parts->hidden_states = tensor;
        else if (strcmp(tensor->name, target_hidden_name) == 0)
            parts->target_hidden = tensor;
        else if (strcmp(tensor->name, positions_name) == 0)
            parts->positions = tensor;
        else
            return kv_fail_param(err, KV_TENSOR_UNEXPECTED, tensor->name,
                                 "a request has no tensor \"%.64s\": it has %s or %s, and %s", tensor->name,
                                 hidden_states_name, target_hidden_name, positions_name);
    }
    if (parts->target_hidden && geometry->taps == 0) return refuse_target_hidden(geometry, err);
    if (parts->hidden_states && parts->target_hidden) {
        kv_fail_param(err, KV_TENSOR_UNEXPECTED, target_hidden_name,
                      "a request has either %s or %s, and this has both", hidden_states_name,
                      target_hidden_name);
        kv_error_hint(err, "Send %s alone where it is already projected and normalised, else %s alone.",
                      hidden_states_name, target_hidden_name);
        return false;
    }
    if (!parts->hidden_states && !parts->target_hidden)
        return kv_fail_param(err, KV_TENSOR_MISSING, hidden_states_name, "the request has no tensor \"%s\"%s",
                             hidden_states_name, geometry->taps > 0 ? " and no \"target_hidden\"" : "");
    if (!parts->positions)
        return kv_fail_param(err, KV_TENSOR_MISSING, positions_name, "the request has no tensor \"%s\"",
                             positions_name);
    return true;
}

static bool is_hidden_dtype(enum kv_dtype dtype)
{
    return dtype == KV_BF16 || dtype == KV_F16 || dtype == KV_F32;
}

static bool is_positions_dtype(enum kv_dtype dtype)
{
    return dtype == KV_I64 || dtype == KV_I32;
}

static bool check_dtypes(const struct kv_tensor *hidden, const struct kv_tensor *positions,
                         struct kv_error *err)
{
    if (!is_hidden_dtype(hidden->dtype))
        return kv_fail_values(err, KV_DTYPE_UNSUPPORTED, hidden->name, kv_text("BF16, F16 or F32"),
                              kv_text(kv_dtype_name(hidden->dtype)),
                              "the dtype of %s is not one that is computed", hidden->name);
    if (!is_positions_dtype(positions->dtype))
        return kv_fail_values(err, KV_DTYPE_UNSUPPORTED, positions->name, kv_text("I64 or I32"),
                              kv_text(kv_dtype_name(positions->dtype)),
                              "the dtype of %s is not one that is read", positions->name);
    return true;
}

static bool check_shapes(const struct kv_tensor *hidden, const struct kv_tensor *positions,
                         enum kv_input_kind kind, const struct kv_geometry *geometry, struct kv_error *err)
{
    int64_t columns = columns_of(geometry, kind);
    enum kv_input_kind other = kind == KV_TARGET_HIDDEN ? KV_HIDDEN_STATES : KV_TARGET_HIDDEN;
    if (hidden->rank != 2 || hidden->dims[1] != columns) {
        kv_fail_values(err, KV_HIDDEN_SHAPE_MISMATCH, hidden->name, kv_shape2(-1, columns),
                       kv_shape(hidden->rank, hidden->dims), "the shape of %s does not fit this model",
                       hidden->name);
        if (hidden->rank == 3 && hidden->dims[2] == columns)
            kv_error_hint(err, "Send %s without a batch dimension: [T, %" PRId64 "].", hidden->name, columns);
        else if (hidden->rank == 2 && hidden->dims[1] == columns_of(geometry, other) && hidden->dims[1] > 0)
            kv_error_hint(err, "These are the columns of %s: name the tensor so.", name_of(other));
        return false;
    }
    int64_t tokens = hidden->dims[0];
    if (positions->rank != 1 || positions->dims[0] != tokens)
        return kv_fail_values(err, KV_POSITIONS_SHAPE_MISMATCH, positions_name, kv_shape1(tokens),
                              kv_shape(positions->rank, positions->dims),
                              "%s has not one entry for each row of %s", positions_name, hidden->name);
    return true;
}

static bool check_tokens(int64_t tokens, const struct kv_request_limits *limits, struct kv_error *err)
{
    if (tokens <= limits->tokens_max) return true;
    kv_fail(err, KV_TOKENS_LIMIT_EXCEEDED,
            "the request has %" PRId64 " tokens, more than the limit of %" PRId64, tokens,
            limits->tokens_max);
    if (err && err->fault == KV_TOKENS_LIMIT_EXCEEDED) {
        err->expected = kv_integer(limits->tokens_max);
        err->got = kv_integer(tokens);
    }
    return false;
}

static int64_t position_at(const struct kv_view *positions, int64_t index)
{
    int64_t wide;
    int32_t narrow;
    if (positions->dtype == KV_I64) {
        memcpy(&wide, (const char *)positions->data + 8 * index, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)positions->data + 4 * index, sizeof narrow);
    return narrow;
}

/* One comparison for both ends: a negative position is a huge unsigned one. The loops differ by what they
 * read: a dtype looked at for every element would cost more than the check. */
static int64_t first_outside(const struct kv_view *positions, int64_t limit)
{
    const char *data = positions->data;
    int64_t count = positions->dims[0], index = 0, wide;
    int32_t narrow;
    if (positions->dtype == KV_I64) {
        for (; index < count; index++) {
            memcpy(&wide, data + 8 * index, sizeof wide);
            if ((uint64_t)wide >= (uint64_t)limit) break;
        }
    } else {
        for (; index < count; index++) {
            memcpy(&narrow, data + 4 * index, sizeof narrow);
            if ((uint64_t)(int64_t)narrow >= (uint64_t)limit) break;
        }
    }
    return index;
}

static bool check_positions(const struct kv_view *positions, int64_t limit, struct kv_error *err)
{
    int64_t index = first_outside(positions, limit);
    if (index == positions->dims[0]) return true;
    char valid[KV_TEXT_BYTES];
    snprintf(valid, sizeof valid, "0 to %" PRId64, limit - 1);
    return kv_fail_values(err, KV_POSITION_OUT_OF_RANGE, positions_name, kv_text(valid),
                          kv_integer(position_at(positions, index)), "%s[%" PRId64 "] is out of range",
                          positions_name, index);
}

static bool read_request(struct kv_request *request, const struct kv_document *document, const void *body,
                         const struct kv_geometry *geometry, const struct kv_request_limits *limits,
                         struct kv_error *err)
{
    struct parts parts = {0};
    if (!find_parts(&parts, document, geometry, err)) return false;
    const struct kv_tensor *hidden = parts.hidden_states ? parts.hidden_states : parts.target_hidden;
    enum kv_input_kind kind = parts.hidden_states ? KV_HIDDEN_STATES : KV_TARGET_HIDDEN;
    assert(hidden && parts.positions);
    if (!check_dtypes(hidden, parts.positions, err)) return false;
    if (!check_shapes(hidden, parts.positions, kind, geometry, err)) return false;
    if (!check_tokens(hidden->dims[0], limits, err)) return false;
    struct kv_view positions = kv_document_view(document, parts.positions, body);
    if (!check_positions(&positions, geometry->positions, err)) return false;
    *request = (struct kv_request){.kind = kind,
                                   .tokens = hidden->dims[0],
                                   .hidden = kv_document_view(document, hidden, body),
                                   .positions = positions};
    return true;
}

bool kv_request_decode(struct kv_request *request, const void *body, uint64_t body_bytes,
                       const struct kv_geometry *geometry, const struct kv_request_limits *limits,
                       struct kv_error *err)
{
    struct kv_document document;
    if (!kv_document_open(&document, body, body_bytes, KV_DOCUMENT_REQUEST, err)) return false;
    bool valid = read_request(request, &document, body, geometry, limits, err);
    kv_document_close(&document);
    return valid;
}

int64_t kv_request_tokens_bound(const struct kv_geometry *geometry, uint64_t body_bytes, int64_t tokens_max)
{
    uint64_t token_bytes = (uint64_t)geometry->hidden * 2 + 4;
    uint64_t data_bytes = body_bytes > KV_DOCUMENT_PREFIX_BYTES ? body_bytes - KV_DOCUMENT_PREFIX_BYTES : 0;
    uint64_t tokens = data_bytes / token_bytes;
    return tokens < (uint64_t)tokens_max ? (int64_t)tokens : tokens_max;
}

bool kv_request_encode(void *to, size_t capacity, const struct kv_geometry *geometry, enum kv_input_kind kind,
                       enum kv_dtype hidden_dtype, enum kv_dtype positions_dtype, int64_t tokens,
                       size_t *written, struct kv_error *err)
{
    if (kind == KV_TARGET_HIDDEN && geometry->taps == 0) return refuse_target_hidden(geometry, err);
    const struct kv_tensor hidden = {.name = name_of(kind), .dtype = hidden_dtype};
    const struct kv_tensor positions = {.name = positions_name, .dtype = positions_dtype};
    if (!check_dtypes(&hidden, &positions, err)) return false;
    const struct kv_entry entries[2] = {
        {.name = hidden.name, .dtype = hidden_dtype, .rank = 2, .dims = {tokens, columns_of(geometry, kind)}},
        {.name = positions_name, .dtype = positions_dtype, .rank = 1, .dims = {tokens}},
    };
    return kv_document_encode(to, capacity, entries, 2, NULL, 0, written, NULL, err);
}

bool kv_reply_encode(void *to, size_t capacity, const struct kv_geometry *geometry, int64_t tokens,
                     const char *model, const char *fingerprint, const char *request_id, size_t *written,
                     struct kv_error *err)
{
    char name[MODEL_BYTES_MAX + 1], print[KV_FINGERPRINT_BYTES], id[KV_REQUEST_ID_BYTES];
    const struct kv_pair metadata[3] = {
        {"model", model ? kv_text_print(model, name, sizeof name) : NULL},
        {"fingerprint", fingerprint ? kv_text_print(fingerprint, print, sizeof print) : NULL},
        {"request_id", request_id ? kv_text_print(request_id, id, sizeof id) : NULL},
    };
    struct kv_entry entries[2] = {{.name = "k"}, {.name = "v"}};
    for (int i = 0; i < 2; i++) {
        const int64_t dims[4] = {geometry->layers, tokens, geometry->kv_heads, geometry->head_dim};
        entries[i].dtype = geometry->dtype;
        entries[i].rank = 4;
        memcpy(entries[i].dims, dims, sizeof dims);
    }
    return kv_document_encode(to, capacity, entries, 2, metadata, 3, written, NULL, err);
}

uint64_t kv_reply_part_bytes(const struct kv_geometry *geometry, int64_t tokens)
{
    uint64_t token_bytes = (uint64_t)kv_geometry_token_elements(geometry) * kv_dtype_bytes(geometry->dtype);
    uint64_t bytes = 0;
    bool fits = tokens >= 0 && kv_mul(token_bytes, (uint64_t)tokens, &bytes);
    assert(fits);
    return fits ? bytes : 0;
}
