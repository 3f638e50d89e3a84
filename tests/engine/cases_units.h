/* Attention by matrix units, for heads of whole 16-byte pieces and every number of panels that the kernels
 * support. */
#pragma once

#include "engine/cases_rounded.h"

static uint32_t head_dim_draw(struct trial *t)
{
    static const uint32_t dims[] = {8, 40, 64, 72, 128, 136, 200, 256};
    return dims[draw_below(t, sizeof(dims) / sizeof(*dims))];
}

/* Draws up to three tiles of keys and queries, with grouped heads. */
static void forward_draw(struct trial *t)
{
    struct op_attention *o = &t->op.attention;
    attention_rounded_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ld = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

static void backward_draw(struct trial *t)
{
    struct op_attention *o = &t->op.attention_backward.forward;
    attention_rounded_backward_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ld = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

static void cached_draw(struct trial *t)
{
    struct op_attention_cached *o = &t->op.attention_cached;
    attention_cached_rounded_draw(t);
    o->head_dim = head_dim_draw(t);
    o->kv_heads = 1;
    o->heads = 1 + draw_below(t, 2);
    o->ldq = o->heads * o->head_dim + 8 * draw_below(t, 2);
    o->scale = 1 / sqrtf((float)o->head_dim);
}

/* The tolerances are those of the cases on which these are based. */
static const struct op_case units_cases[] = {
    {.name = "attention by units",
     .draw = forward_draw,
     .want = attention_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
    {.name = "attention_backward by units",
     .draw = backward_draw,
     .prepare = attention_rounded_prepare,
     .want = attention_rounded_backward_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
    {.name = "attention_cached by units",
     .draw = cached_draw,
     .want = attention_cached_want,
     .aligned = true,
     .tolerance = 4e-6,
     .flip = 0x1p-7},
};
