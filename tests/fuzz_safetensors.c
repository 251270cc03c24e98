/* Fuzz target: any bytes, read as a message and as a file. Seeds are the golden requests. */
#include "tests/fuzz_bodies.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_safetensors(data, size);
    return 0;
}
