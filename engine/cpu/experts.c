/* Ops of mixtures of experts. Routing and combining are small beside the experts' products, so they use plain
 * C: sums run in double and are rounded once, which gives every instruction set the same bits. A grouped
 * product is one ordinary product per group; the parts of all groups are shared out together.
 */
#include "engine/cpu/experts.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/parts.h"
#include "engine/cpu/product.h"

enum {
    EXPERTS_MAX = 1024, /* most experts of a router: one token's probabilities are on the stack */
    ACTIVE_MAX = 64,
    EXPERTS_PER_PART =
        64 /* experts whose counts and sums one part takes in a single walk over a row's tokens */
};

static bool experts_router_fits(uint32_t tokens, uint32_t experts, uint32_t active)
{
    return tokens == 0 || (active >= 1 && active <= experts && active <= ACTIVE_MAX &&
                           experts <= EXPERTS_MAX && (uint64_t)tokens * active <= UINT32_MAX);
}

bool cpu_experts_fit(const struct op *op)
{
    if (op->kind == OP_ROUTE)
        return experts_router_fits(op->route.tokens, op->route.experts, op->route.active);
    if (op->kind == OP_ROUTE_BACKWARD)
        return experts_router_fits(op->route_backward.tokens, op->route_backward.experts,
                                   op->route_backward.active);
    if (op->kind == OP_ROUTE_SORT)
        return (uint64_t)op->route_sort.tokens * op->route_sort.active <= UINT32_MAX;
    if (op->kind == OP_GEMM_GROUPED) {
        const struct op_gemm_grouped *o = &op->gemm_grouped;
        return !(o->transpose_a && o->transpose_b) && (o->beta == 0.0f || o->beta == 1.0f) &&
               (uint64_t)o->first + o->groups <= o->groups_all && (o->pack == PACK_F32 || !o->transpose_a);
    }
    return true;
}

static int experts_below_check(const struct op *op, const char *name, const struct operand *operand,
                               uint64_t count, uint64_t bound, struct err *err)
{
    const uint32_t *values = operand_at(operand);
    for (uint64_t i = 0; i < count; i++)
        if (values[i] >= bound)
            return err_set(err, ERR_INTERNAL, "op %s: %s[%llu] is %u, not in [0, %llu)", op_name(op->kind),
                           name, (unsigned long long)i, values[i], (unsigned long long)bound);
    return 0;
}

/* Checks that values[begin..end] do not fall and do not exceed `most`. */
static int rising_check(const struct op *op, const char *name, const struct operand *operand, uint32_t begin,
                        uint32_t end, uint32_t most, struct err *err)
{
    const uint32_t *values = operand_at(operand);
    for (uint64_t i = begin; i <= end; i++)
        if (values[i] > most || (i > begin && values[i] < values[i - 1]))
            return err_set(err, ERR_INTERNAL, "op %s: %s[%llu] is %u, not in [%u, %u]", op_name(op->kind),
                           name, (unsigned long long)i, values[i], i > begin ? values[i - 1] : 0, most);
    return 0;
}

static void softmax(float *scores, uint32_t n)
{
    double p[EXPERTS_MAX], max = (double)scores[0], sum = 0;
    for (uint32_t e = 1; e < n; e++)
        max = (double)scores[e] > max ? (double)scores[e] : max;
    for (uint32_t e = 0; e < n; e++) {
        p[e] = exp((double)scores[e] - max);
        sum += p[e];
    }
    for (uint32_t e = 0; e < n; e++)
        scores[e] = (float)(p[e] / sum);
}

static void logistic(float *scores, uint32_t n)
{
    for (uint32_t e = 0; e < n; e++)
        scores[e] = (float)(1 / (1 + exp(-(double)scores[e])));
}

/* The indices of the `active` largest values, in falling order. Of equal values (and NaNs) the first stays
 * first. */
static void experts_largest(const float *p, uint32_t n, uint32_t active, uint32_t *chosen)
{
    uint32_t held = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (held == active && !(p[e] > p[chosen[held - 1]]))
            continue;
        uint32_t at = held < active ? held++ : held - 1;
        for (; at > 0 && p[e] > p[chosen[at - 1]]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
}

static double chosen_sum(const float *p, const uint32_t *chosen, uint32_t active)
{
    double sum = 0;
    for (uint32_t j = 0; j < active; j++)
        sum += (double)p[chosen[j]];
    return sum;
}

static void route_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_route *op = &job->op->route;
    float *scores = operand_at(&op->scores), *weight = operand_at(&op->weight);
    const float *bias = operand_at(&op->bias);
    uint32_t *chosen = operand_at(&op->chosen), active = op->active;
    for (size_t t = begin; t < end; t++) {
        float *p = scores + t * op->experts, biased[EXPERTS_MAX];
        (op->sigmoid ? logistic : softmax)(p, op->experts);
        for (uint32_t e = 0; bias && e < op->experts; e++)
            biased[e] = p[e] + bias[e];
        experts_largest(bias ? biased : p, op->experts, active, chosen + t * active);
        double sum = op->renormalise ? chosen_sum(p, chosen + t * active, active) : 1;
        for (size_t j = t * active; j < (t + 1) * active; j++)
            weight[j] = (float)((double)op->scale * (double)p[chosen[j]] / sum);
    }
}

static uint32_t count_parts(uint32_t experts)
{
    return experts / EXPERTS_PER_PART + (experts % EXPERTS_PER_PART != 0);
}

/* Counts and sums of EXPERTS_PER_PART experts over the tokens of one row. */
static void count_part(void *context, uint32_t index, uint32_t thread)
{
    const struct parts_job *job = context;
    const struct op_route *op = &job->op->route;
    uint32_t row = index / count_parts(op->experts),
             first = index % count_parts(op->experts) * EXPERTS_PER_PART;
    uint32_t n = op->experts - first < EXPERTS_PER_PART ? op->experts - first : EXPERTS_PER_PART;
    const uint32_t *row_start = operand_at(&op->row_start), *chosen = operand_at(&op->chosen);
    const float *p = (const float *)operand_at(&op->scores) + first;
    size_t at = (size_t)row * op->experts + first;
    float *counts = (float *)operand_at(&op->counts) + at, *sums = (float *)operand_at(&op->sums) + at;
    double sum[EXPERTS_PER_PART] = {0};
    uint32_t count[EXPERTS_PER_PART] = {0};
    (void)thread;
    for (size_t t = row_start[row]; t < row_start[row + 1]; t++) {
        for (uint32_t e = 0; e < n; e++)
            sum[e] += (double)p[t * op->experts + e];
        for (uint32_t j = 0; j < op->active; j++)
            if (chosen[t * op->active + j] - first < n)
                count[chosen[t * op->active + j] - first]++;
    }
    for (uint32_t e = 0; e < n; e++) {
        counts[e] += (float)count[e];
        sums[e] = (float)((double)sums[e] + sum[e]);
    }
}

int cpu_route(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_route *o = &op->route;
    if (o->tokens == 0)
        return 0;
    if (o->counts.buffer && rising_check(op, "row_start", &o->row_start, 0, o->rows, o->tokens, err) != 0)
        return -1;
    run_parts(runner, op, NULL, o->tokens, ROWS_PER_PART, route_part);
    if (o->counts.buffer) {
        struct parts_job job = {.runner = runner, .op = op};
        pool_run(runner->pool, o->rows * count_parts(o->experts), count_part, &job);
    }
    return 0;
}

/* The row that contains token t; row_start rises. */
static uint32_t experts_row_of(const uint32_t *row_start, uint32_t rows, size_t t)
{
    uint32_t low = 0, high = rows;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (row_start[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* d[experts] = gradients of one token's probabilities p, without the load-balancing loss. */
static void choice_backward(const struct op_route_backward *op, const float *p, const uint32_t *chosen,
                            const float *dweight, double *d)
{
    double sum = 1, shared = 0;
    memset(d, 0, op->experts * sizeof(*d));
    if (op->renormalise) { /* here weight_j = scale * p_j / sum */
        sum = chosen_sum(p, chosen, op->active);
        for (uint32_t j = 0; j < op->active; j++)
            shared += (double)dweight[j] * (double)p[chosen[j]] / sum;
    }
    for (uint32_t j = 0; j < op->active; j++)
        d[chosen[j]] += (double)op->scale * ((double)dweight[j] - shared) / sum;
}

static void route_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_route_backward *op = &job->op->route_backward;
    const float *probabilities = operand_at(&op->probabilities), *dweight = operand_at(&op->dweight),
                *counts = operand_at(&op->counts);
    const uint32_t *chosen = operand_at(&op->chosen), *row_start = operand_at(&op->row_start);
    float *dscores = operand_at(&op->dscores);
    uint64_t n = op->experts;
    for (size_t t = begin; t < end; t++) {
        const float *p = probabilities + t * n;
        double d[EXPERTS_MAX], mean = 0;
        choice_backward(op, p, chosen + t * op->active, dweight + t * op->active, d);
        if (counts) {
            uint32_t row = experts_row_of(row_start, op->rows, t);
            double factor = (double)op->aux / (double)(row_start[row + 1] - row_start[row]);
            for (size_t e = 0; e < n; e++)
                d[e] += factor * (double)counts[row * n + e];
        }
        for (size_t e = 0; e < n && !op->sigmoid; e++)
            mean += (double)p[e] * d[e];
        for (size_t e = 0; e < n; e++)
            dscores[t * n + e] =
                (float)((double)p[e] * (op->sigmoid ? d[e] * (1 - (double)p[e]) : d[e] - mean));
    }
}

/* Checks that the rows cover all tokens, because each token's row will be looked up. */
static int experts_rows_check(const struct op *op, const struct operand *row_start, uint32_t rows,
                              uint32_t tokens, struct err *err)
{
    const uint32_t *start = operand_at(row_start);
    if (rising_check(op, "row_start", row_start, 0, rows, tokens, err) != 0)
        return -1;
    if (start[0] != 0 || start[rows] != tokens)
        return err_set(err, ERR_INTERNAL, "op %s: rows cover [%u, %u) of %u tokens", op_name(op->kind),
                       start[0], start[rows], tokens);
    return 0;
}

int cpu_route_backward(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_route_backward *o = &op->route_backward;
    if (o->tokens == 0)
        return 0;
    if (experts_below_check(op, "chosen", &o->chosen, (uint64_t)o->tokens * o->active, o->experts, err) !=
            0 ||
        (o->counts.buffer && experts_rows_check(op, &o->row_start, o->rows, o->tokens, err) != 0))
        return -1;
    run_parts(runner, op, NULL, o->tokens, ROWS_PER_PART, route_backward_part);
    return 0;
}

/* A counting sort. While it runs, offsets[e] is the next free position of expert e. */
int cpu_route_sort(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_route_sort *o = &op->route_sort;
    const uint32_t *chosen = operand_at(&o->chosen);
    uint32_t *token = operand_at(&o->token), *place = operand_at(&o->place),
             *offsets = operand_at(&o->offsets), *expert = o->expert.buffer ? operand_at(&o->expert) : NULL;
    uint32_t choices = o->tokens * o->active;
    (void)runner;
    if (experts_below_check(op, "chosen", &o->chosen, choices, o->experts, err) != 0)
        return -1;
    memset(offsets, 0, (o->experts + 1ull) * sizeof(*offsets));
    for (uint32_t i = 0; i < choices; i++)
        offsets[chosen[i] + 1]++;
    for (uint32_t e = 0; e < o->experts; e++)
        offsets[e + 1] += offsets[e];
    for (uint32_t i = 0; i < choices; i++) {
        place[i] = offsets[chosen[i]]++;
        token[place[i]] = i / o->active;
        if (expert)
            expert[place[i]] = chosen[i];
    }
    memmove(offsets + 1, offsets, (size_t)o->experts * sizeof(*offsets));
    offsets[0] = 0;
    return 0;
}

int cpu_router_loss(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_router_loss *o = &op->router_loss;
    const uint32_t *row_start = operand_at(&o->row_start);
    const float *counts = operand_at(&o->counts), *sums = operand_at(&o->sums);
    double *loss = operand_at(&o->loss);
    (void)runner;
    if (rising_check(op, "row_start", &o->row_start, 0, o->rows, UINT32_MAX, err) != 0)
        return -1;
    for (size_t r = 0; r < o->rows; r++) {
        double length = row_start[r + 1] - row_start[r], n = o->layers * length, sum = 0;
        for (size_t e = r * o->experts; e < (r + 1) * o->experts; e++)
            sum += (double)counts[e] * (double)sums[e];
        if (n > 0)
            *loss += length * o->experts * sum / (n * n);
    }
    return 0;
}

static void combine_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    enum { COLUMNS = 256 };
    const struct op_combine *op = &job->op->combine;
    const float *x = operand_at(&op->x), *weight = operand_at(&op->weight);
    const uint32_t *place = operand_at(&op->place);
    float *y = operand_at(&op->y);
    uint64_t width = op->width;
    for (size_t t = begin; t < end; t++)
        for (size_t column = 0; column < width; column += COLUMNS) {
            size_t n = width - column < COLUMNS ? width - column : COLUMNS;
            double sum[COLUMNS] = {0};
            for (size_t j = t * op->active; j < (t + 1) * op->active; j++) {
                const float *from = x + (place ? place[j] : j) * width + column;
                double w = !weight ? 1.0 : (double)weight[j];
                for (size_t i = 0; i < n; i++)
                    sum[i] += w * (double)from[i];
            }
            for (size_t i = 0; i < n; i++)
                y[t * width + column + i] = (float)((double)y[t * width + column + i] + sum[i]);
        }
}

int cpu_combine(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_combine *o = &op->combine;
    uint64_t places = (uint64_t)o->tokens * o->active;
    if (o->place.buffer && experts_below_check(op, "place", &o->place, places, places, err) != 0)
        return -1;
    run_parts(runner, op, NULL, o->tokens, ROWS_PER_PART, combine_part);
    return 0;
}

static void combine_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_combine_backward *op = &job->op->combine_backward;
    const float *weight = operand_at(&op->weight), *dy = operand_at(&op->dy);
    const uint32_t *place = operand_at(&op->place);
    float *x = operand_at(&op->x), *dweight = operand_at(&op->dweight);
    uint64_t width = op->width;
    for (size_t t = begin; t < end; t++)
        for (size_t j = t * op->active; j < (t + 1) * op->active; j++) {
            const float *d = dy + t * width;
            float *row = x + (place ? place[j] : j) * width, w = weight[j];
            double sum[8] = {0}, total = 0;
            size_t i = 0;
            for (; i + 8 <= width; i += 8)
                for (size_t lane = 0; lane < 8; lane++)
                    sum[lane] += (double)d[i + lane] * (double)row[i + lane];
            for (; i < width; i++)
                total += (double)d[i] * (double)row[i];
            for (size_t lane = 0; lane < 8; lane++)
                total += sum[lane];
            dweight[j] = (float)total;
            for (i = 0; i < width; i++)
                row[i] = w * d[i];
        }
}

int cpu_combine_backward(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_combine_backward *o = &op->combine_backward;
    uint64_t places = (uint64_t)o->tokens * o->active;
    if (o->place.buffer && experts_below_check(op, "place", &o->place, places, places, err) != 0)
        return -1;
    run_parts(runner, op, NULL, o->tokens, ROWS_PER_PART, combine_backward_part);
    return 0;
}

/* The product of group g as an op of its own. Only its own rows choose the kernel, so its values do not
 * depend on the other groups. */
static struct op_gemm group_product(const struct op_gemm_grouped *op, uint32_t g)
{
    const uint32_t *offsets = operand_at(&op->offsets);
    uint32_t begin = offsets[op->first + g], rows = offsets[op->first + g + 1] - begin;
    struct op_gemm gemm = {.m = op->transpose_a ? op->m : rows,
                           .n = op->n,
                           .k = op->transpose_a ? rows : op->k,
                           .transpose_a = op->transpose_a,
                           .transpose_b = op->transpose_b,
                           .alpha = op->alpha,
                           .beta = op->beta,
                           .a = op->a,
                           .b = op->b,
                           .c = op->c,
                           .lda = op->lda,
                           .ldb = op->ldb,
                           .ldc = op->ldc,
                           .pack = op->pack,
                           .compute = op->compute};
    uint64_t stride = op->pack == PACK_F32 ? 4 * op->stride : op->stride;
    if (op->transpose_a && op->b.dtype != DTYPE_F32)
        gemm.pack = op->b.dtype == DTYPE_BF16 ? PACK_BF16 : PACK_F16;
    gemm.a.at += (uint64_t)dtype_bytes(op->a.dtype) * begin * op->lda;
    gemm.b.at += op->transpose_a ? (uint64_t)dtype_bytes(op->b.dtype) * begin * op->ldb : g * stride;
    gemm.c.at += op->transpose_a ? g * stride : 4ull * begin * op->ldc;
    return gemm;
}

static void groups_part(void *context, uint32_t index, uint32_t thread)
{
    const struct parts_job *job = context;
    const struct op_gemm_grouped *op = &job->op->gemm_grouped;
    for (uint32_t g = 0; g < op->groups; g++) {
        struct op_gemm gemm = group_product(op, g);
        uint32_t parts = product_parts(job->runner, &gemm);
        if (index < parts) {
            product_part(job->runner, &gemm, index, parts, thread);
            return;
        }
        index -= parts;
    }
}

/* Zeroes c of a product without terms: kernels that have nothing to add write nothing. */
static void nothing_write(const struct op_gemm *gemm)
{
    float *c = operand_at(&gemm->c);
    for (size_t i = 0; i < gemm->m && gemm->beta == 0.0f; i++)
        memset(c + i * gemm->ldc, 0, gemm->n * sizeof(*c));
}

int cpu_gemm_grouped(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    const struct op_gemm_grouped *o = &op->gemm_grouped;
    uint64_t parts = 0;
    if (o->groups == 0)
        return 0;
    if (rising_check(op, "offsets", &o->offsets, o->first, o->first + o->groups, o->rows, err) != 0)
        return -1;
    for (uint32_t g = 0; g < o->groups; g++) {
        struct op_gemm gemm = group_product(o, g);
        if (gemm.k == 0)
            nothing_write(&gemm);
        parts += product_parts(runner, &gemm);
    }
    struct parts_job job = {.runner = runner, .op = op};
    pool_run(runner->pool, (uint32_t)parts, groups_part, &job);
    return 0;
}
