/* cublasLt: opens and checks the library, and keeps its plans by the sizes of a product. The declarations are
 * our own, after cublasLt.h of CUDA 11.4 to 13; the numbers used here have not changed since CUDA 11.
 * MOTLEY_CUBLASLT_LIBRARY names a file to open, or "none".
 */
#include "engine/gpu/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLANS_MAX = 128, /* a stage multiplies a few dozen sizes; the least recently used plan is dropped */
    ALIGNMENT = 16   /* of operands, in bytes */
};

/* Numbers from cublas_api.h and cublasLt.h. */
enum {
    STATUS_NOT_INITIALIZED = 1,
    STATUS_ALLOC_FAILED = 3,
    STATUS_INVALID_VALUE = 7,
    STATUS_ARCH_MISMATCH = 8,
    STATUS_MAPPING_ERROR = 11,
    STATUS_EXECUTION_FAILED = 13,
    STATUS_NOT_SUPPORTED = 15,
    TYPE_F32 = 0,
    TYPE_F16 = 2,
    TYPE_BF16 = 14,
    COMPUTE_F32 = 68,
    OPERATION_TRANSPOSE = 1,
    DESC_TRANSPOSE_A = 3,
    DESC_TRANSPOSE_B = 4,
    PREFERENCE_WORKSPACE = 1,
    PREFERENCE_REDUCTIONS = 3,
    PREFERENCE_ALIGNMENT_A = 5, /* followed by b, c and d */
    REDUCTION_COMPUTE_TYPE =
        2 /* partial sums in the workspace, added in order; in-place reductions have no fixed order */
};

struct algorithm {
    uint64_t data[8];
};

struct heuristic {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct heuristic) == 96, "cublasLtMatmulHeuristicResult_t");

/* All functions except the versions return a status, 0 for success. */
struct cublaslt_api {
    size_t (*version)(void), (*runtime_version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*preference_create)(void **preference);
    int (*preference_destroy)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                     int asked, struct heuristic *results, int *count);
    int (*multiply)(void *handle, void *desc, const void *alpha, gpu_address a, void *layout_a, gpu_address b,
                    void *layout_b, const void *beta, gpu_address c, void *layout_c, gpu_address d,
                    void *layout_d, const struct algorithm *algorithm, gpu_address workspace,
                    size_t workspace_bytes, void *stream);
};

static const struct products_symbol symbols[] = {
    {"cublasLtGetVersion", offsetof(struct cublaslt_api, version)},
    {"cublasLtGetCudartVersion", offsetof(struct cublaslt_api, runtime_version)},
    {"cublasLtCreate", offsetof(struct cublaslt_api, create)},
    {"cublasLtDestroy", offsetof(struct cublaslt_api, destroy)},
    {"cublasLtMatmulDescCreate", offsetof(struct cublaslt_api, desc_create)},
    {"cublasLtMatmulDescDestroy", offsetof(struct cublaslt_api, desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct cublaslt_api, desc_set)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct cublaslt_api, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct cublaslt_api, layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct cublaslt_api, preference_create)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct cublaslt_api, preference_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct cublaslt_api, preference_set)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct cublaslt_api, heuristic)},
    {"cublasLtMatmul", offsetof(struct cublaslt_api, multiply)},
};

/* The library's answer for a product's sizes. Its matrices are column-major, so it computes c^T = op(b)^T
 * op(a)^T: its first operand is our b, its second our a. */
struct cublaslt_plan {
    struct library_product of; /* the sizes and type for which it was made */
    uint64_t used;             /* call count at its last use; 0: the entry is empty */
    bool none;                 /* the library does not compute this product */
    void *desc, *first, *second, *result;
    struct algorithm algorithm;
};

struct products {
    struct cublaslt_api api;
    struct products_place place;
    void *handle;
    uint64_t calls;
    struct cublaslt_plan plans[PLANS_MAX];
};

/* --- opening the library */

/* Splits cublasLt's version number: 120103 is 12.1.3. Before 11.10 the number had one digit fewer: 11401 is
 * 11.4.1. */
static void cublaslt_version_split(size_t version, uint32_t *major, uint32_t *minor, uint32_t *patch)
{
    size_t unit = version >= 100000 ? 10000 : 1000;
    *major = (uint32_t)(version / unit);
    *minor = (uint32_t)(version % unit / 100);
    *patch = (uint32_t)(version % 100);
}

static int cublaslt_library_check(const void *opened, uint32_t driver_version, const char *arch, char *name,
                                  uint32_t room, struct err *err)
{
    const struct cublaslt_api *api = opened;
    uint32_t major, minor, patch;
    unsigned capability = 0;
    cublaslt_version_split(api->version(), &major, &minor, &patch);
    size_t runtime = api->runtime_version();
    if (major < 11)
        return err_set(err, ERR_UNSUPPORTED, "%s is of version %u.%u: at least 11.0 is needed", name, major,
                       minor);
    if (runtime / 1000 > driver_version / 1000)
        return err_set(err, ERR_UNSUPPORTED, "%s is of CUDA %zu.%zu, the driver of %u.%u", name,
                       runtime / 1000, runtime % 1000 / 10, driver_version / 1000,
                       driver_version % 1000 / 10);
    /* CUDA 13 has no code for Maxwell, Pascal and Volta (its release notes, "Deprecated Architectures"). */
    if (major >= 13 && arch && sscanf(arch, "sm_%u", &capability) == 1 && capability < 75)
        return err_set(err, ERR_UNSUPPORTED, "%s has no code for %s: that of CUDA 12 does", name, arch);
    size_t at = strlen(name);
    snprintf(name + at, room - at, ", %u.%u.%u", major, minor, patch);
    return 0;
}

/* Folders of CUDA's own packages, which the dynamic loader does not always know, come last. */
static const char *const usual[] = {"libcublasLt.so.13",
                                    "libcublasLt.so.12",
                                    "libcublasLt.so.11",
                                    "/usr/local/cuda/lib64/libcublasLt.so.13",
                                    "/usr/local/cuda/lib64/libcublasLt.so.12",
                                    "/usr/local/cuda/lib64/libcublasLt.so.11",
                                    NULL};
static const struct products_search search = {.what = "cublasLt",
                                              .environment = "MOTLEY_CUBLASLT_LIBRARY",
                                              .usual = usual,
                                              .hint = "pip install nvidia-cublas-cu12 brings it, in "
                                                      "site-packages/nvidia/cublas/lib",
                                              .symbols = symbols,
                                              .symbol_count = sizeof(symbols) / sizeof(*symbols),
                                              .check = cublaslt_library_check};

static int cublaslt_find(uint32_t driver_version, const char *arch, char *name, uint32_t room,
                         struct err *err)
{
    struct cublaslt_api api;
    return products_find(&search, driver_version, arch, &api, name, room, err);
}

static int cublaslt_open(const struct products_place *place, struct products **out, struct err *err)
{
    char name[256];
    struct products *library = calloc(1, sizeof(*library));
    *out = NULL;
    if (!library)
        return err_set(err, ERR_NOMEM, "out of memory for cublasLt");
    library->place = *place;
    int status =
        products_find(&search, place->driver_version, place->arch, &library->api, name, sizeof(name), err);
    if (status == 0 && (status = library->api.create(&library->handle)) != 0)
        err_set(err, status == STATUS_ALLOC_FAILED ? ERR_NOMEM : ERR_UNSUPPORTED,
                "%s does not start: error %d of cublasLtCreate", name, status);
    if (status != 0) {
        free(library);
        return -1;
    }
    *out = library;
    return 0;
}

static void plan_drop(const struct cublaslt_api *api, struct cublaslt_plan *plan)
{
    void *const layouts[] = {plan->first, plan->second, plan->result};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            api->layout_destroy(layouts[i]);
    if (plan->desc)
        api->desc_destroy(plan->desc);
    *plan = (struct cublaslt_plan){0};
}

static void cublaslt_close(struct products *library)
{
    if (!library)
        return;
    for (int i = 0; i < PLANS_MAX; i++)
        plan_drop(&library->api, &library->plans[i]);
    library->api.destroy(library->handle);
    free(library);
}

/* --- plans */

static int cublaslt_type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? TYPE_BF16 : dtype == DTYPE_F16 ? TYPE_F16 : TYPE_F32;
}

static int descriptors_create(const struct cublaslt_api *api, struct cublaslt_plan *plan)
{
    static const int transpose = OPERATION_TRANSPOSE;
    const struct library_product *p = &plan->of;
    int type = cublaslt_type_of(p->type), status = api->desc_create(&plan->desc, COMPUTE_F32, TYPE_F32);
    if (status == 0 && p->transpose_b)
        status = api->desc_set(plan->desc, DESC_TRANSPOSE_A, &transpose, sizeof(transpose));
    if (status == 0 && p->transpose_a)
        status = api->desc_set(plan->desc, DESC_TRANSPOSE_B, &transpose, sizeof(transpose));
    if (status == 0)
        status = api->layout_create(&plan->first, type, p->transpose_b ? p->k : p->n,
                                    p->transpose_b ? p->n : p->k, p->ldb);
    if (status == 0)
        status = api->layout_create(&plan->second, type, p->transpose_a ? p->m : p->k,
                                    p->transpose_a ? p->k : p->m, p->lda);
    return status == 0 ? api->layout_create(&plan->result, cublaslt_type_of(p->c_type), p->n, p->m, p->ldc)
                       : status;
}

/* Takes the first algorithm that the library offers for these sizes at any aligned addresses. */
static int algorithm_choose(const struct products *library, struct cublaslt_plan *plan)
{
    const uint64_t workspace_bytes = library->place.workspace_bytes;
    static const uint32_t reductions = REDUCTION_COMPUTE_TYPE, alignment = ALIGNMENT;
    const struct cublaslt_api *api = &library->api;
    struct heuristic found = {.status = STATUS_NOT_SUPPORTED};
    void *preference = NULL;
    int count = 0, status = api->preference_create(&preference);
    if (status != 0)
        return status;
    status = api->preference_set(preference, PREFERENCE_WORKSPACE, &workspace_bytes, sizeof(workspace_bytes));
    if (status == 0)
        status = api->preference_set(preference, PREFERENCE_REDUCTIONS, &reductions, sizeof(reductions));
    for (int i = 0; i < 4 && status == 0; i++)
        status = api->preference_set(preference, PREFERENCE_ALIGNMENT_A + i, &alignment, sizeof(alignment));
    if (status == 0)
        status = api->heuristic(library->handle, plan->desc, plan->first, plan->second, plan->result,
                                plan->result, preference, 1, &found, &count);
    api->preference_destroy(preference);
    if (status == 0 && (count < 1 || found.workspace_bytes > workspace_bytes))
        status = STATUS_NOT_SUPPORTED;
    plan->algorithm = found.algorithm;
    return status == 0 ? found.status : status;
}

/* Compares everything that a plan depends on. */
static bool sizes_same(const struct library_product *x, const struct library_product *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb &&
           x->ldc == y->ldc && x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b &&
           x->type == y->type && x->c_type == y->c_type;
}

/* The plan for these sizes, which is made at the first call. */
static struct cublaslt_plan *plan_find(struct products *library, const struct library_product *product)
{
    struct cublaslt_plan *place = &library->plans[0];
    for (int i = 0; i < PLANS_MAX; i++) {
        struct cublaslt_plan *plan = &library->plans[i];
        if (plan->used != 0 && sizes_same(&plan->of, product)) {
            plan->used = ++library->calls;
            return plan;
        }
        if (plan->used < place->used)
            place = plan;
    }
    plan_drop(&library->api, place);
    place->used = ++library->calls;
    place->of = *product;
    place->none = descriptors_create(&library->api, place) != 0 || algorithm_choose(library, place) != 0;
    return place;
}

/* --- products */

/* Did the library refuse before it queued anything? */
static bool cublaslt_refused(int status)
{
    return status == STATUS_INVALID_VALUE || status == STATUS_ARCH_MISMATCH || status == STATUS_NOT_SUPPORTED;
}

static int multiply_failed(int status, struct err *err)
{
    enum err_code code = status == STATUS_ALLOC_FAILED       ? ERR_NOMEM
                         : status == STATUS_EXECUTION_FAILED ? ERR_DEVICE_FAULT
                         : status == STATUS_MAPPING_ERROR    ? ERR_DEVICE_FAULT
                                                             : ERR_INTERNAL;
    return err_set(err, code, "a product: error %d of cublasLtMatmul", status);
}

/* Queues a product. The library is not asked again for sizes that it has refused. */
static int cublaslt_multiply(struct products *library, const struct library_product *product, bool *done,
                             struct err *err)
{
    const struct products_place *place = &library->place;
    struct cublaslt_plan *plan = plan_find(library, product);
    *done = false;
    if (plan->none)
        return 0;
    int status = library->api.multiply(library->handle, plan->desc, &product->alpha, product->b, plan->first,
                                       product->a, plan->second, &product->beta, product->c, plan->result,
                                       product->c, plan->result, &plan->algorithm, place->workspace,
                                       place->workspace_bytes, place->stream);
    plan->none = cublaslt_refused(status);
    *done = status == 0;
    return status == 0 || plan->none ? 0 : multiply_failed(status, err);
}

const struct products_vendor products_cublaslt = {.name = "cublasLt",
                                                  .find = cublaslt_find,
                                                  .open = cublaslt_open,
                                                  .close = cublaslt_close,
                                                  .multiply = cublaslt_multiply};
