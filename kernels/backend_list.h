/* The operations of every backend, for the table in backend.c; each backend includes it, so that the compiler
 * compares. Which of them are in a build, backend.c alone knows. */
#ifndef KV_KERNELS_BACKEND_LIST_H
#define KV_KERNELS_BACKEND_LIST_H

#include "kernels/backend.h"

extern const struct kv_backend_ops kv_cpu_ops;
extern const struct kv_backend_ops kv_cuda_ops;

#endif
