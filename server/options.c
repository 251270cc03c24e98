/* The table below is all there is to say of an option; the parser, the environment and --help read it. */
#include "server/options.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, LIST, INTEGER, BYTES, OCTAL, REAL, SWITCH, FLAG };

struct option {
    const char *flag, *value;
    enum kind kind;
    size_t at; /* of the member in kv_options */
    double least, most;
    const char *words[2]; /* of a SWITCH: what it takes; the second sets the member */
    const char *help;
};

#define AT(member) offsetof(struct kv_options, member)
#define MANY ((double)INT64_MAX)

static const struct option table[] = {
    {"model", "DIR", TEXT, AT(model), 0, 0, {0}, "the checkpoint's folder (required)"},
    {"listen",
     "ADDRESS",
     LIST,
     AT(listen),
     0,
     0,
     {0},
     "HOST:PORT, [IPV6]:PORT or unix:PATH; may be repeated [127.0.0.1:8600]"},
    {"admin-listen", "ADDRESS", TEXT, AT(admin_listen), 0, 0, {0}, "for /health, /ready, /metrics alone"},
    {"unix-mode", "OCTAL", OCTAL, AT(unix_mode), 1, 0777, {0}, "rights of unix sockets [0660]"},
    {"api-key-file", "FILE", TEXT, AT(api_key_file), 0, 0, {0}, "callers send one of its keys [no keys]"},
    {"allow-anonymous", NULL, FLAG, AT(allow_anonymous), 0, 0, {0}, "beyond loopback, without keys"},
    {"tls-cert", "FILE", TEXT, AT(tls_cert), 0, 0, {0}, "PEM; TCP listeners speak https"},
    {"tls-key", "FILE", TEXT, AT(tls_key), 0, 0, {0}, "PEM; of --tls-cert"},
    {"device", "NAME", TEXT, AT(device), 0, 0, {0}, "auto, cpu, cuda or cuda:N [auto]"},
    {"name", "NAME", TEXT, AT(name), 0, 0, {0}, "of the model, in replies [the folder's name]"},
    {"max-position",
     "N",
     INTEGER,
     AT(max_position),
     1,
     2147483647,
     {0},
     "positions are valid in [0, N) [max_position_embeddings]"},
    {"max-tokens", "N", INTEGER, AT(max_tokens), 1, 16777216, {0}, "of one request [16384]"},
    {"max-body", "BYTES", BYTES, AT(max_body), 4096, MANY, {0}, "of one request [512MiB]"},
    {"pool-bytes",
     "BYTES",
     BYTES,
     AT(pool_bytes),
     1 << 20,
     MANY,
     {0},
     "bodies and replies in flight [1GiB on CUDA, 256MiB on the CPU]"},
    {"max-queue", "N", INTEGER, AT(max_queue), 1, 100000, {0}, "requests waiting [256]"},
    {"max-connections", "N", INTEGER, AT(max_connections), 1, 100000, {0}, "open at once [1024]"},
    {"idle-timeout", "S", INTEGER, AT(idle_timeout), 1, 86400, {0}, "seconds of a silent connection [60]"},
    {"max-batch-tokens",
     "N",
     INTEGER,
     AT(max_batch_tokens),
     1,
     1048576,
     {0},
     "rows of one device batch [8192]"},
    {"batch-delay-us",
     "N",
     INTEGER,
     AT(batch_delay_us),
     0,
     1000000,
     {0},
     "how long a waiting batch is held back for company [0]"},
    {"spin-us",
     "N",
     INTEGER,
     AT(spin_us),
     0,
     1000000,
     {0},
     "polling for a batch before sleeping [1000 on CUDA, 50 on the CPU]"},
    {"rope-theta", "X", REAL, AT(rope_theta), DBL_MIN, 1e30, {0}, "instead of the config's"},
    {"rope-attention-factor", "X", REAL, AT(rope_attention_factor), 0, 1e6, {0}, "instead of the config's"},
    {"tune", "on|off", SWITCH, AT(tune), 0, 0, {"off", "on"}, "time algorithms at start-up [on]"},
    {"drain-timeout",
     "S",
     INTEGER,
     AT(drain_timeout),
     0,
     86400,
     {0},
     "seconds that requests in flight have at SIGTERM [30]"},
    {"drain-grace",
     "S",
     INTEGER,
     AT(drain_grace),
     0,
     86400,
     {0},
     "seconds between not ready and refusing connections [0]"},
    {"device-timeout",
     "S",
     INTEGER,
     AT(device_timeout),
     0,
     86400,
     {0},
     "seconds after which a batch has lost the device; 0: never [30]"},
    {"log-format",
     "text|json",
     SWITCH,
     AT(log_json),
     0,
     0,
     {"text", "json"},
     "of the lines on standard error [text]"},
    {"check", NULL, FLAG, AT(check), 0, 0, {0}, "load and validate, print one JSON object, exit 0 or 1"},
    {"version", NULL, FLAG, AT(version), 0, 0, {0}, "print it and exit"},
    {"help", NULL, FLAG, AT(help), 0, 0, {0}, "print this and exit"},
};
enum { OPTIONS = sizeof table / sizeof table[0] };

static bool refuse(const struct option *option, const char *expected, const char *got, struct kv_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "--%s", option->flag);
    return kv_fail_values(err, KV_OPTION_INVALID, name, kv_text(expected), kv_text(got),
                          "--%s has a wrong value", option->flag);
}

static bool refuse_range(const struct option *option, const char *got, struct kv_error *err)
{
    char expected[KV_TEXT_BYTES];
    if (option->most >= MANY)
        snprintf(expected, sizeof expected, "a number of at least %.0f", option->least);
    else
        snprintf(expected, sizeof expected, "a number from %g to %.10g", option->least, option->most);
    return refuse(option, expected, got, err);
}

/* What a suffix multiplies by; 0: no such suffix. */
static int64_t unit(const char *suffix)
{
    static const struct {
        const char *suffix;
        int64_t bytes;
    } units[] = {{"", 1},          {"K", 1 << 10}, {"KiB", 1 << 10}, {"M", 1 << 20},
                 {"MiB", 1 << 20}, {"G", 1 << 30}, {"GiB", 1 << 30}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(units[i].suffix, suffix) == 0) return units[i].bytes;
    return 0;
}

static bool set_integer(const struct option *option, const char *text, int64_t *to, struct kv_error *err)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    int64_t bytes = option->kind == BYTES ? unit(end) : *end == '\0';
    bool ok = errno == 0 && end != text && isdigit((unsigned char)text[0]) && bytes > 0 &&
              number <= INT64_MAX / bytes;
    if (!ok || (double)(number * bytes) < option->least || (double)(number * bytes) > option->most)
        return refuse_range(option, text, err);
    *to = number * bytes;
    return true;
}

static bool set_octal(const struct option *option, const char *text, int64_t *to, struct kv_error *err)
{
    size_t digits = strspn(text, "01234567");
    long mode = digits > 0 && digits <= 4 && text[digits] == '\0' ? strtol(text, NULL, 8) : 0;
    if (mode < (long)option->least || mode > (long)option->most)
        return refuse(option, "an octal number from 1 to 777", text, err);
    *to = mode;
    return true;
}

static bool set_real(const struct option *option, const char *text, double *to, struct kv_error *err)
{
    char *end = NULL;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(number) || number < option->least || number > option->most)
        return refuse_range(option, text, err);
    *to = number;
    return true;
}

static bool add_listen(const struct option *option, struct kv_options *options, const char *text,
                       struct kv_error *err)
{
    if (options->listens == KV_LISTENERS_MAX) return refuse(option, "at most 8 addresses", text, err);
    options->listen[options->listens++] = text;
    return true;
}

static bool set(struct kv_options *options, const struct option *option, const char *text,
                struct kv_error *err)
{
    void *to = (char *)options + option->at;
    switch (option->kind) {
    case TEXT:
        if (!text[0]) return refuse(option, option->value, "nothing", err);
        *(const char **)to = text;
        return true;
    case LIST: return add_listen(option, options, text, err);
    case INTEGER:
    case BYTES: return set_integer(option, text, to, err);
    case OCTAL: return set_octal(option, text, to, err);
    case REAL: return set_real(option, text, to, err);
    case SWITCH:
        if (strcmp(text, option->words[0]) != 0 && strcmp(text, option->words[1]) != 0)
            return refuse(option, option->value, text, err);
        *(bool *)to = strcmp(text, option->words[1]) == 0;
        return true;
    case FLAG: break;
    }
    *(bool *)to = true;
    return true;
}

/* KVMAT_MAX_BODY for max-body. An empty variable is none. A list is split at commas and blanks. */
static bool read_environment(struct kv_options *options, struct kv_error *err)
{
    for (int32_t i = 0; i < OPTIONS; i++) {
        char name[64] = "KVMAT_";
        size_t bytes = strlen(name);
        for (const char *c = table[i].flag; *c; c++)
            name[bytes++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        name[bytes] = '\0';
        const char *text = getenv(name);
        if (!text || !text[0]) continue;
        bool ok = true;
        if (table[i].kind == FLAG) {
            bool on = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
            bool off = strcmp(text, "0") == 0 || strcmp(text, "false") == 0;
            ok = on || off || refuse(&table[i], "1, true, 0 or false", text, err);
            if (on) ok = set(options, &table[i], text, err);
        } else if (table[i].kind == LIST) {
            char *rest = options->listen_text;
            ok = strlen(text) < sizeof options->listen_text ||
                 refuse(&table[i], "a shorter list of addresses", text, err);
            if (ok) strncpy(options->listen_text, text, sizeof options->listen_text - 1);
            for (char *word = ok ? strtok_r(rest, ", ", &rest) : NULL; word && ok;
                 word = strtok_r(NULL, ", ", &rest))
                ok = set(options, &table[i], word, err);
        } else {
            ok = set(options, &table[i], text, err);
        }
        if (!ok) {
            kv_error_hint(err, "The value comes from the environment variable %s.", name);
            return false;
        }
    }
    return true;
}

static const struct option *find(const char *flag, size_t bytes)
{
    for (int32_t i = 0; i < OPTIONS; i++)
        if (strlen(table[i].flag) == bytes && strncmp(table[i].flag, flag, bytes) == 0) return &table[i];
    return NULL;
}

static bool read_arguments(struct kv_options *options, int argc, char *const *argv, struct kv_error *err)
{
    bool listen_seen = false;
    for (int i = 1; i < argc; i++) {
        const char *flag = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        size_t bytes = strcspn(flag, "=");
        const struct option *option = find(flag, bytes);
        if (!option)
            return kv_fail_values(err, KV_OPTION_INVALID, argv[i], kv_none(), kv_text(argv[i]),
                                  "there is no such option (see --help)");
        const char *text = flag[bytes] == '=' ? flag + bytes + 1 : NULL;
        if (option->kind == FLAG && text) return refuse(option, "no value", text, err);
        if (option->kind != FLAG && !text) {
            if (i + 1 == argc) return refuse(option, option->value, "nothing", err);
            text = argv[++i];
        }
        if (option->kind == LIST && !listen_seen) {
            listen_seen = true;
            options->listens = 0; /* flags replace the environment's list */
        }
        if (!set(options, option, text ? text : "", err)) return false;
    }
    return true;
}

/* Splits "cuda:1" into a backend's name and an ordinal. */
bool kv_options_device(const struct kv_options *options, char name[16], int32_t *ordinal,
                       struct kv_error *err)
{
    const char *device = options->device;
    const char *colon = strchr(device, ':');
    size_t bytes = colon ? (size_t)(colon - device) : strlen(device);
    char *end = NULL;
    unsigned long number = colon ? strtoul(colon + 1, &end, 10) : 0;
    bool known = (bytes == 4 && strncmp(device, "auto", 4) == 0 && !colon) ||
                 (bytes == 3 && strncmp(device, "cpu", 3) == 0 && !colon) ||
                 (bytes == 4 && strncmp(device, "cuda", 4) == 0);
    if (!known || (colon && (end == colon + 1 || *end || number > 1023 || colon[1] < '0' || colon[1] > '9')))
        return kv_fail_values(err, KV_OPTION_INVALID, "--device", kv_text("auto, cpu, cuda or cuda:N"),
                              kv_text(device), "there is no such device");
    memcpy(name, device, bytes);
    name[bytes] = '\0';
    *ordinal = (int32_t)number;
    return true;
}

static bool check_together(const struct kv_options *options, struct kv_error *err)
{
    if (!options->model || !options->model[0])
        return kv_fail_values(err, KV_OPTION_INVALID, "--model", kv_text("the checkpoint's folder"),
                              kv_text("nothing"), "--model is required");
    if (options->name && strlen(options->name) > 128)
        return kv_fail_values(err, KV_OPTION_INVALID, "--name", kv_text("at most 128 bytes"),
                              kv_integer((int64_t)strlen(options->name)), "the name is too long");
    if (!options->tls_cert != !options->tls_key)
        return kv_fail_values(err, KV_OPTION_INVALID, options->tls_cert ? "--tls-key" : "--tls-cert",
                              kv_text("a file"), kv_text("nothing"),
                              "--tls-cert and --tls-key are given together or not at all");
    char device[16];
    int32_t ordinal;
    return kv_options_device(options, device, &ordinal, err);
}

bool kv_options_parse(struct kv_options *out, int argc, char *const *argv, struct kv_error *err)
{
    *out = (struct kv_options){
        .device = "auto",
        .unix_mode = 0660,
        .max_tokens = 16384,
        .max_body = 512 << 20,
        .max_queue = 256,
        .max_connections = 1024,
        .idle_timeout = 60,
        .max_batch_tokens = 8192,
        .spin_us = -1,
        .rope_attention_factor = -1,
        .tune = true,
        .drain_timeout = 30,
        .device_timeout = 30,
    };
    if (!read_environment(out, err) || !read_arguments(out, argc, argv, err)) return false;
    if (out->listens == 0) out->listen[out->listens++] = "127.0.0.1:8600";
    return out->help || out->version || check_together(out, err);
}

void kv_options_print_help(FILE *to)
{
    fputs("usage: kvmatd --model DIR [options]\n"
          "Keeps a draft model's K and V projections resident and serves them over HTTP.\n\n",
          to);
    for (int32_t i = 0; i < OPTIONS; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", table[i].flag, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        fprintf(to, "  %-28s %s\n", left, table[i].help);
    }
    fputs("\nEvery option can be set in the environment: KVMAT_ and its name in upper case with _ for -;\n"
          "a flag beats the environment. BYTES take K, M or G (KiB, MiB, GiB).\n"
          "Exit status: 0 stopped cleanly, 1 checkpoint refused, 2 usage, 3 address cannot be bound, 4 "
          "device failed.\n",
          to);
}
