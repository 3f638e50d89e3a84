/* The ops of mixtures of experts: against double precision, finite differences, and the plain product. */
#include "engine/ops.h"

enum { TOKENS = 37, ROWS = 4 };

static const uint32_t row_start[ROWS + 1] = {0, 12, 12, 13, TOKENS};

static struct operand numbers(struct bench *b, const uint32_t *values, uint32_t count)
{
    return bytes_in(b, values, 4ull * count, DTYPE_U32);
}

static struct operand zeros(struct bench *b, uint32_t count)
{
    double *copy = doubles(count);
    float *values = calloc(count + 1, sizeof *values);
    struct operand operand = bytes_in(b, values, 4ull * count, DTYPE_F32);
    free(values);
    free(copy);
    return operand;
}

static void read_back(struct bench *b, struct operand from, void *to, uint64_t bytes)
{
    struct err err;
    check(buffer_read(from.buffer, from.at, to, bytes, &err));
    check(device_sync(b->device, &err));
}

/* --- routers --- */

struct router {
    uint32_t experts, active;
    bool renormalise;
};

static const struct router routers[] = {
    {8, 2, true}, {16, 4, true}, {8, 2, false}, {130, 8, true}, {3, 3, false}};

static void softmax_of(const double *scores, uint32_t n, double *p)
{
    double max = scores[0], sum = 0;
    for (uint32_t e = 0; e < n; e++)
        max = fmax(max, scores[e]);
    for (uint32_t e = 0; e < n; e++)
        sum += p[e] = exp(scores[e] - max);
    for (uint32_t e = 0; e < n; e++)
        p[e] /= sum;
}

/* Weights of the chosen experts of one token. */
static void weights_of(const struct router *r, const double *p, const uint32_t *chosen, double *weight)
{
    double sum = 0;
    for (uint32_t j = 0; j < r->active; j++)
        sum += p[chosen[j]];
    for (uint32_t j = 0; j < r->active; j++)
        weight[j] = p[chosen[j]] / (r->renormalise ? sum : 1);
}

/* The largest, again and again; the first of equals. */
static void choose(const float *p, uint32_t n, uint32_t active, uint32_t *chosen)
{
    bool taken[256] = {false};
    for (uint32_t j = 0; j < active; j++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (best == UINT32_MAX || p[e] > p[best]))
                best = e;
        taken[best] = true;
        chosen[j] = best;
    }
}

/* The loss of balance of all rows, experts * Σ counts * Σ probabilities / n² times the row's length. */
static double balance(const struct router *r, const double *scores, const double *counts, double layers)
{
    double loss = 0, p[256];
    for (uint32_t row = 0; row < ROWS; row++) {
        double n = layers * (row_start[row + 1] - row_start[row]);
        for (uint32_t t = row_start[row]; t < row_start[row + 1]; t++) {
            softmax_of(scores + (size_t)t * r->experts, r->experts, p);
            for (uint32_t e = 0; e < r->experts; e++)
                loss += n / layers * r->experts * counts[row * r->experts + e] * p[e] / n / n;
        }
    }
    return loss;
}

struct routed {
    uint32_t *chosen;
    double *weight, *counts, *sums;
};

static void router_expected(const struct router *r, const double *scores, const float *got, struct routed *to)
{
    double *p = doubles(r->experts);
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t t = row_start[row]; t < row_start[row + 1]; t++) {
            softmax_of(scores + (size_t)t * r->experts, r->experts, p);
            choose(got + (size_t)t * r->experts, r->experts, r->active, to->chosen + t * r->active);
            weights_of(r, p, to->chosen + t * r->active, to->weight + t * r->active);
            for (uint32_t e = 0; e < r->experts; e++)
                to->sums[row * r->experts + e] += p[e];
            for (uint32_t j = 0; j < r->active; j++)
                to->counts[row * r->experts + to->chosen[t * r->active + j]]++;
        }
    free(p);
}

static struct routed routed_new(const struct router *r)
{
    return (struct routed){.chosen = calloc(TOKENS * r->active, 4),
                           .weight = doubles(TOKENS * r->active),
                           .counts = doubles(ROWS * r->experts),
                           .sums = doubles(ROWS * r->experts)};
}

static void routed_free(struct routed *routed)
{
    free(routed->chosen);
    free(routed->weight);
    free(routed->counts);
    free(routed->sums);
}

static void route_case(struct bench *b, const struct router *r)
{
    uint32_t all = TOKENS * r->experts, choices = TOKENS * r->active, *chosen = calloc(choices, 4);
    double *scores = doubles(all), *p = doubles(all);
    float *got = calloc(all, sizeof *got);
    struct routed want = routed_new(r);
    struct operand oscores = normal(b, all, scores), ochosen = numbers(b, NULL, choices),
                   oweight = empty(b, choices), ocounts = zeros(b, ROWS * r->experts),
                   osums = zeros(b, ROWS * r->experts);
    submit(b, (struct op){.kind = OP_ROUTE,
                          .route = {.rows = ROWS,
                                    .tokens = TOKENS,
                                    .experts = r->experts,
                                    .active = r->active,
                                    .renormalise = r->renormalise,
                                    .scores = oscores,
                                    .chosen = ochosen,
                                    .weight = oweight,
                                    .row_start = numbers(b, row_start, ROWS + 1),
                                    .counts = ocounts,
                                    .sums = osums}});
    for (uint32_t t = 0; t < TOKENS; t++)
        softmax_of(scores + (size_t)t * r->experts, r->experts, p + (size_t)t * r->experts);
    expect(b, oscores, p, all, 6e-8, "probabilities"); /* rounded once */
    read_back(b, oscores, got, 4ull * all);
    router_expected(r, scores, got, &want);
    read_back(b, ochosen, chosen, 4ull * choices);
    assert_memory_equal(chosen, want.chosen, 4ull * choices);
    expect(b, oweight, want.weight, choices, 2e-7, "weight");
    expect(b, ocounts, want.counts, ROWS * r->experts, 0, "counts");
    expect(b, osums, want.sums, ROWS * r->experts, 1.2e-7, "sums");
    routed_free(&want);
    free(scores), free(p), free(got), free(chosen);
}

static void route_on(struct bench *b)
{
    for (size_t i = 0; i < 4; i++)
        route_case(b, &routers[i]);
}

static void the_router_is_softmax_and_the_largest(void **state)
{
    (void)state;
    each_device(route_on);
}

/* Among equals the lower number; what is no number does not lead astray. */
static void ties_on(struct bench *b)
{
    const float scores[3][6] = {{1, 1, 1, 1, 1, 1}, {0, 2, 1, 2, 1, 2}, {NAN, 1, 2, NAN, 3, 0}};
    const uint32_t want[2][4] = {{0, 1, 2, 3}, {1, 3, 5, 2}};
    uint32_t got[3][4];
    struct operand chosen = numbers(b, NULL, 12);
    submit(b, (struct op){.kind = OP_ROUTE,
                          .route = {.tokens = 3,
                                    .experts = 6,
                                    .active = 4,
                                    .scores = bytes_in(b, scores, sizeof scores, DTYPE_F32),
                                    .chosen = chosen,
                                    .weight = empty(b, 12)}});
    read_back(b, chosen, got, sizeof got);
    assert_memory_equal(got, want, sizeof want);
    for (int j = 0; j < 4; j++)
        assert_in_range(got[2][j], 0, 5);
}

static void among_equals_the_lower_number_is_chosen(void **state)
{
    (void)state;
    each_device(ties_on);
}

/* Σ g * weight + the loss of balance over two layers, the choice and the counts held. */
static double router_objective(const struct router *r, const double *scores, const struct routed *held,
                               const double *g)
{
    double sum = balance(r, scores, held->counts, 2), p[256], weight[64];
    for (uint32_t t = 0; t < TOKENS; t++) {
        softmax_of(scores + (size_t)t * r->experts, r->experts, p);
        weights_of(r, p, held->chosen + t * r->active, weight);
        for (uint32_t j = 0; j < r->active; j++)
            sum += g[t * r->active + j] * weight[j];
    }
    return sum;
}

static void route_backward_case(struct bench *b, const struct router *r)
{
    uint32_t all = TOKENS * r->experts, choices = TOKENS * r->active;
    double *scores = doubles(all), *p = doubles(all), *g = doubles(choices), *want = doubles(all), h = 1e-5;
    float *values = calloc(all, sizeof *values);
    struct routed held = routed_new(r);
    for (uint32_t i = 0; i < all; i++)
        scores[i] = rand_stream_normal(&b->stream);
    for (uint32_t t = 0; t < TOKENS; t++)
        softmax_of(scores + (size_t)t * r->experts, r->experts, p + (size_t)t * r->experts);
    for (uint32_t i = 0; i < all; i++)
        values[i] = (float)p[i];
    router_expected(r, scores, values, &held);
    struct operand op = bytes_in(b, values, 4ull * all, DTYPE_F32), odw = normal(b, choices, g),
                   odscores = empty(b, all);
    for (uint32_t i = 0; i < ROWS * r->experts; i++)
        values[i] = (float)held.counts[i];
    submit(b, (struct op){
                  .kind = OP_ROUTE_BACKWARD,
                  .route_backward = {.rows = ROWS,
                                     .tokens = TOKENS,
                                     .experts = r->experts,
                                     .active = r->active,
                                     .renormalise = r->renormalise,
                                     .aux = (float)r->experts / 4,
                                     .probabilities = op,
                                     .chosen = numbers(b, held.chosen, choices),
                                     .dweight = odw,
                                     .dscores = odscores,
                                     .row_start = numbers(b, row_start, ROWS + 1),
                                     .counts = bytes_in(b, values, 4ull * ROWS * r->experts, DTYPE_F32)}});
    for (uint32_t i = 0; i < all; i++) {
        double kept = scores[i];
        scores[i] = kept + h;
        want[i] = router_objective(r, scores, &held, g);
        scores[i] = kept - h;
        want[i] = (want[i] - router_objective(r, scores, &held, g)) / (2 * h);
        scores[i] = kept;
    }
    expect(b, odscores, want, all, 1e-6, "dscores"); /* probabilities come rounded to fp32 */
    routed_free(&held);
    free(scores), free(p), free(g), free(want), free(values);
}

static void route_backward_on(struct bench *b)
{
    for (size_t i = 0; i < 3; i++)
        route_backward_case(b, &routers[i]);
    route_backward_case(b, &routers[4]);
}

static void the_routers_gradient_is_that_of_differences(void **state)
{
    (void)state;
    each_device(route_backward_on);
}

static void router_loss_on(struct bench *b)
{
    enum { EXPERTS = 8 };
    const struct router r = {EXPERTS, 2, true};
    double scores[TOKENS * EXPERTS], counts[ROWS * EXPERTS], p[EXPERTS], sums[ROWS * EXPERTS] = {0}, loss = 3,
                                                                                     got;
    float values[2][ROWS * EXPERTS];
    for (uint32_t i = 0; i < ROWS * EXPERTS; i++)
        counts[i] = rand_stream_below(&b->stream, 9);
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++)
        scores[i] = rand_stream_normal(&b->stream);
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t t = row_start[row]; t < row_start[row + 1]; t++) {
            softmax_of(scores + t * EXPERTS, EXPERTS, p);
            for (uint32_t e = 0; e < EXPERTS; e++)
                sums[row * EXPERTS + e] += p[e];
        }
    for (uint32_t i = 0; i < ROWS * EXPERTS; i++) {
        values[0][i] = (float)counts[i];
        values[1][i] = (float)sums[i];
    }
    struct operand oloss = bytes_in(b, &loss, 8, DTYPE_F64);
    submit(b, (struct op){.kind = OP_ROUTER_LOSS,
                          .router_loss = {.rows = ROWS,
                                          .experts = EXPERTS,
                                          .layers = 3,
                                          .row_start = numbers(b, row_start, ROWS + 1),
                                          .counts = bytes_in(b, values[0], sizeof values[0], DTYPE_F32),
                                          .sums = bytes_in(b, values[1], sizeof values[1], DTYPE_F32),
                                          .loss = oloss}});
    read_back(b, oloss, &got, 8);
    assert_true(fabs(got - 3 - balance(&r, scores, counts, 3)) < 1e-7 * got); /* sums come in fp32 */
}

static void the_loss_of_balance_is_right(void **state)
{
    (void)state;
    each_device(router_loss_on);
}

/* --- sorting and combining --- */

static void sort_case(struct bench *b, uint32_t tokens, uint32_t active, uint32_t experts, bool all_to_one)
{
    uint32_t n = tokens * active, *chosen = calloc(n + 1, 4), *token = calloc(n + 1, 4),
             *place = calloc(n + 1, 4), *offsets = calloc(experts + 1, 4), at = 0;
    for (uint32_t i = 0; i < n; i++)
        chosen[i] = all_to_one ? experts - 1 : rand_stream_below(&b->stream, experts);
    struct operand otoken = numbers(b, NULL, n), oplace = numbers(b, NULL, n),
                   ooffsets = numbers(b, NULL, experts + 1);
    submit(b, (struct op){.kind = OP_ROUTE_SORT,
                          .route_sort = {.tokens = tokens,
                                         .active = active,
                                         .experts = experts,
                                         .chosen = numbers(b, chosen, n),
                                         .token = otoken,
                                         .place = oplace,
                                         .offsets = ooffsets}});
    read_back(b, otoken, token, 4ull * n);
    read_back(b, oplace, place, 4ull * n);
    read_back(b, ooffsets, offsets, 4ull * (experts + 1));
    for (uint32_t e = 0; e < experts; e++) {
        assert_int_equal(offsets[e], at);
        for (uint32_t i = 0; i < n; i++)
            if (chosen[i] == e) {
                assert_int_equal(place[i], at);
                assert_int_equal(token[at++], i / active);
            }
    }
    assert_int_equal(offsets[experts], n);
    free(chosen), free(token), free(place), free(offsets);
}

static void sort_on(struct bench *b)
{
    sort_case(b, 41, 3, 7, false);
    sort_case(b, 5, 2, 60, false); /* most experts without a token */
    sort_case(b, 19, 1, 4, true);
    sort_case(b, 0, 2, 4, false);
}

static void choices_are_sorted_by_expert_then_token(void **state)
{
    (void)state;
    each_device(sort_on);
}

static void combine_case(struct bench *b, uint32_t tokens, uint32_t active, uint32_t width, bool weighted)
{
    uint32_t n = tokens * active, *place = calloc(n + 1, 4);
    double *x = doubles(n * width), *w = doubles(n), *y = doubles(tokens * width), *dw = doubles(n);
    for (uint32_t i = 0; i < n; i++)
        place[i] = i;
    rand_shuffle(5, 1, place, n);
    struct operand ox = normal(b, n * width, x), ow = normal(b, n, w), oy = normal(b, tokens * width, y),
                   oplace = numbers(b, place, n), odw = empty(b, n);
    if (weighted) /* y serves as dy: x is changed after combining only */
        submit(b, (struct op){.kind = OP_COMBINE_BACKWARD,
                              .combine_backward = {.tokens = tokens,
                                                   .active = active,
                                                   .width = width,
                                                   .x = ox,
                                                   .place = oplace,
                                                   .weight = ow,
                                                   .dy = oy,
                                                   .dweight = odw}});
    for (uint32_t i = 0; i < n && weighted; i++)
        for (uint32_t c = 0; c < width; c++) {
            double *at = x + (size_t)place[i] * width + c, dy = y[i / active * width + c];
            dw[i] += *at * dy;
            *at = (double)(float)(w[i] * dy);
        }
    if (weighted) {
        expect(b, odw, dw, n, 1.2e-7, "dweight");
        expect(b, ox, x, n * width, 1.2e-7, "dx");
    }
    submit(b, (struct op){.kind = OP_COMBINE,
                          .combine = {.tokens = tokens,
                                      .active = active,
                                      .width = width,
                                      .x = ox,
                                      .place = oplace,
                                      .weight = weighted ? ow : (struct operand){.buffer = NULL},
                                      .y = oy}});
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < width; c++)
            y[i / active * width + c] += (weighted ? w[i] : 1) * x[(size_t)place[i] * width + c];
    expect(b, oy, y, tokens * width, 1.2e-7, "combined");
    free(place), free(x), free(w), free(y), free(dw);
}

static void combine_on(struct bench *b)
{
    combine_case(b, 33, 4, 300, true);
    combine_case(b, 17, 2, 13, true);
    combine_case(b, 17, 2, 13, false);
    combine_case(b, 0, 2, 13, true);
}

static void experts_are_combined_and_parted_again(void **state)
{
    (void)state;
    each_device(combine_on);
}

/* --- grouped products --- */

enum { GROUPS_MAX = 8 };

struct grouped {
    uint32_t sizes[GROUPS_MAX], groups_all, first, groups, width, depth; /* n, and k or m */
    bool ta, tb, exact;
    float alpha, beta;
};

static const struct grouped grouped_cases[] = {
    {{3, 0, 17, 1, 40, 0, 9, 5}, 8, 0, 8, 70, 90, false, true, false, 1, 0},
    {{3, 0, 17, 1, 40, 0, 9, 5}, 8, 2, 4, 70, 90, false, false, false, 1, 1},
    {{3, 0, 17, 1, 40, 0, 9, 5}, 8, 0, 8, 70, 90, true, false, false, 2, 0},
    {{3, 0, 17, 1, 40, 0, 9, 5}, 8, 1, 3, 33, 20, true, false, false, 1, 1},
    {{0, 0, 300, 0}, 4, 0, 4, 150, 129, false, true, false, 1, 1}, /* the library's kernel */
    {{4, 230, 7, 200}, 4, 1, 3, 600, 260, false, false, false, 1, 0},
    {{500, 3, 0}, 3, 0, 3, 150, 270, true, false, false, 1, 1},
    {{5, 0, 11}, 3, 0, 3, 40, 24, false, true, true, 1, 0},
    {{5, 0, 11}, 3, 0, 3, 40, 24, true, false, true, 0.5f, 0},
    {{5, 0, 11}, 3, 0, 3, 40, 24, false, false, true, 0.5f, 1},
    {{0, 0}, 2, 0, 2, 8, 9, true, false, false, 1, 0}, /* no rows at all */
    {{0, 0}, 2, 0, 2, 8, 9, false, true, false, 1, 0},
};

struct grouped_arrays {
    uint32_t offsets[GROUPS_MAX + 1], rows, a_count, b_count, c_count, matrix;
    double *a, *w, *c;
    struct operand oa, ob, oc, ooffsets;
};

/* Matrices lie a few values apart; rows of a and c are longer than what is used. */
static void grouped_make(struct bench *b, const struct grouped *g, struct grouped_arrays *x)
{
    memset(x, 0, sizeof *x);
    for (uint32_t i = 0; i < g->groups_all; i++)
        x->offsets[i + 1] = x->offsets[i] + g->sizes[i];
    x->rows = x->offsets[g->groups_all];
    x->matrix = g->width * g->depth + 5;
    x->a_count = x->rows * (g->depth + 3);
    x->b_count = g->ta ? x->rows * g->width : g->groups * x->matrix;
    x->c_count = g->ta ? g->groups * x->matrix : x->rows * (g->width + 2);
    x->a = doubles(x->a_count + 1);
    x->w = doubles(x->b_count + 1);
    x->c = doubles(x->c_count + 1);
    x->oa = normal(b, x->a_count, x->a);
    x->ob = normal(b, x->b_count, x->w);
    x->oc = normal(b, x->c_count, x->c);
    x->ooffsets = numbers(b, x->offsets, g->groups_all + 1);
}

static void grouped_free(struct grouped_arrays *x)
{
    free(x->a);
    free(x->w);
    free(x->c);
}

static struct op grouped_op(const struct grouped *g, const struct grouped_arrays *x)
{
    return (struct op){.kind = OP_GEMM_GROUPED,
                       .exact = g->exact,
                       .gemm_grouped = {.first = g->first,
                                        .groups = g->groups,
                                        .groups_all = g->groups_all,
                                        .rows = x->rows,
                                        .m = g->ta ? g->depth : 0,
                                        .n = g->width,
                                        .k = g->ta ? 0 : g->depth,
                                        .transpose_a = g->ta,
                                        .transpose_b = g->tb,
                                        .alpha = g->alpha,
                                        .beta = g->beta,
                                        .stride = x->matrix,
                                        .a = x->oa,
                                        .b = x->ob,
                                        .c = x->oc,
                                        .offsets = x->ooffsets,
                                        .lda = g->depth + 3,
                                        .ldb = g->tb ? g->depth : g->width,
                                        .ldc = g->ta ? g->width : g->width + 2}};
}

/* The same in double, onto x->c. */
static void grouped_expected(const struct grouped *g, struct grouped_arrays *x)
{
    for (uint32_t i = 0; i < g->groups; i++) {
        uint32_t begin = x->offsets[g->first + i], rows = x->offsets[g->first + i + 1] - begin;
        const double *a = x->a + (size_t)begin * (g->depth + 3),
                     *w = x->w + (g->ta ? (size_t)begin * g->width : (size_t)i * x->matrix);
        double *c = x->c + (g->ta ? (size_t)i * x->matrix : (size_t)begin * (g->width + 2));
        uint32_t m = g->ta ? g->depth : rows, k = g->ta ? rows : g->depth;
        for (uint32_t r = 0; r < m; r++)
            for (uint32_t j = 0; j < g->width; j++) {
                double sum = 0, *to = c + (size_t)r * (g->ta ? g->width : g->width + 2) + j;
                for (uint32_t p = 0; p < k; p++)
                    sum += a[g->ta ? p * (g->depth + 3) + r : r * (g->depth + 3) + p] *
                           w[g->tb ? j * g->depth + p : p * g->width + j];
                *to = (double)g->alpha * sum + (double)g->beta * *to;
            }
    }
}

static void grouped_on(struct bench *b)
{
    for (size_t i = 0; i < sizeof grouped_cases / sizeof grouped_cases[0]; i++) {
        const struct grouped *g = &grouped_cases[i];
        struct grouped_arrays x;
        struct bench own;
        bench_open(&own, device_kind(b->device));
        own.stream = b->stream;
        grouped_make(&own, g, &x);
        submit(&own, grouped_op(g, &x));
        grouped_expected(g, &x);
        expect(&own, x.oc, x.c, x.c_count, g->exact ? 1.2e-7 : 2e-6,
               "grouped"); /* what it leaves alone too */
        grouped_free(&x);
        b->stream = own.stream;
        bench_close(&own);
    }
}

static void grouped_products_are_right(void **state)
{
    (void)state;
    each_device(grouped_on);
}

/* One group's values are those of a plain product of its rows, to the bit. */
static void group_alone(struct bench *b, const struct grouped *g, const struct grouped_arrays *x, uint32_t i,
                        struct operand c)
{
    struct op op = grouped_op(g, x);
    const struct op_gemm_grouped *o = &op.gemm_grouped;
    uint32_t begin = x->offsets[g->first + i], rows = x->offsets[g->first + i + 1] - begin;
    struct op alone = {.kind = OP_GEMM,
                       .exact = g->exact,
                       .gemm = {.m = g->ta ? o->m : rows,
                                .n = o->n,
                                .k = g->ta ? rows : o->k,
                                .transpose_a = o->transpose_a,
                                .transpose_b = o->transpose_b,
                                .alpha = o->alpha,
                                .beta = o->beta,
                                .a = o->a,
                                .b = o->b,
                                .c = c,
                                .lda = o->lda,
                                .ldb = o->ldb,
                                .ldc = o->ldc}};
    alone.gemm.a.at = 4ull * begin * o->lda;
    alone.gemm.b.at = g->ta ? 4ull * begin * o->ldb : 4ull * i * o->stride;
    alone.gemm.c.at = g->ta ? 4ull * i * o->stride : 4ull * begin * o->ldc;
    if (rows != 0)
        submit(b, alone);
}

static void a_group_is_a_plain_product_to_the_bit_on_any_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof grouped_cases / sizeof grouped_cases[0] - 2; i++)
        for (uint32_t threads = 1; threads <= 5; threads += 2) {
            const struct grouped *g = &grouped_cases[i];
            struct grouped_arrays x;
            struct bench b = {.count = 0};
            struct err err;
            check(device_open(
                &(struct device_options){.kind = "cpu", .name = "ops", .threads = threads, .isa = bench_isa},
                &b.device, &err));
            rand_stream_init(&b.stream, 7, i);
            grouped_make(&b, g, &x);
            float *one = calloc(x.c_count, 4), *two = calloc(x.c_count, 4);
            read_back(&b, x.oc, one, 4ull * x.c_count);
            struct operand other = bytes_in(&b, one, 4ull * x.c_count, DTYPE_F32);
            if (g->ta && g->beta == 0) /* a plain product over no rows leaves c as it is */
                memset(two, 0, 4ull * x.c_count);
            submit(&b, grouped_op(g, &x));
            for (uint32_t j = 0; j < g->groups; j++)
                group_alone(&b, g, &x, j, other);
            read_back(&b, x.oc, one, 4ull * x.c_count);
            read_back(&b, other, two, 4ull * x.c_count);
            for (uint32_t j = 0; j < g->groups && g->ta; j++)
                if (g->sizes[g->first + j] == 0)
                    memcpy(two + (size_t)j * x.matrix, one + (size_t)j * x.matrix, 4ull * x.matrix);
            assert_memory_equal(one, two, 4ull * x.c_count);
            free(one), free(two);
            grouped_free(&x);
            bench_close(&b);
        }
}

/* --- what leads out of an operand --- */

static void fails_with(const char *kind, struct bench *b, const struct op *op, const char *word)
{
    struct err err = {.code = 0};
    bool failed = op_submit(b->device, op, &err) != 0;
    if (strcmp(kind, "checked") == 0)
        failed = device_sync(b->device, &err) != 0;
    assert_true(failed);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, word);
}

static void mistake_on(const char *kind, int mistake)
{
    struct bench b;
    double x[200];
    const uint32_t bad[] = {0, 3, 2, 9, 1};
    bench_open(&b, kind);
    struct operand a = normal(&b, 100, x), w = normal(&b, 100, x), c = normal(&b, 100, x),
                   index = numbers(&b, bad, 5), d = normal(&b, 100, x), u1 = numbers(&b, NULL, 10),
                   u2 = numbers(&b, NULL, 10), u3 = numbers(&b, NULL, 10), past = index;
    past.at = 8; /* 2, 9, 1 */
    const struct op ops[] = {
        {.kind = OP_GEMM_GROUPED,
         .gemm_grouped = {.groups = 2,
                          .groups_all = 2,
                          .rows = 3,
                          .n = 2,
                          .k = 2,
                          .alpha = 1,
                          .stride = 4,
                          .a = a,
                          .b = w,
                          .c = c,
                          .offsets = index,
                          .lda = 2,
                          .ldb = 2,
                          .ldc = 2}},
        {.kind = OP_GEMM_GROUPED,
         .gemm_grouped = {.groups = 1,
                          .groups_all = 1,
                          .rows = 3,
                          .n = 2,
                          .k = 2,
                          .alpha = 1,
                          .stride = 4,
                          .a = a,
                          .b = w,
                          .c = c,
                          .offsets = past,
                          .lda = 2,
                          .ldb = 2,
                          .ldc = 2}},
        {.kind = OP_ROUTE_SORT,
         .route_sort = {.tokens = 2,
                        .active = 2,
                        .experts = 4,
                        .chosen = index,
                        .token = u1,
                        .place = u2,
                        .offsets = u3}},
        {.kind = OP_COMBINE,
         .combine = {.tokens = 2, .active = 2, .width = 3, .x = a, .place = index, .weight = w, .y = c}},
        {.kind = OP_COMBINE_BACKWARD,
         .combine_backward = {.tokens = 2,
                              .active = 2,
                              .width = 3,
                              .x = a,
                              .place = index,
                              .weight = w,
                              .dy = c,
                              .dweight = d}},
        {.kind = OP_ROUTE_BACKWARD,
         .route_backward = {.tokens = 2,
                            .experts = 4,
                            .active = 2,
                            .probabilities = a,
                            .chosen = index,
                            .dweight = w,
                            .dscores = d}},
        {.kind = OP_ROUTE,
         .route = {.rows = 2,
                   .tokens = 3,
                   .experts = 4,
                   .active = 2,
                   .scores = a,
                   .chosen = u1,
                   .weight = w,
                   .row_start = index,
                   .counts = c,
                   .sums = d}},
    };
    const char *const words[] = {"offsets[2] is 2", "offsets[1] is 9", "chosen[3] is 9",   "place[3] is 9",
                                 "place[3] is 9",   "chosen[3] is 9",  "row_start[2] is 2"};
    fails_with(kind, &b, &ops[mistake], words[mistake]);
    for (uint32_t i = 0; i < b.count; i++) {
        buffer_destroy(b.buffers[i]);
        free(b.kept[i]);
    }
    device_close(b.device);
}

static void indices_out_of_bounds_are_errors(void **state)
{
    (void)state;
    for (int mistake = 0; mistake < 7; mistake++) {
        mistake_on("cpu", mistake);
        mistake_on("checked", mistake);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_router_is_softmax_and_the_largest),
        cmocka_unit_test(among_equals_the_lower_number_is_chosen),
        cmocka_unit_test(the_routers_gradient_is_that_of_differences),
        cmocka_unit_test(the_loss_of_balance_is_right),
        cmocka_unit_test(choices_are_sorted_by_expert_then_token),
        cmocka_unit_test(experts_are_combined_and_parted_again),
        cmocka_unit_test(grouped_products_are_right),
        cmocka_unit_test(a_group_is_a_plain_product_to_the_bit_on_any_threads),
        cmocka_unit_test(indices_out_of_bounds_are_errors),
    };
    return run_each_isa(tests, sizeof tests / sizeof tests[0]);
}
