/* Fuzz target: any bytes, decoded as a request. Seeds are the golden requests. */
#include "tests/fuzz_bodies.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_request(data, size);
    return 0;
}
