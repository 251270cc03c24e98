/* Preloaded into kvmatd by gpu_lost.c. Once the file that KVMAT_TRAP names is there, a kernel that fails runs
 * before a batch's end is asked for: every later call of the process then fails, as behind a fault of the
 * GPU. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__global__ void trap()
{
    __trap();
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t (*real)(cudaEvent_t);
    void *found = dlsym(RTLD_NEXT, "cudaEventQuery");
    const char *file = getenv("KVMAT_TRAP");
    if (!found) return cudaErrorUnknown;
    memcpy(&real, &found, sizeof real);
    if (file && access(file, F_OK) == 0) {
        trap<<<1, 1>>>();
        (void)cudaDeviceSynchronize();
    }
    return real(event);
}
