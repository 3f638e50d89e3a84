/* rocBLAS: opens and checks the library, and queues products. The declarations are our own, after
 * rocblas-types.h, rocblas-auxiliary.h and rocblas-functions.h of rocBLAS 2.42 to 5.x (ROCm 5.0 to 7) and
 * their reference manual; the numbers used here are the same in all of them. rocblas_gemm_ex multiplies
 * 16-bit operands to fp32 on every card that it has code for; hipBLASLt, which supports fewer cards, is not
 * opened.
 *
 * rocBLAS ends the process at the first product on a card that it has no code for, and it loads another HIP
 * library if it was built for another one than we opened. Both are checked before it is used.
 * MOTLEY_ROCBLAS_LIBRARY names a file to open, or "none".
 */
#include "common/log.h"
#include "engine/gpu/products.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Numbers from rocblas-types.h. */
enum {
    STATUS_NOT_IMPLEMENTED = 2,
    STATUS_INVALID_SIZE = 4,
    STATUS_MEMORY_ERROR = 5,
    STATUS_INTERNAL_ERROR = 6, /* also returned for a failed launch */
    STATUS_INVALID_VALUE = 11,
    STATUS_EXCLUDED_FROM_BUILD = 14,
    STATUS_ARCH_MISMATCH = 15,
    TYPE_F16 = 150,
    TYPE_F32 = 151,
    TYPE_BF16 = 168,
    OPERATION_NONE = 111,
    OPERATION_TRANSPOSE = 112,
    POINTERS_HOST = 0,
    ATOMICS_NOT_ALLOWED = 0,
    ALGORITHM_STANDARD = 0,
    FLAGS_NONE = 0
};

/* All functions except HIP's own return a rocBLAS status, 0 for success. */
struct rocblas_api {
    int (*version)(char *text, size_t room);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*stream_set)(void *handle, void *stream);
    int (*workspace_set)(void *handle, gpu_address workspace, size_t bytes);
    int (*atomics_set)(void *handle, int mode);
    int (*pointers_set)(void *handle, int mode);
    int (*multiply)(void *handle, int operation_a, int operation_b, int32_t m, int32_t n, int32_t k,
                    const void *alpha, gpu_address a, int type_a, int32_t lda, gpu_address b, int type_b,
                    int32_t ldb, const void *beta, gpu_address c, int type_c, int32_t ldc, gpu_address d,
                    int type_d, int32_t ldd, int type_compute, int algorithm, int32_t solution,
                    uint32_t flags);
    int (*hip_version)(int *version); /* version of the HIP library that rocBLAS is bound to */
};

static const struct products_symbol symbols[] = {
    {"rocblas_get_version_string", offsetof(struct rocblas_api, version)},
    {"rocblas_create_handle", offsetof(struct rocblas_api, create)},
    {"rocblas_destroy_handle", offsetof(struct rocblas_api, destroy)},
    {"rocblas_set_stream", offsetof(struct rocblas_api, stream_set)},
    {"rocblas_set_workspace", offsetof(struct rocblas_api, workspace_set)},
    {"rocblas_set_atomics_mode", offsetof(struct rocblas_api, atomics_set)},
    {"rocblas_set_pointer_mode", offsetof(struct rocblas_api, pointers_set)},
    {"rocblas_gemm_ex", offsetof(struct rocblas_api, multiply)},
    {"hipRuntimeGetVersion", offsetof(struct rocblas_api, hip_version)},
};

enum { TYPES = DTYPE_F16 + 1, TRANSPOSITIONS = 4 /* of a product's two operands */ };

struct products {
    struct rocblas_api api;
    void *handle;
    char arch[32];
    bool lacks[TYPES][TRANSPOSITIONS]; /* the library has no kernels for such products */
};

/* --- opening the library */

/* The folder in which rocBLAS looks for code: the one named by ROCBLAS_TENSILE_LIBPATH, or one beside the
 * library. */
static void code_folder(const struct rocblas_api *api, char folder[PATH_MAX])
{
    static const char *const places[] = {"../../Tensile/library", "library", "../rocblas/library",
                                         "rocblas/library"};
    const char *asked = getenv("ROCBLAS_TENSILE_LIBPATH");
    char file[PATH_MAX];
    Dl_info info;
    void *symbol;
    memcpy(&symbol, &api->multiply, sizeof(symbol));
    folder[0] = '\0';
    if (asked)
        snprintf(folder, PATH_MAX, "%s", asked);
    if (asked || dladdr(symbol, &info) == 0)
        return;
    snprintf(file, sizeof(file), "%s", info.dli_fname);
    const char *beside = dirname(file);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        snprintf(folder, PATH_MAX, "%s/%s", beside, places[i]);
        if (access(folder, R_OK) == 0)
            return;
    }
}

static bool code_inside(const struct rocblas_api *api, const char *arch)
{
    static const char *const kinds[] = {"lazy_", ""};
    char folder[PATH_MAX], own[PATH_MAX + 32], file[PATH_MAX + 96];
    code_folder(api, folder);
    snprintf(own, sizeof(own), "%s/%s", folder, arch); /* some builds have one folder for each card */
    const char *where = access(own, R_OK) == 0 ? own : folder;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        snprintf(file, sizeof(file), "%s/TensileLibrary_%s%s.dat", where, kinds[i], arch);
        if (access(file, R_OK) == 0)
            return true;
    }
    return false;
}

static int rocblas_library_check(const void *opened, uint32_t driver_version, const char *arch, char *name,
                                 uint32_t room, struct err *err)
{
    const struct rocblas_api *api = opened;
    char version[256] = "";
    int hip = 0;
    if (api->hip_version(&hip) != 0 || (uint32_t)hip != driver_version)
        return err_set(err, ERR_UNSUPPORTED, "%s is of HIP %d, the driver of %u", name, hip, driver_version);
    if (arch && !code_inside(api, arch))
        return err_set(err, ERR_UNSUPPORTED, "%s has no code for %s", name, arch);
    if (api->version(version, sizeof(version)) != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s does not tell its version", name);
    size_t at = strlen(name);
    snprintf(name + at, room - at, ", %s", version);
    return 0;
}

static const char *const usual[] = {"librocblas.so.5",
                                    "librocblas.so.4",
                                    "librocblas.so.3",
                                    "librocblas.so.0",
                                    "/opt/rocm/lib/librocblas.so",
                                    NULL};
static const struct products_search search = {.what = "rocBLAS",
                                              .environment = "MOTLEY_ROCBLAS_LIBRARY",
                                              .usual = usual,
                                              .symbols = symbols,
                                              .symbol_count = sizeof(symbols) / sizeof(*symbols),
                                              .check = rocblas_library_check};

static int rocblas_find(uint32_t driver_version, const char *arch, char *name, uint32_t room, struct err *err)
{
    struct rocblas_api api;
    return products_find(&search, driver_version, arch, &api, name, room, err);
}

static void rocblas_close(struct products *library)
{
    if (!library)
        return;
    if (library->handle)
        library->api.destroy(library->handle);
    free(library);
}

/* Creates the handle with a fixed workspace, because rocBLAS's own workspace would grow with the sizes. */
static int handle_create(struct products *library, const struct products_place *place)
{
    const struct rocblas_api *api = &library->api;
    int status = api->create(&library->handle);
    if (status == 0)
        status = api->stream_set(library->handle, place->stream);
    if (status == 0)
        status = api->workspace_set(library->handle, place->workspace, place->workspace_bytes);
    if (status == 0)
        status = api->atomics_set(library->handle, ATOMICS_NOT_ALLOWED);
    return status == 0 ? api->pointers_set(library->handle, POINTERS_HOST) : status;
}

static int rocblas_open(const struct products_place *place, struct products **out, struct err *err)
{
    char name[256];
    struct products *library = calloc(1, sizeof(*library));
    *out = NULL;
    if (!library)
        return err_set(err, ERR_NOMEM, "out of memory for rocBLAS");
    snprintf(library->arch, sizeof(library->arch), "%s", place->arch);
    int status =
        products_find(&search, place->driver_version, place->arch, &library->api, name, sizeof(name), err);
    if (status == 0 && (status = handle_create(library, place)) != 0)
        err_set(err, status == STATUS_MEMORY_ERROR ? ERR_NOMEM : ERR_UNSUPPORTED,
                "%s does not start: status %d", name, status);
    if (status != 0) {
        rocblas_close(library);
        return -1;
    }
    *out = library;
    return 0;
}

/* --- products */

static int rocblas_type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? TYPE_BF16 : dtype == DTYPE_F16 ? TYPE_F16 : TYPE_F32;
}

/* Did the library refuse before it queued anything? */
static bool rocblas_refused(int status)
{
    return status == STATUS_NOT_IMPLEMENTED || status == STATUS_INVALID_SIZE ||
           status == STATUS_INVALID_VALUE || status == STATUS_EXCLUDED_FROM_BUILD ||
           status == STATUS_ARCH_MISMATCH;
}

static int transpositions(bool transpose_a, bool transpose_b)
{
    return 2 * transpose_a + transpose_b;
}

static bool rocblas_takes(const struct products *library, enum dtype type, bool transpose_a, bool transpose_b)
{
    return !library->lacks[type][transpositions(transpose_a, transpose_b)];
}

/* Remembers that the library has no kernels for a type, as rocBLAS for gfx1030 lacks some of 16 bits: from
 * then on our kernels are used at once. The log says so once a type. */
static void lack_note(struct products *library, const struct library_product *p)
{
    static const char *const names[TYPES] = {"fp32", "bf16", "fp16"};
    bool *lacks = library->lacks[p->type], known = false;
    for (int i = 0; i < TRANSPOSITIONS; i++)
        known = known || lacks[i];
    lacks[transpositions(p->transpose_a, p->transpose_b)] = true;
    if (!known)
        log_event(LOG_LEVEL_WARN, "products_without_library",
                  "library=rocBLAS arch=%s type=%s note=\"it has no kernels for them, so our own are used\"",
                  library->arch, names[p->type]);
}

/* rocBLAS's matrices are column-major, so it computes c^T = op(b)^T op(a)^T: its first operand is our b. */
static int rocblas_multiply(struct products *library, const struct library_product *p, bool *done,
                            struct err *err)
{
    int type = rocblas_type_of(p->type), c_type = rocblas_type_of(p->c_type);
    *done = false;
    if ((p->m | p->n | p->k | p->lda | p->ldb | p->ldc) > INT32_MAX)
        return 0;
    int status = library->api.multiply(
        library->handle, p->transpose_b ? OPERATION_TRANSPOSE : OPERATION_NONE,
        p->transpose_a ? OPERATION_TRANSPOSE : OPERATION_NONE, (int32_t)p->n, (int32_t)p->m, (int32_t)p->k,
        &p->alpha, p->b, type, (int32_t)p->ldb, p->a, type, (int32_t)p->lda, &p->beta, p->c, c_type,
        (int32_t)p->ldc, p->c, c_type, (int32_t)p->ldc, TYPE_F32, ALGORITHM_STANDARD, 0, FLAGS_NONE);
    *done = status == 0;
    if (status == STATUS_NOT_IMPLEMENTED || status == STATUS_EXCLUDED_FROM_BUILD)
        lack_note(library, p);
    if (status == 0 || rocblas_refused(status))
        return 0;
    return err_set(err,
                   status == STATUS_MEMORY_ERROR     ? ERR_NOMEM
                   : status == STATUS_INTERNAL_ERROR ? ERR_DEVICE_FAULT
                                                     : ERR_INTERNAL,
                   "a product: status %d of rocblas_gemm_ex", status);
}

const struct products_vendor products_rocblas = {.name = "rocBLAS",
                                                 .find = rocblas_find,
                                                 .open = rocblas_open,
                                                 .close = rocblas_close,
                                                 .multiply = rocblas_multiply,
                                                 .takes = rocblas_takes};
