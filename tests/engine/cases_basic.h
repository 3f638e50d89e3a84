/* Compares every op except those of experts with its definition in double, and backward ops with finite
 * differences of it. Attention and tables have headers of their own. */
#pragma once

#include "engine/cases_attention.h"
#include "engine/cases_tables.h"
#include "engine/harness.h"

/* --- matrices */

static void gemm_draw(struct trial *t)
{
    /* m and n lie on both sides of the limits at which a device chooses another kernel or the matrix library.
     */
    struct op_gemm *o = &t->op.gemm;
    uint32_t shape = draw_below(t, 3), layout = draw_below(t, 3);
    t->op.kind = OP_GEMM;
    o->m = draw_rows(t, shape == 1 ? 500 : 70);
    o->n = draw_rows(t, shape == 2 ? 600 : 90);
    o->k = 1 + draw_below(t, 200);
    o->transpose_a = layout == 2;
    o->transpose_b = layout == 0;
    o->beta = (float)draw_below(t, 2);
    o->alpha = o->beta == 0 ? 0.5f : 1;
    o->lda = draw_ld(t, o->transpose_a ? o->m : o->k);
    o->ldb = draw_ld(t, o->transpose_b ? o->k : o->n);
    o->ldc = draw_ld(t, o->n);
    bind(t, &o->a);
    bind(t, &o->b);
    bind(t, &o->c);
    if (candidates[0].partial && o->beta != 0 && draw_below(t, 2))
        bind(t, &o->add);
}

/* Draws products with few results and many terms, which devices may cut into pieces. */
static void gemm_deep_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    uint32_t layout = draw_below(t, 3);
    t->op.kind = OP_GEMM;
    o->m = 1 + draw_below(t, 20);
    o->n = 1 + draw_below(t, 70);
    o->k = 500 + draw_below(t, 1500);
    o->transpose_a = layout == 2;
    o->transpose_b = layout == 0;
    o->beta = (float)draw_below(t, 2);
    o->alpha = o->beta == 0 ? 0.5f : 1;
    o->lda = draw_ld(t, o->transpose_a ? o->m : o->k);
    o->ldb = draw_ld(t, o->transpose_b ? o->k : o->n);
    o->ldc = draw_ld(t, o->n);
    bind(t, &o->a);
    bind(t, &o->b);
    bind(t, &o->c);
    if (candidates[0].partial && o->beta != 0 && draw_below(t, 2))
        bind(t, &o->add);
}

static void gemm_want(struct trial *t)
{
    const struct op_gemm *o = &t->op.gemm;
    double *a = values(t, "a"), *b = values(t, "b"), *c = expected(t, "c");
    const double *old = o->add.buffer ? values(t, "add") : c;
    for (size_t i = 0; i < o->m; i++)
        for (size_t j = 0; j < o->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < o->k; p++)
                sum += a[o->transpose_a ? p * o->lda + i : i * o->lda + p] *
                       b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j];
            c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * old[i * o->ldc + j];
        }
}

static void copy_draw(struct trial *t)
{
    struct op_copy *o = &t->op.copy;
    t->op.kind = OP_COPY;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 50);
    o->vectors = 1 + draw_below(t, 3);
    o->vx = draw_ld(t, o->width);
    o->vy = draw_ld(t, o->width);
    o->ldx = draw_ld(t, o->vectors * o->vx);
    o->ldy = draw_ld(t, o->vectors * o->vy);
    bind(t, &o->x);
    bind(t, &o->y);
}

static void copy_want(struct trial *t)
{
    const struct op_copy *o = &t->op.copy;
    double *x = values(t, "x"), *y = expected(t, "y");
    for (size_t i = 0; i < (size_t)o->rows * o->vectors; i++)
        for (size_t j = 0; j < o->width; j++)
            y[i / o->vectors * o->ldy + i % o->vectors * o->vy + j] =
                x[i / o->vectors * o->ldx + i % o->vectors * o->vx + j];
}

static void add_draw(struct trial *t)
{
    struct op_add *o = &t->op.add;
    t->op.kind = OP_ADD;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 50);
    o->ldx = draw_ld(t, o->width);
    o->ldy = draw_ld(t, o->width);
    o->alpha = draw_below(t, 2) ? 1.0f : -0.3f;
    bind(t, &o->x);
    bind(t, &o->y);
}

static void add_want(struct trial *t)
{
    const struct op_add *o = &t->op.add;
    double *x = values(t, "x"), *y = expected(t, "y");
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < o->width; j++)
            y[i * o->ldy + j] += (double)o->alpha * x[i * o->ldx + j];
}

static void bias_draw(struct trial *t)
{
    struct op_bias *o = &t->op.bias;
    t->op.kind = OP_BIAS;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 150);
    o->ldx = draw_ld(t, o->width);
    bind(t, &o->x);
    bind(t, &o->bias);
}

static void bias_want(struct trial *t)
{
    const struct op_bias *o = &t->op.bias;
    double *x = expected(t, "x"), *bias = values(t, "bias");
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < o->width; j++)
            x[i * o->ldx + j] += bias[j];
}

static void softcap_draw(struct trial *t)
{
    struct op_softcap *o = &t->op.softcap;
    t->op.kind = OP_SOFTCAP;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 70);
    o->cap = draw_below(t, 2) ? 1.5f : 0.3f;
    bind(t, &o->x);
}

static void softcap_want(struct trial *t)
{
    double *x = expected(t, "x"), cap = (double)t->op.softcap.cap;
    for (size_t i = 0; i < (size_t)t->op.softcap.rows * t->op.softcap.width; i++)
        x[i] = cap * tanh(x[i] / cap);
}

static void scale_draw(struct trial *t)
{
    struct op_scale *o = &t->op.scale;
    t->op.kind = OP_SCALE;
    o->rows = draw_rows(t, 40);
    o->width = draw_rows(t, 70);
    bind(t, &o->x);
    bind(t, &o->factor);
}

static void scale_want(struct trial *t)
{
    double *x = expected(t, "x"), factor = values(t, "factor")[0];
    for (size_t i = 0; i < (size_t)t->op.scale.rows * t->op.scale.width; i++)
        x[i] *= factor;
}

static void column_sum_draw(struct trial *t)
{
    struct op_column_sum *o = &t->op.column_sum;
    t->op.kind = OP_COLUMN_SUM;
    o->rows = draw_rows(t, 200);
    o->width = draw_rows(t, 150);
    o->ldx = draw_ld(t, o->width);
    bind(t, &o->x);
    bind(t, &o->y);
}

static void column_sum_want(struct trial *t)
{
    const struct op_column_sum *o = &t->op.column_sum;
    double *x = values(t, "x"), *y = expected(t, "y");
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < o->width; j++)
            y[j] += x[i * o->ldx + j];
}

/* --- norms, positions, gates */

static void rmsnorm_draw(struct trial *t)
{
    struct op_rmsnorm *o = &t->op.rmsnorm;
    t->op.kind = OP_RMSNORM;
    o->rows = draw_rows(t, 40);
    o->width = 1 + draw_below(t, 90);
    o->vectors = draw_below(t, 4);
    o->eps = 1e-5f;
    o->offset = (float)draw_below(t, 2);
    o->centred = draw_below(t, 2);
    if (draw_below(t, 2)) {
        o->ldx = draw_ld(t, (o->vectors ? o->vectors : 1) * o->width);
        o->ldy = draw_ld(t, (o->vectors ? o->vectors : 1) * o->width);
    }
    bind(t, &o->x);
    if (o->offset == 0 || draw_below(t, 2))
        bind(t, &o->weight);
    if (draw_below(t, 2))
        bind(t, &o->bias);
    bind(t, &o->y);
}

static double mean_norm(const double *x, size_t n, bool centred)
{
    double sum = 0;
    for (size_t j = 0; j < n && centred; j++)
        sum += x[j];
    return sum / (double)n;
}

static double inverse_norm(const double *x, size_t n, double eps, double mean)
{
    double sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += (x[j] - mean) * (x[j] - mean);
    return 1 / sqrt(sum / (double)n + eps);
}

static void rmsnorm_want(struct trial *t)
{
    const struct op_rmsnorm *o = &t->op.rmsnorm;
    double *w = values(t, "weight"), *bias = values(t, "bias"), *to = expected(t, "y");
    for (size_t i = 0; i < o->rows; i++)
        for (size_t v = 0; v < o->vectors; v++) {
            const double *x = values(t, "x") + i * o->ldx + v * o->width;
            double mean = mean_norm(x, o->width, o->centred), inverse = inverse_norm(x, o->width, 1e-5, mean);
            double *y = to + i * o->ldy + v * o->width;
            for (size_t j = 0; j < o->width; j++)
                y[j] = (x[j] - mean) * ((double)o->offset + (w ? w[j] : 0)) * inverse + (bias ? bias[j] : 0);
        }
}

static void rmsnorm_backward_draw(struct trial *t)
{
    struct op_rmsnorm_backward *o = &t->op.rmsnorm_backward;
    uint32_t which = draw_below(t, 3);
    t->op.kind = OP_RMSNORM_BACKWARD;
    bool many =
        draw_below(t, 6) == 0; /* sometimes more rows than the device holds inverse norms of at once */
    o->rows = many ? 4000 + draw_below(t, 1000) : draw_rows(t, 40);
    o->width = many ? 6 : 1 + draw_below(t, 90);
    o->vectors = draw_below(t, 4);
    o->eps = 1e-5f;
    o->offset = (float)draw_below(t, 2);
    o->accumulate = draw_below(t, 2);
    o->centred = draw_below(t, 2);
    if (draw_below(t, 2)) {
        o->ldx = draw_ld(t, (o->vectors ? o->vectors : 1) * o->width);
        o->lddy = draw_ld(t, (o->vectors ? o->vectors : 1) * o->width);
        o->lddx = draw_ld(t, (o->vectors ? o->vectors : 1) * o->width);
    }
    bind(t, &o->x);
    if (which != 0 || o->offset == 0 || draw_below(t, 2))
        bind(t, &o->weight);
    bind(t, &o->dy);
    if (which != 1)
        bind(t, &o->dx);
    if (which != 0)
        bind(t, &o->dweight);
}

static double rmsnorm_loss(const struct trial *t)
{
    const struct op_rmsnorm_backward *o = &t->op.rmsnorm_backward;
    const double *w = values(t, "weight");
    double loss = 0;
    for (size_t i = 0; i < o->rows; i++)
        for (size_t v = 0; v < o->vectors; v++) {
            const double *x = values(t, "x") + i * o->ldx + v * o->width;
            const double *dy = values(t, "dy") + i * o->lddy + v * o->width;
            double mean = mean_norm(x, o->width, o->centred), inverse = inverse_norm(x, o->width, 1e-5, mean);
            for (size_t j = 0; j < o->width; j++)
                loss += dy[j] * (x[j] - mean) * ((double)o->offset + (w ? w[j] : 0)) * inverse;
        }
    return loss;
}

static void rope_draw(struct trial *t)
{
    struct op_rope *o = &t->op.rope;
    t->op.kind = OP_ROPE;
    o->tokens = draw_rows(t, 40);
    o->heads = 1 + draw_below(t, 3);
    o->head_dim = 2 + 2 * draw_below(t, 20);
    o->rotary_dim = draw_below(t, 2) ? 2 + 2 * draw_below(t, o->head_dim / 2) : 0;
    bool apart = candidates[0].partial && draw_below(t, 2);
    o->rotary_dim = apart ? 0 : o->rotary_dim;
    o->copied = apart ? draw_below(t, 3) : 0;
    o->ldx = draw_ld(t, (o->heads + o->copied) * o->head_dim);
    o->table_rows = 1 + draw_below(t, 40);
    o->inverse = draw_below(t, 2);
    o->adjacent = draw_below(t, 2);
    bind(t, &o->x);
    bind_as(t, &o->positions, FILL_BELOW, o->table_rows);
    bind(t, &o->table);
    if (apart)
        bind(t, &o->y);
}

static void rope_want(struct trial *t)
{
    const struct op_rope *o = &t->op.rope;
    double *x = expected(t, o->y.buffer ? "y" : "x"), *positions = values(t, "positions"),
           *table = values(t, "table");
    size_t half = o->rotary_dim / 2, width = (size_t)(o->heads + o->copied) * o->head_dim;
    for (size_t i = 0; i < o->tokens && o->y.buffer; i++)
        memcpy(x + i * o->ldx, values(t, "x") + i * o->ldx, width * sizeof(*x));
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t head = 0; head < o->heads; head++)
            for (size_t d = 0; d < half; d++) {
                const double *cosines = table + (size_t)positions[i] * o->rotary_dim;
                double *of_head = x + i * o->ldx + head * o->head_dim;
                double *a = of_head + (o->adjacent ? 2 * d : d), *b = o->adjacent ? a + 1 : a + half,
                       was = *a;
                double sine = o->inverse ? -cosines[half + d] : cosines[half + d];
                *a = was * cosines[d] - *b * sine;
                *b = *b * cosines[d] + was * sine;
            }
}

static struct glu_form glu_form_draw(struct trial *t)
{
    struct glu_form form = {.kind = (enum glu_kind)draw_below(t, GLU_KINDS),
                            .limit = draw_below(t, 2) ? 0.75f : 7,
                            .alpha = 1.702f};
    form.plain = form.kind != GLU_CLAMPED && draw_below(t, 2);
    return form;
}

static void glu_draw(struct trial *t)
{
    struct op_glu *o = &t->op.glu;
    t->op.kind = OP_GLU;
    o->tokens = draw_rows(t, 40);
    o->width = draw_rows(t, 70);
    o->form = glu_form_draw(t);
    bind(t, &o->gate_up);
    bind(t, &o->act);
}

/* Computes one value of act from row i, column j of gate_up. */
static double glu_of(const struct glu_form *form, const double *gate_up, size_t width, size_t i, size_t j)
{
    const double *gate = gate_up + i * op_glu_across(form, (uint32_t)width) + j;
    double limit = (double)form->limit, x = gate[0], up = form->plain ? 1 : gate[width];
    if (form->kind == GLU_GELU)
        return 0.5 * x * erfc(-x / sqrt(2)) * up;
    if (form->kind == GLU_RELU2)
        return fmax(x, 0) * fmax(x, 0) * up;
    if (form->kind == GLU_SILU)
        return x / (1 + exp(-x)) * up;
    if (form->kind == GLU_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) * up;
    x = fmin(x, limit);
    return x / (1 + exp(-(double)form->alpha * x)) * (1 + fmax(-limit, fmin(up, limit)));
}

static void glu_want(struct trial *t)
{
    const struct op_glu *o = &t->op.glu;
    double *gate_up = values(t, "gate_up"), *act = expected(t, "act");
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t j = 0; j < o->width; j++)
            act[i * o->width + j] = glu_of(&o->form, gate_up, o->width, i, j);
}

static void glu_backward_draw(struct trial *t)
{
    struct op_glu_backward *o = &t->op.glu_backward;
    t->op.kind = OP_GLU_BACKWARD;
    o->tokens = draw_rows(t, 40);
    o->width = draw_rows(t, 70);
    o->form = glu_form_draw(t);
    bind(t, &o->gate_up);
    bind(t, &o->dact);
}

static double glu_loss(const struct trial *t)
{
    const struct op_glu_backward *o = &t->op.glu_backward;
    const double *gate_up = values(t, "gate_up"), *dact = values(t, "dact");
    double loss = 0;
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t j = 0; j < o->width; j++)
            loss += dact[i * o->width + j] * glu_of(&o->form, gate_up, o->width, i, j);
    return loss;
}

/* --- dropout */

/* Sets up dropout of random values into y. */
static void dropout_bind(struct trial *t, struct op_dropout *o)
{
    *o = (struct op_dropout){.tokens = draw_rows(t, 30),
                             .width = 1 + draw_below(t, 300),
                             .p = 0.3f,
                             .seed = 0x123456789abcull,
                             .layer = 5,
                             .target = 3};
    bind(t, &o->x);
    bind_as(t, &o->positions, FILL_BELOW, 1000);
    bind_as(t, &o->row_ids, FILL_BELOW, 1000);
    bind_as(t, &o->step, FILL_BELOW, 1000);
    bind(t, &o->y);
}

static void dropout_draw(struct trial *t)
{
    t->op.kind = OP_DROPOUT;
    dropout_bind(t, &t->op.dropout);
}

static void dropout_backward_draw(struct trial *t)
{
    t->op.kind = OP_DROPOUT_BACKWARD;
    t->op.dropout_backward = (struct op_dropout_backward){0};
    dropout_bind(t, &t->op.dropout_backward.forward);
    if (draw_below(t, 2))
        bind(t, &t->op.dropout_backward.dx);
}

/* Returns the factor of feature i of a token under dropout, by the seed and site that were drawn. */
static double dropout_factor(const struct trial *t, size_t token, size_t i)
{
    const uint32_t key[2] = {0x56789abcu, 0x1234u};
    const uint32_t counter[4] = {(uint32_t)values(t, "positions")[token],
                                 (uint32_t)values(t, "row_ids")[token], (uint32_t)values(t, "step")[0],
                                 (5u << 20 | 3u << 16) + (uint32_t)i / 8};
    uint32_t out[4];
    rand_u32x4(key, counter, out);
    return (out[i / 2 % 4] >> (i % 2 * 16) & 0xFFFF) < round(0.7 * 65536) ? 1 / (1 - (double)0.3f) : 0;
}

static void dropout_want(struct trial *t)
{
    const struct op_dropout *o = &t->op.dropout;
    double *x = values(t, "x"), *y = expected(t, "y");
    for (size_t i = 0; i < o->tokens * (size_t)o->width; i++)
        y[i] = x[i] * dropout_factor(t, i / o->width, i % o->width);
}

static void dropout_backward_want(struct trial *t)
{
    const struct op_dropout *o = &t->op.dropout_backward.forward;
    double *x = values(t, "x"), *y = expected(t, "y"), *dx = expected(t, "dx");
    for (size_t i = 0; i < o->tokens * (size_t)o->width; i++) {
        double factor = dropout_factor(t, i / o->width, i % o->width);
        if (dx)
            dx[i] += y[i] * factor;
        y[i] = x[i] * factor;
    }
}

static void embed_noise_draw(struct trial *t)
{
    struct op_embed_noise *o = &t->op.embed_noise;
    *o = (struct op_embed_noise){
        .rows = draw_rows(t, 5), .width = 1 + draw_below(t, 60), .alpha = 5, .seed = 0x123456789abcull};
    o->tokens = o->rows == 0 ? 0 : draw_below(t, 50);
    t->op.kind = OP_EMBED_NOISE;
    bind(t, &o->x);
    bind_as(t, &o->row_start, FILL_STARTS, o->tokens);
    bind_as(t, &o->row_ids, FILL_BELOW, 1000);
    bind_as(t, &o->step, FILL_BELOW, 1000);
}

static void embed_noise_want(struct trial *t)
{
    const struct op_embed_noise *o = &t->op.embed_noise;
    double *x = expected(t, "x"), *start = values(t, "row_start"), *ids = values(t, "row_ids");
    uint32_t step = (uint32_t)values(t, "step")[0];
    const uint32_t key[2] = {0x56789abcu, 0x1234u};
    for (uint32_t row = 0; row < o->rows; row++)
        for (uint32_t i = (uint32_t)start[row]; i < (uint32_t)start[row + 1]; i++)
            for (uint32_t j = 0; j < o->width; j++) {
                const uint32_t counter[4] = {i - (uint32_t)start[row], (uint32_t)ids[i], step,
                                             0xFFFFF000u + j / 4};
                uint32_t out[4];
                rand_u32x4(key, counter, out);
                double u = (out[j % 4] / 256) / 8388608.0 - 1;
                x[(size_t)i * o->width + j] += 5 / sqrt((start[row + 1] - start[row]) * o->width) * u;
            }
}

/* --- loss */

static void cross_entropy_draw(struct trial *t)
{
    struct op_cross_entropy *o = &t->op.cross_entropy;
    t->op.kind = OP_CROSS_ENTROPY;
    o->rows = draw_rows(t, 300);
    o->vocab = 1 + draw_below(t, 90);
    o->gradient = draw_below(t, 3) != 0;
    o->smoothing = draw_below(t, 2) ? 0.1f : 0;
    o->cap = draw_below(t, 2) ? 1.5f : 0;
    o->gradient_scale = draw_below(t, 2) ? 0.25f : 0;
    bind(t, &o->logits);
    bind_as(t, &o->targets, FILL_TARGETS, o->vocab);
    bind_as(t, &o->loss, FILL_POSITIVE, 0);
}

static double cross_entropy_row(const struct op_cross_entropy *o, const double *x, double target)
{
    double cap = (double)o->cap, s = (double)o->smoothing, sum = 0, mean = 0, at = 0;
    if (target < 0)
        return 0;
    for (size_t j = 0; j < o->vocab; j++) {
        double z = cap > 0 ? cap * tanh(x[j] / cap) : x[j];
        sum += exp(z);
        mean += z / o->vocab;
        at = (double)j == target ? z : at;
    }
    return log(sum) - (1 - s) * at - s * mean;
}

static double cross_entropy_loss(const struct trial *t)
{
    const struct op_cross_entropy *o = &t->op.cross_entropy;
    const double *x = values(t, "logits"), *targets = values(t, "targets");
    double loss = 0;
    for (size_t i = 0; i < o->rows; i++)
        loss += cross_entropy_row(o, x + i * o->vocab, targets[i]);
    return loss * (double)o->gradient_scale;
}

static void cross_entropy_want(struct trial *t)
{
    const struct op_cross_entropy *o = &t->op.cross_entropy;
    const double *x = values(t, "logits"), *targets = values(t, "targets");
    double *loss = expected(t, "loss");
    for (size_t i = 0; i < o->rows; i++)
        *loss += cross_entropy_row(o, x + i * o->vocab, targets[i]);
}

/* Tolerances: a sum of n terms in fp32 loses about sqrt(n) * 6e-8 of its terms, an elementwise op a few
 * roundings of 6e-8, and an exponential 2 ulp. Copies and casts are exact. New ops are added here. */
static const struct op_case basic_cases[] = {
    {.name = "gemm", .draw = gemm_draw, .want = gemm_want, .tolerance = 2e-6},
    {.name = "gemm_deep", .draw = gemm_deep_draw, .want = gemm_want, .tolerance = 2e-6},
    {.name = "copy", .draw = copy_draw, .want = copy_want},
    {.name = "add", .draw = add_draw, .want = add_want, .tolerance = 1.2e-7},
    {.name = "bias", .draw = bias_draw, .want = bias_want, .tolerance = 6e-8},
    {.name = "softcap", .draw = softcap_draw, .want = softcap_want, .tolerance = 2e-7},
    {.name = "scale", .draw = scale_draw, .want = scale_want, .tolerance = 6e-8},
    {.name = "column_sum", .draw = column_sum_draw, .want = column_sum_want, .tolerance = 6e-8},
    {.name = "embed", .draw = embed_draw, .want = embed_want, .tolerance = 6e-8},
    {.name = "embed_backward", .draw = embed_backward_draw, .want = embed_backward_want, .tolerance = 1e-6},
    {.name = "gather_rows", .draw = gather_draw, .want = gather_want},
    {.name = "scatter_rows", .draw = scatter_draw, .want = scatter_want},
    {.name = "rmsnorm", .draw = rmsnorm_draw, .want = rmsnorm_want, .tolerance = 1e-6},
    {.name = "rmsnorm_backward",
     .draw = rmsnorm_backward_draw,
     .loss = rmsnorm_loss,
     .slopes = {{"x", "dx"}, {"weight", "dweight"}},
     .tolerance = 1e-6},
    {.name = "rope", .draw = rope_draw, .want = rope_want, .tolerance = 2e-7},
    {.name = "glu", .draw = glu_draw, .want = glu_want, .tolerance = 1e-6},
    {.name = "glu_backward",
     .draw = glu_backward_draw,
     .loss = glu_loss,
     .slopes = {{"gate_up", "gate_up"}},
     .replaces = true,
     .tolerance = 1e-6},
    {.name = "dropout", .draw = dropout_draw, .want = dropout_want, .tolerance = 2e-7},
    {.name = "dropout_backward",
     .draw = dropout_backward_draw,
     .want = dropout_backward_want,
     .tolerance = 2e-7},
    {.name = "embed_noise", .draw = embed_noise_draw, .want = embed_noise_want, .tolerance = 6e-8},
    {.name = "cross_entropy",
     .draw = cross_entropy_draw,
     .want = cross_entropy_want,
     .loss = cross_entropy_loss,
     .slopes = {{"logits", "logits"}},
     .replaces = true,
     .tolerance =
         2e-6}, /* The gradient of the right label is a probability near 1 minus 1, so digits cancel. */
    ATTENTION_CASES{.name = "cast", .draw = cast_draw, .want = cast_want},
    {.name = "square_sum", .draw = square_sum_draw, .want = square_sum_want, .tolerance = 1e-12},
    {.name = "adamw", .draw = adamw_draw, .want = adamw_want, .tolerance = 1e-6},
    {.name = "adamw8", .draw = adamw8_draw, .want = adamw8_want, .tolerance = 1e-6},
};
