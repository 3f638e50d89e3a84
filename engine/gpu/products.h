/* Vendors' libraries of matrix products, opened at run time if a machine has them: NVIDIA's cublasLt
 * (cublaslt.c) and AMD's rocBLAS (rocblas.c). Each is one constant vtable, named by the driver of the
 * vendor's cards. Nothing is linked, and it is normal that they are absent. product_library.c decides which
 * products go to them.
 *
 * Environment: each library has a variable that names a file to open instead of the usual ones, or the folder
 * in which they are (PyTorch's wheels have one); "none" opens nothing.
 */
#ifndef MOTLEY_ENGINE_GPU_PRODUCTS_H
#define MOTLEY_ENGINE_GPU_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/gpu/driver.h"
#include "engine/device/backend.h"

struct products; /* a library that is open for one queue of a card */

/* What a library is opened for. The workspace is lent until the library is closed. */
struct products_place {
    uint32_t driver_version; /* the driver's own version number: 12040 is CUDA 12.4, 60342134 is HIP 6.3 */
    const char *arch;        /* the card's architecture, such as "sm_80" or "gfx90a" */
    void *stream;            /* the vendor's handle of the queue */
    gpu_address workspace;
    uint64_t workspace_bytes;
};

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c, row-major as in struct op_gemm. a and b have `type`
 * (f32, bf16 or f16); products and sums are f32, and c is f32 or has `type`, too. Addresses and row distances
 * are multiples of 16 bytes. */
struct library_product {
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc; /* in values */
    bool transpose_a, transpose_b;
    enum dtype type, c_type;
    float alpha, beta;
    gpu_address a, b, c;
};

/* All functions but find are called with the card's context current for the thread, by one thread at a time.
 */
struct products_vendor {
    const char *name; /* such as "cublasLt" */

    /* Is there a library for a driver of this version and a card of this architecture (NULL: any card)?
     * name[room] gets for example "libcublasLt.so.12, 12.1.3". Returns 0, or -1 with ERR_NOT_FOUND (there is
     * none, or it is turned off) or ERR_UNSUPPORTED (it is too old, does not fit the driver, or has no code
     * for the card). */
    int (*find)(uint32_t driver_version, const char *arch, char *name, uint32_t room, struct err *err);

    /* Open the library for products on one queue. *out is new and must be closed before the context is
     * destroyed. */
    int (*open)(const struct products_place *place, struct products **out, struct err *err);
    void (*close)(struct products *products);

    /* Queue a product, or record it if the queue is recording. Only the sizes choose the algorithm, among
     * those that add in a fixed order, so equal calls give equal bits. *done is false if the library has none
     * for these sizes, or refused before anything was queued. Returns 0, or -1 with ERR_NOMEM,
     * ERR_DEVICE_FAULT or ERR_INTERNAL. */
    int (*multiply)(struct products *products, const struct library_product *product, bool *done,
                    struct err *err);

    /* Is it worth asking for products of this type and these transpositions? False once the library has
     * shown that it has no kernels for them. NULL: it always is. */
    bool (*takes)(const struct products *products, enum dtype type, bool transpose_a, bool transpose_b);
};

/* --- helpers of both libraries --- */

/* A symbol and the offset of its pointer in a struct of calls. */
struct products_symbol {
    const char *name;
    size_t at;
};

/* How a library is looked for. */
struct products_search {
    const char *what;         /* the library's name in messages */
    const char *environment;  /* the variable that names a file to open instead of the usual ones, the folder
                                 that has them, or "none" */
    const char *const *usual; /* files to try, NULL ends */
    const char *hint;         /* how the library comes to a machine that has none; NULL: nothing to say */
    const struct products_symbol *symbols;
    size_t symbol_count;
    /* Whether the open library can be used, by its functions in `api`; it may append to name[room]. Returns
     * 0, or -1 with ERR_UNSUPPORTED. */
    int (*check)(const void *api, uint32_t driver_version, const char *arch, char *name, uint32_t room,
                 struct err *err);
};

/* Open the first file that has all symbols and passes the check, and store the symbols' addresses in `api`;
 * name[room] gets the file's name and what the check appends. Files stay open for ever. Returns 0, or -1 with
 * ERR_NOT_FOUND, or with ERR_UNSUPPORTED and what is wrong with the first file that opened. */
int products_find(const struct products_search *search, uint32_t driver_version, const char *arch, void *api,
                  char *name, uint32_t room, struct err *err);

#endif
