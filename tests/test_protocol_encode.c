/* What a caller and the service write: requests that can be decoded, replies that can be read, sizes. */
#include "protocol/message.h"
#include "tests/suite.h"

static const struct kv_geometry plain = {
    .layers = 3, .kv_heads = 2, .head_dim = 16, .hidden = 4, .positions = 1000, .dtype = KV_BF16};
static const struct kv_geometry fc = {
    .layers = 3, .kv_heads = 2, .head_dim = 16, .hidden = 4, .positions = 1000, .taps = 3, .dtype = KV_F16};

START_TEST(tokens_are_bounded_by_the_bytes)
{
    ck_assert_int_eq(kv_request_tokens_bound(&plain, 0, 8), 0);
    ck_assert_int_eq(kv_request_tokens_bound(&plain, 8 + 11, 8), 0);
    ck_assert_int_eq(kv_request_tokens_bound(&plain, 8 + 12, 8), 1); /* 4 BF16 and an I32 */
    ck_assert_int_eq(kv_request_tokens_bound(&plain, 8 + 12 * 7 + 11, 8), 7);
    ck_assert_int_eq(kv_request_tokens_bound(&plain, 1 << 20, 8), 8);
    ck_assert_int_eq(kv_request_tokens_bound(&plain, UINT64_MAX, 8), 8);
}
END_TEST

START_TEST(impossible_requests_are_not_written)
{
    char header[512];
    size_t written = 0;
    struct kv_error err = {0};
    ck_assert(!kv_request_encode(header, sizeof header, &plain, KV_TARGET_HIDDEN, KV_BF16, KV_I64, 1,
                                 &written, &err));
    ck_assert_int_eq(err.fault, KV_TENSOR_UNEXPECTED);
    err = (struct kv_error){0};
    ck_assert(!kv_request_encode(header, sizeof header, &plain, KV_HIDDEN_STATES, KV_F64, KV_I64, 1, &written,
                                 &err));
    ck_assert_int_eq(err.fault, KV_DTYPE_UNSUPPORTED);
    err = (struct kv_error){0};
    ck_assert(!kv_request_encode(header, sizeof header, &plain, KV_HIDDEN_STATES, KV_F32, KV_U32, 1, &written,
                                 &err));
    ck_assert_int_eq(err.fault, KV_DTYPE_UNSUPPORTED);
    err = (struct kv_error){0};
    ck_assert(!kv_request_encode(header, sizeof header, &plain, KV_HIDDEN_STATES, KV_F32, KV_I32, -1,
                                 &written, &err));
    ck_assert_int_eq(err.fault, KV_INTERNAL);
}
END_TEST

static void check_reply(const struct kv_geometry *geometry, int64_t tokens, const char *model,
                        const char *shown)
{
    char header[KV_REPLY_HEADER_BYTES_MAX], id[KV_REQUEST_ID_BYTES];
    memset(id, 'i', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    size_t written = 0;
    struct kv_error err = {0};
    const char *fingerprint = "0123456789abcdef0123456789abcdef";
    ck_assert_msg(
        kv_reply_encode(header, sizeof header, geometry, tokens, model, fingerprint, id, &written, &err),
        "%s", err.message);
    ck_assert_uint_eq(written % KV_DATA_ALIGNMENT, 0);
    uint64_t part = kv_reply_part_bytes(geometry, tokens);
    ck_assert_uint_eq(part,
                      2 * (uint64_t)(tokens * geometry->layers * geometry->kv_heads * geometry->head_dim));
    struct kv_document document;
    ck_assert_msg(
        kv_document_parse(&document, header + 8, written - 8, written + 2 * part, KV_DOCUMENT_REQUEST, &err),
        "%s", err.message);
    ck_assert_int_eq(document.count, 2);
    const struct kv_tensor *k = kv_document_find(&document, "k"), *v = kv_document_find(&document, "v");
    const int64_t dims[4] = {geometry->layers, tokens, geometry->kv_heads, geometry->head_dim};
    ck_assert(k && v && k->begin == 0 && k->end == part && v->begin == part && v->end == 2 * part);
    ck_assert(k->rank == 4 && v->rank == 4 && k->dtype == geometry->dtype && v->dtype == geometry->dtype);
    ck_assert(memcmp(k->dims, dims, sizeof dims) == 0 && memcmp(v->dims, dims, sizeof dims) == 0);
    if (shown) ck_assert_str_eq(kv_document_metadata(&document, "model"), shown);
    ck_assert_str_eq(kv_document_metadata(&document, "fingerprint"), fingerprint);
    ck_assert_str_eq(kv_document_metadata(&document, "request_id"), id);
    kv_document_close(&document);
}

START_TEST(replies_are_read)
{
    check_reply(&plain, 0, "m", "m");
    check_reply(&plain, 17, "a \"name\" \\ \xc3\xa9", "a \"name\" \\ \xc3\xa9");
    check_reply(&fc, 1, "bad \xff name\n", "bad ? name?");
    struct kv_geometry big = {.layers = 64, .kv_heads = 1024, .head_dim = 1024, .dtype = KV_BF16};
    char model[600];
    memset(model, '"', sizeof model - 1); /* each is two bytes in JSON */
    model[sizeof model - 1] = '\0';
    check_reply(&big, (int64_t)1 << 31, model, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/encode");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, tokens_are_bounded_by_the_bytes);
    tcase_add_test(tests, impossible_requests_are_not_written);
    tcase_add_test(tests, replies_are_read);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
