/* The safetensors container: an 8-byte little-endian header length, a JSON header, dense little-endian bytes.
 * Weights, requests and replies are all such documents. Knows no tensor's meaning. The JSON library
 * stays inside this room's .c files. */
#ifndef KV_PROTOCOL_SAFETENSORS_H
#define KV_PROTOCOL_SAFETENSORS_H

#include "protocol/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_DOCUMENT_PREFIX_BYTES = 8, KV_DATA_ALIGNMENT = 64 };

/* How a header is read. */
enum kv_document_kind {
    KV_DOCUMENT_REQUEST, /* a message: at most 64 KiB of header, 64 tensors, no unknown members;
                            body_malformed */
    KV_DOCUMENT_FILE /* a file: at most 100 MB of header, unknown members ignored; safetensors_malformed */
};
enum { KV_HEADER_BYTES_MAX_REQUEST = 64 * 1024, KV_HEADER_BYTES_MAX_FILE = 100 * 1000 * 1000 };
enum { KV_TENSORS_MAX_REQUEST = 64, KV_TENSORS_MAX_FILE = 256 * 1000 };

struct kv_tensor {
    const char *name; /* owned by the document; valid UTF-8 without NUL */
    enum kv_dtype dtype;
    int32_t rank;
    int64_t dims[KV_RANK_MAX];
    uint64_t begin, end; /* bytes, from the end of the header; end - begin fits dtype and dims exactly */
};

/* A parsed header. Tensors are sorted by `begin`, without holes or overlaps, from 0 to data_bytes. */
struct kv_document {
    uint64_t header_bytes; /* N of the format, without the 8 bytes of the prefix */
    uint64_t data_bytes;
    int32_t count;
    struct kv_tensor *tensors; /* [count] */
    void *json;                /* private: owns the names */
};

/* Reads the prefix: *header_bytes is N. Fails when `bytes` (of the whole document) is under 8, N is over the
 * kind's limit, or 8 + N > bytes. */
bool kv_document_prefix(const void *prefix /* [8] */, uint64_t bytes, enum kv_document_kind kind,
                        uint64_t *header_bytes, struct kv_error *err) KV_MUST_CHECK;

/* Parses the N header bytes (not the prefix) of a document that is `document_bytes` long in all, and checks
 * every rule of the format: one JSON object, no duplicate names, checked sizes, offsets that cover the data
 * exactly, and a total that is exactly 8 + N + data. A tensor whose bytes do not fit its dtype and shape, or
 * a total that does not fit, is size_mismatch in a request. Allocates in proportion to the header only. On
 * success close the document. */
bool kv_document_parse(struct kv_document *document, const void *header, uint64_t header_bytes,
                       uint64_t document_bytes, enum kv_document_kind kind,
                       struct kv_error *err) KV_MUST_CHECK;

/* Prefix and header in one memory: parses a whole document of `bytes` at `body`. */
bool kv_document_open(struct kv_document *document, const void *body, uint64_t bytes,
                      enum kv_document_kind kind, struct kv_error *err) KV_MUST_CHECK;

/* The tensor of this name, or NULL. Linear; for files with many tensors index them yourself. */
const struct kv_tensor *kv_document_find(const struct kv_document *document, const char *name);

/* The value of `key` in __metadata__, or NULL; owned by the document. */
const char *kv_document_metadata(const struct kv_document *document, const char *key);

/* A view of a tensor whose document lies at `body`. */
struct kv_view kv_document_view(const struct kv_document *document, const struct kv_tensor *tensor,
                                const void *body);

/* Frees what parse made; a zero-initialised or closed document is fine. */
void kv_document_close(struct kv_document *document);

/* What a writer is told. Offsets follow from the order given. */
struct kv_entry {
    const char *name; /* not "__metadata__" */
    enum kv_dtype dtype;
    int32_t rank;
    int64_t dims[KV_RANK_MAX];
};
struct kv_pair {
    const char *key, *value; /* UTF-8; pairs with a NULL value are left out */
};

/* Writes prefix and header, padded with spaces so that the data starts at a multiple of KV_DATA_ALIGNMENT, to
 * `to`. *written is the bytes in all, hence the offset of the data. *data_bytes (may be NULL) is the sum of
 * the tensors. Fails with KV_INTERNAL when `capacity` is too small, a name is empty, reserved or twice there,
 * or a size overflows. */
bool kv_document_encode(void *to, size_t capacity, const struct kv_entry *entries, int32_t count,
                        const struct kv_pair *metadata, int32_t pairs, size_t *written, uint64_t *data_bytes,
                        struct kv_error *err) KV_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
