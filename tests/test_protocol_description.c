/* /v1/model and the report of --check: their members in order, numbers as people write them, and no hostile
 * name that breaks them. */
#include "protocol/description.h"
#include "tests/suite.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static const float eps[3] = {1e-6f, 1e-5f, 3.5e-7f};
static const struct kv_device_info device = {.kind = "cpu", .name = "A processor", .memory_bytes = 123456789};
static const struct kv_limits limits = {.tokens_max = 16384,
                                        .body_bytes_max = 536870912,
                                        .pool_bytes = UINT64_MAX,
                                        .queue_max = 256,
                                        .batch_tokens_max = 8192,
                                        .connections_max = 512,
                                        .span_tokens_max = 77777,
                                        .idle_seconds = 60,
                                        .upload_seconds = 31,
                                        .reply_seconds = 32,
                                        .device_seconds = 33,
                                        .drain_seconds = 34};

static struct kv_description example(void)
{
    return (struct kv_description){
        .name = "draft",
        .fingerprint = "0123456789abcdef0123456789abcdef",
        .ready = true,
        .geometry = {.layers = 3,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .rotary_dim = 8,
                     .taps = 5,
                     .hidden = 64,
                     .positions = 4096,
                     .dtype = KV_BF16},
        .eps = eps,
        .rope = {"yarn", 1e6, 1.2079441541679836, true, 4096},
        .device = &device,
        .limits = &limits,
    };
}

/* The whole text, because order and form are what is promised. */
START_TEST(a_model_is_described)
{
    struct kv_description description = example();
    char *text = kv_description_encode(&description);
    ck_assert_str_eq(
        text,
        "{\"name\": \"draft\", \"fingerprint\": \"0123456789abcdef0123456789abcdef\", \"ready\": true, "
        "\"dtype\": \"BF16\", \"geometry\": {\"layers\": 3, \"hidden\": 64, \"kv_heads\": 2, \"head_dim\": "
        "16, "
        "\"rotary_dim\": 8, \"taps\": 5}, \"eps\": [1e-6, 1e-5, 3.5e-7], \"rope\": {\"type\": \"yarn\", "
        "\"theta\": 1000000.0, \"attention_factor\": 1.20794415416798, \"interleaved\": true, \"positions\": "
        "4096}, \"device\": {\"kind\": \"cpu\", \"name\": \"A processor\", \"memory_bytes\": 123456789}, "
        "\"limits\": {\"tokens_max\": 16384, \"body_bytes_max\": 536870912, \"pool_bytes\": "
        "9223372036854775807, \"queue_max\": 256, \"batch_tokens_max\": 8192, \"span_tokens_max\": "
        "77777, \"connections_max\": 512, \"idle_seconds\": 60, \"upload_seconds\": 31, \"reply_seconds\": "
        "32, "
        "\"device_seconds\": 33, \"drain_seconds\": 34}}");
    free(text);
}
END_TEST

START_TEST(what_is_not_known_is_left_out)
{
    struct kv_description description = example();
    description.device = NULL;
    description.limits = NULL;
    description.fingerprint = "";
    description.ready = false;
    char *text = kv_description_encode(&description);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(json);
    ck_assert_uint_eq(json_object_size(json), 7);
    ck_assert_str_eq(json_string_value(json_object_get(json, "fingerprint")), "");
    ck_assert(json_is_false(json_object_get(json, "ready")));
    json_decref(json);
    free(text);
}
END_TEST

/* Written and read as float32 again, no eps has changed; and none has more digits than it needs. */
START_TEST(every_eps_comes_back)
{
    enum { COUNT = 400 };
    float many[COUNT];
    for (int i = 0; i < COUNT; i++) many[i] = ldexpf(1.0f + (float)i * 0.0017f, -i % 40);
    struct kv_description description = example();
    description.geometry.layers = COUNT;
    description.eps = many;
    char *text = kv_description_encode(&description);
    json_t *json = json_loads(text, 0, NULL), *array = json_object_get(json, "eps");
    ck_assert_uint_eq(json_array_size(array), COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        double shown = json_real_value(json_array_get(array, i));
        ck_assert((float)shown == many[i]);
        char digits[32];
        snprintf(digits, sizeof digits, "%.9g", shown);
        ck_assert(strtod(digits, NULL) == shown);
    }
    json_decref(json);
    free(text);
}
END_TEST

START_TEST(hostile_names_are_still_json)
{
    struct kv_description description = example();
    struct kv_device_info odd = {.memory_bytes = UINT64_MAX};
    memset(odd.kind, 0xff, sizeof odd.kind - 1);
    memset(odd.name, '\n', sizeof odd.name - 1);
    description.name = "\xff\xfe\"\\\x1b[31m";
    description.device = &odd;
    description.rope.theta = (double)INFINITY;
    description.rope.attention_factor = (double)NAN;
    char *text = kv_description_encode(&description);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(json);
    ck_assert_str_eq(json_string_value(json_object_get(json, "name")), "??\"\\?[31m");
    json_t *rope = json_object_get(json, "rope");
    ck_assert_str_eq(json_string_value(json_object_get(rope, "theta")), "Infinity");
    ck_assert_str_eq(json_string_value(json_object_get(rope, "attention_factor")), "NaN");
    json_decref(json);
    free(text);
}
END_TEST

START_TEST(a_good_checkpoint_is_reported_without_a_device)
{
    struct kv_description description = example();
    const char *const warnings[] = {"one", "tw\"o"};
    char *text = kv_check_encode(&description, warnings, 2, NULL, 0);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(json);
    ck_assert_uint_eq(json_object_size(json), 3);
    ck_assert(json_is_true(json_object_get(json, "ok")));
    const json_t *said = json_object_get(json, "warnings");
    ck_assert_uint_eq(json_array_size(said), 2);
    ck_assert_str_eq(json_string_value(json_array_get(said, 1)), "tw\"o");
    json_t *model = json_object_get(json, "model");
    ck_assert_str_eq(json_string_value(json_object_get(model, "name")), "draft");
    ck_assert_ptr_null(json_object_get(model, "device"));
    json_decref(json);
    free(text);
}
END_TEST

START_TEST(findings_are_reported)
{
    struct kv_finding findings[2] = {{.layer = 3}, {.layer = -1}};
    kv_fail_values(&findings[0].error, KV_HEAD_DIM_MISMATCH, "layers.3.k_norm.weight", kv_integer(128),
                   kv_integer(64), "heads differ");
    kv_fail(&findings[1].error, KV_CONFIG_INVALID, "no object");
    kv_error_hint(&findings[1].error, "look");
    char *text = kv_check_encode(NULL, NULL, 0, findings, 2);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert(json_is_false(json_object_get(json, "ok")));
    json_t *errors = json_object_get(json, "errors"), *first = json_array_get(errors, 0);
    ck_assert_uint_eq(json_array_size(errors), 2);
    static const char *const members[] = {"code", "error", "layer", "tensor", "expected", "got", "hint"};
    size_t at = 0;
    const char *key;
    json_t *value, *second = json_array_get(errors, 1);
    json_object_foreach(first, key, value) ck_assert_str_eq(key, members[at++]);
    ck_assert_uint_eq(at, 7);
    ck_assert_str_eq(json_string_value(json_object_get(first, "code")), "head_dim_mismatch");
    ck_assert_str_eq(json_string_value(json_object_get(first, "error")),
                     "heads differ: expected 128, got 64");
    ck_assert_int_eq(json_integer_value(json_object_get(first, "layer")), 3);
    ck_assert_str_eq(json_string_value(json_object_get(first, "tensor")), "layers.3.k_norm.weight");
    ck_assert_int_eq(json_integer_value(json_object_get(first, "got")), 64);
    ck_assert(json_is_null(json_object_get(second, "layer")) &&
              json_is_null(json_object_get(second, "tensor")));
    ck_assert_str_eq(json_string_value(json_object_get(second, "hint")), "look");
    json_decref(json);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/description");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, a_model_is_described);
    tcase_add_test(tests, what_is_not_known_is_left_out);
    tcase_add_test(tests, every_eps_comes_back);
    tcase_add_test(tests, hostile_names_are_still_json);
    tcase_add_test(tests, a_good_checkpoint_is_reported_without_a_device);
    tcase_add_test(tests, findings_are_reported);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
