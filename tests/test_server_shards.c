/* Folders, files and indexes: what is missing, broken, cut short or leads elsewhere is named, and nothing
 * crashes. */
#include "tests/checkpoint_maker.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define K1 "layers.1.self_attn.k_proj.weight"
#define V1 "layers.1.self_attn.v_proj.weight"
#define SHARD(n) "model-0000" #n "-of-00003.safetensors"

static struct made made;
static struct kv_findings findings;

static void begin(const char *commands)
{
    made_begin(&made);
    made_change(&made, commands);
}

/* Opens what was written: this code (and param) must be among its findings, of which there are `count` (0:
 * any). */
static void refuses(const char *code, const char *param, int32_t count)
{
    ck_assert_ptr_null(made_open(made.folder, NULL, &findings));
    bool found = false;
    for (int32_t i = 0; i < findings.count; i++)
        found |= strcmp(kv_fault_info(findings.item[i].error.fault)->code, code) == 0 &&
                 strcmp(findings.item[i].error.param, param) == 0;
    ck_assert_msg(found, "no %s for %s among:%s", code, param, made_report(&findings));
    ck_assert_msg(count == 0 || count == findings.count, "not %d:%s", (int)count, made_report(&findings));
}

static void end(void)
{
    kv_findings_free(&findings);
    made_end(&made);
}

static void accepts(void)
{
    struct kv_checkpoint *checkpoint = made_open(made.folder, NULL, &findings);
    ck_assert_msg(checkpoint != NULL, "%s", made_report(&findings));
    ck_assert_msg(kv_checkpoint_scan(checkpoint), "%s", made_report(&findings));
    kv_checkpoint_close(checkpoint);
}

START_TEST(folders_must_hold_a_model)
{
    begin(NULL);
    made_write(&made);
    char folder[64];
    memcpy(folder, made.folder, sizeof folder);
    ck_assert_ptr_null(made_open("/tmp/kvmat-test-no-such-folder", NULL, &findings));
    ck_assert_ptr_nonnull(made_found(&findings, "model_not_found", -1));
    ck_assert_int_eq(findings.count, 1);
    kv_findings_free(&findings);
    ck_assert_ptr_null(made_open(made_path(&made, "config.json"), NULL, &findings));
    ck_assert_ptr_nonnull(made_found(&findings, "model_not_found", -1));
    ck_assert_ptr_nonnull(strstr(findings.item[0].error.hint, "folder"));
    kv_findings_free(&findings);
    ck_assert_int_eq(unlink(made_path(&made, "model.safetensors")), 0);
    refuses("model_not_found", "model.safetensors", 1);
    kv_findings_free(&findings);
    ck_assert_int_eq(unlink(made_path(&made, "config.json")), 0);
    refuses("model_not_found", "config.json", 2);
    end();
}
END_TEST

START_TEST(files_must_be_regular)
{
    begin(NULL);
    made_write(&made);
    ck_assert_int_eq(unlink(made_path(&made, "config.json")), 0);
    ck_assert_int_eq(mkfifo(made_path(&made, "config.json"), 0600), 0);
    ck_assert_int_eq(unlink(made_path(&made, "model.safetensors")), 0);
    ck_assert_int_eq(mkfifo(made_path(&made, "model.safetensors"), 0600), 0);
    refuses("config_invalid", "config.json", 2);
    kv_findings_free(&findings);
    refuses("safetensors_malformed", "model.safetensors", 2);
    end();
}
END_TEST

START_TEST(links_are_followed_and_may_not_dangle)
{
    char target[KV_PARAM_BYTES];
    begin(NULL);
    made_write(&made);
    snprintf(target, sizeof target, "%s", made_path(&made, "blob"));
    ck_assert_int_eq(rename(made_path(&made, "model.safetensors"), target), 0);
    ck_assert_int_eq(symlink("blob", made_path(&made, "model.safetensors")), 0);
    accepts();
    kv_findings_free(&findings);
    ck_assert_int_eq(unlink(target), 0);
    refuses("model_not_found", "model.safetensors", 1);
    ck_assert_ptr_nonnull(strstr(findings.item[0].error.message, "link to nothing"));
    end();
}
END_TEST

/* What the file is turned into, and a word of the message. */
static const struct {
    const char *text;
    int64_t change; /* of the file's length, where text is NULL */
    const char *says;
} broken[] = {
    {"", 0, "8 bytes"},
    {"1234567", 0, "8 bytes"},
    {"{\"a\": 1}            ", 0, "long"},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", 0, "long"},
    {"\x02\x01\x01\x01\x01\x01\x01\x01{}", 0, "long"},
    {NULL, -1, "more bytes than the document has"},
    {NULL, -9000, "more bytes than the document has"},
    {NULL, 1, "fewer bytes than the document has"},
};

START_TEST(broken_files_are_named)
{
    begin(NULL);
    made_write(&made);
    const char *path = made_path(&made, "model.safetensors");
    if (broken[_i].text) {
        made_text(&made, "model.safetensors", broken[_i].text);
    } else {
        struct stat about;
        ck_assert_int_eq(stat(path, &about), 0);
        ck_assert_int_eq(truncate(path, about.st_size + broken[_i].change), 0);
    }
    refuses("safetensors_malformed", "model.safetensors", 1);
    ck_assert_msg(strstr(findings.item[0].error.message, broken[_i].says) != NULL, "%s",
                  made_report(&findings));
    ck_assert_ptr_nonnull(strstr(findings.item[0].error.message, "model.safetensors"));
    if (broken[_i].text && broken[_i].text[0] == 'v')
        ck_assert_ptr_nonnull(strstr(findings.item[0].error.hint, "git lfs pull"));
    end();
}
END_TEST

START_TEST(a_file_cut_short_after_opening_is_an_error)
{
    begin(NULL);
    struct kv_checkpoint *checkpoint = made_open(made_write(&made), NULL, &findings);
    ck_assert_ptr_nonnull(checkpoint);
    ck_assert_int_eq(truncate(made_path(&made, "model.safetensors"), 5000), 0);
    ck_assert(!kv_checkpoint_scan(checkpoint));
    const struct kv_finding *finding = made_found(&findings, "safetensors_malformed", -2);
    ck_assert(finding && strcmp(finding->error.param, "model.safetensors") == 0);
    kv_checkpoint_close(checkpoint);
    end();
}
END_TEST

static const char sharded[] = "shard " K1 " 1; shard " V1 " 2; shard norm.weight 2";

START_TEST(shards_must_be_there_and_sound)
{
    begin(sharded);
    made_write(&made);
    accepts();
    kv_findings_free(&findings);
    made_text(&made, SHARD(3), "x");
    refuses("safetensors_malformed", SHARD(3), 1);
    kv_findings_free(&findings);
    ck_assert_int_eq(unlink(made_path(&made, SHARD(3))), 0);
    refuses("weights_missing_tensor", SHARD(3), 1);
    end();
}
END_TEST

START_TEST(a_shard_without_needed_tensors_must_be_there_too)
{
    begin("shard norm.weight 2; shard " K1 " 1");
    made_write(&made);
    ck_assert_int_eq(unlink(made_path(&made, SHARD(3))), 0);
    refuses("weights_missing_tensor", SHARD(3), 1);
    end();
}
END_TEST

static const struct {
    const char *commands, *index;
    const char *code, *param;
} indexes[] = {
    {sharded, "{\"weight_map\": {\"" K1 "\": \"../" SHARD(2) "\"}}", "config_invalid", K1},
    {sharded, "{\"weight_map\": {\"" K1 "\": \"/etc/hostname\"}}", "config_invalid", K1},
    {sharded, "{\"weight_map\": {\"" K1 "\": \"a/../../b\"}}", "config_invalid", K1},
    {sharded, "{\"weight_map\": {\"" K1 "\": \"..\"}}", "config_invalid", K1},
    {sharded, "{\"weight_map\": {\"" K1 "\": \"\"}}", "config_invalid", K1},
    {sharded, "{\"weight_map\": {\"" K1 "\": 3}}", "config_invalid", "weight_map." K1},
    {sharded, "{\"weight_map\": []}", "config_invalid", "weight_map"},
    {sharded, "{\"weight_map\": null}", "config_invalid", "weight_map"},
    {sharded, "{\"weight_map\": {\"" K1 "\": \"" SHARD(3) "\"}}", "weights_missing_tensor", K1},
    {sharded, "{\"weight_map\": {\"layers.1.self_attn.k_proj.bias\": \"" SHARD(1) "\"}}",
     "weights_missing_tensor", "layers.1.self_attn.k_proj.bias"},
    {sharded, "{\"weight_map\": {\"fc.weight\": \"" SHARD(1) "\"}}", "weights_missing_tensor", "fc.weight"},
    {"shard " K1 " 1; shard " V1 " 2; add " K1 " BF16 32,32", NULL, "weights_duplicate_tensor", K1},
    {"shard " K1 " 1; shard " V1 " 2; add model." K1 " BF16 32,32", NULL, "weights_duplicate_tensor", K1},
    {"shard " K1 " 1; drop " V1, NULL, "weights_missing_tensor", V1},
};

START_TEST(indexes_are_checked)
{
    begin(indexes[_i].commands);
    made.index = indexes[_i].index;
    made_write(&made);
    refuses(indexes[_i].code, indexes[_i].param, 0);
    for (int32_t i = 0; i < findings.count; i++)
        ck_assert_msg(strcmp(kv_fault_info(findings.item[i].error.fault)->code, indexes[_i].code) == 0, "%s",
                      made_report(&findings));
    end();
}
END_TEST

START_TEST(an_index_that_is_no_json_is_refused)
{
    begin(sharded);
    made_write(&made);
    made_text(&made, "model.safetensors.index.json", "{\"weight_map\": ");
    refuses("config_invalid", "model.safetensors.index.json", 1);
    end();
}
END_TEST

START_TEST(one_file_goes_before_an_index)
{
    begin(NULL);
    made_write(&made);
    made_text(&made, "model.safetensors.index.json", "no JSON");
    accepts();
    end();
}
END_TEST

START_TEST(an_index_may_list_what_is_not_needed)
{
    begin(sharded);
    made.index = "{\"weight_map\": {\"lm_head.weight\": \"" SHARD(1) "\"}, \"more\": 1}";
    made_write(&made);
    accepts();
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shards");
    TCase *tests = tcase_create("shards");
    tcase_add_test(tests, folders_must_hold_a_model);
    tcase_add_test(tests, files_must_be_regular);
    tcase_add_test(tests, links_are_followed_and_may_not_dangle);
    tcase_add_loop_test(tests, broken_files_are_named, 0, (int)(sizeof broken / sizeof broken[0]));
    tcase_add_test(tests, a_file_cut_short_after_opening_is_an_error);
    tcase_add_test(tests, shards_must_be_there_and_sound);
    tcase_add_test(tests, a_shard_without_needed_tensors_must_be_there_too);
    tcase_add_loop_test(tests, indexes_are_checked, 0, (int)(sizeof indexes / sizeof indexes[0]));
    tcase_add_test(tests, an_index_that_is_no_json_is_refused);
    tcase_add_test(tests, one_file_goes_before_an_index);
    tcase_add_test(tests, an_index_may_list_what_is_not_needed);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
