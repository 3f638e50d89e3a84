/* A fake libcublasLt.so. It looks up descriptors, layouts and preferences, checks each product, and computes
 * it by our own kernels on the given stream, through the driver library that MOTLEY_CUDA_LIBRARY names. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fakes/products.h"
#include "engine/gpu/kernels/list.h"

FAKE_EXPORT struct fake_products fake_lt = {.version = 120103, .runtime = 12010};

enum { LIVE_MAX = 512, OK = 0, ALLOC_FAILED = 3, INVALID = 7, EXECUTION_FAILED = 13 };
enum sort { HANDLE = 1, DESC, LAYOUT, PREFERENCE };

struct object {
    enum sort sort;
    int compute, scale, transpose[2]; /* fields of a descriptor */
    int type;                         /* field of a layout */
    uint64_t rows, columns;
    int64_t ld;
    uint64_t workspace; /* field of a preference */
    uint32_t reductions, alignments;
    void *module, *gemm, *cast, *driver; /* fields of a handle */
};
static struct object *live[LIVE_MAX];

static int enter(const char *name)
{
    size_t at = strlen(fake_lt.trace);
    snprintf(fake_lt.trace + at, sizeof(fake_lt.trace) - at, " %s", name + strlen("cublasLt"));
    return ++fake_lt.calls == fake_lt.fail_at ? fake_lt.fail_with : OK;
}

static int misuse(const char *what)
{
    fake_lt.misuses++;
    snprintf(fake_lt.misuse, sizeof(fake_lt.misuse), "%s", what);
    return INVALID;
}

static struct object *make(enum sort sort, void **out)
{
    int i = 0;
    while (i < LIVE_MAX && live[i])
        i++;
    if (i == LIVE_MAX)
        return NULL;
    live[i] = calloc(1, sizeof(*live[i]));
    live[i]->sort = sort;
    fake_lt.live++;
    *out = live[i];
    return live[i];
}

static struct object *find(enum sort sort, const void *handle)
{
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i] && live[i] == handle && live[i]->sort == sort)
            return live[i];
    misuse("a handle that is not alive");
    return NULL;
}

static int drop(enum sort sort, void *handle)
{
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i] && live[i] == handle && live[i]->sort == sort) {
            free(live[i]);
            live[i] = NULL;
            fake_lt.live--;
            return OK;
        }
    return misuse("given back twice");
}

/* Declares and defines a function, since no header declares it. */
#define LT(name, ...)                                                                                        \
    FAKE_EXPORT int cublasLt##name(__VA_ARGS__);                                                             \
    FAKE_EXPORT int cublasLt##name(__VA_ARGS__)

FAKE_EXPORT size_t cublasLtGetVersion(void);
FAKE_EXPORT size_t cublasLtGetVersion(void)
{
    return fake_lt.version;
}
FAKE_EXPORT size_t cublasLtGetCudartVersion(void);
FAKE_EXPORT size_t cublasLtGetCudartVersion(void)
{
    return fake_lt.runtime;
}

static int driver_call(const struct object *handle, const char *name, void *call)
{
    void *found = dlsym(handle->driver, name);
    memcpy(call, &found, sizeof(found));
    return !found;
}

LT(Create, void **handle)
{
    static const char image[] = ".version 6.0\n.target sm_52\n";
    int (*load)(void **, const void *, unsigned, int *, void **), (*function)(void **, void *, const char *);
    int result = enter(__func__);
    if (result != OK)
        return result;
    struct object *made = make(HANDLE, handle);
    made->driver = dlopen(getenv("MOTLEY_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!made->driver || driver_call(made, "cuModuleLoadDataEx", &load) ||
        driver_call(made, "cuModuleGetFunction", &function) ||
        load(&made->module, image, 0, NULL, NULL) != 0 ||
        function(&made->gemm, made->module, "gemm_64x64") != 0 ||
        function(&made->cast, made->module, "cast") != 0) {
        drop(HANDLE, made);
        return ALLOC_FAILED;
    }
    return OK;
}

LT(Destroy, void *handle)
{
    int (*unload)(void *), result = enter(__func__);
    struct object *given = find(HANDLE, handle);
    if (!given)
        return INVALID;
    if (!driver_call(given, "cuModuleUnload", &unload) && unload(given->module) != 0)
        misuse("no context is current");
    dlclose(given->driver);
    drop(HANDLE, handle);
    return result;
}

LT(MatmulDescCreate, void **out, int compute, int scale)
{
    int result = enter(__func__);
    if (result != OK)
        return result;
    struct object *desc = make(DESC, out);
    desc->compute = compute;
    desc->scale = scale;
    return OK;
}
LT(MatmulDescDestroy, void *desc)
{
    int result = enter(__func__), dropped = drop(DESC, desc);
    return result != OK ? result : dropped;
}
LT(MatmulDescSetAttribute, void *desc, int attribute, const void *value, size_t bytes)
{
    int result = enter(__func__);
    struct object *d = find(DESC, desc);
    if (result != OK || !d)
        return result != OK ? result : INVALID;
    if ((attribute != 3 && attribute != 4) || bytes != sizeof(int))
        return misuse("an attribute of a descriptor");
    memcpy(&d->transpose[attribute - 3], value, bytes);
    return OK;
}

LT(MatrixLayoutCreate, void **out, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    int result = enter(__func__);
    if (result != OK)
        return result;
    if (ld < (int64_t)rows)
        return misuse("columns that overlap");
    struct object *layout = make(LAYOUT, out);
    layout->type = type;
    layout->rows = rows;
    layout->columns = columns;
    layout->ld = ld;
    return OK;
}
LT(MatrixLayoutDestroy, void *layout)
{
    int result = enter(__func__), dropped = drop(LAYOUT, layout);
    return result != OK ? result : dropped;
}

LT(MatmulPreferenceCreate, void **out)
{
    int result = enter(__func__);
    if (result == OK)
        make(PREFERENCE, out);
    return result;
}
LT(MatmulPreferenceDestroy, void *preference)
{
    int result = enter(__func__), dropped = drop(PREFERENCE, preference);
    return result != OK ? result : dropped;
}
LT(MatmulPreferenceSetAttribute, void *preference, int attribute, const void *value, size_t bytes)
{
    int result = enter(__func__);
    uint32_t word = 0;
    struct object *p = find(PREFERENCE, preference);
    if (result != OK || !p)
        return result != OK ? result : INVALID;
    if (bytes != (attribute == 1 ? 8 : 4))
        return misuse("bytes of a preference");
    if (attribute == 1)
        memcpy(&p->workspace, value, 8), fake_lt.workspace = p->workspace;
    else
        memcpy(&word, value, 4);
    if (attribute == 3)
        p->reductions = word;
    p->alignments += attribute >= 5 && attribute <= 8 && word == 16;
    return OK;
}

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

LT(MatmulAlgoGetHeuristic, void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
   int asked, struct heuristic *out, int *count)
{
    int result = enter(__func__);
    struct object *p = find(PREFERENCE, preference);
    if (!find(HANDLE, handle) || !find(DESC, desc) || !find(LAYOUT, a) || !find(LAYOUT, b) ||
        !find(LAYOUT, c) || !find(LAYOUT, d) || !p || asked != 1)
        return INVALID;
    if ((p->reductions & 1) != 0 || p->reductions == 0 || p->alignments != 4)
        return misuse("a preference that lets sums be in any order, or addresses anywhere");
    *out = (struct heuristic){.algorithm = {42}, .workspace = p->workspace};
    *count = fake_lt.none ? 0 : 1;
    return result;
}

static int launch(const struct object *handle, void *function, unsigned x, unsigned y, const void *args,
                  size_t bytes, void *stream)
{
    void *extra[5] = {(void *)1, (void *)(uintptr_t)args, (void *)2, &bytes, NULL};
    int (*call)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                void **);
    return driver_call(handle, "cuLaunchKernel", &call) ||
                   call(function, x, y, 1, 256, 1, 1, 0, stream, NULL, extra) != 0
               ? EXECUTION_FAILED
               : OK;
}

/* Gives an operand in fp32: its own address, or that of a converted copy that is appended to the workspace.
 */
static int widen(const struct object *handle, const struct object *layout, uint64_t *at, uint64_t *workspace,
                 uint64_t end, void *stream)
{
    uint64_t count = (uint64_t)layout->ld * (layout->columns - 1) + layout->rows;
    struct cast_args args = {.x = *at,
                             .y = *workspace,
                             .count = count,
                             .x_as = layout->type == 14 ? ELEMENT_BF16 : ELEMENT_F16,
                             .y_as = ELEMENT_F32};
    if (layout->type == 0)
        return OK;
    *at = *workspace;
    *workspace += (4 * count + 15) / 16 * 16;
    if (*workspace > end)
        return misuse("more than the workspace");
    return launch(handle, handle->cast, (unsigned)((count + 1023) / 1024), 1, &args, sizeof(args), stream);
}

LT(Matmul, void *handle, void *desc, const float *alpha, uint64_t a, void *layout_a, uint64_t b,
   void *layout_b, const float *beta, uint64_t c, void *layout_c, uint64_t d, void *layout_d,
   const uint64_t *algorithm, uint64_t workspace, size_t workspace_bytes, void *stream)
{
    int result = enter(__func__);
    struct object *h = find(HANDLE, handle), *of = find(DESC, desc), *x = find(LAYOUT, layout_a),
                  *y = find(LAYOUT, layout_b), *z = find(LAYOUT, layout_c);
    if (result != OK || !h || !of || !x || !y || !z)
        return result != OK ? result : INVALID;
    if (c != d || layout_c != layout_d || algorithm[0] != 42 || of->compute != 68 || of->scale != 0 ||
        x->type != y->type || (z->type != 0 && z->type != x->type) || (a | b | c | workspace) % 16 != 0)
        return misuse("a product that is none of ours");
    uint64_t k = of->transpose[0] ? x->rows : x->columns;
    if ((of->transpose[0] ? x->columns : x->rows) != z->rows ||
        (of->transpose[1] ? y->columns : y->rows) != k ||
        (of->transpose[1] ? y->rows : y->columns) != z->columns)
        return misuse("sizes that do not match");
    uint64_t at = workspace, end = workspace + workspace_bytes;
    /* The library's matrices are column-major and our kernels' row-major, so the product is computed as
     * op(y)^T op(x)^T. */
    if (widen(h, x, &a, &at, end, stream) != OK || widen(h, y, &b, &at, end, stream) != OK)
        return EXECUTION_FAILED;
    struct gemm_64x64_args args = {.product = {.a = b,
                                               .b = a,
                                               .c = c,
                                               .m = (uint32_t)z->columns,
                                               .n = (uint32_t)z->rows,
                                               .k = (uint32_t)k,
                                               .k_piece = (uint32_t)k,
                                               .lda = (uint32_t)y->ld,
                                               .ldb = (uint32_t)x->ld,
                                               .ldc = (uint32_t)z->ld,
                                               .transpose_a = (uint32_t)of->transpose[1],
                                               .transpose_b = (uint32_t)of->transpose[0],
                                               .alpha = *alpha,
                                               .beta = *beta,
                                               .c_as = z->type == 0    ? ELEMENT_F32
                                                       : z->type == 14 ? ELEMENT_BF16
                                                                       : ELEMENT_F16}};
    fake_lt.products++;
    return launch(h, h->gemm, (unsigned)((z->rows + 63) / 64), (unsigned)((z->columns + 63) / 64), &args,
                  sizeof(args), stream);
}
