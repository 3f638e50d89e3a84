/* The switches of the fake librocblas (rocblas.c), exported as `fake_rocblas`; one thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fake_rocblas {
    uint64_t calls, fail_at; /* the call, counted from 1, that fails; 0: none. Versions are not counted */
    int fail_with;
    uint64_t live;     /* handles that were not given back */
    uint64_t products; /* done */
    uint64_t misuses;
    char misuse[128];
    char trace[8192]; /* names of calls, each behind a space, without their "rocblas_" */
};

#define FAKE_EXPORT __attribute__((visibility("default")))
