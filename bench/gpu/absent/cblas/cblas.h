/* Replaces OpenBLAS's header on a machine without it. It declares the two functions that engine/cpu/blas.c
 * looks up at run time, as the reference CBLAS declares them. */
#pragma once

enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };
typedef int blasint;

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b,
                 blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda, const float *b,
                 blasint ldb, float beta, float *c, blasint ldc);
void cblas_sgemv(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose, blasint m, blasint n, float alpha,
                 const float *a, blasint lda, const float *x, blasint step_x, float beta, float *y,
                 blasint step_y);
