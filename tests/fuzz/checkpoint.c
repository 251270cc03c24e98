/* Fuzz target: a whole folder. The input is split into files where a line says `@` and a letter: c is
 * config.json, i the index; w, a and b are model.safetensors and two shards, written as lines of
 * `NAME DTYPE D,D` (and after a line that begins with `=`, the first bytes of the data), so that a change of
 * a name or a shape still makes a sound file; W, A and B are the same files byte by byte; o is options. A
 * file without its letter is not there. */
#include "tests/fuzz/folder.h"
#include "tests/fuzz/opening.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One file's bytes, followed by a NUL in the copy of the input that they lie in. */
struct section {
    char letter;
    char *text;
    size_t bytes;
};

static const char *file_of(char letter)
{
    switch (letter) {
    case 'c': return "config.json";
    case 'i': return "model.safetensors.index.json";
    case 'w':
    case 'W': return "model.safetensors";
    case 'a':
    case 'A': return "a.safetensors";
    case 'b':
    case 'B': return "b.safetensors";
    default: return NULL;
    }
}

static int32_t read_dims(const char *text, int64_t dims[KV_RANK_MAX])
{
    int32_t rank = 0;
    while (*text && rank < KV_RANK_MAX) {
        char *end = NULL;
        dims[rank] = strtoll(text, &end, 10);
        if (end == text) break;
        rank++;
        text = *end == ',' ? end + 1 : end;
    }
    return rank;
}

static void read_line(struct fuzz_weights *weights, char *line)
{
    int64_t dims[KV_RANK_MAX];
    char *dtype_text = strchr(line, ' '), *dims_text = dtype_text ? strchr(dtype_text + 1, ' ') : NULL;
    enum kv_dtype dtype;
    if (!dims_text) return;
    *dtype_text++ = '\0';
    *dims_text++ = '\0';
    if (!kv_dtype_find(dtype_text, &dtype)) return;
    fuzz_weights_add(weights, line, dtype, read_dims(dims_text, dims), dims);
}

static void write_list(const struct section *section)
{
    static struct fuzz_weights weights;
    char *end = section->text + section->bytes;
    weights.count = 0;
    weights.values_bytes = 0;
    for (char *line = section->text; line < end;) {
        if (*line == '=') {
            weights.values = line + 1;
            weights.values_bytes = (size_t)(end - line - 1);
            break;
        }
        char *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) line_end = end;
        *line_end = '\0';
        read_line(&weights, line);
        line = line_end + 1;
    }
    const char *file = file_of(section->letter);
    if (!fuzz_weights_write(file, &weights)) fuzz_file_write(file, section->text, section->bytes, NULL, 0, 0);
}

static void write_section(const struct section *section, struct kv_checkpoint_options *options)
{
    const char *file = file_of(section->letter);
    if (section->letter == 'o') {
        char *at = section->text;
        options->positions_max = strtoll(at, &at, 10);
        options->rope_theta = strtod(at, &at);
        options->attention_factor = strtod(at, &at);
    } else if (file && strchr("wab", section->letter)) {
        write_list(section);
    } else if (file) {
        fuzz_file_write(file, section->text, section->bytes, NULL, 0, 0);
    }
}

static bool begins_section(const char *text, size_t at, size_t size)
{
    return at + 2 < size && text[at] == '@' && text[at + 2] == '\n' && (at == 0 || text[at - 1] == '\n');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_checkpoint_options options = {.attention_factor = -1};
    struct kv_findings findings;
    fuzz_folder_open();
    fuzz_folder_clear();
    options.directory = fuzz_folder_path;
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL);
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    struct section section = {0};
    for (size_t at = 0; at <= size; at++) {
        bool begins = begins_section(text, at, size);
        if (!begins && at < size) continue;
        if (section.text) {
            section.bytes = (size_t)(text + at - section.text);
            if (begins) text[at] = '\0'; /* the letter behind it stays */
            write_section(&section, &options);
        }
        if (!begins) break;
        section = (struct section){.letter = text[at + 1], .text = text + at + 3};
        at += 2;
    }
    free(text);
    (void)fuzz_opening(&options, &findings);
    kv_findings_free(&findings);
    return 0;
}
