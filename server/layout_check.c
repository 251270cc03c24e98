/* Do the tensors that were found fit one another and the config? What each layer's own tensors say is
 * compared with layer 0; where all layers agree, with the config. Reads no values. */
#include "server/layout.h"

#include <inttypes.h>
#include <stdio.h>

static const char any_dtype[] = "BF16, F16 or F32";

/* What one layer's tensors say; -1: nothing that can be used. */
struct layer_says {
    int64_t head_dim; /* length of k_norm; without one, the config's */
    int64_t rows[2];  /* of K and V */
};

struct checker {
    struct kv_layout *layout;
    const struct kv_config *config;
    struct kv_findings *findings;
};

static const struct kv_stored *stored_of(const struct checker *checker, int32_t layer, enum kv_part part)
{
    return kv_layout_place(checker->layout, layer, part)->stored;
}

static bool refuse_shape(const struct checker *checker, int32_t layer, const struct kv_stored *stored,
                         struct kv_value expected)
{
    const struct kv_tensor *tensor = stored->tensor;
    return kv_findings_fail(checker->findings, layer, KV_WEIGHTS_SHAPE_MISMATCH, stored->name, expected,
                            kv_shape(tensor->rank, tensor->dims), "%.120s has another shape than it should",
                            stored->name);
}

/* Rows of K and V together with Q in front of them, as a fused tensor has them; -1 when the config does not
 * say. */
static int64_t fused_rows(const struct kv_config *config)
{
    if (!config->heads || !config->kv_heads || !config->head_dim) return -1;
    return ((int64_t)config->heads + 2 * (int64_t)config->kv_heads) * config->head_dim;
}

/* The rows of one projection (or elements of its bias) within what is stored, -1 when that cannot be. */
static int64_t rows_of(const struct checker *checker, const struct kv_place *place)
{
    const struct kv_config *config = checker->config;
    int64_t rows = place->stored->tensor->dims[0];
    if (!place->fused) return rows;
    int64_t q_rows = (int64_t)config->heads * config->head_dim;
    if (q_rows == 0 || rows <= q_rows || (rows - q_rows) % 2 != 0) return -1;
    return (rows - q_rows) / 2;
}

/* Rank and columns of a projection's weight. Returns its rows, or -1. A fused tensor is looked at once, as K.
 */
static int64_t check_weight(const struct checker *checker, int32_t layer, enum kv_part part)
{
    const struct kv_config *config = checker->config;
    const struct kv_place *place = kv_layout_place(checker->layout, layer, part);
    if (!place->stored) return -1;
    const struct kv_tensor *tensor = place->stored->tensor;
    bool report = !place->fused || part == KV_PART_K_WEIGHT;
    int64_t kv_rows =
        config->kv_heads && config->head_dim ? (int64_t)config->kv_heads * config->head_dim : -1;
    struct kv_value expected =
        kv_shape2(place->fused ? fused_rows(config) : kv_rows, config->hidden ? config->hidden : -1);
    int64_t rows = tensor->rank == 2 ? rows_of(checker, place) : -1;
    bool unknown = place->fused && fused_rows(config) < 0;
    bool columns = tensor->rank != 2 || config->hidden == 0 || tensor->dims[1] == config->hidden;
    if (report && ((rows < 1 && !unknown) || !columns)) refuse_shape(checker, layer, place->stored, expected);
    return rows < 1 ? -1 : rows;
}

static void check_bias(const struct checker *checker, int32_t layer, enum kv_part part, int64_t rows)
{
    const struct kv_place *place = kv_layout_place(checker->layout, layer, part);
    if (!place->stored || rows < 0) return;
    const struct kv_tensor *tensor = place->stored->tensor;
    if (place->fused && (part == KV_PART_V_BIAS || fused_rows(checker->config) < 0)) return;
    if (tensor->rank == 1 && rows_of(checker, place) == rows) return;
    int64_t q_rows = (int64_t)checker->config->heads * checker->config->head_dim;
    refuse_shape(checker, layer, place->stored, kv_shape1(place->fused ? q_rows + 2 * rows : rows));
}

static int64_t check_norm(const struct checker *checker, int32_t layer)
{
    const struct kv_stored *stored = stored_of(checker, layer, KV_PART_K_NORM);
    int64_t head_dim = checker->config->head_dim;
    if (!stored) return head_dim ? head_dim : -1;
    const struct kv_tensor *tensor = stored->tensor;
    if (tensor->rank != 1 || (head_dim && tensor->dims[0] != head_dim))
        kv_findings_fail(checker->findings, layer, KV_K_NORM_SHAPE_MISMATCH, stored->name,
                         kv_shape1(head_dim ? head_dim : -1), kv_shape(tensor->rank, tensor->dims),
                         "%.120s does not have one weight for each dimension of a head", stored->name);
    return tensor->rank == 1 && tensor->dims[0] > 0 ? tensor->dims[0] : -1;
}

static struct layer_says check_layer(const struct checker *checker, int32_t layer)
{
    struct layer_says says = {.head_dim = check_norm(checker, layer)};
    says.rows[0] = check_weight(checker, layer, KV_PART_K_WEIGHT);
    says.rows[1] = check_weight(checker, layer, KV_PART_V_WEIGHT);
    check_bias(checker, layer, KV_PART_K_BIAS, says.rows[0]);
    check_bias(checker, layer, KV_PART_V_BIAS, says.rows[1]);
    return says;
}

static struct kv_value quotient(int64_t rows, int64_t head_dim)
{
    return rows % head_dim == 0 ? kv_integer(rows / head_dim) : kv_real((double)rows / (double)head_dim);
}

/* Layer 0 has nothing that can be used: then the config is all there is to compare with. */
static bool compare_rows(const struct checker *checker, int32_t layer, enum kv_part part, int64_t rows)
{
    const struct kv_config *config = checker->config;
    const struct kv_place *place = kv_layout_place(checker->layout, layer, part);
    if (!config->head_dim || !config->kv_heads || rows == (int64_t)config->kv_heads * config->head_dim)
        return true;
    if (place->fused && part == KV_PART_V_WEIGHT) return false; /* said of K */
    int64_t wanted = place->fused ? fused_rows(config) : (int64_t)config->kv_heads * config->head_dim;
    return refuse_shape(checker, layer, place->stored,
                        kv_shape2(wanted, config->hidden ? config->hidden : -1));
}

/* Heads of K or V (which = 0, 1) of a layer against those of layer 0. */
static bool compare_heads(const struct checker *checker, int32_t layer, int32_t which,
                          const struct layer_says *first, int64_t first_rows, const struct layer_says *says)
{
    static const enum kv_part parts[2] = {KV_PART_K_WEIGHT, KV_PART_V_WEIGHT};
    int64_t rows = says->rows[which];
    if (rows < 0) return true;
    if (first_rows < 0) return compare_rows(checker, layer, parts[which], rows);
    if (says->head_dim < 0 || first->head_dim < 0) return true;
    if ((double)rows * (double)first->head_dim == (double)first_rows * (double)says->head_dim) return true;
    const struct kv_stored *stored = stored_of(checker, layer, parts[which]);
    struct kv_error error = {0};
    kv_fail_values(&error, KV_NUM_KV_HEADS_MISMATCH, stored->name, quotient(first_rows, first->head_dim),
                   quotient(rows, says->head_dim),
                   "layer %d has not as many KV heads in %s as layer 0 has in K", (int)layer,
                   which ? "V" : "K");
    if (checker->config->kv_heads)
        kv_error_hint(&error,
                      "num_key_value_heads is %d and head_dim %d in config.json: find out which layer's "
                      "tensors are not of this model.",
                      (int)checker->config->kv_heads, (int)checker->config->head_dim);
    kv_findings_add(checker->findings, layer, &error);
    if (rows % says->head_dim != 0) {
        int64_t columns = checker->config->hidden ? checker->config->hidden : -1;
        refuse_shape(checker, layer, stored, kv_shape2(first_rows, columns));
    }
    return false;
}

/* All layers agree: then it is the config that differs, or all of them do. */
static void compare_config(const struct checker *checker, const struct layer_says *first, int64_t first_rows,
                           bool heads_agree, bool dims_agree)
{
    const struct kv_config *config = checker->config;
    if (!config->head_dim || !config->kv_heads) return;
    int64_t rows = (int64_t)config->kv_heads * config->head_dim;
    if (heads_agree && first_rows >= 0 && first_rows != rows) {
        enum kv_part part = first->rows[0] >= 0 ? KV_PART_K_WEIGHT : KV_PART_V_WEIGHT;
        const struct kv_place *place = kv_layout_place(checker->layout, 0, part);
        struct kv_error error = {0};
        kv_fail_values(
            &error, KV_WEIGHTS_SHAPE_MISMATCH, place->stored->name,
            kv_shape2(place->fused ? fused_rows(config) : rows, config->hidden ? config->hidden : -1),
            kv_shape(2, place->stored->tensor->dims),
            "the K and V projections of all layers agree, and not with config.json");
        kv_error_hint(&error,
                      "num_key_value_heads %d and head_dim %d in config.json make %" PRId64
                      " rows. Published "
                      "folders change between revisions: take both files from one.",
                      (int)config->kv_heads, (int)config->head_dim, rows);
        kv_findings_add(checker->findings, 0, &error);
    }
    const struct kv_stored *norm = stored_of(checker, 0, KV_PART_K_NORM);
    if (dims_agree && norm && first->head_dim >= 0 && first->head_dim != config->head_dim)
        kv_findings_fail(checker->findings, 0, KV_WEIGHTS_SHAPE_MISMATCH, norm->name,
                         kv_shape1(config->head_dim), kv_shape1(first->head_dim),
                         "the k_norm of all layers agree, and not with config.json");
}

static void check_shapes(const struct checker *checker)
{
    struct layer_says first = {-1, {-1, -1}};
    int64_t first_rows = -1;
    bool heads_agree = true, dims_agree = true;
    for (int32_t layer = 0; layer < checker->config->layers; layer++) {
        struct layer_says says = check_layer(checker, layer);
        if (layer == 0) {
            first = says;
            first_rows = says.rows[0] >= 0 ? says.rows[0] : says.rows[1];
        }
        const struct kv_stored *norm = stored_of(checker, layer, KV_PART_K_NORM);
        if (norm && says.head_dim >= 0 && first.head_dim >= 0 && says.head_dim != first.head_dim)
            dims_agree = kv_findings_fail(checker->findings, layer, KV_HEAD_DIM_MISMATCH, norm->name,
                                          kv_integer(first.head_dim), kv_integer(says.head_dim),
                                          "layer %d has heads of another length than layer 0", (int)layer);
        for (int32_t which = 0; which < 2; which++)
            heads_agree &= compare_heads(checker, layer, which, &first, first_rows, &says);
    }
    compare_config(checker, &first, first_rows, heads_agree, dims_agree);
}

static bool computed(enum kv_dtype dtype)
{
    return dtype == KV_BF16 || dtype == KV_F16 || dtype == KV_F32;
}

static bool refuse_dtype(const struct checker *checker, int32_t layer, const struct kv_stored *stored,
                         const char *expected, const char *why)
{
    return kv_findings_fail(checker->findings, layer, KV_WEIGHTS_DTYPE_UNSUPPORTED, stored->name,
                            kv_text(expected), kv_text(kv_dtype_name(stored->tensor->dtype)), "%.100s has %s",
                            stored->name, why);
}

/* All projections have one dtype, which becomes that of the geometry; norms and biases any that is computed
 * with. */
static void check_dtypes(const struct checker *checker)
{
    bool known = false;
    enum kv_dtype first = KV_BF16;
    for (int32_t layer = 0; layer < checker->config->layers; layer++) {
        for (int32_t part = 0; part < KV_LAYER_PLACES; part++) {
            const struct kv_place *place = kv_layout_place(checker->layout, layer, (enum kv_part)part);
            if (!place->stored || (place->fused && (part == KV_PART_V_WEIGHT || part == KV_PART_V_BIAS)))
                continue;
            enum kv_dtype dtype = place->stored->tensor->dtype;
            if (!computed(dtype)) {
                refuse_dtype(checker, layer, place->stored, any_dtype, "a dtype that is not computed with");
            } else if (part <= KV_PART_V_WEIGHT) {
                if (known && dtype != first)
                    refuse_dtype(checker, layer, place->stored, kv_dtype_name(first),
                                 "another dtype than the projections before it");
                if (!known) first = dtype;
                known = true;
            }
        }
    }
    checker->layout->geometry.dtype = first;
    checker->layout->dtype_known = known;
}

void kv_layout_check(struct kv_layout *layout, const struct kv_config *config, struct kv_findings *findings)
{
    const struct checker checker = {layout, config, findings};
    check_shapes(&checker);
    check_dtypes(&checker);
}

void kv_layout_fc(struct kv_layout *layout, const struct kv_config *config, struct kv_findings *findings)
{
    const struct checker checker = {layout, config, findings};
    const struct kv_stored *fc = layout->fc.stored, *norm = layout->hidden_norm.stored;
    if (!fc) return;
    const struct kv_tensor *tensor = fc->tensor;
    enum kv_dtype own = layout->geometry.dtype == KV_F32 ? KV_BF16 : layout->geometry.dtype;
    int64_t hidden = config->hidden;
    if (!layout->dtype_known && !computed(tensor->dtype))
        refuse_dtype(&checker, -1, fc, any_dtype, "a dtype that is not computed with");
    if (layout->dtype_known && tensor->dtype != own && tensor->dtype != KV_F32)
        refuse_dtype(&checker, -1, fc, own == KV_F16 ? "F16 or F32" : "BF16 or F32",
                     "not the projections' dtype");
    if (norm && !computed(norm->tensor->dtype))
        refuse_dtype(&checker, -1, norm, any_dtype, "a dtype that is not computed with");
    if (hidden == 0) return;
    if (norm && (norm->tensor->rank != 1 || norm->tensor->dims[0] != hidden))
        refuse_shape(&checker, -1, norm, kv_shape1(hidden));
    int64_t taps = tensor->rank == 2 ? tensor->dims[1] / hidden : 0;
    int64_t wanted = config->target_layers >= 0 ? config->target_layers * hidden : -1;
    if (tensor->rank != 2 || tensor->dims[0] != hidden || tensor->dims[1] % hidden != 0 || taps < 1 ||
        taps > KV_TAPS_MAX || (config->target_layers >= 0 && taps != config->target_layers)) {
        refuse_shape(&checker, -1, fc, kv_shape2(hidden, wanted));
        return;
    }
    layout->geometry.taps = (int32_t)taps;
}
