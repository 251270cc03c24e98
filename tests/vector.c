/* See vector.h. */
#include "tests/vector.h"

#include "server/notes.h"
#include "tests/checkpoint_maker.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_members(const char *path, const json_t *object, const char *known)
{
    const char *member;
    json_t *value;
    char word[64];
    ck_assert_msg(json_is_object(object), "%s: not an object of %s", path, known);
    json_object_foreach((json_t *)object, member, value)
    {
        snprintf(word, sizeof word, " %.60s ", member);
        ck_assert_msg(strstr(known, word) != NULL, "%s: a member %s is not known, of:%s", path, member,
                      known);
    }
}

static void check_items(const char *path, const json_t *vector, const char *list, const char *known)
{
    const json_t *items = json_object_get(vector, list);
    ck_assert_msg(!items || json_array_size(items) > 0, "%s: %s is no list, or an empty one", path, list);
    for (size_t i = 0; i < json_array_size(items); i++) check_members(path, json_array_get(items, i), known);
}

json_t *vector_read(const char *path)
{
    static const char file_members[] =
        " file text times json hex header data cut append rename link folder pipe remove ";
    json_error_t problem;
    json_t *vector = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!vector) ck_abort_msg("%s: line %d: %s", path, problem.line, problem.text);
    bool refused = strstr(path, "/refused/") != NULL;
    check_members(path, vector,
                  refused ? " why without config change index files options open errors "
                          : " why without config change index files options model notes warnings same_as ");
    check_items(path, vector, "files", file_members);
    check_items(path, vector, "errors", " code layer tensor expected got says hint ");
    if (json_object_get(vector, "options"))
        check_members(path, json_object_get(vector, "options"),
                      " max_position rope_theta rope_attention_factor ");
    const char *why = json_string_value(json_object_get(vector, "why"));
    ck_assert_msg(why && strlen(why) > 10, "%s: does not say why", path);
    if (refused)
        ck_assert_msg(json_object_get(vector, "errors") != NULL, "%s: does not say what comes out", path);
    else
        ck_assert_msg(json_object_get(vector, "model") || json_object_get(vector, "same_as") ||
                          json_object_get(vector, "warnings"),
                      "%s: does not say what comes out", path);
    return vector;
}

static const char *text_of(const json_t *object, const char *member)
{
    return json_string_value(json_object_get(object, member));
}

static void write_bytes(const char *path, const char *mode, const void *bytes, size_t count)
{
    FILE *out = fopen(path, mode);
    ck_assert_msg(out != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(bytes, 1, count, out), count);
    ck_assert_int_eq(fclose(out), 0);
}

static void write_text(const char *path, const json_t *change)
{
    const char *text = text_of(change, "text");
    const json_t *times = json_object_get(change, "times");
    write_bytes(path, "wb", text, strlen(text));
    for (json_int_t i = 1; i < json_integer_value(times); i++) write_bytes(path, "ab", text, strlen(text));
}

static void write_hex(const char *path, const char *hex)
{
    unsigned char bytes[256];
    size_t count = strlen(hex) / 2;
    ck_assert(count <= sizeof bytes && count * 2 == strlen(hex));
    for (size_t i = 0; i < count; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        char *end;
        bytes[i] = (unsigned char)strtoul(digits, &end, 16);
        ck_assert_ptr_eq(end, digits + 2);
    }
    write_bytes(path, "wb", bytes, count);
}

static void write_zeros(const char *path, json_int_t count)
{
    for (json_int_t i = 0; i < count; i++) write_bytes(path, "ab", "", 1);
}

static void write_header(const char *path, const json_t *change)
{
    const char *header = text_of(change, "header");
    uint64_t length = strlen(header);
    write_bytes(path, "wb", &length, sizeof length);
    write_bytes(path, "ab", header, (size_t)length);
    write_zeros(path, json_integer_value(json_object_get(change, "data")));
}

static void cut(const char *path, json_int_t bytes)
{
    struct stat about;
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_int_eq(truncate(path, about.st_size - bytes), 0);
}

static void change_file(const struct made *made, const json_t *change)
{
    char path[KV_PARAM_BYTES];
    const char *file = text_of(change, "file");
    ck_assert_ptr_nonnull(file);
    snprintf(path, sizeof path, "%s", made_path(made, file));
    bool fresh = !json_object_get(change, "cut") && !json_object_get(change, "append") &&
                 !json_object_get(change, "rename");
    if (fresh) remove(path);
    if (text_of(change, "text"))
        write_text(path, change);
    else if (json_object_get(change, "json"))
        ck_assert_int_eq(json_dump_file(json_object_get(change, "json"), path, JSON_ENCODE_ANY), 0);
    else if (text_of(change, "hex"))
        write_hex(path, text_of(change, "hex"));
    else if (text_of(change, "header"))
        write_header(path, change);
    else if (json_object_get(change, "cut"))
        cut(path, json_integer_value(json_object_get(change, "cut")));
    else if (json_object_get(change, "append"))
        write_zeros(path, json_integer_value(json_object_get(change, "append")));
    else if (text_of(change, "rename"))
        ck_assert_int_eq(rename(path, made_path(made, text_of(change, "rename"))), 0);
    else if (text_of(change, "link"))
        ck_assert_int_eq(symlink(text_of(change, "link"), path), 0);
    else if (json_is_true(json_object_get(change, "folder")))
        ck_assert_int_eq(mkdir(path, 0700), 0);
    else if (json_is_true(json_object_get(change, "pipe")))
        ck_assert_int_eq(mkfifo(path, 0600), 0);
    else
        ck_assert_msg(json_is_true(json_object_get(change, "remove")), "what is to happen to %s?", file);
}

static char *text_or_null(const json_t *json)
{
    return json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;
}

static void make(struct made *made, const json_t *vector)
{
    const json_t *without = json_object_get(vector, "without"), *list = json_object_get(vector, "change");
    char *config = text_or_null(json_object_get(vector, "config"));
    char *index = text_or_null(json_object_get(vector, "index"));
    made_begin(made);
    for (size_t i = 0; i < json_array_size(without); i++)
        ck_assert_int_eq(json_object_del(made->config, json_string_value(json_array_get(without, i))), 0);
    made_config(made, config);
    for (size_t i = 0; i < json_array_size(list); i++)
        made_change(made, json_string_value(json_array_get(list, i)));
    made->index = index;
    ck_assert_msg(!index || made->shards > 0, "an index without shards");
    made_write(made);
    list = json_object_get(vector, "files");
    for (size_t i = 0; i < json_array_size(list); i++) change_file(made, json_array_get(list, i));
    free(config);
    free(index);
}

static double option(const json_t *vector, const char *name, double absent)
{
    const json_t *value = json_object_get(json_object_get(vector, "options"), name);
    return value ? json_number_value(value) : absent;
}

/* All faults at once, or none: what is opened is read to its end, twice, and a fault found again is not
 * listed again. */
static bool read_all(const char *path, struct kv_checkpoint *checkpoint, const struct kv_findings *findings)
{
    bool good = kv_checkpoint_scan(checkpoint);
    int32_t count = findings->count;
    bool again = kv_checkpoint_scan(checkpoint);
    ck_assert_msg(good == (count == 0) && again == good && findings->count == count,
                  "%s: %d findings, and %d once it is read again:%s", path, (int)count, (int)findings->count,
                  made_report(findings));
    return good;
}

static void add_what_the_report_leaves_out(json_t *report, const struct kv_checkpoint *checkpoint,
                                           const struct kv_geometry *geometry)
{
    json_t *shown = json_object_get(json_object_get(report, "model"), "geometry"), *notes = json_array();
    ck_assert_ptr_nonnull(shown);
    json_object_set_new(shown, "positions", json_integer(geometry->positions));
    json_object_set_new(shown, "interleaved", json_boolean(geometry->interleaved));
    json_object_set_new(shown, "k_norm", json_boolean(geometry->k_norm));
    json_object_set_new(shown, "k_bias", json_boolean(geometry->k_bias));
    json_object_set_new(shown, "v_bias", json_boolean(geometry->v_bias));
    json_object_set_new(shown, "value_scale", json_real(kv_real_shorten((double)geometry->value_scale)));
    ck_assert_double_eq_tol(
        (double)geometry->attention_factor,
        json_number_value(
            json_object_get(json_object_get(json_object_get(report, "model"), "rope"), "attention_factor")),
        1e-7);
    int32_t i = 0;
    for (const char *note; (note = kv_checkpoint_note(checkpoint, i)); i++)
        json_array_append_new(notes, json_string(note));
    ck_assert_int_le(i, 16);
    json_object_set_new(report, "notes", notes);
}

json_t *vector_report(const char *path, const json_t *vector)
{
    struct made made;
    struct kv_findings findings;
    struct kv_description description = {.name = "vector"};
    const struct kv_checkpoint_options options = {
        .positions_max = (int64_t)option(vector, "max_position", 0),
        .rope_theta = option(vector, "rope_theta", 0),
        .attention_factor = option(vector, "rope_attention_factor", -1),
    };
    make(&made, vector);
    const char *open = text_of(vector, "open");
    struct kv_checkpoint *checkpoint =
        made_open(open ? made_path(&made, open) : made.folder, &options, &findings);
    bool good = checkpoint && read_all(path, checkpoint, &findings);
    if (good) kv_checkpoint_describe(checkpoint, &description);
    const char *warning[KV_NOTES_MAX + 1]; /* NULL ends them */
    int32_t warnings = 0;
    while (good && (warning[warnings] = kv_checkpoint_warning(checkpoint, warnings)) != NULL) warnings++;
    char *text = kv_check_encode(&description, warning, warnings, findings.item, findings.count);
    json_t *report = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(report);
    if (good) add_what_the_report_leaves_out(report, checkpoint, &description.geometry);
    free(text);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
    return report;
}

static bool alike(const json_t *want, const json_t *got)
{
    if (!json_is_number(want) || !json_is_number(got)) return json_equal(want, got);
    double a = json_number_value(want), b = json_number_value(got);
    return fabs(a - b) <= 1e-12 * fabs(a);
}

bool vector_agrees(const json_t *want, const json_t *got)
{
    if (!json_is_array(want) || !json_is_array(got)) return alike(want, got);
    if (json_array_size(want) != json_array_size(got)) return false;
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!alike(json_array_get(want, i), json_array_get(got, i))) return false;
    return true;
}

bool vector_describes(const json_t *model, const json_t *got)
{
    const char *section, *member;
    json_t *part, *value;
    json_object_foreach((json_t *)model, section, part)
    {
        const json_t *there = json_object_get(got, section);
        if (!json_is_object(part) && !vector_agrees(part, there)) return false;
        json_object_foreach(part, member, value)
        {
            if (!vector_agrees(value, json_object_get(there, member))) return false;
        }
    }
    return true;
}
