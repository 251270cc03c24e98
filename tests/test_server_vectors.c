/* Every refusal at load and every odd spelling that is read, as data: one check for each file of
 * tests/vectors/refused/ and tests/vectors/accepted/. vector.h says what is in them. */
#include "tests/suite.h"
#include "tests/vector.h"

#include "protocol/error.h"

#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MIN = 80, FILES_MAX = 1000 };

static glob_t refused, accepted;

/* What can be wrong with a checkpoint. */
static const enum kv_fault load_faults[] = {KV_MODEL_NOT_FOUND,          KV_CONFIG_MISSING_KEY,
                                            KV_CONFIG_INVALID,           KV_ROPE_TYPE_UNSUPPORTED,
                                            KV_ROPE_CONFIG_MISMATCH,     KV_ROTARY_DIM_INVALID,
                                            KV_HEAD_DIM_MISMATCH,        KV_NUM_KV_HEADS_MISMATCH,
                                            KV_K_NORM_SHAPE_MISMATCH,    KV_EPS_INVALID,
                                            KV_WEIGHTS_SHAPE_MISMATCH,   KV_WEIGHTS_MISSING_TENSOR,
                                            KV_WEIGHTS_DUPLICATE_TENSOR, KV_WEIGHTS_DTYPE_UNSUPPORTED,
                                            KV_WEIGHTS_QUANTIZED,        KV_WEIGHTS_NOT_FINITE,
                                            KV_SAFETENSORS_MALFORMED,    KV_ARCHITECTURE_UNSUPPORTED};

static const char *text_of(const json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));
    return text ? text : "";
}

static void complain(const char *path, const char *what, const json_t *vector, const json_t *report)
{
    char *shown = json_dumps(report, JSON_INDENT(1));
    ck_abort_msg("%s: %s: %s\nwhat came out: %s", path, text_of(vector, "why"), what, shown);
}

/* Is this finding the one that is wanted? */
static bool is(const json_t *want, const json_t *finding)
{
    static const char *const values[] = {"code", "layer", "tensor", "expected", "got"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const json_t *value = json_object_get(want, values[i]);
        if (value && !vector_agrees(value, json_object_get(finding, values[i]))) return false;
    }
    return strstr(text_of(finding, "error"), text_of(want, "says")) &&
           strstr(text_of(finding, "hint"), text_of(want, "hint"));
}

/* What is wrong with a file as such has nothing to compare: its sentence says all. */
static bool is_of_a_file(const json_t *finding)
{
    const char *at = text_of(finding, "tensor");
    return strstr(at, ".json") || strstr(at, ".safetensors") || strcmp(at, "--model") == 0;
}

static void compare_errors(const char *path, const json_t *vector, const json_t *report)
{
    const json_t *wanted = json_object_get(vector, "errors"), *found = json_object_get(report, "errors");
    char what[1024];
    bool taken[FILES_MAX] = {false};
    for (size_t i = 0; i < json_array_size(found); i++) {
        const json_t *finding = json_array_get(found, i);
        if (!text_of(finding, "error")[0] || !text_of(finding, "hint")[0] || !text_of(finding, "tensor")[0])
            complain(path, "a finding does not say what is wrong, where, or what to do", vector, report);
        if (!is_of_a_file(finding) && json_is_null(json_object_get(finding, "expected")) &&
            json_is_null(json_object_get(finding, "got")))
            complain(path, "a finding says neither what was expected nor what was found", vector, report);
    }
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const json_t *want = json_array_get(wanted, i);
        size_t k = 0;
        if (kv_fault_find(text_of(want, "code")) == KV_OK)
            complain(path, "wants an unknown code", vector, report);
        while (k < json_array_size(found) && (taken[k] || !is(want, json_array_get(found, k)))) k++;
        if (k < json_array_size(found)) {
            taken[k] = true;
            continue;
        }
        snprintf(what, sizeof what, "not found: %s", json_dumps(want, 0));
        complain(path, what, vector, report);
    }
    if (json_array_size(found) != json_array_size(wanted)) {
        snprintf(what, sizeof what, "%d findings, not %d", (int)json_array_size(found),
                 (int)json_array_size(wanted));
        complain(path, what, vector, report);
    }
}

START_TEST(is_refused)
{
    const char *path = refused.gl_pathv[_i];
    json_t *vector = vector_read(path), *report = vector_report(path, vector);
    if (json_is_true(json_object_get(report, "ok"))) complain(path, "accepted", vector, report);
    compare_errors(path, vector, report);
    json_decref(report);
    json_decref(vector);
}
END_TEST

static void compare_notes(const char *path, const json_t *vector, const json_t *report)
{
    const json_t *wanted = json_object_get(vector, "notes"), *said = json_object_get(report, "notes");
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const char *words = json_string_value(json_array_get(wanted, i));
        size_t k = 0;
        while (k < json_array_size(said) && !strstr(json_string_value(json_array_get(said, k)), words)) k++;
        if (k == json_array_size(said)) complain(path, words, vector, report);
    }
}

/* In order, each with its words; none that is not wanted. */
static void compare_warnings(const char *path, const json_t *vector, const json_t *report)
{
    const json_t *wanted = json_object_get(vector, "warnings"), *said = json_object_get(report, "warnings");
    bool alike = json_is_array(said) && json_array_size(wanted) == json_array_size(said);
    for (size_t i = 0; alike && i < json_array_size(said); i++)
        alike =
            strstr(json_string_value(json_array_get(said, i)), json_string_value(json_array_get(wanted, i)));
    if (!alike) complain(path, "other warnings", vector, report);
}

static void compare_fingerprints(const char *path, const json_t *vector, const json_t *report)
{
    char other_path[512];
    const char *name = text_of(vector, "same_as");
    if (!name[0]) return;
    snprintf(other_path, sizeof other_path, "tests/vectors/accepted/%.200s.json", name);
    json_t *other = vector_read(other_path), *other_report = vector_report(other_path, other);
    const json_t *want = json_object_get(json_object_get(other_report, "model"), "fingerprint");
    const json_t *got = json_object_get(json_object_get(report, "model"), "fingerprint");
    if (strlen(json_string_value(got)) != 32 || !json_equal(want, got)) {
        char what[512];
        snprintf(what, sizeof what, "gives other K and V than %.200s, of fingerprint %.40s", name,
                 json_string_value(want));
        complain(path, what, vector, report);
    }
    json_decref(other_report);
    json_decref(other);
}

START_TEST(is_accepted)
{
    const char *path = accepted.gl_pathv[_i];
    json_t *vector = vector_read(path), *report = vector_report(path, vector);
    if (!json_is_true(json_object_get(report, "ok"))) complain(path, "refused", vector, report);
    const json_t *model = json_object_get(vector, "model");
    if (model && !vector_describes(model, json_object_get(report, "model"))) {
        char what[1024];
        snprintf(what, sizeof what, "not as wanted: %.900s", json_dumps(model, 0));
        complain(path, what, vector, report);
    }
    compare_notes(path, vector, report);
    compare_warnings(path, vector, report);
    compare_fingerprints(path, vector, report);
    json_decref(report);
    json_decref(vector);
}
END_TEST

START_TEST(every_fault_has_a_vector)
{
    bool seen[KV_FAULT_COUNT] = {false};
    for (size_t i = 0; i < refused.gl_pathc; i++) {
        json_t *vector = vector_read(refused.gl_pathv[i]);
        const json_t *errors = json_object_get(vector, "errors");
        for (size_t k = 0; k < json_array_size(errors); k++)
            seen[kv_fault_find(text_of(json_array_get(errors, k), "code"))] = true;
        json_decref(vector);
    }
    for (size_t i = 0; i < sizeof load_faults / sizeof load_faults[0]; i++)
        ck_assert_msg(seen[load_faults[i]], "no vector is refused as %s",
                      kv_fault_info(load_faults[i])->code);
}
END_TEST

START_TEST(there_are_many_vectors)
{
    ck_assert_uint_ge(refused.gl_pathc, FILES_MIN);
    ck_assert_uint_ge(accepted.gl_pathc, FILES_MIN);
}
END_TEST

int main(void)
{
    glob("tests/vectors/refused/*", 0, NULL, &refused);
    glob("tests/vectors/accepted/*", 0, NULL, &accepted);
    Suite *suite = suite_create("vectors");
    TCase *tests = tcase_create("vectors");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, is_refused, 0, (int)refused.gl_pathc);
    tcase_add_loop_test(tests, is_accepted, 0, (int)accepted.gl_pathc);
    tcase_add_test(tests, every_fault_has_a_vector);
    tcase_add_test(tests, there_are_many_vectors);
    suite_add_tcase(suite, tests);
    int status = suite_run(suite);
    globfree(&refused);
    globfree(&accepted);
    return status;
}
