/* Opens OpenBLAS at run time. OpenBLAS reads OPENBLAS_CORETYPE when it is loaded, and Debian's 0.3.21 takes
 * newer CPUs for a Prescott, so the variable must be set before; linking would load it too early.
 *
 * The library is the only process-wide state of the engine. It is loaded once, under a lock, and never
 * changes afterwards.
 */
#include "engine/cpu/blas.h"
#include "engine/cpu/kernels_bf16.h"

#include <cblas.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct kernels *const all_kernels[] = {&kernels_amx, &kernels_avx512_bf16, &kernels_avx512,
                                                    &kernels_avx2, &kernels_sse42};

/* Linux lets a process use the tile registers once it has asked, for all of its threads. */
static bool amx_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    enum { EDX_AMX_BF16 = 1 << 22, EDX_AMX_TILE = 1 << 24 }; /* of leaf 7 */
    const unsigned wanted = EDX_AMX_BF16 | EDX_AMX_TILE;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool cpu_has(const char *isa)
{
    const bool amx = strcmp(isa, "amx") == 0, bf16 = amx || strcmp(isa, "avx512-bf16") == 0;
    if (bf16 || strcmp(isa, "avx512") == 0)
        return (!bf16 || (gemm_bf16_amx && __builtin_cpu_supports("avx512bf16"))) &&
               (!amx || amx_allowed()) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    return __builtin_cpu_supports("sse4.2");
}

const struct kernels *isa_kernels(const char *isa, struct err *err)
{
    if (!isa)
        isa = getenv("MOTLEY_ISA");
    if (!isa || isa[0] == '\0')
        isa = "native";
    bool native = strcmp(isa, "native") == 0, known = native;
    for (size_t i = 0; i < sizeof(all_kernels) / sizeof(all_kernels[0]); i++) {
        bool named = strcmp(isa, all_kernels[i]->isa) == 0;
        known = known || named;
        if ((native || named) && cpu_has(all_kernels[i]->isa))
            return all_kernels[i];
    }
    if (!known)
        err_set(err, ERR_INVALID, "no instruction set '%s' (native, amx, avx512-bf16, avx512, avx2, sse42)",
                isa);
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

static void gemm(const struct gemm_f32 *g)
{
    if (g->m == 1 && !g->transpose_a) {
        /* One row, as in generation: sgemv only reads the matrix and packs nothing. */
        library.sgemv(CblasRowMajor, g->transpose_b ? CblasNoTrans : CblasTrans,
                      (int)(g->transpose_b ? g->n : g->k), (int)(g->transpose_b ? g->k : g->n), g->alpha,
                      g->b, (int)g->ldb, g->a, 1, g->beta, g->c, 1);
        return;
    }
    library.sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                  g->transpose_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, g->alpha, g->a,
                  (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}

static const char *blas_core_type(const char *isa)
{
    if (strncmp(isa, "avx512", 6) == 0 || strcmp(isa, "amx") == 0)
        return "SkylakeX";
    return strcmp(isa, "avx2") == 0 ? "Haswell" : "Nehalem";
}

/* Sets a variable unless it has that value. A process with several threads sets both variables before it
 * starts them, because setenv is not thread-safe. */
static void environment_set(const char *name, const char *value)
{
    const char *now = getenv(name);
    if (!now || strcmp(now, value) != 0)
        setenv(name, value, 1);
}

static int library_load(const char *isa, struct err *err)
{
    environment_set("OPENBLAS_CORETYPE", blas_core_type(isa));
    environment_set("OPENBLAS_NUM_THREADS", "1");
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return err_set(err, ERR_UNSUPPORTED, "could not load libopenblas.so.0: %s", dlerror());
    void *sgemm = dlsym(handle, "cblas_sgemm"), *sgemv = dlsym(handle, "cblas_sgemv");
    if (!sgemm || !sgemv) {
        dlclose(handle);
        return err_set(err, ERR_UNSUPPORTED, "libopenblas.so.0 lacks cblas_sgemm or cblas_sgemv");
    }
    memcpy(&library.sgemm, &sgemm, sizeof(sgemm));
    memcpy(&library.sgemv, &sgemv, sizeof(sgemv));
    library.isa = isa;
    return 0;
}

int blas_open(const char *isa, struct blas *out, struct err *err)
{
    int status = 0;
    pthread_mutex_lock(&library.lock);
    if (!library.isa)
        status = library_load(isa, err);
    else if (strcmp(blas_core_type(library.isa), blas_core_type(isa)) != 0)
        status =
            err_set(err, ERR_UNSUPPORTED,
                    "this process multiplies with %s already; a device with %s needs a process of its own",
                    library.isa, isa);
    pthread_mutex_unlock(&library.lock);
    out->gemm = gemm;
    return status;
}
