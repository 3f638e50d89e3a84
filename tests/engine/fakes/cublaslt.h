/* The switches of the fake libcublasLt (cublaslt.c), exported as `fake_lt`; one thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fake_lt {
    size_t version, runtime;
    uint64_t calls, fail_at; /* the call, counted from 1, that fails; 0: none. Versions are not counted */
    int fail_with;
    int none;          /* no algorithm is found for anything */
    uint64_t live;     /* objects that were not given back */
    uint64_t products; /* done */
    uint64_t misuses;
    char misuse[128];
    char trace[8192]; /* names of calls, each behind a space, without their "cublasLt" */
};

#define FAKE_EXPORT __attribute__((visibility("default")))
