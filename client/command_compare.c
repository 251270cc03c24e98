/* compare: the tensors of two safetensors files against a tolerance. Needs no daemon. */
#include "client/command.h"
#include "client/compare.h"
#include "client/input.h"

#include <stdio.h>
#include <string.h>

enum { TOLERANCES_MAX = 16 };

struct tolerances {
    double everything;
    bool exact;
    int32_t count;
    struct {
        char name[KV_TEXT_BYTES];
        double limit;
    } of[TOLERANCES_MAX];
};

struct side {
    struct kv_input_file file;
    struct kv_document document;
};

/* "3e-3", "k=3e-3,v=2.5e-3" or "1e-3,k=3e-3". */
static bool read_tolerances(struct tolerances *to, const char *text, struct kv_error *err)
{
    while (*text) {
        char part[KV_TEXT_BYTES];
        size_t bytes = strcspn(text, ",");
        snprintf(part, sizeof part, "%.*s", (int)bytes, text);
        char *equals = strrchr(part, '=');
        double limit;
        if (bytes >= sizeof part || !kv_real_read(equals ? equals + 1 : part, &limit) || limit < 0 ||
            equals == part) {
            return kv_fail_values(err, KV_OPTION_INVALID, "--tolerance",
                                  kv_text("X or NAME=X, separated by commas"), kv_text(part), "--tolerance");
        }
        if (!equals) {
            to->everything = limit;
        } else if (to->count == TOLERANCES_MAX) {
            return kv_fail(err, KV_OPTION_INVALID, "--tolerance: more than %d names", TOLERANCES_MAX);
        } else {
            *equals = '\0';
            memcpy(to->of[to->count].name, part, sizeof part);
            to->of[to->count++].limit = limit;
        }
        text += bytes + (text[bytes] == ',');
    }
    return true;
}

static double limit_of(const struct tolerances *tolerances, const char *name)
{
    for (int32_t i = 0; i < tolerances->count; i++) {
        if (strcmp(tolerances->of[i].name, name) == 0) return tolerances->of[i].limit;
    }
    return tolerances->everything;
}

static bool open_side(struct side *side, const char *path, struct kv_error *err)
{
    struct kv_error inner = {0};
    if (!kv_input_file_open(&side->file, path, err)) return false;
    if (kv_document_open(&side->document, side->file.bytes, side->file.size, KV_DOCUMENT_FILE, &inner))
        return true;
    kv_fail_param(err, KV_FILE_UNUSABLE, path, "%s: %s", path, inner.message);
    return false;
}

static void close_side(struct side *side)
{
    kv_document_close(&side->document);
    kv_input_file_close(&side->file);
}

static const char *shape_of(const struct kv_view *view, char *to, size_t to_bytes)
{
    const struct kv_value value = kv_shape(view->rank, view->dims);
    return kv_value_print(&value, to, to_bytes);
}

/* Prints one line; true where the tensors are close enough. */
static bool compare_tensor(const char *name, const struct kv_view *a, const struct kv_view *b,
                           const struct tolerances *tolerances)
{
    char first[KV_TEXT_BYTES], second[KV_TEXT_BYTES];
    bool shaped = a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
    bool comparable = a->dtype == b->dtype || (kv_dtype_is_real(a->dtype) && kv_dtype_is_real(b->dtype));
    if (!shaped || !comparable || (tolerances->exact && a->dtype != b->dtype)) {
        printf("%s %s %s against %s %s MISMATCH\n", name, kv_dtype_name(a->dtype),
               shape_of(a, first, sizeof first), kv_dtype_name(b->dtype), shape_of(b, second, sizeof second));
        return false;
    }
    struct kv_difference found;
    kv_difference_measure(&found, a, b);
    bool close = tolerances->exact ? found.differing == 0
                                   : found.broken == 0 && found.rel_l2 <= limit_of(tolerances, name);
    printf("%s rel_l2 %.3e max_abs %.3e differing %llu of %llu", name, found.rel_l2, found.max_abs,
           (unsigned long long)found.differing, (unsigned long long)found.elements);
    if (found.broken > 0) printf(" not_finite %llu", (unsigned long long)found.broken);
    if (!close && tolerances->exact) printf(" MISMATCH\n");
    if (!close && !tolerances->exact) printf(" MISMATCH past %.3e\n", limit_of(tolerances, name));
    if (close) printf(" ok\n");
    return close;
}

/* Compares by name, in the order of A and then what only B has. Returns the number of mismatches. */
static int32_t compare_sides(const struct side *a, const struct side *b, const struct tolerances *tolerances)
{
    int32_t mismatches = 0;
    for (int32_t i = 0; i < a->document.count; i++) {
        const struct kv_tensor *one = &a->document.tensors[i],
                               *other = kv_document_find(&b->document, one->name);
        if (!other) {
            printf("%s only in A MISMATCH\n", one->name);
            mismatches++;
            continue;
        }
        struct kv_view x = kv_document_view(&a->document, one, a->file.bytes);
        struct kv_view y = kv_document_view(&b->document, other, b->file.bytes);
        mismatches += !compare_tensor(one->name, &x, &y, tolerances);
    }
    for (int32_t i = 0; i < b->document.count; i++) {
        if (kv_document_find(&a->document, b->document.tensors[i].name)) continue;
        printf("%s only in B MISMATCH\n", b->document.tensors[i].name);
        mismatches++;
    }
    return mismatches;
}

/* A tolerance for a tensor that is in neither file is a slip of the pen, and would otherwise hide. */
static bool check_names(const struct tolerances *tolerances, const struct side *a, const struct side *b,
                        struct kv_error *err)
{
    for (int32_t i = 0; i < tolerances->count; i++) {
        const char *name = tolerances->of[i].name;
        if (kv_document_find(&a->document, name) || kv_document_find(&b->document, name)) continue;
        return kv_fail(err, KV_OPTION_INVALID, "--tolerance: neither file has a tensor %s", name);
    }
    return true;
}

int kv_command_compare(int argc, char **argv)
{
    const char *text = "3e-3", *paths[2] = {NULL, NULL};
    struct tolerances tolerances = {.everything = 3e-3};
    const struct kv_option options[] = {
        {"--tolerance", "X", KV_OPTION_TEXT, &text, 0, 0, NULL,
         "the largest rel_l2 that passes, for all tensors or by name: 3e-3, k=3e-3,v=2.5e-3, 1e-3,k=3e-3 "
         "(default 3e-3, "
         "what BF16 rounding of K may cost)",
         NULL},
        {"--exact", NULL, KV_OPTION_FLAG, &tolerances.exact, 0, 0, NULL,
         "pass only where dtypes and all bits agree", NULL},
    };
    const struct kv_usage usage = {
        "kvmat compare",
        "A B",
        "Compares the tensors of two safetensors files by name. For each: rel_l2 = ||a - b|| / ||b|| over "
        "the whole tensor, "
        "the largest difference, and how many elements differ. A tensor that one file lacks, another shape, "
        "and NaN or "
        "infinity on one side only are mismatches. BF16, F16, F32 and F64 compare with each other by value.",
        options,
        2,
        2,
        2,
        "Exit status: 0 all pass, 1 a mismatch, 2 usage or a file that cannot be read."};
    struct kv_error err = {0};
    enum kv_parsed parsed = kv_usage_parse(&usage, argc, argv, paths, NULL, &err);
    if (parsed == KV_PARSED_RUN && !read_tolerances(&tolerances, text, &err)) parsed = KV_PARSED_WRONG;
    if (parsed != KV_PARSED_RUN) return kv_command_parsed(&usage, parsed, &err);

    struct side a = {0}, b = {0};
    int code = KV_EXIT_NO;
    if (!open_side(&a, paths[0], &err) || !open_side(&b, paths[1], &err) ||
        !check_names(&tolerances, &a, &b, &err)) {
        code = kv_command_failed(usage.command, &err);
    } else {
        int32_t mismatches = compare_sides(&a, &b, &tolerances);
        bool empty = a.document.count == 0 && b.document.count == 0;
        if (empty) puts("neither file has a tensor MISMATCH");
        code = mismatches == 0 && !empty ? KV_EXIT_OK : KV_EXIT_NO;
    }
    close_side(&a);
    close_side(&b);
    return code;
}
