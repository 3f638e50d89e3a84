/* The switches of the fake matrix-product libraries: libcublasLt (cublaslt.c) exports them as `fake_lt`,
 * librocblas (rocblas.c) as `fake_rocblas`. One thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fake_products {
    uint64_t calls, fail_at; /* the call, counted from 1, that fails; 0: none. Versions are not counted */
    int fail_with;
    uint64_t live;     /* objects that were not released */
    uint64_t products; /* products that were computed */
    uint64_t misuses;
    char misuse[128];
    char trace[8192]; /* the names of the calls without "cublasLt" or "rocblas_", each preceded by a space */
    uint64_t workspace; /* bytes that the last search for an algorithm, or the handle, was given */
    int lacks;          /* whether rocBLAS has no kernels for 16 bits */
    /* only cublasLt has these */
    size_t version, runtime;
    int none; /* whether the search for an algorithm finds none */
};

#define FAKE_EXPORT __attribute__((visibility("default")))
