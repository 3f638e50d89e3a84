/* Other schedules for pipelines that were found as 1F1B: interleaved (Narayanan et al. 2021), and split
 * backwards (Qi et al. 2023, ZB-H1's idea: the weights' half is put off to where a rank would wait). Each is
 * kept only if its estimate beats the pipeline it came from; simulation decides. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/chain.h"
#include "planner/pipeline/lap_moves.h"
#include "planner/pipeline/pipe_order.h"
#include "planner/pipeline/pipeline.h"

#define BASES 4u         /* pipelines that variants are made of */
#define KEPT 8u          /* variants of a kind that join the list */
#define FEW_DEVICES 8u   /* up to which all pipelines are bases, and an interleaved one whose estimate is */
#define FEW_WITHIN 1.25  /* so much above its base's is kept: polishing may make it the faster one */
#define LAPS_MAX 8u      /* ranges a rank */
#define BALANCE_TURNS 40 /* of bisection */
#define REFINED_CELLS 2000u  /* ranges · micro-batches up to which blocks are moved one by one */
#define REFINE_ROUNDS 8u     /* of it */
#define CELLS_MAX (1u << 20) /* beyond, variants are not looked at */

struct variants {
    const struct problem *p;
    struct choice_list *list, *laps; /* of split ones and evaluations; of interleaved ones */
    struct err *err;
    double *memory; /* of estimates */
    size_t cells;
    struct micro_cost *cost; /* [PIPE_STEPS][device_count][micro-batches] of `rows` rows */
    size_t cost_cells;
    uint32_t rows;
};

/* What micro-batches of the choice's size cost on every device it may be moved to. */
static int costs_fill(struct variants *v, const struct place_choice *c, uint32_t count)
{
    size_t wanted = (size_t)PIPE_STEPS * v->p->device_count * count;
    if (v->rows == c->micro_batch_rows)
        return 0;
    if (wanted > v->cost_cells) {
        free(v->cost);
        v->cost = malloc(wanted * sizeof(*v->cost));
        v->cost_cells = v->cost ? wanted : 0;
        v->rows = 0;
        if (!v->cost)
            return err_set(v->err, ERR_NOMEM, "planner: out of memory");
    }
    v->rows = c->micro_batch_rows;
    struct micro_cost *at = v->cost;
    for (uint32_t t = 0; t < PIPE_STEPS; t++) {
        for (uint32_t d = 0; d < v->p->device_count; d++) {
            for (uint32_t k = 0; k < count; k++, at++) {
                struct cost_load load =
                    problem_load(v->p, pipe_step(v->p, t), k * v->rows, (k + 1) * v->rows);
                *at = (struct micro_cost){0};
                if (v->p->usable[d] && load.rows > 0)
                    micro_cost_load(at, v->p, d, &load);
            }
        }
    }
    return 0;
}

/* Seconds of every stage and micro-batch of one of the steps. */
static void parts_fill(const struct variants *v, const struct place_choice *c, uint32_t t, uint32_t count,
                       double *f, double *b, double *w)
{
    for (uint32_t j = 0; j < c->stage_count; j++) {
        const struct place_stage *s = &c->stages[j];
        const struct place_member *m = &c->members[s->member_first];
        const struct micro_cost *cost = &v->cost[((size_t)t * v->p->device_count + m->device) * count];
        for (uint32_t k = 0; k < count; k++) {
            size_t at = (size_t)j * count + k;
            double back = micro_backward(v->p, &cost[k], s->block_begin, s->block_end, false);
            w[at] = 0;
            if (c->schedule == SCHEDULE_SPLIT) {
                struct cost_load load =
                    problem_load(v->p, pipe_step(v->p, t), k * v->rows, (k + 1) * v->rows);
                w[at] = back * micro_weight_share(v->p, s->block_begin, s->block_end, &load);
            }
            f[at] = micro_forward(v->p, &cost[k], s->block_begin, s->block_end);
            if (m->recompute)
                back = micro_backward(v->p, &cost[k], s->block_begin, s->block_end, true);
            b[at] = back - w[at];
        }
    }
}

/* A mean step of a choice by its order; INFINITY when it cannot end, negative on ERR_NOMEM. */
static double choice_estimate(struct variants *v, const struct place_choice *c)
{
    uint32_t count = micro_count(v->p, c->micro_batch_rows), windows[PIPELINE_STAGES_MAX];
    uint32_t delays[PIPELINE_STAGES_MAX], ranks = c->member_count;
    size_t cells = (size_t)c->stage_count * count, wanted = 3 * cells + 2 * (size_t)c->stage_count;
    struct pipe_order order;
    double seconds = 0, update = 0, each = 0;
    if (costs_fill(v, c, count) < 0)
        return -1;
    if (wanted > v->cells) {
        free(v->memory);
        v->memory = malloc(wanted * sizeof(*v->memory));
        v->cells = v->memory ? wanted : 0;
        if (!v->memory) {
            err_set(v->err, ERR_NOMEM, "planner: out of memory");
            return -1;
        }
    }
    double *f = v->memory, *b = f + cells, *w = b + cells, *latency = w + cells;
    double *occupied = latency + c->stage_count;
    for (uint32_t r = 0; r < ranks; r++) {
        double step = 0;
        windows[r] = c->members[r].window;
        delays[r] = c->members[r].delay;
        for (uint32_t j = r; j < c->stage_count; j += ranks)
            step += problem_step_seconds(v->p, c->members[r].device, c->stages[j].block_begin,
                                         c->stages[j].block_end);
        update = fmax(update, step);
    }
    if (pipe_order_init(&order, c->schedule, ranks, c->stage_count, count, windows, delays, false, v->err) <
        0)
        return -1;
    chain_links(v->p, c, latency, occupied);
    struct pipe_order_costs costs = {f, b, w, latency, occupied};
    for (uint32_t t = 0; t < PIPE_STEPS && seconds >= 0; t++) {
        if (t == 0 || pipe_step(v->p, t) != pipe_step(v->p, t - 1)) {
            parts_fill(v, c, t, count, f, b, w);
            each = pipe_order_seconds(&order, &costs, NULL, v->err);
        }
        seconds = each < 0 ? -1 : seconds + each / PIPE_STEPS;
    }
    pipe_order_fini(&order);
    double tied = chain_tied_seconds(v->p, c->members[0].device, c->members[ranks - 1].device);
    return seconds < 0 ? -1 : seconds + update + tied;
}

/* Does its memory suffice everywhere? */
static bool choice_fits(struct variants *v, const struct place_choice *c)
{
    struct err why = {0};
    struct plan *plan = chain_emit(v->p, c, false, &why);
    bool fits = plan != NULL;
    plan_destroy(plan);
    return fits;
}

/* Sets windows for `slack` more than the order needs by itself. */
static void windows_interleaved(const struct problem *p, struct place_choice *c, uint32_t slack)
{
    uint32_t ranks = c->member_count, count = micro_count(p, c->micro_batch_rows);
    for (uint32_t r = 0; r < ranks; r++)
        c->members[r].window = pipe_order_window(ranks, c->stage_count / ranks, count, r) + slack;
}

/* Blocks so that every range takes about as long: bisection over the time of a range. */
static bool ranges_balance(const struct problem *p, struct place_choice *c, const struct micro_cost *cost)
{
    uint32_t stages = c->stage_count;
    double low = 0, high = 0;
    for (uint32_t r = 0; r < c->member_count; r++)
        high = fmax(high, micro_forward(p, &cost[r], 0, p->block_count) +
                              micro_backward(p, &cost[r], 0, p->block_count, c->members[r].recompute));
    for (int turn = 0; turn <= BALANCE_TURNS; turn++) {
        double period = turn == BALANCE_TURNS || turn == 0 ? high : (low + high) / 2;
        int32_t begin = 0;
        for (uint32_t j = 0; j < stages; j++) {
            const struct micro_cost *mine = &cost[j % c->member_count];
            bool recompute = c->members[j % c->member_count].recompute;
            int32_t last = p->block_count - (int32_t)(stages - j - 1), end = begin + 1;
            while (end < last && micro_forward(p, mine, begin, end + 1) +
                                         micro_backward(p, mine, begin, end + 1, recompute) <=
                                     period)
                end++;
            c->stages[j].block_begin = begin;
            c->stages[j].block_end = begin = end;
        }
        if (begin == p->block_count)
            high = period;
        else
            low = period;
    }
    c->stages[stages - 1].block_end = p->block_count;
    return c->stages[stages - 1].block_begin < p->block_count;
}

/* Moves single blocks between neighbouring ranges while the estimate falls. */
static int ranges_refine(struct variants *v, struct place_choice *c)
{
    for (uint32_t round = 0; round < REFINE_ROUNDS; round++) {
        bool any = false;
        for (uint32_t j = 0; j + 1 < c->stage_count; j++) {
            for (int32_t step = -1; step <= 1; step += 2) {
                struct place_stage *a = &c->stages[j], *b = a + 1;
                int32_t old = a->block_end;
                if (old + step <= a->block_begin || old + step >= b->block_end)
                    continue;
                a->block_end = b->block_begin = old + step;
                double seconds = choice_estimate(v, c);
                v->list->evaluations++;
                if (seconds < 0)
                    return -1;
                if (seconds < c->estimate_s && choice_fits(v, c)) {
                    c->estimate_s = seconds;
                    any = true;
                } else {
                    a->block_end = b->block_begin = old;
                }
            }
        }
        if (!any)
            break;
    }
    return 0;
}

/* How much wider than the order needs windows are best, if it fits at all: UINT32_MAX if not. */
static int slack_find(struct variants *v, struct place_choice *c, uint32_t *best)
{
    uint32_t ranks = c->member_count;
    *best = UINT32_MAX;
    for (uint32_t slack = 0; slack <= 2 * ranks; slack += ranks) {
        windows_interleaved(v->p, c, slack);
        double seconds = choice_estimate(v, c);
        v->list->evaluations++;
        if (seconds < 0)
            return -1;
        if (seconds < c->estimate_s * (*best == UINT32_MAX ? 1.02 : 1) && choice_fits(v, c)) {
            c->estimate_s = seconds;
            *best = slack;
        }
    }
    return 0;
}

/* The base's devices in its order, each with `laps` ranges. */
static int interleaved_try(struct variants *v, const struct place_choice *base, uint32_t laps)
{
    uint32_t ranks = base->member_count, count = micro_count(v->p, base->micro_batch_rows);
    struct place_choice c = *base;
    struct micro_cost *cost = calloc(ranks, sizeof(*cost));
    c.schedule = SCHEDULE_INTERLEAVED;
    c.stage_count = ranks * laps;
    c.stages = calloc(c.stage_count, sizeof(*c.stages));
    c.members = calloc(ranks, sizeof(*c.members));
    int result = c.stages && c.members && cost ? 0 : err_set(v->err, ERR_NOMEM, "planner: out of memory");
    bool found = false;
    if (result == 0) {
        memcpy(c.members, base->members, ranks * sizeof(*c.members));
        for (uint32_t r = 0; r < ranks; r++)
            micro_cost_init(&cost[r], v->p, c.members[r].device, c.micro_batch_rows);
        for (uint32_t j = 0; j < c.stage_count; j++)
            c.stages[j] = (struct place_stage){.member_first = j % ranks, .member_count = 1};
        found = ranges_balance(v->p, &c, cost);
    }
    uint32_t best_slack = UINT32_MAX;
    double within = v->p->device_count <= FEW_DEVICES ? FEW_WITHIN : 1;
    c.estimate_s = within * base->estimate_s;
    if (found && result == 0)
        result = slack_find(v, &c, &best_slack);
    if (result == 0 && c.stages && best_slack == UINT32_MAX && v->p->device_count <= FEW_DEVICES) {
        windows_interleaved(v->p, &c, 0); /* by time alone it does not fit */
        if (lap_share(v->p, &c))
            result = slack_find(v, &c, &best_slack);
    }
    if (result == 0 && best_slack != UINT32_MAX) {
        windows_interleaved(v->p, &c, best_slack);
        if ((uint64_t)c.stage_count * count <= REFINED_CELLS)
            result = ranges_refine(v, &c);
        if (result == 0 && c.estimate_s < within * base->estimate_s)
            result = choice_list_add(v->laps, &c, v->err);
    }
    free(c.stages);
    free(c.members);
    free(cost);
    return result;
}

/* The base with its backwards split; later ranks, whose windows are smaller, put more off. */
static int split_try(struct variants *v, const struct place_choice *base)
{
    struct place_choice c, best = {0};
    int result = choice_copy(&c, base, v->err);
    if (result < 0)
        return -1;
    c.schedule = SCHEDULE_SPLIT;
    uint32_t count = micro_count(v->p, c.micro_batch_rows), widest = c.members[0].window;
    double least = base->estimate_s;
    for (uint32_t way = 0; way < 5 && result == 0; way++) {
        for (uint32_t s = 0; s < c.member_count; s++) {
            uint32_t gap = widest > c.members[s].window ? widest - c.members[s].window : 0;
            uint32_t delay = way == 0   ? 0
                             : way == 1 ? (gap + 1) / 2
                             : way == 2 ? gap
                             : way == 3 ? 2 * gap
                                        : count;
            c.members[s].delay = delay < count ? delay : count;
        }
        c.estimate_s = choice_estimate(v, &c);
        v->list->evaluations++;
        if (c.estimate_s < 0) {
            result = -1;
        } else if (c.estimate_s < least && choice_fits(v, &c)) {
            least = c.estimate_s;
            choice_fini(&best);
            result = choice_copy(&best, &c, v->err);
        }
    }
    if (result == 0 && best.member_count)
        result = choice_list_add(v->list, &best, v->err);
    choice_fini(&best);
    choice_fini(&c);
    return result;
}

/* Few devices: the same in single rows, which a pipeline without laps may have been better without. */
static int rows_try(struct variants *v, const struct place_choice *base)
{
    struct place_choice c;
    int result = 0;
    if (v->p->device_count > FEW_DEVICES || base->micro_batch_rows == 1 || v->p->workload->micro_batch_rows ||
        base->member_count < 2 || base->stage_count != base->member_count)
        return 0;
    if (choice_copy(&c, base, v->err) < 0)
        return -1;
    c.micro_batch_rows = 1;
    for (uint32_t m = 0; m < c.member_count; m++) {
        c.members[m].micro_rows = 1;
        c.members[m].micro_count = micro_count(v->p, 1);
    }
    for (uint32_t laps = 2;
         result == 0 && laps <= LAPS_MAX && (int32_t)(laps * c.member_count) <= v->p->block_count; laps++) {
        if ((uint64_t)laps * c.member_count * micro_count(v->p, 1) > CELLS_MAX ||
            v->list->evaluations >= v->list->evaluations_max)
            break;
        result = interleaved_try(v, &c, laps);
    }
    choice_fini(&c);
    return result;
}

static int variants_of(struct variants *v, const struct place_choice *base)
{
    uint32_t ranks = base->member_count, count = micro_count(v->p, base->micro_batch_rows);
    if (rows_try(v, base) < 0)
        return -1;
    if (base->stage_count != ranks || ranks < 2 || ranks > PIPELINE_STAGES_MAX || count < 2)
        return 0;
    if (base->schedule == SCHEDULE_1F1B && (uint64_t)ranks * count <= CELLS_MAX && split_try(v, base) < 0)
        return -1;
    for (uint32_t laps = 2; laps <= LAPS_MAX && (int32_t)(laps * ranks) <= v->p->block_count; laps++) {
        if ((uint64_t)laps * ranks * count > CELLS_MAX || v->list->evaluations >= v->list->evaluations_max)
            break;
        if (interleaved_try(v, base, laps) < 0)
            return -1;
    }
    return 0;
}

int pipeline_variants(const struct problem *problem, struct choice_list *list, struct err *err)
{
    struct place_choice bases[CHOICES_MAX];
    struct choice_list found[2] = {{.evaluations = list->evaluations,
                                    .evaluations_max = list->evaluations_max,
                                    .must_use = list->must_use},
                                   {.must_use = list->must_use}};
    uint32_t count = 0, most = problem->device_count <= FEW_DEVICES ? CHOICES_MAX : BASES;
    int result = 0;
    if (list->runnable_on) /* none of them is run by this release */
        return 0;
    while (result == 0 && count < most && count < list->count) {
        result = choice_copy(&bases[count], &list->choices[count], err);
        count += result == 0;
    }
    struct variants v = {.p = problem, .list = &found[0], .laps = &found[1], .err = err};
    for (uint32_t i = 0; i < count && result == 0; i++)
        result = variants_of(&v, &bases[i]);
    list->evaluations = found[0].evaluations;
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t n = 0; n < found[i].count && n < KEPT && result == 0; n++)
            result = choice_list_add(list, &found[i].choices[n], err);
        choice_list_fini(&found[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        choice_fini(&bases[i]);
    free(v.memory);
    free(v.cost);
    return result;
}
