/* Shared parts of the tests of cublasLt and rocBLAS: a device over a fake driver, and a product that is just
 * large enough for the vendor's library. */
#pragma once

#include "engine/harness.h"

#include <dlfcn.h>

#include "engine/gpu/code.h"
#include "engine/fakes/products.h"
#include "engine/gpu/products.h"

enum { M = 264, N = 256, K = 264, LDC = 260 };

static inline void *symbol_of(const char *file, const char *name)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *found = !library ? NULL : dlsym(library, name);
    if (!found)
        fail_msg("%s", dlerror());
    return found;
}

/* Returns the reset switches of the fake library `file`, and sets the environment variable to its path. */
static inline struct fake_products *fake_of(const char *file, const char *symbol, const char *variable)
{
    struct fake_products *fake = symbol_of(file, symbol);
    setenv(variable, file, 1);
    assert_int_equal(fake->live, 0);
    fake->calls = fake->fail_at = fake->products = fake->misuses = 0;
    fake->none = 0;
    fake->trace[0] = '\0';
    return fake;
}

static inline void fake_clean(const struct fake_products *fake, const char *when)
{
    if (fake->misuses != 0)
        fail_msg("%s: %s (%llu misuses)", when, fake->misuse, (unsigned long long)fake->misuses);
    if (fake->live != 0)
        fail_msg("%s: %llu objects are left", when, (unsigned long long)fake->live);
}

/* Whether this build has code for the card; otherwise its tests are skipped. */
static inline bool code_inside(const char *kind, const char *arch)
{
    struct err err;
    if (gpu_code_choose(kind, arch, &err))
        return true;
    printf("%s\n", err.text);
    return false;
}

/* A device and a product on it. */
struct scene {
    struct bench b;
    struct op op;
    double *a, *w, *old;
};

static inline void scene_open(struct scene *s, const char *kind, enum dtype compute, bool transpose_a,
                              bool transpose_b, bool halves)
{
    struct err err;
    memset(s, 0, sizeof(*s));
    check(device_open(&(struct device_options){.kind = kind, .name = "library"}, &s->b.device, &err));
    rand_stream_init(&s->b.stream, 9, 0);
    s->a = doubles(M * K), s->w = doubles(N * K), s->old = doubles(M * LDC);
    struct op_gemm *o = &s->op.gemm;
    s->op.kind = OP_GEMM;
    *o = (struct op_gemm){.m = M,
                          .n = N,
                          .k = K,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .alpha = 0.5f,
                          .beta = 1,
                          .a = normal(&s->b, M * K, s->a),
                          .b = normal(&s->b, N * K, s->w),
                          .c = normal(&s->b, M * LDC, s->old),
                          .lda = transpose_a ? M : K,
                          .ldb = transpose_b ? K : N,
                          .ldc = LDC,
                          .compute = compute};
    for (size_t i = 0; i < M * K; i++)
        s->a[i] = rounded(compute, s->a[i]);
    for (size_t i = 0; i < N * K; i++)
        s->w[i] = rounded(compute, s->w[i]);
    if (!halves)
        return;
    struct operand half = bytes_in(&s->b, NULL, 2 * N * K, compute);
    submit(&s->b, (struct op){.kind = OP_CAST, .cast = {.count = N * K, .x = o->b, .y = half}});
    o->b = half;
    o->pack = compute == DTYPE_BF16 ? PACK_BF16 : PACK_F16;
}

static inline void scene_close(struct scene *s)
{
    free(s->a), free(s->w), free(s->old);
    bench_close(&s->b);
}

/* Checks every seventh row of c, to which `times` equal products were added, against sums in double. */
static inline void scene_right(struct scene *s, uint32_t times)
{
    const struct op_gemm *o = &s->op.gemm;
    struct err err;
    float *got = malloc(4 * M * LDC);
    check(buffer_read(o->c.buffer, 0, got, 4 * M * LDC, &err));
    check(device_sync(s->b.device, &err));
    for (size_t i = 0; i < M; i += 7)
        for (size_t j = 0; j < LDC; j++) {
            double want = s->old[i * LDC + j];
            for (size_t p = 0; p < K && j < N; p++)
                want += 0.5 * times * s->a[o->transpose_a ? p * M + i : i * K + p] *
                        s->w[o->transpose_b ? j * K + p : p * N + j];
            if (!(fabs((double)got[i * LDC + j] - want) <= (j < N ? 6e-5 : 0)))
                fail_msg("c[%zu, %zu] is %.9g, not %.9g", i, j, (double)got[i * LDC + j], want);
        }
    free(got);
}

/* The library rounds its sums to 16 bits where c is so: the values are those of fp32, rounded. */
static inline void halves_are_the_library_s(struct scene *s, struct fake_products *fake)
{
    const enum dtype compute = s->op.gemm.compute;
    float *sums = malloc(4 * M * N);
    uint16_t *halves = malloc(2 * M * N);
    struct err err;
    s->op.gemm.beta = 0;
    s->op.gemm.ldc = N;
    submit(&s->b, s->op);
    check(buffer_read(s->op.gemm.c.buffer, 0, sums, 4 * M * N, &err));
    s->op.gemm.c = bytes_in(&s->b, NULL, 2 * M * N, compute);
    fake->products = 0;
    submit(&s->b, s->op);
    check(buffer_read(s->op.gemm.c.buffer, 0, halves, 2 * M * N, &err));
    check(device_sync(s->b.device, &err));
    assert_int_equal(fake->products, 1);
    for (size_t i = 0; i < M * N; i++)
        if (read_as(compute, (const uint8_t *)&halves[i]) != rounded(compute, sums[i]))
            fail_msg("value %zu is %g, not %g rounded", i, read_as(compute, (const uint8_t *)&halves[i]),
                     (double)sums[i]);
    free(sums), free(halves);
}

/* Large products of every dtype and transposition go to the library. A product that was asked before makes
 * only the call `call`. */
static inline void products_are_the_library_s(struct fake_products *fake, const char *kind, const char *call)
{
    static const struct {
        enum dtype compute;
        bool transpose_a, transpose_b, halves;
    } cases[] = {{DTYPE_F32, false, true, false},  {DTYPE_F32, true, false, false},
                 {DTYPE_BF16, false, true, true},  {DTYPE_F16, false, false, true},
                 {DTYPE_BF16, true, false, false}, {DTYPE_F16, false, true, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct scene s;
        scene_open(&s, kind, cases[i].compute, cases[i].transpose_a, cases[i].transpose_b, cases[i].halves);
        fake->products = 0;
        submit(&s.b, s.op);
        if (fake->products != 1)
            fail_msg("not done by the library: %s %s", fake->trace, fake->misuse);
        fake->trace[0] = '\0';
        submit(&s.b, s.op);
        assert_string_equal(fake->trace, call);
        scene_right(&s, 2);
        if (cases[i].compute != DTYPE_F32)
            halves_are_the_library_s(&s, fake);
        scene_close(&s);
        fake_clean(fake, "a product");
    }
}

/* A recorded pass that contains a product of the library gives right results when it is replayed, and the
 * library is not called again. */
static inline void passes_hold_the_library_s(struct fake_products *fake, const char *kind)
{
    struct scene s;
    struct err err;
    scene_open(&s, kind, DTYPE_BF16, false, true, false);
    for (int i = 0; i < 3; i++) {
        bool replayed = false, again = false;
        check(device_pass_begin(s.b.device, 77, &replayed, &err));
        assert_int_equal(replayed, i == 2);
        if (replayed)
            continue;
        submit(&s.b, s.op);
        check(device_pass_end(s.b.device, true, &again, &err));
        assert_false(again);
    }
    assert_int_equal(fake->products, 2);
    scene_right(&s, 3);
    scene_close(&s);
    fake_clean(fake, "passes");
}
