/* Compares the ops on embedding tables and on flat arrays with their definitions. */
#pragma once

#include "engine/harness.h"
#include "model/files/dynamic_map.h"

/* --- rows of tables */

static inline void embed_draw(struct trial *t)
{
    struct op_embed *o = &t->op.embed;
    t->op.kind = OP_EMBED;
    o->tokens = draw_rows(t, 60);
    o->hidden = 1 + draw_below(t, 100);
    o->vocab = 1 + draw_below(t, 30);
    o->turned = draw_below(t, 3) == 0;
    o->scale = draw_below(t, 2) ? 1.7f : 0;
    bind_as(t, &o->ids, FILL_BELOW, o->vocab);
    bind(t, &o->table);
    bind(t, &o->out);
}

static inline void embed_want(struct trial *t)
{
    const struct op_embed *o = &t->op.embed;
    double *ids = values(t, "ids"), *table = values(t, "table"), *out = expected(t, "out");
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t j = 0; j < o->hidden; j++)
            out[i * o->hidden + j] =
                (double)o->scale *
                table[o->turned ? j * o->vocab + (size_t)ids[i] : (size_t)ids[i] * o->hidden + j];
}

static inline void embed_backward_draw(struct trial *t)
{
    struct op_embed_backward *o = &t->op.embed_backward;
    t->op.kind = OP_EMBED_BACKWARD;
    o->tokens = draw_rows(t, 90);
    o->hidden = 1 + draw_below(t, 150);
    o->vocab = 1 + draw_below(t, 30);
    o->turned = draw_below(t, 3) == 0;
    o->scale = draw_below(t, 2) ? 1.7f : 0;
    bind_as(t, &o->ids, FILL_BELOW, o->vocab);
    bind(t, &o->dout);
    bind(t, &o->dtable);
}

static inline void embed_backward_want(struct trial *t)
{
    const struct op_embed_backward *o = &t->op.embed_backward;
    double *ids = values(t, "ids"), *dout = values(t, "dout"), *dtable = expected(t, "dtable");
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t j = 0; j < o->hidden; j++)
            dtable[o->turned ? j * o->vocab + (size_t)ids[i] : (size_t)ids[i] * o->hidden + j] +=
                (double)o->scale * dout[i * o->hidden + j];
}

static inline void gather_draw(struct trial *t)
{
    struct op_gather_rows *o = &t->op.gather_rows;
    t->op.kind = OP_GATHER_ROWS;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 50);
    o->x_rows = 1 + draw_below(t, 40);
    bind(t, &o->x);
    bind_as(t, &o->index, FILL_BELOW, o->x_rows);
    bind(t, &o->y);
}

static inline void gather_want(struct trial *t)
{
    const struct op_gather_rows *o = &t->op.gather_rows;
    double *x = values(t, "x"), *index = values(t, "index"), *y = expected(t, "y");
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < o->width; j++)
            y[i * o->width + j] = x[(size_t)index[i] * o->width + j];
}

static inline void scatter_draw(struct trial *t)
{
    struct op_scatter_rows *o = &t->op.scatter_rows;
    t->op.kind = OP_SCATTER_ROWS;
    o->rows = draw_rows(t, 30);
    o->width = 1 + draw_below(t, 50);
    o->y_rows = o->rows + 1 + draw_below(t, 10);
    o->scale = 2;
    bind(t, &o->x);
    bind_as(t, &o->index, FILL_DISTINCT, o->y_rows);
    bind(t, &o->y);
}

static inline void scatter_want(struct trial *t)
{
    const struct op_scatter_rows *o = &t->op.scatter_rows;
    double *x = values(t, "x"), *index = values(t, "index"), *y = expected(t, "y");
    memset(y, 0, sizeof(*y) * o->y_rows * o->width);
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < o->width; j++)
            y[(size_t)index[i] * o->width + j] = (double)o->scale * x[i * o->width + j];
}

/* --- flat arrays */

static inline void cast_draw(struct trial *t)
{
    t->op.kind = OP_CAST;
    t->op.cast.count = draw_rows(t, draw_below(t, 4) ? 3000 : 70000);
    bind_as(t, &t->op.cast.x, FILL_WIDE, 0);
    bind(t, &t->op.cast.y);
}

static inline void cast_want(struct trial *t)
{
    double *x = values(t, "x"), *y = expected(t, "y");
    for (size_t i = 0; i < t->op.cast.count; i++)
        y[i] = rounded(array_named(t, "y")->use.operand.dtype, x[i]);
}

static inline void square_sum_draw(struct trial *t)
{
    t->op.kind = OP_SQUARE_SUM;
    t->op.square_sum.count = draw_below(t, 70000);
    bind(t, &t->op.square_sum.x);
    bind(t, &t->op.square_sum.out);
}

static inline void square_sum_want(struct trial *t)
{
    double *x = values(t, "x"), *out = expected(t, "out");
    *out = 0;
    for (size_t i = 0; i < t->op.square_sum.count; i++)
        *out += x[i] * x[i];
}

static inline void adamw_draw(struct trial *t)
{
    struct op_adamw *o = &t->op.adamw;
    *o = (struct op_adamw){.count = draw_rows(t, 70000),
                           .rule.learning_rate = 0.01,
                           .rule.beta1 = 0.9,
                           .rule.beta2 = 0.95,
                           .rule.eps = 1e-8,
                           .rule.weight_decay = 0.1,
                           .rule.grad_scale = 0.5,
                           .rule.bias_correction1 = 0.271,
                           .rule.bias_correction2 = 0.142625};
    t->op.kind = OP_ADAMW;
    bind(t, &o->value);
    bind(t, &o->gradient);
    bind(t, &o->moment1);
    bind_as(t, &o->moment2, FILL_POSITIVE, 0);
}

static inline void adamw_want(struct trial *t)
{
    const struct op_adamw *o = &t->op.adamw;
    double *p = expected(t, "value"), *g = values(t, "gradient"), *m = expected(t, "moment1"),
           *v = expected(t, "moment2");
    for (size_t i = 0; i < o->count; i++) {
        double gradient = g[i] * o->rule.grad_scale;
        p[i] *= 1 - o->rule.learning_rate * o->rule.weight_decay;
        m[i] = o->rule.beta1 * m[i] + (1 - o->rule.beta1) * gradient;
        v[i] = o->rule.beta2 * v[i] + (1 - o->rule.beta2) * gradient * gradient;
        p[i] -= o->rule.learning_rate / o->rule.bias_correction1 * m[i] /
                (sqrt(v[i] / o->rule.bias_correction2) + o->rule.eps);
    }
}

static inline void adamw8_draw(struct trial *t)
{
    struct op_adamw8 *o = &t->op.adamw8;
    *o = (struct op_adamw8){.count = draw_below(t, 3) ? draw_rows(t, 2000) : draw_rows(t, 70000),
                            .rule.learning_rate = 0.01,
                            .rule.beta1 = 0.9,
                            .rule.beta2 = 0.95,
                            .rule.eps = 1e-3,
                            .rule.weight_decay = 0.1,
                            .rule.grad_scale = 0.5,
                            .rule.bias_correction1 = 0.271,
                            .rule.bias_correction2 = 0.142625};
    t->op.kind = OP_ADAMW8;
    bind(t, &o->value);
    bind(t, &o->gradient);
    bind_as(t, &o->code1, FILL_BELOW, 256);
    bind_as(t, &o->code2, FILL_BELOW, 256);
    bind_as(t, &o->absmax1, FILL_POSITIVE, 0);
    bind_as(t, &o->absmax2, FILL_POSITIVE, 0);
}

/* Computes the updated values and the blocks' magnitudes. Codes are compared with those of bitsandbytes in
 * test_adamw8.c, because a rounding decides between two neighbouring codes. */
static inline void adamw8_want(struct trial *t)
{
    const struct op_adamw8 *o = &t->op.adamw8;
    double *p = expected(t, "value"), *g = values(t, "gradient"), *a1 = expected(t, "absmax1"),
           *a2 = expected(t, "absmax2");
    float with_sign[DYNAMIC_MAP_SIZE], without[DYNAMIC_MAP_SIZE];
    dynamic_map(true, with_sign);
    dynamic_map(false, without);
    for (size_t begin = 0; begin < o->count; begin += ADAMW8_BLOCK) {
        double scale1 = a1[begin / ADAMW8_BLOCK], scale2 = a2[begin / ADAMW8_BLOCK], max1 = 0, max2 = 0;
        for (size_t i = begin; i < o->count && i < begin + ADAMW8_BLOCK; i++) {
            double m = scale1 * (double)with_sign[(int)values(t, "code1")[i]],
                   step = g[i] * o->rule.grad_scale;
            double v = scale2 * (double)without[(int)values(t, "code2")[i]];
            m = o->rule.beta1 * m + (1 - o->rule.beta1) * step;
            v = o->rule.beta2 * v + (1 - o->rule.beta2) * step * step;
            max1 = fmax(max1, fabs(m));
            max2 = fmax(max2, v);
            p[i] *= 1 - o->rule.learning_rate * o->rule.weight_decay;
            p[i] -= o->rule.learning_rate / o->rule.bias_correction1 * m /
                    (sqrt(v / o->rule.bias_correction2) + o->rule.eps);
        }
        a1[begin / ADAMW8_BLOCK] = max1;
        a2[begin / ADAMW8_BLOCK] = max2;
    }
}
