/* Documents: tensors found and seen, written and read again, the golden files, and what a refusal shows. */
#include "protocol/safetensors.h"

#include "tests/documents.h"
#include "tests/suite.h"

START_TEST(tensors_are_found_and_seen)
{
    static const char header[] = "{\"__metadata__\":{\"model\":\"m\"},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},"
                                 "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]}}";
    struct bytes body = document_of(header, 6);
    struct kv_document document;
    struct kv_error err = {0};
    ck_assert(kv_document_open(&document, body.data, body.size, KV_DOCUMENT_REQUEST, &err));
    ck_assert_int_eq(document.count, 2);
    ck_assert_uint_eq(document.data_bytes, 6);
    ck_assert_str_eq(document.tensors[0].name, "a");
    ck_assert_ptr_null(kv_document_find(&document, "c"));
    ck_assert_str_eq(kv_document_metadata(&document, "model"), "m");
    ck_assert_ptr_null(kv_document_metadata(&document, "other"));
    const struct kv_tensor *tensor = kv_document_find(&document, "b");
    ck_assert_ptr_nonnull(tensor);
    struct kv_view view = kv_document_view(&document, tensor, body.data);
    ck_assert_uint_eq(view.bytes, 2);
    ck_assert_int_eq(view.dtype, KV_U8);
    ck_assert_int_eq(view.rank, 1);
    ck_assert_int_eq(view.dims[0], 2);
    ck_assert_mem_eq(view.data, "\4\5", 2);
    kv_document_close(&document);
    kv_document_close(&document); /* a closed one is fine */
    ck_assert_ptr_null(kv_document_metadata(&document, "model"));
    free(body.data);
}
END_TEST

/* Names with every printable trouble, dims with zeros, sub-byte dtypes. */
static void random_entries(uint64_t *state, struct kv_entry *entries, char (*names)[32], int32_t count)
{
    static const char *const odd[] = {"\"", "\\",   "/",        "\xc3\xa9", "\xf0\x9f\x98\x80",
                                      " ",  "\x01", "layers.0."};
    for (int32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%d%s", odd[random_below(state, 8)], i,
                 odd[random_below(state, 8)]);
        uint64_t bytes;
        do {
            entries[i] = (struct kv_entry){.name = names[i],
                                           .dtype = (enum kv_dtype)random_below(state, KV_DTYPE_COUNT),
                                           .rank = (int32_t)random_below(state, KV_RANK_MAX + 1)};
            for (int32_t d = 0; d < entries[i].rank; d++)
                entries[i].dims[d] = (int64_t)random_below(state, 4);
        } while (!kv_tensor_bytes(entries[i].dtype, entries[i].rank, entries[i].dims, &bytes));
    }
}

static void check_same(const struct kv_document *document, const struct kv_entry *entries, int32_t count)
{
    uint64_t end = 0;
    ck_assert_int_eq(document->count, count);
    for (int32_t i = 0; i < count; i++) {
        const struct kv_tensor *tensor = kv_document_find(document, entries[i].name);
        if (!tensor || tensor->dtype != entries[i].dtype || tensor->rank != entries[i].rank ||
            memcmp(tensor->dims, entries[i].dims, sizeof tensor->dims) != 0 || tensor->begin != end)
            ck_abort_msg("tensor %d came back changed", i);
        end = tensor->end;
    }
    ck_assert_uint_eq(end, document->data_bytes);
}

START_TEST(what_is_written_is_read)
{
    static const struct kv_pair metadata[] = {{"model", "a \"b\" \xc3\xa9"}, {"none", NULL}, {"empty", ""}};
    uint64_t state = 8600;
    for (int round = 0; round < 2000; round++) {
        struct kv_entry entries[20];
        char names[20][32], buffer[16384];
        int32_t count = (int32_t)random_below(&state, 21);
        random_entries(&state, entries, names, count);
        size_t written = 0;
        uint64_t data_bytes = 0;
        struct kv_error err = {0};
        ck_assert_msg(kv_document_encode(buffer, sizeof buffer, entries, count, metadata, 3, &written,
                                         &data_bytes, &err),
                      "%s", err.message);
        ck_assert_uint_eq(written % KV_DATA_ALIGNMENT, 0);
        struct bytes body = {.data = allocate(written + data_bytes), .size = written + data_bytes};
        memcpy(body.data, buffer, written);
        memset(body.data + written, 0, data_bytes);
        struct kv_document document;
        ck_assert_msg(kv_document_open(&document, body.data, body.size, KV_DOCUMENT_REQUEST, &err), "%s",
                      err.message);
        ck_assert_uint_eq(8 + document.header_bytes, written);
        ck_assert_uint_eq(document.data_bytes, data_bytes);
        ck_assert_str_eq(kv_document_metadata(&document, "model"), "a \"b\" \xc3\xa9");
        ck_assert_str_eq(kv_document_metadata(&document, "empty"), "");
        ck_assert_ptr_null(kv_document_metadata(&document, "none"));
        check_same(&document, entries, count);
        kv_document_close(&document);
        free(body.data);
    }
}
END_TEST

static bool encodes(const struct kv_entry *entries, int32_t count, const struct kv_pair *metadata,
                    int32_t pairs)
{
    char buffer[4096];
    size_t written = 0;
    struct kv_error err = {0};
    bool done =
        kv_document_encode(buffer, sizeof buffer, entries, count, metadata, pairs, &written, NULL, &err);
    ck_assert_int_eq(err.fault, done ? KV_OK : KV_INTERNAL);
    return done;
}

START_TEST(what_cannot_be_read_is_not_written)
{
    const struct kv_entry good = {.name = "a", .dtype = KV_U8, .rank = 1, .dims = {3}};
    struct kv_entry entries[2] = {good, good};
    ck_assert(!encodes(entries, 2, NULL, 0)); /* one name twice */
    entries[1].name = "b";
    ck_assert(encodes(entries, 2, NULL, 0));
    static const char *const names[] = {"", "__metadata__", "\xff"};
    for (size_t i = 0; i < 3; i++) {
        entries[1].name = names[i];
        ck_assert(!encodes(entries, 2, NULL, 0));
    }
    entries[1].name = "b";
    entries[1].dims[0] = -1;
    ck_assert(!encodes(entries, 2, NULL, 0));
    entries[1].rank = KV_RANK_MAX + 1;
    ck_assert(!encodes(entries, 2, NULL, 0));
    entries[1] = (struct kv_entry){.name = "b", .dtype = KV_F4, .rank = 1, .dims = {1}}; /* half a byte */
    ck_assert(!encodes(entries, 2, NULL, 0));
    ck_assert(encodes(&good, 1, (const struct kv_pair[]){{"a", "1"}, {"b", "2"}}, 2));
    ck_assert(!encodes(&good, 1, (const struct kv_pair[]){{"a", "1"}, {"a", "2"}}, 2));
    ck_assert(!encodes(&good, 1, (const struct kv_pair[]){{"a", "\xc3"}}, 1));
}
END_TEST

START_TEST(sums_that_overflow_are_not_written)
{
    struct kv_entry entries[5];
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < 5; i++)
        entries[i] =
            (struct kv_entry){.name = names[i], .dtype = KV_U8, .rank = 1, .dims = {((int64_t)1 << 61) - 1}};
    ck_assert(encodes(entries, 4, NULL, 0)); /* 2^63 - 4 bytes */
    ck_assert(!encodes(entries, 5, NULL, 0));
    entries[4].dims[0] = 3;
    ck_assert(encodes(entries, 5, NULL, 0));
    entries[4].dims[0] = 4;
    ck_assert(!encodes(entries, 5, NULL, 0));
}
END_TEST

/* Every capacity under the one that is needed fails and writes nothing past itself. */
START_TEST(capacities_are_kept)
{
    const struct kv_entry entry = {.name = "abc", .dtype = KV_BF16, .rank = 4, .dims = {5, 17, 8, 128}};
    for (size_t capacity = 0; capacity <= 192; capacity++) {
        unsigned char *buffer = allocate(capacity);
        size_t written = 0;
        bool done = kv_document_encode(buffer, capacity, &entry, 1, NULL, 0, &written, NULL, NULL);
        if (done != (capacity >= 128)) ck_abort_msg("capacity %zu", capacity);
        if (done) ck_assert_uint_eq(written, 128);
        free(buffer);
    }
}
END_TEST

START_TEST(refusals_are_printable)
{
    static const char *const headers[] = {
        "{\"\\u001b[31m\\u202e\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,0]}}",
        "{\"\x1b[31m\xff\n\":",
    };
    for (size_t i = 0; i < 2; i++) {
        char printable[KV_MESSAGE_BYTES];
        struct bytes body = document_of(headers[i], 0);
        struct kv_document document;
        struct kv_error err = {0};
        ck_assert(!kv_document_open(&document, body.data, body.size, KV_DOCUMENT_REQUEST, &err));
        ck_assert_str_eq(kv_text_print(err.message, printable, sizeof printable), err.message);
        if (i == 0) ck_assert_str_eq(err.param, "?[31m?");
        free(body.data);
    }
}
END_TEST

START_TEST(golden_files_are_read)
{
    glob_t files;
    ck_assert_int_eq(glob("tests/vectors/*/*.safetensors", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 70);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct bytes body = file_of(files.gl_pathv[i]);
        ck_assert_ptr_nonnull(body.data);
        struct kv_document document;
        struct kv_error err = {0};
        ck_assert_msg(kv_document_open(&document, body.data, body.size, KV_DOCUMENT_FILE, &err), "%s: %s",
                      files.gl_pathv[i], err.message);
        ck_assert_int_gt(document.count, 0);
        kv_document_close(&document);
        struct bytes cut = {.data = allocate(body.size - 1), .size = body.size - 1};
        memcpy(cut.data, body.data, cut.size);
        ck_assert(!kv_document_open(&document, cut.data, cut.size, KV_DOCUMENT_FILE, &err));
        ck_assert_int_eq(err.fault, KV_SAFETENSORS_MALFORMED);
        free(cut.data);
        free(body.data);
    }
    globfree(&files);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol/document");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, tensors_are_found_and_seen);
    tcase_add_test(tests, what_is_written_is_read);
    tcase_add_test(tests, what_cannot_be_read_is_not_written);
    tcase_add_test(tests, sums_that_overflow_are_not_written);
    tcase_add_test(tests, capacities_are_kept);
    tcase_add_test(tests, refusals_are_printable);
    tcase_add_test(tests, golden_files_are_read);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
