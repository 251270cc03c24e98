/* See checkpoint_maker.h. Values follow from a tensor's own name and the place in it, so that the same
 * weights can be stored in several ways. */
#include "tests/checkpoint_maker.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <check.h>
#include <jansson.h>

static const char base_config[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 16, \"rms_norm_eps\": 1e-06, \"max_position_embeddings\": "
    "4096,"
    " \"attention_bias\": false, \"rope_theta\": 1000000.0}";

struct made_tensor *made_find(struct made *made, const char *name)
{
    for (int32_t i = 0; i < made->count; i++)
        if (strcmp(made->tensor[i].name, name) == 0) return &made->tensor[i];
    ck_abort_msg("the test names a tensor that is not there: %s", name);
    return NULL;
}

static void fill(struct made_tensor *tensor)
{
    uint32_t state = 2166136261u;
    for (const char *at = tensor->name; *at; at++) state = (state ^ (unsigned char)*at) * 16777619u;
    tensor->count = 1;
    for (int32_t i = 0; i < tensor->rank; i++) tensor->count *= tensor->dims[i];
    free(tensor->values);
    tensor->values = calloc((size_t)tensor->count + 1, sizeof *tensor->values);
    ck_assert_ptr_nonnull(tensor->values);
    for (int64_t i = 0; i < tensor->count; i++) {
        state = state * 1664525u + 1013904223u;
        tensor->values[i] = (float)(int32_t)(state >> 8) / (float)(1 << 24) - 0.5f;
    }
}

static void add(struct made *made, const char *name, enum kv_dtype dtype, int32_t rank, const int64_t *dims)
{
    ck_assert_int_lt(made->count, (int)(sizeof made->tensor / sizeof made->tensor[0]));
    struct made_tensor tensor = {.dtype = dtype, .rank = rank};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    for (int32_t i = 0; i < rank; i++) tensor.dims[i] = dims[i];
    fill(&tensor);
    made->tensor[made->count++] = tensor;
}

static void add_to_layer(struct made *made, int32_t layer, const char *name, int32_t rank, int64_t a,
                         int64_t b)
{
    char full[KV_PARAM_BYTES];
    snprintf(full, sizeof full, "layers.%d.%s", (int)layer, name);
    add(made, full, KV_BF16, rank, (const int64_t[]){a, b});
}

void made_begin(struct made *made)
{
    *made = (struct made){.config = json_loads(base_config, 0, NULL)};
    ck_assert_ptr_nonnull(made->config);
    for (int32_t layer = 0; layer < 3; layer++) {
        add_to_layer(made, layer, "self_attn.q_proj.weight", 2, 64, 32);
        add_to_layer(made, layer, "self_attn.k_proj.weight", 2, 32, 32);
        add_to_layer(made, layer, "self_attn.v_proj.weight", 2, 32, 32);
        add_to_layer(made, layer, "self_attn.k_norm.weight", 1, 16, 0);
        add_to_layer(made, layer, "input_layernorm.weight", 1, 32, 0);
        add_to_layer(made, layer, "mlp.up_proj.weight", 2, 4, 32);
    }
    add(made, "norm.weight", KV_BF16, 1, (const int64_t[]){32});
}

void made_config(struct made *made, const char *patch)
{
    if (!patch) return;
    json_error_t problem;
    json_t *json = json_loads(patch, 0, &problem);
    if (!json) ck_abort_msg("the test's patch is no JSON: %s in %s", problem.text, patch);
    ck_assert_int_eq(json_object_update_recursive(made->config, json), 0);
    json_decref(json);
}

static int32_t read_dims(const char *text, int64_t dims[KV_RANK_MAX])
{
    int32_t rank = 0;
    for (char *end; *text && rank < KV_RANK_MAX; text = *end == ',' ? end + 1 : end) {
        dims[rank++] = strtoll(text, &end, 10);
        ck_assert_ptr_ne(end, text);
    }
    return rank;
}

static void drop(struct made *made, const char *name)
{
    struct made_tensor *tensor = made_find(made, name);
    free(tensor->values);
    *tensor = made->tensor[--made->count];
}

static void append(struct made_tensor *to, const struct made_tensor *from)
{
    to->values = realloc(to->values, (size_t)(to->count + from->count) * sizeof *to->values);
    ck_assert_ptr_nonnull(to->values);
    memcpy(to->values + to->count, from->values, (size_t)from->count * sizeof *to->values);
    to->count += from->count;
    to->dims[0] += from->dims[0];
}

static void fuse_kind(struct made *made, int32_t layer, const char *kind)
{
    char names[3][KV_PARAM_BYTES], fused[KV_PARAM_BYTES];
    for (int32_t i = 0; i < 3; i++)
        snprintf(names[i], sizeof names[i], "layers.%d.self_attn.%c_proj.%s", (int)layer, "qkv"[i], kind);
    snprintf(fused, sizeof fused, "layers.%d.self_attn.qkv_proj.%s", (int)layer, kind);
    struct made_tensor *q = made_find(made, names[0]);
    append(q, made_find(made, names[1]));
    append(q, made_find(made, names[2]));
    snprintf(q->name, sizeof q->name, "%s", fused);
    drop(made, names[1]);
    drop(made, names[2]);
}

static bool has(const struct made *made, const char *name)
{
    for (int32_t i = 0; i < made->count; i++)
        if (strcmp(made->tensor[i].name, name) == 0) return true;
    return false;
}

static void fuse(struct made *made, int32_t layer)
{
    char bias[KV_PARAM_BYTES];
    snprintf(bias, sizeof bias, "layers.%d.self_attn.k_proj.bias", (int)layer);
    fuse_kind(made, layer, "weight");
    if (has(made, bias)) fuse_kind(made, layer, "bias");
}

static void add_all(struct made *made, const char *word, int64_t taps)
{
    if (strcmp(word, "fc") == 0) {
        add(made, "fc.weight", KV_BF16, 2, (const int64_t[]){32, 32 * taps});
        add(made, "hidden_norm.weight", KV_BF16, 1, (const int64_t[]){32});
        return;
    }
    for (int32_t layer = 0; layer < 3; layer++) {
        add_to_layer(made, layer, "self_attn.q_proj.bias", 1, 64, 0);
        add_to_layer(made, layer, "self_attn.k_proj.bias", 1, 32, 0);
        add_to_layer(made, layer, "self_attn.v_proj.bias", 1, 32, 0);
    }
}

static void prefix(struct made *made)
{
    for (int32_t i = 0; i < made->count; i++) {
        char old[KV_PARAM_BYTES];
        memcpy(old, made->tensor[i].name, sizeof old);
        snprintf(made->tensor[i].name, sizeof old, "model.%.100s", old);
    }
}

static void change(struct made *made, const char *verb, const char *a, const char *b, const char *c)
{
    int64_t dims[KV_RANK_MAX];
    enum kv_dtype dtype = KV_BF16;
    if (strcmp(verb, "drop") == 0)
        drop(made, a);
    else if (strcmp(verb, "fuse") == 0)
        fuse(made, (int32_t)strtol(a, NULL, 10));
    else if (strcmp(verb, "fc") == 0 || strcmp(verb, "biases") == 0)
        add_all(made, verb, strtoll(a, NULL, 10));
    else if (strcmp(verb, "prefix") == 0)
        prefix(made);
    else if (strcmp(verb, "rename") == 0)
        snprintf(made_find(made, a)->name, KV_PARAM_BYTES, "%s", b);
    else if (strcmp(verb, "value") == 0)
        made_find(made, a)->values[strtol(b, NULL, 10)] = strtof(c, NULL);
    else if (strcmp(verb, "zero") == 0)
        memset(made_find(made, a)->values, 0, (size_t)made_find(made, a)->count * sizeof(float));
    else if (strcmp(verb, "add") == 0) {
        ck_assert(kv_dtype_find(b, &dtype));
        add(made, a, dtype, read_dims(c, dims), dims);
    } else if (strcmp(verb, "shape") == 0) {
        struct made_tensor *tensor = made_find(made, a);
        tensor->rank = read_dims(b, tensor->dims);
        fill(tensor);
    } else if (strcmp(verb, "dtype") == 0) {
        ck_assert(kv_dtype_find(b, &made_find(made, a)->dtype));
    } else if (strcmp(verb, "shard") == 0) {
        struct made_tensor *tensor = made_find(made, a);
        tensor->shard = (int32_t)strtol(b, NULL, 10);
        if (tensor->shard >= made->shards) made->shards = tensor->shard + 1;
    } else {
        ck_abort_msg("the test has no command %s", verb);
    }
}

void made_change(struct made *made, const char *commands)
{
    while (commands && *commands) {
        char words[4][KV_PARAM_BYTES] = {"", "", "", ""};
        size_t length = strcspn(commands, ";\n");
        char line[4 * KV_PARAM_BYTES];
        snprintf(line, sizeof line, "%.*s", (int)length, commands);
        if (sscanf(line, "%127s %127s %127s %127s", words[0], words[1], words[2], words[3]) > 0)
            change(made, words[0], words[1], words[2], words[3]);
        commands += length + (commands[length] != '\0');
    }
}

const char *made_path(const struct made *made, const char *file)
{
    static char path[KV_PARAM_BYTES];
    snprintf(path, sizeof path, "%s/%.60s", made->folder, file);
    return path;
}

static void write_values(FILE *out, const struct made_tensor *tensor)
{
    uint64_t bytes = 0;
    ck_assert(kv_tensor_bytes(tensor->dtype, tensor->rank, tensor->dims, &bytes));
    unsigned char *data = calloc((size_t)bytes + 1, 1);
    ck_assert_ptr_nonnull(data);
    if (tensor->dtype == KV_F32) memcpy(data, tensor->values, (size_t)bytes);
    if (tensor->dtype == KV_BF16 || tensor->dtype == KV_F16)
        kv_from_f32(tensor->dtype, tensor->values, tensor->count, data);
    ck_assert_uint_eq(fwrite(data, 1, (size_t)bytes, out), (size_t)bytes);
    free(data);
}

static void write_shard(struct made *made, int32_t shard, const char *file)
{
    static struct kv_entry entries[128];
    static char header[64 * 1024];
    int32_t count = 0;
    size_t written = 0;
    struct kv_error error = {0};
    for (int32_t i = 0; i < made->count; i++) {
        const struct made_tensor *tensor = &made->tensor[i];
        if (tensor->shard != shard) continue;
        entries[count] =
            (struct kv_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
        memcpy(entries[count++].dims, tensor->dims, sizeof tensor->dims);
    }
    if (!kv_document_encode(header, sizeof header, entries, count, NULL, 0, &written, NULL, &error))
        ck_abort_msg("%s", error.message);
    FILE *out = fopen(made_path(made, file), "wb");
    ck_assert_ptr_nonnull(out);
    ck_assert_uint_eq(fwrite(header, 1, written, out), written);
    for (int32_t i = 0; i < made->count; i++)
        if (made->tensor[i].shard == shard) write_values(out, &made->tensor[i]);
    ck_assert_int_eq(fclose(out), 0);
}

static void write_shards(struct made *made)
{
    char file[64];
    json_t *map = json_object();
    for (int32_t shard = 0; shard < made->shards; shard++) {
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", (int)shard + 1, (int)made->shards);
        write_shard(made, shard, file);
        for (int32_t i = 0; i < made->count; i++)
            if (made->tensor[i].shard == shard)
                json_object_set_new(map, made->tensor[i].name, json_string(file));
    }
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    json_t *patch = made->index ? json_loads(made->index, 0, NULL) : NULL;
    if (patch) ck_assert_int_eq(json_object_update_recursive(index, patch), 0);
    ck_assert(!made->index || patch);
    json_decref(patch);
    ck_assert_int_eq(json_dump_file(index, made_path(made, "model.safetensors.index.json"), 0), 0);
    json_decref(index);
}

const char *made_write(struct made *made)
{
    snprintf(made->folder, sizeof made->folder, "/tmp/kvmat-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(made->folder));
    ck_assert_int_eq(json_dump_file(made->config, made_path(made, "config.json"), JSON_INDENT(1)), 0);
    if (made->shards)
        write_shards(made);
    else
        write_shard(made, 0, "model.safetensors");
    return made->folder;
}

void made_end(struct made *made)
{
    DIR *folder = made->folder[0] ? opendir(made->folder) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.') remove(made_path(made, entry->d_name));
    if (folder) closedir(folder);
    if (made->folder[0]) rmdir(made->folder);
    for (int32_t i = 0; i < made->count; i++) free(made->tensor[i].values);
    json_decref(made->config);
    *made = (struct made){0};
}

struct kv_checkpoint *made_open(const char *folder, const struct kv_checkpoint_options *options,
                                struct kv_findings *findings)
{
    struct kv_checkpoint_options used = {.attention_factor = -1};
    struct kv_checkpoint *checkpoint = NULL;
    if (options) used = *options;
    used.directory = folder;
    kv_findings_init(findings);
    bool opened = kv_checkpoint_open(&checkpoint, &used, findings);
    ck_assert_int_eq(opened, checkpoint != NULL);
    ck_assert_int_eq(opened, findings->count == 0);
    return checkpoint;
}

const struct kv_finding *made_found(const struct kv_findings *findings, const char *code, int32_t layer)
{
    for (int32_t i = 0; i < findings->count; i++)
        if (strcmp(kv_fault_info(findings->item[i].error.fault)->code, code) == 0 &&
            (layer == -2 || findings->item[i].layer == layer))
            return &findings->item[i];
    return NULL;
}

const char *made_report(const struct kv_findings *findings)
{
    static char text[16 * 1024];
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < findings->count && used + 1024 < sizeof text; i++) {
        const struct kv_finding *finding = &findings->item[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s layer %d param %s: %s",
                                 kv_fault_info(finding->error.fault)->code, (int)finding->layer,
                                 finding->error.param, finding->error.message);
    }
    return text;
}
