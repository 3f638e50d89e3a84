/* Compares products and attention whose operands are rounded to bf16 or fp16 with their definitions on
 * operands rounded by the definition of rounding; and tests the rounding of single values. */
#pragma once

#include "engine/cases_basic.h"
#include "engine/cases_experts.h"

/* Draws products with b in fp32, or in 16 bits as frozen weights are stored. */
static void gemm_rounded_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    if (draw_below(t, 4) == 0)
        gemm_deep_draw(t);
    else
        gemm_draw(t);
    o->compute = compute_draw(t);
    o->pack = (enum pack_kind)(PACK_F32 + draw_below(t, 3));
}

static void gemm_rounded_want(struct trial *t)
{
    operand_round(t, "a", t->op.gemm.compute);
    operand_round(t, "b", t->op.gemm.compute);
    gemm_want(t);
}

/* Draws values of any size, infinities and NaNs, each multiplied by 1. */
static void rounding_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    t->op.kind = OP_GEMM;
    *o = (struct op_gemm){.m = 1 + draw_below(t, 300), .n = 1, .k = 1, .alpha = 1, .ldb = 1, .ldc = 1};
    o->transpose_a = draw_below(t, 2);
    o->lda = o->transpose_a ? o->m : 1;
    o->compute = compute_draw(t);
    bind_as(t, &o->a, FILL_WIDE, 0);
    bind(t, &o->b);
    bind(t, &o->c);
}

static void rounding_prepare(struct trial *t)
{
    *values(t, "b") = 1;
}

static void rounding_want(struct trial *t)
{
    const double *a = values(t, "a");
    double *c = expected(t, "c");
    for (uint32_t i = 0; i < t->op.gemm.m; i++)
        c[i] = rounded(t->op.gemm.compute, a[i]);
}

/* Draws grouped products in the same way. Packed matrices have their stride in bytes. */
static void grouped_rounded_draw(struct trial *t)
{
    struct op_gemm_grouped *o = &t->op.gemm_grouped;
    gemm_grouped_draw(t);
    o->compute = compute_draw(t);
    o->pack = o->transpose_a ? PACK_F32 : (enum pack_kind)(PACK_F32 + draw_below(t, 3));
    if (o->pack != PACK_F32)
        o->stride = 4 * o->stride;
}

static void grouped_rounded_want(struct trial *t)
{
    operand_round(t, "a", t->op.gemm_grouped.compute);
    operand_round(t, "b", t->op.gemm_grouped.compute);
    uint64_t stride = t->op.gemm_grouped.stride;
    t->op.gemm_grouped.stride = t->op.gemm_grouped.pack == PACK_F32 ? stride : stride / 2;
    gemm_grouped_want(t); /* This definition counts the stride in values. */
    t->op.gemm_grouped.stride = stride;
}

/* Products of two values of 8 or 11 binary digits are exact in fp32, so the tolerances are those of fp32
 * sums. */
static const struct op_case rounded_cases[] = {
    {.name = "gemm_rounded", .draw = gemm_rounded_draw, .want = gemm_rounded_want, .tolerance = 2e-6},
    {.name = "rounding", .draw = rounding_draw, .prepare = rounding_prepare, .want = rounding_want},
    {.name = "gemm_grouped_rounded",
     .draw = grouped_rounded_draw,
     .prepare = gemm_grouped_prepare,
     .want = grouped_rounded_want,
     .tolerance = 2e-6},
    ATTENTION_ROUNDED_CASES};
