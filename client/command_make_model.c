/* make-model: a random checkpoint, for tests, demonstrations and measurements. Needs no daemon. */
#include "client/command.h"
#include "client/model_files.h"

#include <stdio.h>
#include <string.h>

#define INTEGER(name, value, to, min, max, help)                                                             \
    {                                                                                                        \
        name, value, KV_OPTION_INTEGER, to, min, max, NULL, help, NULL                                       \
    }
#define REAL(name, value, to, min, max, help)                                                                \
    {                                                                                                        \
        name, value, KV_OPTION_REAL, to, min, max, NULL, help, NULL                                          \
    }
#define FLAG(name, to, help)                                                                                 \
    {                                                                                                        \
        name, NULL, KV_OPTION_FLAG, to, 0, 0, NULL, help, NULL                                               \
    }

struct make_model {
    struct kv_model_shape shape;
    double part; /* partial_rotary_factor; 0: not given */
    const char *dtype;
    bool force, no_k_norm;
};

/* Fills in what follows from other options. */
static bool complete(struct make_model *job, struct kv_error *err)
{
    struct kv_model_shape *shape = &job->shape;
    const struct {
        const char *name;
        int64_t value;
    } needed[] = {{"--layers N", shape->layers},
                  {"--hidden N", shape->hidden},
                  {"--kv-heads N", shape->kv_heads},
                  {"--head-dim N", shape->head_dim}};
    for (int i = 0; i < 4; i++) {
        if (needed[i].value == 0) return kv_fail(err, KV_OPTION_INVALID, "%s is needed", needed[i].name);
    }
    if (shape->rotary_dim > 0 && job->part > 0) {
        return kv_fail(err, KV_OPTION_INVALID, "--rotary-dim and --partial-rotary-factor exclude each other");
    }
    if (job->part > 0) {
        shape->rotary_dim = (int64_t)((double)shape->head_dim * job->part);
    } else if (shape->rotary_dim == 0) {
        shape->rotary_dim = shape->head_dim;
    }
    if (shape->heads == 0) shape->heads = 4 * shape->kv_heads;
    shape->k_norm = !job->no_k_norm;
    shape->dtype = strcmp(job->dtype, "bf16") == 0  ? KV_BF16
                   : strcmp(job->dtype, "f16") == 0 ? KV_F16
                                                    : KV_F32;
    return kv_model_shape_check(shape, err);
}

int kv_command_make_model(int argc, char **argv)
{
    struct make_model job = {
        .shape = {.positions = 40960, .shards = 1, .theta = 1e6, .eps = 1e-6, .value_scale = 1},
        .dtype = "bf16"};
    struct kv_model_shape *shape = &job.shape;
    const struct kv_option options[] = {
        INTEGER("--layers", "N", &shape->layers, 1, 1024, "layers (needed)"),
        INTEGER("--hidden", "N", &shape->hidden, 1, 1 << 24, "hidden_size (needed)"),
        INTEGER("--kv-heads", "N", &shape->kv_heads, 1, 65536, "K and V heads (needed)"),
        INTEGER("--head-dim", "N", &shape->head_dim, 2, 65536, "elements of a head (needed)"),
        INTEGER("--heads", "N", &shape->heads, 1, 1 << 20,
                "attention heads, only named in the config (default 4 times "
                "the K and V heads)"),
        INTEGER("--taps", "N", &shape->taps, 0, 64,
                "add fc and hidden_norm for this many target hidden states (default "
                "0: without)"),
        INTEGER("--rotary-dim", "N", &shape->rotary_dim, 2, 65536,
                "rotated elements of a head (default all)"),
        REAL("--partial-rotary-factor", "X", &job.part, 1e-6, 1, "the same as a part of the head"),
        REAL("--theta", "X", &shape->theta, 1, 1e30, "rope_theta (default 1e6)"),
        INTEGER("--max-position", "N", &shape->positions, 1, INT32_MAX,
                "max_position_embeddings (default 40960)"),
        REAL("--yarn", "FACTOR", &shape->yarn, 1, 1e6,
             "YaRN scaling by this factor, from max-position / factor"),
        {"--dtype", NULL, KV_OPTION_CHOICE, &job.dtype, 0, 0, "bf16|f16|f32", "of all tensors (default bf16)",
         NULL},
        REAL("--eps", "X", &shape->eps, 1e-30, 1, "rms_norm_eps (default 1e-6)"),
        REAL("--value-scale", "X", &shape->value_scale, -1e6, 1e6,
             "attention_value_scale (default 1: left out)"),
        FLAG("--bias", &shape->bias, "add biases to K and V"),
        FLAG("--no-k-norm", &job.no_k_norm, "leave the K norm out"),
        FLAG("--interleaved", &shape->interleaved, "rotation pairs are (2i, 2i+1)"),
        INTEGER("--shards", "N", &shape->shards, 1, KV_SHARDS_MAX,
                "weight files; more than one with an index (default 1)"),
        INTEGER("--seed", "N", &shape->seed, 0, 9007199254740992.0,
                "the same seed and shape give the same bytes (default "
                "0)"),
        FLAG("--force", &job.force, "replace the checkpoint in a folder that has files in it"),
    };
    const struct kv_usage usage = {"kvmat make-model",
                                   "DIR",
                                   "Writes a random draft checkpoint in the published form: config.json and "
                                   "model.safetensors. The files appear "
                                   "only when all of them are whole.",
                                   options,
                                   sizeof options / sizeof *options,
                                   1,
                                   1,
                                   "Exit status: 0, or 2 usage or a file that cannot be written."};
    const char *folder = NULL;
    uint64_t bytes = 0;
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, &folder, NULL, &err);
    if (parsed == KV_PARSED_RUN && !complete(&job, &err)) parsed = KV_PARSED_WRONG;
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);
    kv_output_catch_signals();
    if (!kv_model_files_write(shape, folder, job.force, &bytes, &err))
        return kv_command_failed(usage.command, &err);
    printf("folder %s\ntensors %d\nweight_bytes %llu\n", folder, kv_model_shape_count(shape),
           (unsigned long long)bytes);
    return KV_EXIT_OK;
}
