/* A fake librocblas.so with the names and types of AMD's rocblas-functions.h. It looks up handles, checks
 * each product, and computes it by our own kernels on the handle's stream, through the fake HIP library that
 * it is linked with, as the real one is with the real library. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fakes/products.h"
#include "engine/gpu/kernels/list.h"

FAKE_EXPORT struct fake_products fake_rocblas;

int hipModuleLoadDataEx(void **out, const void *image, unsigned options, int *names, void **values);
int hipModuleGetFunction(void **out, void *module, const char *function);
int hipModuleUnload(void *module);
int hipModuleLaunchKernel(void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty,
                          unsigned tz, unsigned shared, void *stream, void **parameters, void **extra);

enum {
    OK = 0,
    INVALID_HANDLE = 1,
    NOT_IMPLEMENTED = 2,
    MEMORY = 5,
    INTERNAL = 6,
    F16 = 150,
    F32 = 151,
    BF16 = 168
};

struct handle {
    void *module, *gemm, *cast, *stream;
    uint64_t workspace;
    size_t workspace_bytes;
    int atomics, pointers;
};
static struct handle *alive; /* The only handle that may be alive. */

static int enter(const char *name)
{
    size_t at = strlen(fake_rocblas.trace);
    snprintf(fake_rocblas.trace + at, sizeof(fake_rocblas.trace) - at, " %s", name + strlen("rocblas_"));
    return ++fake_rocblas.calls == fake_rocblas.fail_at ? fake_rocblas.fail_with : OK;
}

static int misuse(const char *what)
{
    fake_rocblas.misuses++;
    snprintf(fake_rocblas.misuse, sizeof(fake_rocblas.misuse), "%s", what);
    return INVALID_HANDLE;
}

/* Declares and defines a function, since no header declares it. */
#define ROC(name, ...)                                                                                       \
    FAKE_EXPORT int rocblas_##name(__VA_ARGS__);                                                             \
    FAKE_EXPORT int rocblas_##name(__VA_ARGS__)

ROC(get_version_string, char *text, size_t room)
{
    snprintf(text, room, "4.2.1.fake");
    return OK;
}

ROC(create_handle, void **out)
{
    static const char image[16] = "\177ELF"; /* a code object's header, of the oldest version */
    int result = enter(__func__);
    if (result != OK)
        return result;
    if (alive)
        return misuse("two handles");
    struct handle *made = calloc(1, sizeof(*made));
    made->atomics = 1; /* Handles of ROCm 5 and 6 begin with atomics allowed. */
    if (hipModuleLoadDataEx(&made->module, image, 0, NULL, NULL) != 0 ||
        hipModuleGetFunction(&made->gemm, made->module, "gemm_64x64") != 0 ||
        hipModuleGetFunction(&made->cast, made->module, "cast") != 0) {
        free(made);
        return MEMORY;
    }
    *out = alive = made;
    fake_rocblas.live++;
    return OK;
}

ROC(destroy_handle, void *handle)
{
    int result = enter(__func__);
    if (!handle || handle != alive)
        return misuse("given back twice");
    if (hipModuleUnload(alive->module) != 0)
        misuse("no context is current");
    free(alive);
    alive = NULL;
    fake_rocblas.live--;
    return result;
}

static int given(int result, const void *handle)
{
    return !handle || handle != alive ? misuse("a handle that is not alive") : result;
}

ROC(set_stream, void *handle, void *stream)
{
    int result = given(enter(__func__), handle);
    if (result == OK)
        alive->stream = stream;
    return result;
}
ROC(set_workspace, void *handle, uint64_t workspace, size_t bytes)
{
    int result = given(enter(__func__), handle);
    if (result == OK) {
        alive->workspace = workspace;
        alive->workspace_bytes = bytes;
        fake_rocblas.workspace = bytes;
    }
    return result;
}
ROC(set_atomics_mode, void *handle, int mode)
{
    int result = given(enter(__func__), handle);
    if (result == OK)
        alive->atomics = mode;
    return result;
}
ROC(set_pointer_mode, void *handle, int mode)
{
    int result = given(enter(__func__), handle);
    if (result == OK)
        alive->pointers = mode;
    return result;
}

static int launch(void *function, unsigned x, unsigned y, const void *args, size_t bytes)
{
    void *extra[5] = {(void *)1, (void *)(uintptr_t)args, (void *)2, &bytes, (void *)3};
    return hipModuleLaunchKernel(function, x, y, 1, 256, 1, 1, 0, alive->stream, NULL, extra) == 0 ? OK
                                                                                                   : INTERNAL;
}

/* Gives an operand in fp32: its own address, or that of a converted copy that is appended to the workspace.
 */
static int widen(int type, uint64_t count, uint64_t *at, uint64_t *used)
{
    struct cast_args args = {.x = *at,
                             .y = alive->workspace + *used,
                             .count = count,
                             .x_as = type == BF16 ? ELEMENT_BF16 : ELEMENT_F16,
                             .y_as = ELEMENT_F32};
    if (type == F32)
        return OK;
    *at = args.y;
    *used += (4 * count + 15) / 16 * 16;
    if (*used > alive->workspace_bytes)
        return misuse("more than the workspace");
    return launch(alive->cast, (unsigned)((count + 1023) / 1024), 1, &args, sizeof(args));
}

ROC(gemm_ex, void *handle, int operation_a, int operation_b, int32_t m, int32_t n, int32_t k,
    const float *alpha, uint64_t a, int type_a, int32_t lda, uint64_t b, int type_b, int32_t ldb,
    const float *beta, uint64_t c, int type_c, int32_t ldc, uint64_t d, int type_d, int32_t ldd,
    int type_compute, int algorithm, int32_t solution, uint32_t flags)
{
    int result = given(enter(__func__), handle);
    bool a_across = operation_a == 112, b_across = operation_b == 112;
    if (result != OK)
        return result;
    if (fake_rocblas.lacks && type_a != F32)
        return NOT_IMPLEMENTED;
    if (!alive->stream || alive->workspace == 0 || alive->atomics != 0 || alive->pointers != 0)
        return misuse("a handle without a stream or workspace, or whose sums are in any order");
    if ((!a_across && operation_a != 111) || (!b_across && operation_b != 111) || type_a != type_b ||
        (type_a != F16 && type_a != F32 && type_a != BF16) || (type_c != F32 && type_c != type_a) ||
        type_d != type_c || type_compute != F32 || c != d || ldc != ldd || algorithm != 0 || solution != 0 ||
        flags != 0)
        return misuse("a product that is none of ours");
    if (lda < (a_across ? k : m) || ldb < (b_across ? n : k) || ldc < m)
        return misuse("columns that overlap");
    uint64_t used = 0;
    if (widen(type_a, (uint64_t)lda * (uint64_t)(a_across ? m : k), &a, &used) != OK ||
        widen(type_b, (uint64_t)ldb * (uint64_t)(b_across ? k : n), &b, &used) != OK)
        return INTERNAL;
    /* The library's matrices are column-major and our kernels' row-major, so the product is computed as
     * op(b)^T op(a)^T. */
    struct gemm_64x64_args args = {.product = {.a = b,
                                               .b = a,
                                               .c = c,
                                               .m = (uint32_t)n,
                                               .n = (uint32_t)m,
                                               .k = (uint32_t)k,
                                               .k_piece = (uint32_t)k,
                                               .lda = (uint32_t)ldb,
                                               .ldb = (uint32_t)lda,
                                               .ldc = (uint32_t)ldc,
                                               .transpose_a = b_across,
                                               .transpose_b = a_across,
                                               .alpha = *alpha,
                                               .beta = *beta,
                                               .c_as = type_c == F32    ? ELEMENT_F32
                                                       : type_c == BF16 ? ELEMENT_BF16
                                                                        : ELEMENT_F16}};
    fake_rocblas.products++;
    return launch(alive->gemm, (unsigned)((m + 63) / 64), (unsigned)((n + 63) / 64), &args, sizeof(args));
}
