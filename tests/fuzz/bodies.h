/* What must hold of a safetensors document and of a request, for any bytes at all: bodies of the fuzz target
 * and of the mutation test. Knows nothing of who makes the bytes. */
#ifndef KV_TESTS_FUZZ_BODIES_H
#define KV_TESTS_FUZZ_BODIES_H

#include "protocol/message.h"
#include "tests/fuzz/promise.h"

/* A refusal has a fault of the right kind, a printable sentence, and a JSON form. */
static inline void fuzz_refusal(const struct kv_error *err, bool request)
{
    char printable[KV_MESSAGE_BYTES];
    enum kv_class kind = kv_fault_info(err->fault)->kind;
    FUZZ_CHECK(err->fault != KV_OK);
    FUZZ_CHECK(request ? kind == KV_CLASS_CALLER || kind == KV_CLASS_LARGE
                       : err->fault == KV_SAFETENSORS_MALFORMED);
    FUZZ_CHECK(err->message[0] != '\0');
    FUZZ_CHECK(strcmp(kv_text_print(err->message, printable, sizeof printable), err->message) == 0);
    char *json = kv_error_encode(err, 400, "Bad Request", NULL);
    FUZZ_CHECK(json != NULL);
    free(json);
}

/* A document that was taken covers its data exactly once, in order, with sizes that fit. */
static inline void fuzz_layout(const struct kv_document *document, size_t size)
{
    uint64_t end = 0, bytes = 0;
    for (int32_t i = 0; i < document->count; i++) {
        const struct kv_tensor *tensor = &document->tensors[i];
        FUZZ_CHECK(tensor->begin == end && tensor->end >= end);
        FUZZ_CHECK(kv_tensor_bytes(tensor->dtype, tensor->rank, tensor->dims, &bytes));
        FUZZ_CHECK(bytes == tensor->end - tensor->begin);
        FUZZ_CHECK(kv_document_find(document, tensor->name) == tensor);
        end = tensor->end;
    }
    FUZZ_CHECK(document->data_bytes == end);
    FUZZ_CHECK(8 + document->header_bytes + end == size);
}

/* Written again, it says the same. */
static inline void fuzz_rewrite(const struct kv_document *document)
{
    enum { CAPACITY = 1 << 20 };
    static unsigned char header[CAPACITY];
    struct kv_entry entries[KV_TENSORS_MAX_REQUEST];
    size_t written = 0;
    struct kv_error err = {0};
    struct kv_document again;
    for (int32_t i = 0; i < document->count; i++) {
        const struct kv_tensor *tensor = &document->tensors[i];
        entries[i] = (struct kv_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
        memcpy(entries[i].dims, tensor->dims, sizeof entries[i].dims);
        if (tensor->name[0] == '\0') return; /* may be read, is not written */
    }
    FUZZ_CHECK(kv_document_encode(header, CAPACITY, entries, document->count, NULL, 0, &written, NULL, &err));
    FUZZ_CHECK(written % KV_DATA_ALIGNMENT == 0);
    FUZZ_CHECK(kv_document_parse(&again, header + 8, written - 8, written + document->data_bytes,
                                 KV_DOCUMENT_FILE, &err));
    FUZZ_CHECK(again.count == document->count);
    for (int32_t i = 0; i < again.count; i++) {
        const struct kv_tensor *tensor = kv_document_find(&again, document->tensors[i].name);
        FUZZ_CHECK(tensor && tensor->begin == document->tensors[i].begin);
    }
    kv_document_close(&again);
}

static inline void fuzz_safetensors(const uint8_t *data, size_t size)
{
    struct kv_document document;
    struct kv_error err = {0};
    bool taken = kv_document_open(&document, data, size, KV_DOCUMENT_REQUEST, &err);
    if (taken) {
        fuzz_layout(&document, size);
        fuzz_rewrite(&document);
    } else {
        fuzz_refusal(&err, true);
    }
    kv_document_close(&document);
    err = (struct kv_error){0};
    bool file = kv_document_open(&document, data, size, KV_DOCUMENT_FILE, &err);
    FUZZ_CHECK(file || !taken); /* a file may do all that a message may */
    if (file)
        fuzz_layout(&document, size);
    else
        fuzz_refusal(&err, false);
    kv_document_close(&document);
}

/* A request that was taken keeps its promises to the code that only asserts. */
static inline void fuzz_request_with(const uint8_t *data, size_t size, const struct kv_geometry *geometry)
{
    const struct kv_request_limits limits = {.tokens_max = 64};
    struct kv_request request;
    struct kv_error err = {0};
    if (!kv_request_decode(&request, data, size, geometry, &limits, &err)) {
        fuzz_refusal(&err, true);
        return;
    }
    bool target = request.kind == KV_TARGET_HIDDEN;
    int64_t columns = target ? geometry->taps * geometry->hidden : geometry->hidden;
    const uint8_t *hidden = request.hidden.data, *positions = request.positions.data;
    FUZZ_CHECK(request.tokens >= 0 && request.tokens <= limits.tokens_max);
    FUZZ_CHECK(request.tokens <= kv_request_tokens_bound(geometry, size, limits.tokens_max));
    FUZZ_CHECK(request.hidden.rank == 2 && request.hidden.dims[1] == columns);
    FUZZ_CHECK(request.hidden.bytes ==
               (uint64_t)(request.tokens * columns) * kv_dtype_bytes(request.hidden.dtype));
    FUZZ_CHECK(hidden >= data + 8 && hidden + request.hidden.bytes <= data + size);
    FUZZ_CHECK(positions >= data + 8 && positions + request.positions.bytes <= data + size);
    for (int64_t t = 0; t < request.tokens; t++) {
        int64_t wide = 0;
        int32_t narrow = 0;
        if (request.positions.dtype == KV_I64)
            memcpy(&wide, positions + 8 * t, sizeof wide);
        else
            memcpy(&narrow, positions + 4 * t, sizeof narrow);
        FUZZ_CHECK(wide >= 0 && wide < geometry->positions && narrow >= 0 && narrow < geometry->positions);
    }
}

/* With the columns that the golden requests have, so that a change elsewhere is what decides. */
static inline void fuzz_request(const uint8_t *data, size_t size)
{
    static const struct kv_geometry plain = {
        .layers = 2, .kv_heads = 2, .head_dim = 16, .hidden = 32, .positions = 4096, .dtype = KV_BF16};
    static const struct kv_geometry taps = {.layers = 2,
                                            .kv_heads = 2,
                                            .head_dim = 16,
                                            .hidden = 32,
                                            .positions = 4096,
                                            .taps = 5,
                                            .dtype = KV_F16};
    fuzz_request_with(data, size, &plain);
    fuzz_request_with(data, size, &taps);
}

#endif
