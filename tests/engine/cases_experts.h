/* Compares the ops of mixtures of experts (routers, sorting, combining, grouped products) with their
 * definitions. */
#pragma once

#include "engine/harness.h"

enum { EXPERTS_MAX = 160 };

/* --- routers */

/* The parameters that op_route and op_route_backward share. */
struct router {
    uint32_t rows, tokens, experts, active;
    bool renormalise, sigmoid;
    double scale;
};

static inline struct router router_draw(struct trial *t)
{
    uint32_t experts = draw_below(t, 3) == 0 ? 100 + draw_below(t, 50) : 2 + draw_below(t, 15);
    return (struct router){.rows = 1 + draw_below(t, 4),
                           .tokens = draw_rows(t, 60),
                           .experts = experts,
                           .active = 1 + draw_below(t, experts < 8 ? experts : 8),
                           .renormalise = draw_below(t, 2),
                           .sigmoid = draw_below(t, 3) == 0,
                           .scale = draw_below(t, 3) == 0 ? 2.5 : 1};
}

static inline void softmax_of(const double *scores, uint32_t n, double *p)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < n; e++)
        max = fmax(max, scores[e]);
    for (uint32_t e = 0; e < n; e++)
        sum += p[e] = exp(scores[e] - max);
    for (uint32_t e = 0; e < n; e++)
        p[e] /= sum;
}

static inline void probabilities_of(const struct router *r, const double *scores, double *p)
{
    if (!r->sigmoid)
        softmax_of(scores, r->experts, p);
    for (uint32_t e = 0; e < r->experts && r->sigmoid; e++)
        p[e] = 1 / (1 + exp(-scores[e]));
}

/* Chooses the largest fp32 probabilities (plus biases, unless they are NULL) one after the other; of equal
 * ones the first. */
static inline void choose(const double *p, const double *bias, const struct router *r, double *chosen)
{
    bool taken[EXPERTS_MAX] = {false};
    for (uint32_t j = 0; j < r->active; j++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < r->experts; e++)
            if (!taken[e] && (best == UINT32_MAX || (float)p[e] + (bias ? (float)bias[e] : 0) >
                                                        (float)p[best] + (bias ? (float)bias[best] : 0)))
                best = e;
        taken[best] = true;
        chosen[j] = best;
    }
}

static inline void weights_of(const struct router *r, const double *p, const double *chosen, double *weight)
{
    double sum = 0;
    for (uint32_t j = 0; j < r->active; j++)
        sum += p[(uint32_t)chosen[j]];
    for (uint32_t j = 0; j < r->active; j++)
        weight[j] = r->scale * p[(uint32_t)chosen[j]] / (r->renormalise ? sum : 1);
}

static inline uint32_t row_of_token(const double *row_start, uint32_t t)
{
    uint32_t row = 0;
    while (row_start[row + 1] <= t)
        row++;
    return row;
}

static void route_draw(struct trial *t)
{
    struct op_route *o = &t->op.route;
    struct router r = router_draw(t);
    t->op = (struct op){.kind = OP_ROUTE,
                        .route = {.rows = r.rows,
                                  .tokens = r.tokens,
                                  .experts = r.experts,
                                  .active = r.active,
                                  .renormalise = r.renormalise,
                                  .sigmoid = r.sigmoid,
                                  .scale = (float)r.scale}};
    bind(t, &o->scores);
    if (draw_below(t, 3) == 0)
        bind(t, &o->bias);
    bind(t, &o->chosen);
    bind(t, &o->weight);
    if (draw_below(t, 3) == 0)
        return;
    bind_as(t, &o->row_start, FILL_STARTS, r.tokens);
    bind(t, &o->counts);
    bind(t, &o->sums);
}

static void route_want(struct trial *t)
{
    const struct op_route *o = &t->op.route;
    const struct router r = {o->rows, o->tokens, o->experts, o->active, o->renormalise, o->sigmoid, o->scale};
    double *p = expected(t, "scores"), *chosen = expected(t, "chosen"), *weight = expected(t, "weight");
    double *counts = expected(t, "counts"), *sums = expected(t, "sums");
    for (uint32_t i = 0; i < o->tokens; i++) {
        probabilities_of(&r, p, p);
        choose(p, values(t, "bias"), &r, chosen);
        weights_of(&r, p, chosen, weight);
        uint32_t row = !counts ? 0 : row_of_token(values(t, "row_start"), i);
        for (uint32_t e = 0; e < o->experts && counts; e++)
            sums[row * o->experts + e] += p[e];
        for (uint32_t j = 0; j < o->active && counts; j++)
            counts[row * o->experts + (uint32_t)chosen[j]]++;
        p += o->experts;
        chosen += o->active;
        weight += o->active;
    }
}

static void route_backward_draw(struct trial *t)
{
    struct op_route_backward *o = &t->op.route_backward;
    struct router r = router_draw(t);
    t->op = (struct op){.kind = OP_ROUTE_BACKWARD,
                        .route_backward = {.rows = r.rows,
                                           .tokens = r.tokens,
                                           .experts = r.experts,
                                           .active = r.active,
                                           .renormalise = r.renormalise,
                                           .sigmoid = r.sigmoid,
                                           .aux = 0.25f,
                                           .scale = (float)r.scale}};
    bind(t, &o->probabilities);
    bind(t, &o->chosen);
    bind(t, &o->dweight);
    bind(t, &o->dscores);
    if (draw_below(t, 2) == 0)
        return;
    bind_as(t, &o->row_start, FILL_STARTS, r.tokens);
    bind_as(t, &o->counts, FILL_BELOW, 40);
}

static void route_backward_prepare(struct trial *t)
{
    const struct op_route_backward *o = &t->op.route_backward;
    const struct router r = {o->rows, o->tokens, o->experts, o->active, o->renormalise, o->sigmoid, o->scale};
    double *p = values(t, "probabilities"), *chosen = values(t, "chosen");
    for (uint32_t i = 0; i < o->tokens; i++) {
        probabilities_of(&r, p + (size_t)i * o->experts, p + (size_t)i * o->experts);
        choose(p + (size_t)i * o->experts, NULL, &r, chosen + (size_t)i * o->active);
    }
}

/* Returns token i's part of the loss as a function of its scores: Σ dweight * weight, plus aux / length * Σ
 * counts * p. */
static double router_loss_of(const struct trial *t, uint32_t i, const double *scores)
{
    const struct op_route_backward *o = &t->op.route_backward;
    const struct router r = {o->rows, o->tokens, o->experts, o->active, o->renormalise, o->sigmoid, o->scale};
    const double *dweight = values(t, "dweight"), *counts = values(t, "counts"),
                 *start = values(t, "row_start");
    double p[EXPERTS_MAX], weight[EXPERTS_MAX], loss = 0;
    probabilities_of(&r, scores, p);
    weights_of(&r, p, values(t, "chosen") + (size_t)i * o->active, weight);
    for (uint32_t j = 0; j < o->active; j++)
        loss += dweight[i * o->active + j] * weight[j];
    if (!counts)
        return loss;
    uint32_t row = row_of_token(start, i);
    for (uint32_t e = 0; e < o->experts; e++)
        loss += (double)o->aux / (start[row + 1] - start[row]) * counts[row * o->experts + e] * p[e];
    return loss;
}

/* Computes the gradients by finite differences. The scores are the logarithms of the probabilities, or their
 * logits. */
static void route_backward_want(struct trial *t)
{
    const struct op_route_backward *o = &t->op.route_backward;
    const double *p = values(t, "probabilities"), h = 1e-5;
    double *dscores = expected(t, "dscores"), scores[EXPERTS_MAX];
    for (uint32_t i = 0; i < o->tokens; i++) {
        for (uint32_t e = 0; e < o->experts; e++)
            scores[e] =
                log(p[(size_t)i * o->experts + e]) - (o->sigmoid ? log1p(-p[(size_t)i * o->experts + e]) : 0);
        for (uint32_t e = 0; e < o->experts; e++) {
            double kept = scores[e];
            scores[e] = kept + h;
            double above = router_loss_of(t, i, scores);
            scores[e] = kept - h;
            dscores[(size_t)i * o->experts + e] = (above - router_loss_of(t, i, scores)) / (2 * h);
            scores[e] = kept;
        }
    }
}

static void router_loss_draw(struct trial *t)
{
    struct op_router_loss *o = &t->op.router_loss;
    t->op.kind = OP_ROUTER_LOSS;
    o->rows = draw_rows(t, 5);
    o->experts = 1 + draw_below(t, 70);
    o->layers = 1 + draw_below(t, 4);
    bind_as(t, &o->row_start, FILL_STARTS, o->rows == 0 ? 0 : draw_below(t, 50));
    bind_as(t, &o->counts, FILL_BELOW, 40);
    bind_as(t, &o->sums, FILL_POSITIVE, 0);
    bind(t, &o->loss);
}

static void router_loss_want(struct trial *t)
{
    const struct op_router_loss *o = &t->op.router_loss;
    const double *start = values(t, "row_start"), *counts = values(t, "counts"), *sums = values(t, "sums");
    double *loss = expected(t, "loss");
    for (uint32_t row = 0; row < o->rows; row++) {
        double length = start[row + 1] - start[row], n = length * o->layers;
        for (uint32_t e = 0; e < o->experts && n > 0; e++)
            *loss +=
                length * o->experts * (counts[row * o->experts + e] / n) * (sums[row * o->experts + e] / n);
    }
}

/* --- sorting and combining */

static void route_sort_draw(struct trial *t)
{
    struct op_route_sort *o = &t->op.route_sort;
    t->op.kind = OP_ROUTE_SORT;
    o->tokens = draw_rows(t, 60);
    o->active = 1 + draw_below(t, 8);
    o->experts = 1 + draw_below(t, 70);
    /* Sometimes all tokens go to one expert, or to few of many. */
    bind_as(t, &o->chosen, FILL_BELOW, draw_below(t, 3) ? o->experts : 1 + draw_below(t, o->experts));
    bind(t, &o->token);
    bind(t, &o->place);
    bind(t, &o->offsets);
    if (draw_below(t, 2))
        bind(t, &o->expert);
}

static void route_sort_want(struct trial *t)
{
    const struct op_route_sort *o = &t->op.route_sort;
    const double *chosen = values(t, "chosen");
    double *token = expected(t, "token"), *place = expected(t, "place"), *offsets = expected(t, "offsets");
    double *expert = expected(t, "expert");
    uint32_t at = 0;
    for (uint32_t e = 0; e < o->experts; e++) {
        offsets[e] = at;
        for (uint32_t i = 0; i < o->tokens * o->active; i++)
            if (chosen[i] == e) {
                place[i] = at;
                if (expert)
                    expert[at] = e;
                token[at++] = i / o->active;
            }
    }
    offsets[o->experts] = at;
}

/* Fills in every position once, in random order. */
static void place_prepare(struct trial *t)
{
    struct array *place = array_named(t, "place");
    for (uint64_t i = place ? place->count : 0; i > 1; i--) {
        uint64_t other = draw_below(t, (uint32_t)i);
        double kept = place->value[i - 1];
        place->value[i - 1] = place->value[other];
        place->value[other] = kept;
    }
}

static void combine_draw(struct trial *t)
{
    struct op_combine *o = &t->op.combine;
    t->op.kind = OP_COMBINE;
    o->tokens = draw_rows(t, 50);
    o->active = 1 + draw_below(t, 4);
    o->width = 1 + draw_below(t, 600);
    bind(t, &o->x);
    if (o->active > 1 || draw_below(t, 2))
        bind_as(t, &o->place, FILL_DISTINCT, o->tokens * o->active);
    if (draw_below(t, 2))
        bind(t, &o->weight);
    bind(t, &o->y);
}

static void combine_want(struct trial *t)
{
    const struct op_combine *o = &t->op.combine;
    const double *x = values(t, "x"), *place = values(t, "place"), *weight = values(t, "weight");
    double *y = expected(t, "y");
    for (uint32_t i = 0; i < o->tokens * o->active; i++)
        for (uint32_t c = 0; c < o->width; c++)
            y[(size_t)(i / o->active) * o->width + c] +=
                (!weight ? 1 : weight[i]) * x[(place ? (size_t)place[i] : i) * o->width + c];
}

static void combine_backward_draw(struct trial *t)
{
    struct op_combine_backward *o = &t->op.combine_backward;
    t->op.kind = OP_COMBINE_BACKWARD;
    o->tokens = draw_rows(t, 40);
    o->active = 1 + draw_below(t, 4);
    o->width = 1 + draw_below(t, 300);
    bind(t, &o->x);
    if (o->active > 1 || draw_below(t, 2))
        bind_as(t, &o->place, FILL_DISTINCT, o->tokens * o->active);
    bind(t, &o->weight);
    bind(t, &o->dy);
    bind(t, &o->dweight);
}

static double combine_loss(const struct trial *t)
{
    const struct op_combine_backward *o = &t->op.combine_backward;
    const double *x = values(t, "x"), *place = values(t, "place"), *weight = values(t, "weight"),
                 *dy = values(t, "dy");
    double loss = 0;
    for (uint32_t i = 0; i < o->tokens * o->active; i++)
        for (uint32_t c = 0; c < o->width; c++)
            loss += dy[(size_t)(i / o->active) * o->width + c] * weight[i] *
                    x[(place ? (size_t)place[i] : i) * o->width + c];
    return loss;
}

/* --- grouped products */

static void gemm_grouped_draw(struct trial *t)
{
    /* Draws groups without rows, one group with nearly all rows, and products that are large enough for the
     * matrix library. */
    struct op_gemm_grouped *o = &t->op.gemm_grouped;
    uint32_t layout = draw_below(t, 3), depth = 1 + draw_below(t, 150);
    t->op.kind = OP_GEMM_GROUPED;
    o->groups_all = 1 + draw_below(t, 9);
    o->groups = draw_below(t, o->groups_all + 1);
    o->first = draw_below(t, o->groups_all - o->groups + 1);
    o->rows = draw_rows(t, draw_below(t, 4) == 0 ? 400 : 60);
    o->n = 1 + draw_below(t, 130);
    o->transpose_a = layout == 2;
    o->transpose_b = layout == 0;
    o->m = o->transpose_a ? depth : 0;
    o->k = o->transpose_a ? 0 : depth;
    o->beta = (float)draw_below(t, 2);
    o->alpha = draw_below(t, 2) ? 0.5f : 1;
    o->lda = draw_ld(t, depth);
    o->ldb = draw_ld(t, o->transpose_b ? depth : o->n);
    o->ldc = draw_ld(t, o->n);
    o->stride = (o->transpose_a   ? (uint64_t)depth * o->ldc
                 : o->transpose_b ? (uint64_t)o->n * o->ldb
                                  : (uint64_t)depth * o->ldb) +
                draw_below(t, 9);
    bind(t, &o->a);
    bind(t, &o->b);
    bind(t, &o->c);
    bind_as(t, &o->offsets, FILL_STARTS, o->rows);
}

/* Makes many groups empty, sometimes all but one. */
static void gemm_grouped_prepare(struct trial *t)
{
    const struct op_gemm_grouped *o = &t->op.gemm_grouped;
    double *offsets = values(t, "offsets");
    uint32_t odds = 1 + draw_below(t, 4);
    for (uint32_t g = 1; g < o->groups_all && o->groups > 0; g++)
        if (draw_below(t, odds) == 0)
            offsets[g] = offsets[g - 1];
}

/* Computes group g in double: m rows of c, each value a sum over depth. */
static void group_want(const struct op_gemm_grouped *o, const double *a, const double *b, double *c,
                       uint32_t m, uint32_t depth)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < o->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < depth; p++)
                sum += a[o->transpose_a ? p * o->lda + i : i * o->lda + p] *
                       b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j];
            c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * c[i * o->ldc + j];
        }
}

static void gemm_grouped_want(struct trial *t)
{
    const struct op_gemm_grouped *o = &t->op.gemm_grouped;
    const double *a = values(t, "a"), *b = values(t, "b"), *offsets = values(t, "offsets");
    double *c = expected(t, "c");
    for (uint32_t g = 0; g < o->groups; g++) {
        size_t begin = (size_t)offsets[o->first + g], rows = (size_t)offsets[o->first + g + 1] - begin;
        if (o->transpose_a)
            group_want(o, a + begin * o->lda, b + begin * o->ldb, c + g * o->stride, o->m, (uint32_t)rows);
        else
            group_want(o, a + begin * o->lda, b + g * o->stride, c + begin * o->ldc, (uint32_t)rows, o->k);
    }
}

/* Probabilities are rounded once, and gradients start from the rounded ones. Products have at most 400 terms
 * of unit variance, exact to 6e-8 of the sum of magnitudes. */
static const struct op_case expert_cases[] = {
    {.name = "route", .draw = route_draw, .want = route_want, .tolerance = 2.5e-7},
    {.name = "route_backward",
     .draw = route_backward_draw,
     .prepare = route_backward_prepare,
     .want = route_backward_want,
     .tolerance = 1e-6},
    {.name = "router_loss", .draw = router_loss_draw, .want = router_loss_want, .tolerance = 1e-12},
    {.name = "route_sort", .draw = route_sort_draw, .want = route_sort_want, .tolerance = 0},
    {.name = "combine",
     .draw = combine_draw,
     .prepare = place_prepare,
     .want = combine_want,
     .tolerance = 1.2e-7},
    {.name = "combine_backward",
     .draw = combine_backward_draw,
     .prepare = place_prepare,
     .loss = combine_loss,
     .slopes = {{"weight", "dweight"}, {"x", "x"}},
     .replaces = true,
     .tolerance = 2e-7},
    {.name = "gemm_grouped",
     .draw = gemm_grouped_draw,
     .prepare = gemm_grouped_prepare,
     .want = gemm_grouped_want,
     .tolerance = 2e-6},
};
