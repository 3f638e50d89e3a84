/* Compares a product that is large enough for the largest tiles with its definition in double. It finds
 * misplaced tiles and writes beyond a row. */
#pragma once

#include "engine/harness.h"
#include "engine/ops.h"

struct large_product {
    uint32_t m, n, k, ldc;
    enum dtype compute;
    bool stored; /* a and w are stored in the type that is computed in */
};

static inline struct operand large_product_stored(struct bench *b, struct operand x, uint64_t count,
                                                  const struct large_product *p)
{
    if (!p->stored)
        return x;
    struct operand y = bytes_in(b, NULL, 2 * count, p->compute);
    submit(b, (struct op){.kind = OP_CAST, .cast = {.count = count, .x = x, .y = y}});
    return y;
}

/* Computes c[m, n] += a[m, k] w[n, k]^T, with rows of c ldc apart, on the bench's device, and checks it. */
static inline void large_product_check(struct bench *b, const struct large_product *p)
{
    struct err err;
    size_t m = p->m, n = p->n, k = p->k, ldc = p->ldc;
    double *a = doubles(m * k), *w = doubles(n * k), *old = doubles(m * ldc);
    float *got = malloc(4 * m * ldc);
    struct operand oa = normal(b, m * k, a), ow = normal(b, n * k, w), oc = normal(b, m * ldc, old);
    oa = large_product_stored(b, oa, m * k, p);
    ow = large_product_stored(b, ow, n * k, p);
    submit(b, (struct op){.kind = OP_GEMM,
                          .gemm = {.m = p->m,
                                   .n = p->n,
                                   .k = p->k,
                                   .transpose_b = true,
                                   .alpha = 1,
                                   .beta = 1,
                                   .a = oa,
                                   .b = ow,
                                   .c = oc,
                                   .lda = p->k,
                                   .ldb = p->k,
                                   .ldc = p->ldc,
                                   .pack = !p->stored                 ? PACK_F32
                                           : p->compute == DTYPE_BF16 ? PACK_BF16
                                                                      : PACK_F16,
                                   .compute = p->compute}});
    check(buffer_read(oc.buffer, oc.at, got, 4 * m * ldc, &err));
    check(device_sync(b->device, &err));
    for (size_t i = 0; i < m * k; i++)
        a[i] = rounded(p->compute, a[i]);
    for (size_t i = 0; i < n * k; i++)
        w[i] = rounded(p->compute, w[i]);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            double want = old[i * ldc + j], size = j < n;
            for (size_t t = 0; t < k && j < n; t++) {
                want += a[i * k + t] * w[j * k + t];
                size += fabs(a[i * k + t] * w[j * k + t]);
            }
            if (!(fabs((double)got[i * ldc + j] - want) <= 1e-6 * size))
                fail_msg("%s: c[%zu, %zu] is %.9g, not %.9g", device_isa(b->device), i, j,
                         (double)got[i * ldc + j], want);
        }
    free(a), free(w), free(old), free(got);
}
