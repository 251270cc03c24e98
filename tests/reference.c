/* The independent check of every backend: evaluates the computation in float64, loop by loop, from a
 * checkpoint's own values, and writes K and V as F32. It shares the container reader with the product and
 * nothing else; it validates only what it needs, and is slow on purpose where that keeps it plain.
 *
 *   reference --model DIR --input REQ --output KV [--rope-theta X] [--rope-attention-factor X] [--unrounded]
 *
 * Rounds where the product rounds; --unrounded leaves every rounding out, which shows the size of their
 * effect. */
#include "tests/reference_model.h"

/* y[t, n] = round(W x + b): W [rows, columns], x [T, columns]. Eight tokens share one pass over a row of W.
 */
static double *project(enum kv_dtype round_to, const double *w, const double *bias, int64_t rows,
                       int64_t columns, const double *x, int64_t tokens)
{
    double *turned = malloc((size_t)columns * BLOCK * sizeof *turned); /* [columns, BLOCK] */
    double *y = malloc((size_t)(tokens * rows + 1) * sizeof *y);       /* [T, rows] */
    for (int64_t t = 0; t < tokens && turned && y; t += BLOCK) {
        int64_t block = tokens - t < BLOCK ? tokens - t : BLOCK;
        for (int64_t c = 0; c < columns; c++) {
            for (int64_t b = 0; b < BLOCK; b++)
                turned[c * BLOCK + b] = b < block ? x[(t + b) * columns + c] : 0;
        }
        for (int64_t n = 0; n < rows; n++) {
            double sum[BLOCK] = {0};
            for (int64_t c = 0; c < columns; c++) {
                for (int b = 0; b < BLOCK; b++) sum[b] += w[n * columns + c] * turned[c * BLOCK + b];
            }
            for (int64_t b = 0; b < block; b++)
                y[(t + b) * rows + n] = rounded(round_to, sum[b] + (bias ? bias[n] : 0));
        }
    }
    if (!turned) free(y), y = NULL;
    free(turned);
    return y;
}

static void normalise(double *x, const double *weight, int64_t count, double eps)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / (double)count + eps);
    for (int64_t i = 0; i < count; i++) x[i] *= scale * weight[i];
}

static void rotate(const struct model *model, double *k /* [head_dim] */, int64_t position)
{
    int64_t half = model->rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)position * model->inverse[i];
        double cosine = (double)(cosf(angle) * model->factor), sine = (double)(sinf(angle) * model->factor);
        double *a = &k[model->interleaved ? 2 * i : i], *b = &k[model->interleaved ? 2 * i + 1 : i + half];
        double x = *a, y = *b;
        *a = x * cosine - y * sine;
        *b = y * cosine + x * sine;
    }
}

/* Rows of one layer's K or V projection, weight or bias, from a tensor of its own or out of [q|k|v]. NULL:
 * not there. */
static double *projection(const struct model *model, int64_t layer, bool v, bool weight, struct kv_error *err)
{
    int64_t width = weight ? model->hidden : 1, want = model->kv_heads * model->head_dim * width, count;
    const char *const own[2][2] = {{"k_proj.bias", "k_proj.weight"}, {"v_proj.bias", "v_proj.weight"}};
    double *values = layer_values(model, layer, own[v][weight], &count, NULL);
    if (!values) {
        values = layer_values(model, layer, weight ? "qkv_proj.weight" : "qkv_proj.bias", &count, NULL);
        if (values && count >= 2 * want) {
            memmove(values, values + (count - (v ? 1 : 2) * want), (size_t)want * sizeof *values);
            count = want;
        }
    }
    if ((!values && weight) || (values && count != want)) {
        kv_fail(err, KV_WEIGHTS_SHAPE_MISMATCH, "layer %lld: %s: %lld values", (long long)layer,
                own[v][weight], (long long)count);
    }
    for (int64_t i = 0; values && weight && i < want && count == want; i++)
        values[i] = rounded(model->round_to, values[i]);
    return values;
}

/* K or V of one layer to `out` [T, kv_heads, head_dim]. */
static bool compute(const struct model *model, int64_t layer, bool v, const double *x,
                    const int64_t *positions, int64_t tokens, float *out, struct kv_error *err)
{
    int64_t rows = model->kv_heads * model->head_dim, count = 0;
    struct kv_error inner = {0};
    double *weight = projection(model, layer, v, true, &inner),
           *bias = projection(model, layer, v, false, &inner);
    double *norm = v ? NULL : layer_values(model, layer, "k_norm.weight", &count, NULL);
    if (norm && count != model->head_dim)
        kv_fail(&inner, KV_K_NORM_SHAPE_MISMATCH, "layer %lld", (long long)layer);
    double *y = inner.fault ? NULL : project(model->round_to, weight, bias, rows, model->hidden, x, tokens);
    for (int64_t at = 0; y && at < tokens * rows; at += model->head_dim) {
        double *head = y + at;
        if (norm) normalise(head, norm, model->head_dim, model->eps);
        if (!v) rotate(model, head, positions[at / rows]);
        for (int64_t i = 0; i < model->head_dim; i++) {
            double value = v && model->value_scale != 1 ? head[i] * model->value_scale : head[i];
            out[at + i] = (float)rounded(model->round_to, value);
        }
    }
    bool made = y != NULL;
    free(weight), free(bias), free(norm), free(y);
    if (!made && err) *err = inner;
    return made;
}

/* The input of the K and V projections [T, hidden], from either kind of request. NULL: err says why. */
static double *read_input(const struct model *model, const struct file *request, int64_t *tokens,
                          struct kv_error *err)
{
    struct model holder = {.file = {*request}, .files = 1};
    int64_t count, wide, length;
    double *x = tensor_values(&holder, "hidden_states", &count, NULL);
    bool target = x == NULL;
    if (target) x = tensor_values(&holder, "target_hidden", &count, NULL);
    double *fc = target ? tensor_values(model, "fc.weight", &wide, NULL) : NULL;
    double *norm = target ? tensor_values(model, "hidden_norm.weight", &length, NULL) : NULL;
    int64_t width = fc ? wide / model->hidden : model->hidden;
    *tokens = count / width;
    for (int64_t i = 0; i < count; i++) x[i] = rounded(model->round_to, x[i]);
    if (fc && norm && x) {
        for (int64_t i = 0; i < wide; i++) fc[i] = rounded(model->round_to, fc[i]);
        double *y = project(model->round_to, fc, NULL, model->hidden, width, x, *tokens);
        for (int64_t t = 0; y && t < *tokens; t++)
            normalise(y + t * model->hidden, norm, model->hidden, model->eps);
        for (int64_t i = 0; y && i < *tokens * model->hidden; i++) y[i] = rounded(model->round_to, y[i]);
        free(x);
        x = y;
    }
    free(fc), free(norm);
    if (!x || count != *tokens * width) {
        free(x);
        kv_fail(err, KV_TENSOR_MISSING, "No usable hidden_states or target_hidden");
        return NULL;
    }
    return x;
}

static int64_t *read_positions(const struct file *request, int64_t tokens, struct kv_error *err)
{
    const struct kv_tensor *tensor = kv_document_find(&request->document, "positions");
    if (!tensor || (tensor->dtype != KV_I64 && tensor->dtype != KV_I32) ||
        tensor->end - tensor->begin != (uint64_t)tokens * kv_dtype_bytes(tensor->dtype)) {
        kv_fail(err, KV_TENSOR_MISSING, "No usable positions for %lld tokens", (long long)tokens);
        return NULL;
    }
    struct kv_view view = kv_document_view(&request->document, tensor, request->bytes);
    int64_t *positions = calloc((size_t)tokens + 1, sizeof *positions);
    for (int64_t t = 0; positions && t < tokens; t++) {
        int32_t narrow;
        memcpy(&narrow, (const char *)view.data + t * (view.dtype == KV_I32 ? 4 : 8), sizeof narrow);
        positions[t] = narrow;
        if (view.dtype == KV_I64) memcpy(&positions[t], (const char *)view.data + t * 8, 8);
    }
    return positions;
}

static bool write_reply(const struct model *model, const char *path, const float *kv, int64_t tokens,
                        struct kv_error *err)
{
    char head[1024];
    size_t head_bytes = 0;
    uint64_t bytes = 0;
    struct kv_entry entry[2] = {{"k", KV_F32, 4, {model->layers, tokens, model->kv_heads, model->head_dim}},
                                {0}};
    entry[1] = entry[0];
    entry[1].name = "v";
    if (!kv_document_encode(head, sizeof head, entry, 2, NULL, 0, &head_bytes, &bytes, err)) return false;
    FILE *file = fopen(path, "wb");
    bool written =
        file && fwrite(head, 1, head_bytes, file) == head_bytes && fwrite(kv, 1, bytes, file) == bytes;
    if (file && fclose(file) != 0) written = false;
    if (!written) return kv_fail(err, KV_INTERNAL, "Cannot write %s", path);
    return true;
}

static bool run(struct model *model, struct file *request, const struct options *options,
                struct kv_error *err)
{
    int64_t tokens = 0;
    if (!open_model(model, options, err) || !open_document(request, "", options->input, err)) return false;
    double *x = read_input(model, request, &tokens, err);
    int64_t *positions = x ? read_positions(request, tokens, err) : NULL;
    int64_t part = tokens * model->kv_heads * model->head_dim;
    float *kv = malloc((size_t)(2 * model->layers * part + 1) * sizeof *kv);
    bool made = positions && kv;
    for (int64_t layer = 0; made && layer < 2 * model->layers; layer++) {
        bool v = layer >= model->layers;
        made = compute(model, v ? layer - model->layers : layer, v, x, positions, tokens, kv + layer * part,
                       err);
    }
    if (made) made = write_reply(model, options->output, kv, tokens, err);
    free(x), free(positions), free(kv);
    return made;
}

int main(int argc, char **argv)
{
    struct options options = {.theta = (double)NAN, .attention_factor = (double)NAN};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--unrounded") == 0) {
            options.unrounded = true;
            continue;
        }
        if (strcmp(argv[i], "--model") == 0) options.model = value;
        if (strcmp(argv[i], "--input") == 0) options.input = value;
        if (strcmp(argv[i], "--output") == 0) options.output = value;
        if (strcmp(argv[i], "--rope-theta") == 0) options.theta = strtod(value, NULL);
        if (strcmp(argv[i], "--rope-attention-factor") == 0) options.attention_factor = strtod(value, NULL);
        i++;
    }
    struct kv_error err = {0};
    struct file request = {0};
    struct model *model = calloc(1, sizeof *model);
    bool made =
        model && options.model && options.input && options.output && run(model, &request, &options, &err);
    if (!made)
        fprintf(stderr, "reference: %s\n",
                err.message[0] ? err.message : "--model DIR --input REQ --output KV");
    for (int32_t i = 0; model && i < FILES_MAX; i++) close_file(&model->file[i]);
    close_file(&request);
    free(model);
    return made ? EXIT_SUCCESS : EXIT_FAILURE;
}
