/* Enumerates expert placements: attention on some devices and experts on the same or others. It tries all
 * divisions of each micro-batch's rows and of all layers' experts among any devices in any order, with all
 * waves, delays and recomputation. Where a member's share of the experts is not a whole number in each layer,
 * its number of experts differs from layer to layer (planner/emit/expert.h). */
#ifndef TEST_ORACLE_EXPERT_H
#define TEST_ORACLE_EXPERT_H

#include "planner/oracle.h"

#define DELAYS 3u

struct expert_walk {
    struct oracle *o;
    uint32_t experts, active, sparse; /* sparse: the number of layers that have experts */
    uint32_t all;                     /* the experts of all sparse layers together */
};

/* Returns a lower bound on a device's compute time a step when it attends to rows [row, row + rows) of each
 * micro-batch and holds `held` experts, counted over all layers. */
static inline double part_work(const struct expert_walk *w, const struct member *x, uint32_t row,
                               uint32_t held, uint32_t micro)
{
    const struct problem *p = w->o->p;
    const struct cost_device *cost = &p->costs[x->device];
    double mean = 0;
    for (uint32_t t = 0; t < p->step_count; t++) {
        for (uint32_t at = 0; at < p->workload->batch_rows; at += micro) {
            struct cost_load mine = problem_load(p, t, at + row, at + row + x->rows);
            struct cost_load all = problem_load(p, t, at, at + micro);
            for (int way = 0; way < (x->recompute ? 3 : 2); way++) {
                double pairs = all.tokens * w->active / w->experts;
                uint32_t whole = held / w->experts, others = held % w->experts;
                mean += whole * cost_experts_seconds(cost, (enum cost_way)way, w->experts, pairs) +
                        cost_experts_seconds(cost, (enum cost_way)way, others, pairs);
                for (int32_t b = 0; b < p->block_count; b++) {
                    bool sparse = cost_class_of(&p->blocks.blocks[b]) == COST_LAYER_SPARSE;
                    if (sparse && mine.tokens > 0)
                        mean += cost_part_seconds(cost, COST_PART_ATTENTION, (enum cost_way)way, &mine) +
                                cost_part_seconds(cost, COST_PART_ROUTER, (enum cost_way)way, &mine);
                    else if (!sparse && mine.tokens > 0)
                        mean += problem_seconds(p, x->device, b, b + 1, (enum cost_way)way, &mine);
                }
            }
        }
    }
    return mean / p->step_count;
}

static inline void waves_walk(struct expert_walk *w)
{
    struct oracle *o = w->o;
    bool both = false, holds = false;
    for (uint32_t m = 0; m < o->c.member_count; m++) {
        both |= o->members[m].rows > 0 && o->members[m].expert_share > 0;
        holds |= o->members[m].expert_share > 0;
    }
    if (o->c.member_count < 2 || !holds)
        return;
    o->stages[0] = (struct candidate_stage){
        .block_end = o->p->block_count, .kind = STAGE_EXPERT, .member_count = o->c.member_count};
    o->c.stage_count = 1;
    for (uint32_t wave = 1; wave <= o->micro_batches; wave++) {
        for (uint32_t delay = both ? 0 : 1; delay < (both ? DELAYS : 2) && !exhausted(o); delay++) {
            for (uint32_t m = 0; m < o->c.member_count; m++) {
                o->members[m].window = wave;
                o->members[m].delay = delay;
            }
            leaf(o);
        }
    }
}

/* Adds a member. Members with rows come first, then members that hold experts only. */
static inline void holder_add(struct expert_walk *w, uint32_t rows, uint32_t experts)
{
    struct oracle *o = w->o;
    const struct problem *p = o->p;
    uint32_t m = o->c.member_count, micro = o->c.micro_batch_rows;
    if (rows == micro && experts == w->all)
        waves_walk(w);
    if (m == p->device_count)
        return;
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (uint32_t take = rows < micro; take <= micro - rows && !o->taken[d]; take++) {
            for (uint32_t way = take ? 0 : 2; way < 2 * (w->all - experts + 1); way++) {
                uint32_t held = way / 2;
                o->members[m] = (struct member){.device = d,
                                                .rows = take,
                                                .state_share = 1,
                                                .expert_share = (double)held / w->all,
                                                .recompute = way % 2};
                if (!allowed(p, way % 2) || hopeless(o, part_work(w, &o->members[m], rows, held, micro)))
                    continue;
                o->taken[d] = true;
                o->c.member_count++;
                holder_add(w, rows + take, experts + held);
                o->c.member_count--;
                o->taken[d] = false;
            }
        }
    }
}

static inline void expert_run(struct oracle *o)
{
    const struct model_config *config = o->p->workload->config;
    struct expert_walk w = {.o = o, .experts = config->experts, .active = config->experts_active};
    if (config->experts == 0 || full_of(o->p))
        return;
    for (int32_t b = 0; b < o->p->block_count; b++)
        w.sparse += cost_class_of(&o->p->blocks.blocks[b]) == COST_LAYER_SPARSE;
    w.all = w.sparse * w.experts;
    for (uint32_t rows = 1; rows <= o->p->workload->batch_rows; rows++) {
        candidate_start(o, PLACE_EXPERT);
        o->c.micro_batch_rows = rows;
        o->micro_batches = (o->p->workload->batch_rows + rows - 1) / rows;
        holder_add(&w, 0, 0);
    }
}

#endif
