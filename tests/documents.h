/* Documents for tests: made from a header's text, read from a vector, changed at random. Every one has memory
 * of exactly its size, so that a read past its end is caught. Knows no rule of the format. */
#ifndef KV_TESTS_DOCUMENTS_H
#define KV_TESTS_DOCUMENTS_H

#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Owned bytes; free with free(bytes.data). */
struct bytes {
    unsigned char *data;
    size_t size;
};

static inline void *allocate(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory) abort();
    return memory;
}

/* Prefix, the header's text, and data_bytes bytes that count up. */
static inline struct bytes document_of_bytes(const void *header, size_t header_bytes, size_t data_bytes)
{
    struct bytes made = {.size = 8 + header_bytes + data_bytes};
    uint64_t length = header_bytes;
    made.data = allocate(made.size);
    memcpy(made.data, &length, sizeof length);
    memcpy(made.data + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) made.data[8 + header_bytes + i] = (unsigned char)i;
    return made;
}

static inline struct bytes document_of(const char *header, size_t data_bytes)
{
    return document_of_bytes(header, strlen(header), data_bytes);
}

/* A whole file; {NULL, 0} where it cannot be read. */
static inline struct bytes file_of(const char *path)
{
    struct bytes made = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return made;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size >= 0) {
        made.size = (size_t)size;
        made.data = allocate(made.size);
        if (fread(made.data, 1, made.size, file) != made.size) {
            free(made.data);
            made = (struct bytes){0};
        }
    }
    fclose(file);
    return made;
}

/* A generator that gives the same numbers everywhere; the state is the seed and must not be 0. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return (random_next(state) >> 11) % bound;
}

#endif
