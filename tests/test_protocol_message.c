/* Requests: every golden one is taken, every fault is told apart, and always in the same order. Replies are
 * read. */
#include "protocol/message.h"

#include "tests/documents.h"
#include "tests/suite.h"

#include <jansson.h>

static const struct kv_geometry plain = {
    .layers = 3, .kv_heads = 2, .head_dim = 16, .hidden = 4, .positions = 1000, .dtype = KV_BF16};
static const struct kv_geometry fc = {
    .layers = 3, .kv_heads = 2, .head_dim = 16, .hidden = 4, .positions = 1000, .taps = 3, .dtype = KV_F16};
static const struct kv_request_limits limits = {.tokens_max = 8};

#define HIDDEN(name, dtype, shape, offsets)                                                                  \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define GOOD_HIDDEN HIDDEN("hidden_states", "BF16", "[2,4]", "[0,16]")
#define GOOD_POSITIONS HIDDEN("positions", "I64", "[2]", "[16,32]")

/* A body with all data 0, so that positions are in range unless a test writes others. */
static struct bytes body_of(const char *header, size_t data_bytes)
{
    struct bytes body = document_of(header, data_bytes);
    memset(body.data + body.size - data_bytes, 0, data_bytes);
    return body;
}

static struct kv_error refusal_of(const char *header, size_t data_bytes, const struct kv_geometry *geometry)
{
    struct bytes body = body_of(header, data_bytes);
    struct kv_request request;
    struct kv_error err = {0};
    bool taken = kv_request_decode(&request, body.data, body.size, geometry, &limits, &err);
    ck_assert_int_eq(taken, err.fault == KV_OK);
    ck_assert(!kv_request_decode(&request, body.data, body.size, geometry, &limits, NULL) || taken);
    free(body.data);
    return err;
}

static void check_fault(const char *header, size_t data_bytes, const struct kv_geometry *geometry,
                        enum kv_fault wanted, const char *param)
{
    struct kv_error err = refusal_of(header, data_bytes, geometry);
    ck_assert_msg(err.fault == wanted, "%s: %s (%s)", header, kv_fault_info(err.fault)->code, err.message);
    ck_assert_str_eq(err.param, param);
}

static char *config_of(const char *request_path)
{
    char path[512];
    snprintf(path, sizeof path, "%.*s/config.json", (int)(strrchr(request_path, '/') - request_path),
             request_path);
    struct bytes file = file_of(path);
    ck_assert_ptr_nonnull(file.data);
    char *text = allocate(file.size + 1);
    memcpy(text, file.data, file.size);
    text[file.size] = '\0';
    free(file.data);
    return text;
}

START_TEST(golden_requests_are_taken)
{
    glob_t files;
    ck_assert_int_eq(glob("tests/vectors/*/request.safetensors", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 20);
    int targets = 0;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char *text = config_of(files.gl_pathv[i]);
        json_t *config = json_loads(text, 0, NULL);
        struct kv_geometry geometry = plain;
        geometry.hidden = json_integer_value(json_object_get(config, "hidden_size"));
        geometry.positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
        struct bytes body = file_of(files.gl_pathv[i]);
        struct kv_request request;
        struct kv_error err = {0};
        const struct kv_request_limits wide = {.tokens_max = 1000};
        bool taken = kv_request_decode(&request, body.data, body.size, &geometry, &wide, &err);
        if (err.fault == KV_TENSOR_UNEXPECTED) { /* target_hidden: how many taps is not in every config */
            geometry.taps = 5;
            err = (struct kv_error){0};
            taken = kv_request_decode(&request, body.data, body.size, &geometry, &wide, &err);
            ck_assert_int_eq(request.kind, KV_TARGET_HIDDEN);
            targets++;
        }
        ck_assert_msg(taken, "%s: %s", files.gl_pathv[i], err.message);
        ck_assert_int_gt(request.tokens, 0);
        free(body.data);
        free(text);
        json_decref(config);
    }
    ck_assert_int_ge(targets, 1);
    globfree(&files);
}
END_TEST

START_TEST(both_inputs_and_all_dtypes_are_taken)
{
    static const enum kv_dtype hidden[] = {KV_BF16, KV_F16, KV_F32}, positions[] = {KV_I64, KV_I32};
    for (int kind = 0; kind < 2; kind++)
        for (int h = 0; h < 3; h++)
            for (int p = 0; p < 2; p++)
                for (int64_t tokens = 0; tokens <= 8; tokens++) {
                    unsigned char header[512];
                    size_t written = 0;
                    struct kv_error err = {0};
                    ck_assert(kv_request_encode(header, sizeof header, &fc, (enum kv_input_kind)kind,
                                                hidden[h], positions[p], tokens, &written, &err));
                    int64_t columns = kind ? 12 : 4;
                    size_t rows = (size_t)(tokens * columns) * kv_dtype_bytes(hidden[h]);
                    size_t data = rows + (size_t)tokens * kv_dtype_bytes(positions[p]);
                    struct bytes body = {.data = allocate(written + data), .size = written + data};
                    memcpy(body.data, header, written);
                    memset(body.data + written, 0, data);
                    struct kv_request request;
                    ck_assert_msg(kv_request_decode(&request, body.data, body.size, &fc, &limits, &err), "%s",
                                  err.message);
                    ck_assert_int_eq(request.kind, kind);
                    ck_assert_int_eq(request.tokens, tokens);
                    ck_assert_int_eq(request.hidden.dtype, hidden[h]);
                    ck_assert_int_eq(request.hidden.dims[1], columns);
                    ck_assert_ptr_eq(request.hidden.data, body.data + written);
                    ck_assert_ptr_eq(request.positions.data, body.data + written + rows);
                    ck_assert_int_le(tokens, kv_request_tokens_bound(&fc, body.size, limits.tokens_max));
                    free(body.data);
                }
}
END_TEST

START_TEST(tensors_are_told_apart_by_name)
{
    const enum kv_fault missing = KV_TENSOR_MISSING, unexpected = KV_TENSOR_UNEXPECTED;
    check_fault("{}", 0, &plain, missing, "hidden_states");
    check_fault("{" GOOD_HIDDEN "}", 16, &plain, missing, "positions");
    check_fault("{" HIDDEN("positions", "I64", "[2]", "[0,16]") "}", 16, &plain, missing, "hidden_states");
    check_fault("{" GOOD_HIDDEN "," GOOD_POSITIONS "," HIDDEN("x\\u0007y", "U8", "[1]", "[32,33]") "}", 33,
                &plain, unexpected, "x?y");
    check_fault("{" HIDDEN("Hidden_States", "BF16", "[2,4]", "[0,16]") "," GOOD_POSITIONS "}", 32, &plain,
                unexpected, "Hidden_States");
    check_fault("{" HIDDEN("target_hidden", "BF16", "[2,4]", "[0,16]") "," GOOD_POSITIONS "}", 32, &plain,
                unexpected, "target_hidden");
    struct kv_error err = refusal_of("{" HIDDEN("target_hidden", "BF16", "[2,4]", "[0,16]") "}", 16, &plain);
    ck_assert_ptr_nonnull(strstr(err.hint, "hidden_states [T, 4]"));
    check_fault("{" GOOD_HIDDEN "," GOOD_POSITIONS
                "," HIDDEN("target_hidden", "BF16", "[2,12]", "[32,80]") "}",
                80, &fc, unexpected, "target_hidden");
    char name[400], header[1000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", name);
    err = refusal_of(header, 0, &plain);
    ck_assert_int_eq(err.fault, unexpected);
    ck_assert_uint_lt(strlen(err.message), 200);
}
END_TEST

START_TEST(dtypes_are_checked)
{
    static const char *const hidden[] = {"F64", "I32", "F8_E4M3", "U8", "BOOL", "float32"};
    static const char *const positions[] = {"U32", "U64", "F32", "I16", "int64"};
    char header[400];
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        snprintf(header, sizeof header,
                 "{" HIDDEN("hidden_states", "%s", "[0,4]", "[0,0]") "," HIDDEN("positions", "I64", "[0]",
                                                                                "[0,0]") "}",
                 hidden[i]);
        check_fault(header, 0, &plain, KV_DTYPE_UNSUPPORTED, "hidden_states");
        ck_assert_str_eq(refusal_of(header, 0, &plain).got.text, hidden[i]);
    }
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        snprintf(header, sizeof header,
                 "{" HIDDEN("hidden_states", "F16", "[0,4]", "[0,0]") "," HIDDEN("positions", "%s", "[0]",
                                                                                 "[0,0]") "}",
                 positions[i]);
        check_fault(header, 0, &plain, KV_DTYPE_UNSUPPORTED, "positions");
        ck_assert_str_eq(refusal_of(header, 0, &plain).got.text, positions[i]);
    }
}
END_TEST

START_TEST(shapes_are_checked)
{
    static const char *const shapes[] = {"[8]", "[1,2,4]", "[4,2]", "[8,1]", "[1,8]"};
    char header[400];
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        snprintf(header, sizeof header,
                 "{" HIDDEN("hidden_states", "BF16", "%s", "[0,16]") "," GOOD_POSITIONS "}", shapes[i]);
        check_fault(header, 32, &plain, KV_HIDDEN_SHAPE_MISMATCH, "hidden_states");
        struct kv_error err = refusal_of(header, 32, &plain);
        ck_assert(err.expected.rank == 2 && err.expected.shape[0] == -1 && err.expected.shape[1] == 4);
        ck_assert_int_eq(err.got.kind, KV_VALUE_SHAPE);
    }
    check_fault(
        "{" HIDDEN("hidden_states", "BF16", "[]", "[0,2]") "," HIDDEN("positions", "I64", "[]", "[2,10]") "}",
        10, &plain, KV_HIDDEN_SHAPE_MISMATCH, "hidden_states");
    struct kv_error err = refusal_of("{" HIDDEN("hidden_states", "BF16", "[0,12]",
                                                "[0,0]") "," HIDDEN("positions", "I64", "[0]", "[0,0]") "}",
                                     0, &fc);
    ck_assert_int_eq(err.fault, KV_HIDDEN_SHAPE_MISMATCH);
    ck_assert_msg(strstr(err.hint, "target_hidden") != NULL, "%s", err.hint);
    static const char *const positions[] = {"[1,2]", "[2,1]", "[1,1,2]"};
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        snprintf(header, sizeof header, "{" GOOD_HIDDEN "," HIDDEN("positions", "I64", "%s", "[16,32]") "}",
                 positions[i]);
        check_fault(header, 32, &plain, KV_POSITIONS_SHAPE_MISMATCH, "positions");
    }
    err = refusal_of("{" GOOD_HIDDEN "," HIDDEN("positions", "I32", "[3]", "[16,28]") "}", 28, &plain);
    ck_assert_int_eq(err.fault, KV_POSITIONS_SHAPE_MISMATCH);
    ck_assert(err.expected.rank == 1 && err.expected.shape[0] == 2 && err.got.shape[0] == 3);
}
END_TEST

START_TEST(tokens_are_limited)
{
    check_fault("{" HIDDEN("hidden_states", "BF16", "[8,4]", "[0,64]") "," HIDDEN("positions", "I32", "[8]",
                                                                                  "[64,96]") "}",
                96, &plain, KV_OK, "");
    struct kv_error err = refusal_of("{" HIDDEN("hidden_states", "BF16", "[9,4]", "[0,72]") "," HIDDEN(
                                         "positions", "I32", "[9]", "[72,108]") "}",
                                     108, &plain);
    ck_assert_int_eq(err.fault, KV_TOKENS_LIMIT_EXCEEDED);
    ck_assert(err.expected.integer == 8 && err.got.integer == 9);
    ck_assert_ptr_nonnull(strstr(err.message, "9 tokens"));
}
END_TEST

static struct kv_error position_refusal(enum kv_dtype dtype, int64_t at, int64_t value, int64_t bound)
{
    enum { TOKENS = 700 };
    struct kv_geometry geometry = plain;
    geometry.hidden = 1;
    geometry.positions = bound;
    const struct kv_request_limits many = {.tokens_max = TOKENS};
    unsigned char header[512];
    size_t written = 0, step = kv_dtype_bytes(dtype);
    struct kv_error err = {0};
    ck_assert(kv_request_encode(header, sizeof header, &geometry, KV_HIDDEN_STATES, KV_BF16, dtype, TOKENS,
                                &written, &err));
    size_t size = written + TOKENS * (2 + step);
    unsigned char *memory = allocate(size + 1), *body = memory + 1; /* nothing is aligned */
    memset(memory, 0, size + 1);
    memcpy(body, header, written);
    int32_t narrow = (int32_t)value;
    unsigned char *positions = body + written + 2 * TOKENS;
    if (at >= 0)
        memcpy(positions + (size_t)at * step, dtype == KV_I64 ? (void *)&value : (void *)&narrow, step);
    struct kv_request request;
    bool taken = kv_request_decode(&request, body, size, &geometry, &many, &err);
    ck_assert_int_eq(taken, err.fault == KV_OK);
    free(memory);
    return err;
}

START_TEST(positions_are_in_range)
{
    static const struct {
        enum kv_dtype dtype;
        int64_t value, bound;
        bool good;
    } cases[] = {
        {KV_I64, 0, 1, true},
        {KV_I64, 1, 1, false},
        {KV_I64, 999, 1000, true},
        {KV_I64, 1000, 1000, false},
        {KV_I64, -1, 1000, false},
        {KV_I64, INT64_MIN, 1000, false},
        {KV_I64, INT64_MAX, 1000, false},
        {KV_I64, INT64_MAX, INT64_MAX, false},
        {KV_I64, INT64_MAX - 1, INT64_MAX, true},
        {KV_I64, (int64_t)1 << 32, 1000, false},
        {KV_I32, 999, 1000, true},
        {KV_I32, 1000, 1000, false},
        {KV_I32, -1, 1000, false},
        {KV_I32, INT32_MIN, 1000, false},
        {KV_I32, INT32_MAX, 1000, false},
        {KV_I32, INT32_MAX, (int64_t)1 << 31, true},
        {KV_I32, -1, (int64_t)1 << 33, false},
    };
    static const int64_t places[] = {0, 1, 255, 256, 511, 699};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            struct kv_error err = position_refusal(cases[i].dtype, places[p], cases[i].value, cases[i].bound);
            if (cases[i].good) {
                ck_assert_msg(err.fault == KV_OK, "%s", err.message);
                continue;
            }
            char sentence[KV_MESSAGE_BYTES];
            snprintf(sentence, sizeof sentence,
                     "positions[%lld] is out of range: expected 0 to %lld, got %lld", (long long)places[p],
                     (long long)cases[i].bound - 1, (long long)cases[i].value);
            ck_assert_int_eq(err.fault, KV_POSITION_OUT_OF_RANGE);
            ck_assert_str_eq(err.message, sentence);
            ck_assert(err.got.integer == cases[i].value);
        }
}
END_TEST

/* A body with several faults is refused for the first in the order that message.c promises. */
START_TEST(the_order_of_checks_is_fixed)
{
    const char *all = "{" HIDDEN("hidden_states", "F64", "[9,3]", "[0,216]") "," HIDDEN(
        "positions", "U8", "[7]", "[216,223]") "," HIDDEN("x", "U8", "[1]", "[223,224]") "}";
    check_fault(all, 223, &plain, KV_SIZE_MISMATCH, "");
    check_fault(all, 224, &plain, KV_TENSOR_UNEXPECTED, "x");
    check_fault("{" HIDDEN("hidden_states", "F64", "[9,3]", "[0,216]") "}", 216, &plain, KV_TENSOR_MISSING,
                "positions");
    check_fault("{" HIDDEN("hidden_states", "F64", "[9,3]", "[0,216]") "," HIDDEN("positions", "U8", "[7]",
                                                                                  "[216,223]") "}",
                223, &plain, KV_DTYPE_UNSUPPORTED, "hidden_states");
    check_fault("{" HIDDEN("hidden_states", "BF16", "[9,3]", "[0,54]") "," HIDDEN("positions", "U8", "[7]",
                                                                                  "[54,61]") "}",
                61, &plain, KV_DTYPE_UNSUPPORTED, "positions");
    check_fault("{" HIDDEN("hidden_states", "BF16", "[9,3]", "[0,54]") "," HIDDEN("positions", "I32", "[7]",
                                                                                  "[54,82]") "}",
                82, &plain, KV_HIDDEN_SHAPE_MISMATCH, "hidden_states");
    check_fault("{" HIDDEN("hidden_states", "BF16", "[9,4]", "[0,72]") "," HIDDEN("positions", "I32", "[7]",
                                                                                  "[72,100]") "}",
                100, &plain, KV_POSITIONS_SHAPE_MISMATCH, "positions");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/message");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, golden_requests_are_taken);
    tcase_add_test(tests, both_inputs_and_all_dtypes_are_taken);
    tcase_add_test(tests, tensors_are_told_apart_by_name);
    tcase_add_test(tests, dtypes_are_checked);
    tcase_add_test(tests, shapes_are_checked);
    tcase_add_test(tests, tokens_are_limited);
    tcase_add_test(tests, positions_are_in_range);
    tcase_add_test(tests, the_order_of_checks_is_fixed);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
