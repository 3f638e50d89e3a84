/* NVIDIA's library of matrix products, cublasLt, opened at run time where a machine has it: nothing is
 * linked, and its absence is normal. The declarations are our own, after cublasLt.h of CUDA 11.4 to 13; since
 * CUDA 11 the numbers used here have not changed.
 *
 * Environment: MOTLEY_CUBLASLT_LIBRARY names a file to open instead of the usual names; "none" opens nothing.
 */
#ifndef MOTLEY_ENGINE_GPU_CUBLASLT_H
#define MOTLEY_ENGINE_GPU_CUBLASLT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/gpu/driver.h"
#include "engine/backend.h"

struct cublaslt;

/* Is there one for a driver of this version (12040 is CUDA 12.4)? name[room]: "libcublasLt.so.12, 12.1.3".
 * Returns 0, or -1 with ERR_NOT_FOUND (none, or turned off) or ERR_UNSUPPORTED (too old, or newer than the
 * driver). */
int cublaslt_find(uint32_t driver_version, char *name, uint32_t room, struct err *err);

/* The same, ready to multiply on the card whose context is current for the calling thread. New in *out, to be
 * closed before the context goes. */
int cublaslt_open(uint32_t driver_version, struct cublaslt **out, struct err *err);
void cublaslt_close(struct cublaslt *library);

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c, row-major as struct op_gemm has it; a and b of `type`
 * (f32, bf16, f16), products and sums f32, c f32. Addresses are multiples of 16 bytes, and so are rows. */
struct cublaslt_product {
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc; /* values */
    bool transpose_a, transpose_b;
    enum dtype type;
    float alpha, beta;
    gpu_address a, b, c;
};

/* Queue it on a stream of the card, or record it there. The algorithm follows from the sizes alone, of those
 * whose sums are in a fixed order: equal calls give equal bits. *done: false where the library has none for
 * these sizes, or refused before anything was queued; it is not asked for them again. Returns 0, or -1 with
 * ERR_NOMEM, ERR_DEVICE_FAULT or ERR_INTERNAL. One thread at a time. */
int cublaslt_multiply(struct cublaslt *library, const struct cublaslt_product *product, gpu_address workspace,
                      uint64_t workspace_bytes, void *stream, bool *done, struct err *err);

#endif
