/* Opens OpenBLAS at run time. OpenBLAS reads OPENBLAS_CORETYPE when it is loaded, and Debian's 0.3.21 takes
 * newer CPUs for a Prescott, so the variable must be set before; linking would load it too early.
 *
 * The library is the only process-wide state of the engine. It is loaded once, under a lock, and never
 * changes afterwards.
 */
#include "engine/cpu/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct kernels *const all_kernels[] = {&kernels_avx512, &kernels_avx2, &kernels_sse42};

static bool cpu_has(const char *isa)
{
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    return __builtin_cpu_supports("sse4.2");
}

const struct kernels *isa_kernels(const char *isa, struct err *err)
{
    if (isa == NULL)
        isa = getenv("MOTLEY_ISA");
    if (isa == NULL || isa[0] == '\0')
        isa = "native";
    bool native = strcmp(isa, "native") == 0, known = native;
    for (size_t i = 0; i < sizeof all_kernels / sizeof all_kernels[0]; i++) {
        bool named = strcmp(isa, all_kernels[i]->isa) == 0;
        known = known || named;
        if ((native || named) && cpu_has(all_kernels[i]->isa))
            return all_kernels[i];
    }
    if (!known)
        err_set(err, ERR_INVALID, "no instruction set '%s' (native, avx512, avx2, sse42)", isa);
    else
        err_set(err, ERR_UNSUPPORTED, "this CPU does not have the instruction set '%s'", isa);
    return NULL;
}

static struct {
    pthread_mutex_t lock;
    const char *isa; /* NULL until loaded */
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_sgemv) *sgemv;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void gemm(bool transpose_a, bool transpose_b, uint32_t m, uint32_t n, uint32_t k, float alpha,
                 const float *a, uint32_t lda, const float *b, uint32_t ldb, float beta, float *c,
                 uint32_t ldc)
{
    if (m == 1 && !transpose_a) {
        /* One row, as in generation: sgemv only reads the matrix and packs nothing. */
        library.sgemv(CblasRowMajor, transpose_b ? CblasNoTrans : CblasTrans, (int)(transpose_b ? n : k),
                      (int)(transpose_b ? k : n), alpha, b, (int)ldb, a, 1, beta, c, 1);
        return;
    }
    library.sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                  transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                  (int)ldb, beta, c, (int)ldc);
}

static const char *core_type(const char *isa)
{
    if (strcmp(isa, "avx512") == 0)
        return "SkylakeX";
    return strcmp(isa, "avx2") == 0 ? "Haswell" : "Nehalem";
}

/* Sets a variable unless it has that value. A process with several threads sets both variables before it
 * starts them, because setenv is not thread-safe. */
static void environment_set(const char *name, const char *value)
{
    const char *now = getenv(name);
    if (now == NULL || strcmp(now, value) != 0)
        setenv(name, value, 1);
}

static int library_load(const char *isa, struct err *err)
{
    environment_set("OPENBLAS_CORETYPE", core_type(isa));
    environment_set("OPENBLAS_NUM_THREADS", "1");
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return err_set(err, ERR_UNSUPPORTED, "could not load libopenblas.so.0: %s", dlerror());
    void *sgemm = dlsym(handle, "cblas_sgemm"), *sgemv = dlsym(handle, "cblas_sgemv");
    if (sgemm == NULL || sgemv == NULL) {
        dlclose(handle);
        return err_set(err, ERR_UNSUPPORTED, "libopenblas.so.0 lacks cblas_sgemm or cblas_sgemv");
    }
    memcpy(&library.sgemm, &sgemm, sizeof sgemm);
    memcpy(&library.sgemv, &sgemv, sizeof sgemv);
    library.isa = isa;
    return 0;
}

int blas_open(const char *isa, struct blas *out, struct err *err)
{
    int status = 0;
    pthread_mutex_lock(&library.lock);
    if (library.isa == NULL)
        status = library_load(isa, err);
    else if (strcmp(library.isa, isa) != 0)
        status =
            err_set(err, ERR_UNSUPPORTED,
                    "this process multiplies with %s already; a device with %s needs a process of its own",
                    library.isa, isa);
    pthread_mutex_unlock(&library.lock);
    out->gemm = gemm;
    return status;
}
