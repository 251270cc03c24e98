/* Every rule of the container, for messages and for files; what is written can be read; the golden files are
 * read. */
#include "protocol/safetensors.h"

#include "tests/documents.h"
#include "tests/suite.h"

#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define TENSOR(name, dtype, shape, offsets) "\"" name "\":" ENTRY(dtype, shape, offsets)

/* Parses as a request or as a file and gives the fault. */
static enum kv_fault fault_of_bytes(struct bytes body, enum kv_document_kind kind)
{
    struct kv_document document;
    struct kv_error err = {0};
    bool opened = kv_document_open(&document, body.data, body.size, kind, &err);
    ck_assert_int_eq(opened, err.fault == KV_OK);
    if (!opened) {
        char printable[KV_MESSAGE_BYTES];
        ck_assert(err.message[0] != '\0');
        ck_assert_str_eq(kv_text_print(err.message, printable, sizeof printable), err.message);
        ck_assert_ptr_null(document.tensors);
        ck_assert_ptr_null(document.json);
    }
    kv_document_close(&document);
    return err.fault;
}

static enum kv_fault fault_of(const char *header, size_t data_bytes, enum kv_document_kind kind)
{
    struct bytes body = document_of(header, data_bytes);
    enum kv_fault fault = fault_of_bytes(body, kind);
    free(body.data);
    return fault;
}

/* In a file every fault is one; in a request there are a few. */
static void check_refused(const char *header, size_t data_bytes, enum kv_fault in_request)
{
    enum kv_fault request = fault_of(header, data_bytes, KV_DOCUMENT_REQUEST);
    enum kv_fault file = fault_of(header, data_bytes, KV_DOCUMENT_FILE);
    ck_assert_msg(request == in_request, "%.200s: %s", header, kv_fault_info(request)->code);
    ck_assert_msg(file == KV_SAFETENSORS_MALFORMED, "%.200s: %s", header, kv_fault_info(file)->code);
}

static void check_taken(const char *header, size_t data_bytes)
{
    enum kv_fault request = fault_of(header, data_bytes, KV_DOCUMENT_REQUEST);
    enum kv_fault file = fault_of(header, data_bytes, KV_DOCUMENT_FILE);
    ck_assert_msg(request == KV_OK, "%.200s: %s", header, kv_fault_info(request)->code);
    ck_assert_msg(file == KV_OK, "%.200s: %s", header, kv_fault_info(file)->code);
}

START_TEST(valid_documents_are_taken)
{
    check_taken("{}", 0);
    check_taken("{}\r \t\n", 0);
    check_taken(" \n\t{}", 0);
    check_taken("{" TENSOR("test", "I32", "[2,2]", "[0,16]") "}", 16);
    check_taken("{" TENSOR("test", "I32", "[2,0]", "[0,0]") "}", 0);
    check_taken("{" TENSOR("scalar", "F64", "[]", "[0,8]") "}", 8);
    check_taken("{" TENSOR("", "U8", "[1]", "[0,1]") "}", 1);
    check_taken("{" TENSOR("zero", "F32", "[0,4611686018427387904,4]", "[0,0]") "}", 0);
    check_taken("{" TENSOR("r8", "U8", "[1,1,1,1,1,1,1,2]", "[0,2]") "}", 2);
    check_taken("{" TENSOR("half", "F4", "[4]", "[0,2]") "," TENSOR("six", "F6_E2M3", "[4]", "[2,5]") "}", 5);
    check_taken("{\"__metadata__\":{}," TENSOR("a", "BOOL", "[3]", "[0,3]") "}", 3);
    check_taken("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}}", 0);
    /* any order in the header, and tensors without bytes anywhere */
    check_taken("{" TENSOR("b", "U8", "[2]", "[1,3]") "," TENSOR("a", "U8", "[1]", "[0,1]") "}", 3);
    check_taken("{" TENSOR("c", "U8", "[0]", "[1,1]") "," TENSOR("b", "U8", "[2]", "[1,3]") "," TENSOR(
                    "a", "U8", "[1]", "[0,1]") "," TENSOR("d", "U8", "[0]", "[3,3]") "}",
                3);
    check_taken("{" TENSOR("m", "U8", "[-0]", "[-0,0]") "}", 0);
}
END_TEST

START_TEST(a_document_is_more_than_its_prefix)
{
    for (size_t size = 0; size <= 8; size++) {
        struct bytes body = {.data = allocate(size), .size = size};
        memset(body.data, 0, size);
        ck_assert_int_eq(fault_of_bytes(body, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
        ck_assert_int_eq(fault_of_bytes(body, KV_DOCUMENT_FILE), KV_SAFETENSORS_MALFORMED);
        free(body.data);
    }
}
END_TEST

static enum kv_fault fault_of_prefix(uint64_t length, uint64_t bytes, enum kv_document_kind kind)
{
    unsigned char prefix[8];
    uint64_t header_bytes = 99;
    struct kv_error err = {0};
    memcpy(prefix, &length, sizeof prefix);
    if (kv_document_prefix(prefix, bytes, kind, &header_bytes, &err))
        ck_assert_uint_eq(header_bytes, length);
    else
        ck_assert_uint_eq(header_bytes, 99);
    return err.fault;
}

START_TEST(header_lengths_are_bounded)
{
    const uint64_t request = KV_HEADER_BYTES_MAX_REQUEST, file = KV_HEADER_BYTES_MAX_FILE;
    ck_assert_int_eq(fault_of_prefix(request, request + 8, KV_DOCUMENT_REQUEST), KV_OK);
    ck_assert_int_eq(fault_of_prefix(request, request + 7, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
    ck_assert_int_eq(fault_of_prefix(request + 1, UINT64_MAX, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
    ck_assert_int_eq(fault_of_prefix(file, file + 8, KV_DOCUMENT_FILE), KV_OK);
    ck_assert_int_eq(fault_of_prefix(file, file + 7, KV_DOCUMENT_FILE), KV_SAFETENSORS_MALFORMED);
    ck_assert_int_eq(fault_of_prefix(file + 1, UINT64_MAX, KV_DOCUMENT_FILE), KV_SAFETENSORS_MALFORMED);
    static const uint64_t huge[] = {UINT64_MAX,        UINT64_MAX - 7,      UINT64_MAX - 8,
                                    (uint64_t)1 << 63, 0xffffff0000000000u, 0x7fffffffffffffffu};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        ck_assert_int_eq(fault_of_prefix(huge[i], UINT64_MAX, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
        ck_assert_int_eq(fault_of_prefix(huge[i], 8, KV_DOCUMENT_FILE), KV_SAFETENSORS_MALFORMED);
    }
}
END_TEST

START_TEST(plain_json_is_recognised)
{
    static const char body[] = "{\"hidden_states\": [[1.0]]}";
    struct kv_document document;
    struct kv_error err = {0};
    ck_assert(!kv_document_open(&document, body, sizeof body - 1, KV_DOCUMENT_REQUEST, &err));
    ck_assert_int_eq(err.fault, KV_BODY_MALFORMED);
    ck_assert_msg(strstr(err.hint, "JSON") != NULL, "%s", err.hint);
}
END_TEST

START_TEST(headers_that_are_no_json_are_refused)
{
    static const char *const headers[] = {"",
                                          " ",
                                          "\xff",
                                          "{",
                                          "}",
                                          "[]",
                                          "[{}]",
                                          "1",
                                          "\"a\"",
                                          "null",
                                          "{}x",
                                          "{}{}",
                                          "{} ,",
                                          "{},",
                                          "{\"a\"}",
                                          "{\"a\":}",
                                          "{\"a\":1,}",
                                          "{'a':1}",
                                          "{a:1}",
                                          "\xef\xbb\xbf{}",
                                          "{}/**/",
                                          "{\"\xc0\xaf\":1}",
                                          "{\"a\\u0000\":1}",
                                          "{\"\\ud800\":1}",
                                          "{\"\t\":1}",
                                          "{\"a\":01}",
                                          "{\"a\":NaN}",
                                          "{\"a\":1e400}",
                                          "{\"a\":\"\\u0000\"}"};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        check_refused(headers[i], 0, KV_BODY_MALFORMED);
    struct bytes body = document_of_bytes("{}\0", 3, 0);
    ck_assert_int_eq(fault_of_bytes(body, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
    free(body.data);
}
END_TEST

START_TEST(entries_of_another_form_are_refused)
{
    static const char *const headers[] = {
        "{\"a\":null}",
        "{\"a\":[]}",
        "{\"a\":{}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}",
        "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}",
        "{\"a\":{\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":null,\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{" TENSOR("a", "U8", "0", "[0,0]") "}",
        "{" TENSOR("a", "U8", "{}", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[\"0\"]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[null]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[0.0]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[1e3]", "[0,1000]") "}",
        "{" TENSOR("a", "U8", "[-1]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[0,-9223372036854775808]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[0,9223372036854775808]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[2,18446744073709551614]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[0,[]]", "[0,0]") "}",
        "{" TENSOR("a", "U8", "[0]", "[]") "}",
        "{" TENSOR("a", "U8", "[0]", "[0]") "}",
        "{" TENSOR("a", "U8", "[0]", "[0,0,0]") "}",
        "{" TENSOR("a", "U8", "[0]", "0") "}",
        "{" TENSOR("a", "U8", "[0]", "{\"0\":0,\"1\":0}") "}",
        "{" TENSOR("a", "U8", "[0]", "[0.0,0]") "}",
        "{" TENSOR("a", "U8", "[0]", "[0,0e0]") "}",
        "{" TENSOR("a", "U8", "[0]", "[-1,-1]") "}",
        "{" TENSOR("a", "U8", "[0]", "[0,9223372036854775808]") "}",
        "{" TENSOR("a", "U8", "[0]", "[1,0]") "}",
        "{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,0]", "[0,0]") "}", /* rank 9 */
        "{\"__metadata__\":null}",
        "{\"__metadata__\":[]}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":{\"a\":\"x\",\"b\":null}}",
        "{\"__metadata__\":{\"a\":{}}}",
        "{" TENSOR("__metadata__", "U8", "[0]", "[0,0]") "}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        check_refused(headers[i], 0, KV_BODY_MALFORMED);
}
END_TEST

START_TEST(names_are_there_once)
{
    check_refused("{" TENSOR("a", "U8", "[0]", "[0,0]") "," TENSOR("a", "U8", "[0]", "[0,0]") "}", 0,
                  KV_BODY_MALFORMED);
    check_refused("{" TENSOR("a", "U8", "[0]", "[0,0]") "," TENSOR("\\u0061", "U8", "[0]", "[0,0]") "}", 0,
                  KV_BODY_MALFORMED);
    check_refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                  KV_BODY_MALFORMED);
    check_refused("{\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"2\"}}", 0, KV_BODY_MALFORMED);
    check_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, KV_BODY_MALFORMED);
}
END_TEST

START_TEST(unknown_members_are_refused_in_messages_only)
{
    static const char *const headers[] = {
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"note\":\"x\"}}",
        "{\"a\":{\"note\":{\"deep\":[1.5,null]},\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
    };
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(fault_of(headers[i], 0, KV_DOCUMENT_REQUEST), KV_BODY_MALFORMED);
        ck_assert_int_eq(fault_of(headers[i], 0, KV_DOCUMENT_FILE), KV_OK);
    }
}
END_TEST

START_TEST(dtypes_outside_the_format_are_refused)
{
    check_refused("{" TENSOR("a", "bfloat16", "[0]", "[0,0]") "}", 0, KV_DTYPE_UNSUPPORTED);
    check_refused("{" TENSOR("a", "bf16", "[0]", "[0,0]") "}", 0, KV_DTYPE_UNSUPPORTED);
    check_refused("{" TENSOR("a", "", "[0]", "[0,0]") "}", 0, KV_DTYPE_UNSUPPORTED);
}
END_TEST

START_TEST(sizes_must_fit)
{
    static const struct {
        const char *header;
        size_t data_bytes;
    } cases[] = {
        {"{" TENSOR("t", "I32", "[2,2]", "[0,4]") "}", 4},
        {"{" TENSOR("t", "I32", "[2,2]", "[0,17]") "}", 17},
        {"{" TENSOR("t", "I32", "[2,2]", "[0,0]") "}", 0},
        {"{" TENSOR("t", "F32", "[4611686018427387904,4,0]", "[0,0]") "}", 0}, /* overflows, then a zero */
        {"{" TENSOR("t", "I32", "[2,9223372036854775807]", "[0,16]") "}", 16},
        {"{" TENSOR("t", "U8", "[2305843009213693952]", "[0,2305843009213693952]") "}", 16},
        {"{" TENSOR("t", "F4", "[3]", "[0,1]") "}", 1},
        {"{" TENSOR("t", "F4", "[3]", "[0,2]") "}", 2},
        {"{" TENSOR("t", "F6_E3M2", "[2]", "[0,1]") "}", 1},
        {"{" TENSOR("t", "U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 1},
        /* the tensor is right and the document is cut, or has more */
        {"{" TENSOR("test", "I32", "[2,2]", "[0,16]") "}", 14},
        {"{" TENSOR("test", "I32", "[2,2]", "[0,16]") "}", 21},
        {"{" TENSOR("test", "I32", "[2,2]", "[0,16]") "}", 0},
        {"{}", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(cases[i].header, cases[i].data_bytes, KV_SIZE_MISMATCH);
}
END_TEST

START_TEST(the_data_is_covered_exactly_once)
{
    check_refused("{" TENSOR("a", "U8", "[1]", "[1,2]") "}", 2, KV_BODY_MALFORMED);
    check_refused("{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("b", "U8", "[1]", "[2,3]") "}", 3,
                  KV_BODY_MALFORMED);
    check_refused("{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}", 3,
                  KV_BODY_MALFORMED);
    check_refused("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[0]", "[2,2]") "}", 4,
                  KV_BODY_MALFORMED); /* a tensor without bytes inside another */
    check_refused("{" TENSOR("a", "U8", "[0]", "[1,1]") "}", 1, KV_BODY_MALFORMED);
    check_refused("{" TENSOR("a", "U8", "[0]", "[9223372036854775807,9223372036854775807]") "}", 0,
                  KV_BODY_MALFORMED);
    char header[1024] = "{";
    for (int i = 0; i < 10; i++)
        snprintf(header + strlen(header), sizeof header - strlen(header), "\"t%d\":%s%s", i,
                 ENTRY("I32", "[2,2]", "[0,16]"), i < 9 ? "," : "}");
    check_refused(header, 16, KV_BODY_MALFORMED);
}
END_TEST

/* A header of `count` pieces between `open` and `close`; separated by commas. */
static struct bytes repeated(const char *open, const char *piece, size_t count, const char *close)
{
    size_t step = strlen(piece) + 1, bytes = strlen(open) + count * step + strlen(close);
    char *header = allocate(bytes + 1), *end = header;
    end = stpcpy(end, open);
    for (size_t i = 0; i < count; i++) {
        if (i) *end++ = ',';
        end = stpcpy(end, piece);
    }
    end = stpcpy(end, close);
    struct bytes body = document_of_bytes(header, (size_t)(end - header), 0);
    free(header);
    return body;
}

static void check_repeated(const char *open, const char *piece, size_t count, const char *close,
                           enum kv_document_kind kind, enum kv_fault wanted)
{
    struct bytes body = repeated(open, piece, count, close);
    ck_assert_int_eq(fault_of_bytes(body, kind), wanted);
    free(body.data);
}

START_TEST(deep_headers_are_refused_before_they_are_parsed)
{
    char *deep = allocate(60001);
    memset(deep, '[', 60000);
    deep[60000] = '\0';
    check_refused(deep, 0, KV_BODY_MALFORMED);
    for (size_t i = 0; i + 5 <= 60000; i += 5) memcpy(deep + i, "{\"\":[", 5);
    check_refused(deep, 0, KV_BODY_MALFORMED);
    free(deep);
    /* brackets in strings are text, also after an escaped quote or backslash */
    check_taken("{\"__metadata__\":{\"[[[[[[[[[[[[\\\"[[[[\\\\\":\"{{{{{{{{{{{{{{{{{\"}}", 0);
    check_refused("{\"a\\\\\":[[[[[[[[[[", 0, KV_BODY_MALFORMED);
}
END_TEST

START_TEST(wide_headers_are_refused_before_they_are_parsed)
{
    check_repeated("{\"a\":[", "{}", 20000, "]}", KV_DOCUMENT_REQUEST, KV_BODY_MALFORMED);
    check_repeated("{\"a\":[", "0", 20000, "]}", KV_DOCUMENT_REQUEST, KV_BODY_MALFORMED);
    check_repeated("[", "{}", 33 * 1000 * 1000, "]", KV_DOCUMENT_FILE, KV_SAFETENSORS_MALFORMED);
    check_repeated("{\"a\":[", "0", 49 * 1000 * 1000, "]}", KV_DOCUMENT_FILE, KV_SAFETENSORS_MALFORMED);
}
END_TEST

START_TEST(tensors_are_counted)
{
    for (int count = 64; count <= 65; count++) {
        char header[8192] = "{\"__metadata__\":{},";
        for (int i = 1; i <= count; i++)
            snprintf(header + strlen(header), sizeof header - strlen(header), "\"t%d\":%s%s", i,
                     ENTRY("U8", "[0]", "[0,0]"), i < count ? "," : "}");
        ck_assert_int_eq(fault_of(header, 0, KV_DOCUMENT_REQUEST), count <= 64 ? KV_OK : KV_BODY_MALFORMED);
        ck_assert_int_eq(fault_of(header, 0, KV_DOCUMENT_FILE), KV_OK);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/safetensors");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, valid_documents_are_taken);
    tcase_add_test(tests, a_document_is_more_than_its_prefix);
    tcase_add_test(tests, header_lengths_are_bounded);
    tcase_add_test(tests, plain_json_is_recognised);
    tcase_add_test(tests, headers_that_are_no_json_are_refused);
    tcase_add_test(tests, entries_of_another_form_are_refused);
    tcase_add_test(tests, names_are_there_once);
    tcase_add_test(tests, unknown_members_are_refused_in_messages_only);
    tcase_add_test(tests, dtypes_outside_the_format_are_refused);
    tcase_add_test(tests, sizes_must_fit);
    tcase_add_test(tests, the_data_is_covered_exactly_once);
    tcase_add_test(tests, deep_headers_are_refused_before_they_are_parsed);
    tcase_add_test(tests, wide_headers_are_refused_before_they_are_parsed);
    tcase_add_test(tests, tensors_are_counted);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
