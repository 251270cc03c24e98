/* Fuzz target: any bytes, read as a message, as a file and as a request; then the same bytes with the lengths
 * mended, so that a change within the header is looked at for itself. Golden requests are seeds too. */
#include "tests/fuzz/bodies.h"

#include <ctype.h>

enum { DATA_BYTES_MAX = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The largest number before a `]`: where the data of such a header ends, if it is sound. */
static size_t data_bytes_of(const uint8_t *text, size_t bytes)
{
    size_t most = 0;
    for (size_t i = 0; i < bytes; i++) {
        size_t number = 0;
        while (i < bytes && isdigit(text[i]) && number <= DATA_BYTES_MAX)
            number = 10 * number + (size_t)(text[i++] - '0');
        if (i < bytes && text[i] == ']' && number > most && number <= DATA_BYTES_MAX) most = number;
    }
    return most;
}

static void check(const uint8_t *data, size_t size)
{
    fuzz_safetensors(data, size);
    fuzz_request(data, size);
}

static void check_mended(const uint8_t *data, size_t size)
{
    size_t header_bytes = size - 8;
    while (header_bytes > 0 && data[8 + header_bytes - 1] != '}') header_bytes--;
    uint64_t prefix = header_bytes;
    size_t rest_bytes = size - 8 - header_bytes, data_bytes = data_bytes_of(data + 8, header_bytes);
    uint8_t *whole = calloc(1, 8 + header_bytes + data_bytes); /* exactly, so that no read goes past it unseen
                                                                */
    FUZZ_CHECK(whole != NULL);
    memcpy(whole, &prefix, sizeof prefix);
    memcpy(whole + 8, data + 8, header_bytes);
    memcpy(whole + 8 + header_bytes, data + 8 + header_bytes,
           rest_bytes < data_bytes ? rest_bytes : data_bytes);
    check(whole, 8 + header_bytes + data_bytes);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size);
    if (size > 8) check_mended(data, size);
    return 0;
}
