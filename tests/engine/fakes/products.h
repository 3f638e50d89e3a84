/* The switches of the fake libraries of products: libcublasLt (cublaslt.c) exports them as `fake_lt`,
 * librocblas (rocblas.c) as `fake_rocblas`; one thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fake_products {
    uint64_t calls, fail_at; /* the call, counted from 1, that fails; 0: none. Versions are not counted */
    int fail_with;
    uint64_t live;     /* objects that were not given back */
    uint64_t products; /* done */
    uint64_t misuses;
    char misuse[128];
    char trace[8192]; /* names of calls, each behind a space, without their "cublasLt" or "rocblas_" */
    /* cublasLt's alone */
    size_t version, runtime;
    int none; /* no algorithm is found for anything */
};

#define FAKE_EXPORT __attribute__((visibility("default")))
