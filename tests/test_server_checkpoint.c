/* Checkpoints as wholes: every golden folder opens with the geometry that its case.json says, and a file that
 * changes while it is read is an error. What is refused and accepted is in tests/vectors/. */
#include "tests/checkpoint_maker.h"
#include "tests/suite.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char vectors[] = "tests/vectors";

static int64_t number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    ck_assert_msg(json_is_integer(value), "case.json has no %s", key);
    return json_integer_value(value);
}

static void check_golden(const char *name)
{
    char path[512];
    struct kv_findings findings;
    struct kv_description got = {0};
    snprintf(path, sizeof path, "%s/%.100s/case.json", vectors, name);
    json_t *want = json_load_file(path, 0, NULL);
    ck_assert_msg(want != NULL, "%s", path);
    snprintf(path, sizeof path, "%s/%.100s", vectors, name);
    struct kv_checkpoint *checkpoint = made_open(path, NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s:%s", name, made_report(&findings));
    ck_assert_msg(kv_checkpoint_scan(checkpoint), "%s:%s", name, made_report(&findings));
    kv_checkpoint_describe(checkpoint, &got);
    const json_t *rope = json_object_get(want, "rope");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    ck_assert_int_eq(got.geometry.layers, number(want, "L"));
    ck_assert_int_eq(got.geometry.hidden, number(want, "H"));
    ck_assert_int_eq(got.geometry.kv_heads, number(want, "Hkv"));
    ck_assert_int_eq(got.geometry.head_dim, number(want, "D"));
    ck_assert_int_eq(got.geometry.rotary_dim, number(want, "rotary_dim"));
    ck_assert_int_eq(got.geometry.k_norm, json_is_true(json_object_get(want, "k_norm")));
    ck_assert_int_eq(got.geometry.k_bias, json_is_true(json_object_get(want, "bias")));
    ck_assert_int_eq(got.geometry.v_bias, json_is_true(json_object_get(want, "bias")));
    ck_assert_int_eq(got.geometry.interleaved, json_is_true(json_object_get(want, "interleaved")));
    ck_assert_double_eq(got.rope.attention_factor,
                        json_number_value(json_object_get(want, "attention_scaling")));
    ck_assert_double_eq(got.rope.theta, json_number_value(json_object_get(rope, "rope_theta")));
    ck_assert_str_eq(got.rope.type, type);
    ck_assert_int_eq((int)got.geometry.dtype, (int)(strstr(name, "fp16") ? KV_F16 : KV_BF16));
    ck_assert_int_eq(got.geometry.taps, strstr(name, "target_hidden") ? 5 : 0);
    ck_assert_float_eq(got.geometry.value_scale, strstr(name, "mimo") ? 0.612F : 1);
    ck_assert_float_eq(got.eps[got.geometry.layers - 1],
                       strstr(name, "mimo") || strstr(name, "gpt_oss") ? 1e-5F : 1e-6F);
    ck_assert_uint_eq(strlen(got.fingerprint), 32);
    json_decref(want);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
}

START_TEST(goldens_open_as_their_cases_say)
{
    int32_t count = 0;
    DIR *folder = opendir(vectors);
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%.200s/case.json", vectors, entry->d_name);
        if (access(path, R_OK) != 0) continue;
        check_golden(entry->d_name);
        count++;
    }
    closedir(folder);
    ck_assert_int_ge(count, 26);
}
END_TEST

START_TEST(a_file_cut_short_after_opening_is_an_error)
{
    struct made made;
    struct kv_findings findings;
    made_begin(&made);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_ptr_nonnull(checkpoint);
    ck_assert_int_eq(truncate(made_path(&made, "model.safetensors"), 5000), 0);
    ck_assert(!kv_checkpoint_scan(checkpoint));
    const struct kv_finding *finding = made_found(&findings, "safetensors_malformed", -2);
    ck_assert(finding && strcmp(finding->error.param, "model.safetensors") == 0);
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    made_end(&made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *tests = tcase_create("checkpoint");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, goldens_open_as_their_cases_say);
    tcase_add_test(tests, a_file_cut_short_after_opening_is_an_error);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
