/* Vendors' libraries of matrix products, opened at run time where a machine has them: NVIDIA's cublasLt
 * (cublaslt.c) and AMD's rocBLAS (rocblas.c), one constant vtable each, which the driver of the vendor's
 * cards names. Nothing is linked, and their absence is normal. product_library.c says which products go to
 * them.
 *
 * Environment: each has a variable that names a file to open instead of the usual ones; "none" opens nothing.
 */
#ifndef MOTLEY_ENGINE_GPU_PRODUCTS_H
#define MOTLEY_ENGINE_GPU_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/gpu/driver.h"
#include "engine/device/backend.h"

struct products; /* a library, opened for one queue of a card */

/* What it is opened for. The workspace is lent until it is closed. */
struct products_place {
    uint32_t driver_version; /* as the driver numbers itself: 12040 is CUDA 12.4, 60342134 HIP 6.3 */
    const char *arch;        /* of the card: "sm_80", "gfx90a" */
    void *stream;            /* the queue's, of the vendor */
    gpu_address workspace;
    uint64_t workspace_bytes;
};

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c, row-major as struct op_gemm has it; a and b of `type`
 * (f32, bf16, f16), products and sums f32, c f32. Addresses are multiples of 16 bytes, and so are rows. */
struct library_product {
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc; /* values */
    bool transpose_a, transpose_b;
    enum dtype type;
    float alpha, beta;
    gpu_address a, b, c;
};

/* All but find are called with the card's context current for the thread, by one thread at a time. */
struct products_vendor {
    const char *name; /* "cublasLt" */

    /* Is there one for a driver of this version, and a card of this architecture (NULL: whatever the card)?
     * name[room]: "libcublasLt.so.12, 12.1.3". Returns 0, or -1 with ERR_NOT_FOUND (none, or turned off) or
     * ERR_UNSUPPORTED (too old, not of this driver, no code for the card). */
    int (*find)(uint32_t driver_version, const char *arch, char *name, uint32_t room, struct err *err);

    /* The same, ready to multiply. New in *out, to be closed before the context goes. */
    int (*open)(const struct products_place *place, struct products **out, struct err *err);
    void (*close)(struct products *products);

    /* Queue it, or record it where the queue records. The algorithm follows from the sizes alone, of those
     * whose sums are in a fixed order: equal calls give equal bits. *done: false where the library has none
     * for these sizes, or refused before anything was queued. Returns 0, or -1 with ERR_NOMEM,
     * ERR_DEVICE_FAULT or ERR_INTERNAL. */
    int (*multiply)(struct products *products, const struct library_product *product, bool *done,
                    struct err *err);
};

/* --- for the two */

/* A symbol and the place of its pointer in a struct of calls. */
struct products_symbol {
    const char *name;
    size_t at;
};

/* Open the first of `usual` (NULL ends), or what the variable `environment` names: name[room] is the file.
 * `what` is the library in messages. NULL: ERR_NOT_FOUND. It is never unmapped again. */
void *products_library(const char *what, const char *environment, const char *const *usual, char *name,
                       uint32_t room, struct err *err);
/* Fill `api`; ERR_UNSUPPORTED names the symbol that `name` lacks. */
int products_symbols(void *library, const char *name, const struct products_symbol *symbols, size_t count,
                     void *api, struct err *err);

#endif
