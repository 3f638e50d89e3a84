/* Chooses the instruction set of the kernels, and opens the matrix library with a matching one. */
#ifndef MOTLEY_ENGINE_CPU_BLAS_H
#define MOTLEY_ENGINE_CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/cpu/kernels.h"

/* The row kernels for "native", "amx", "avx512-bf16", "avx512", "avx2" or "sse42" (NULL: MOTLEY_ISA from the
 * environment, else native). ERR_INVALID: no such name. ERR_UNSUPPORTED: this CPU lacks it. */
const struct kernels *isa_kernels(const char *isa, struct err *err);

/* The matrix library. `gemm` computes a product on the calling thread. */
struct blas {
    void (*gemm)(const struct gemm_f32 *g);
};

/* Load OpenBLAS, once per process, with the core type that fits isa ("amx", "avx512-bf16", "avx512":
 * SkylakeX, "avx2": Haswell, "sse42": Nehalem) and with one thread, because the pool splits the work.
 * ERR_UNSUPPORTED when it is already loaded with another core type or is not installed. */
int blas_open(const char *isa, struct blas *out, struct err *err);

#endif
