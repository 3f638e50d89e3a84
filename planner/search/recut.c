/* f[s][e]: the least time of the slowest of stages 0..s when they hold blocks 0..e. */
#include "planner/search/recut.h"

#include <math.h>
#include <stdlib.h>

#include "planner/cost/micro.h"

#define RINGS 4u /* boundary tensors a neighbour is thought to take */

struct recut {
    const struct problem *p;
    struct place_choice *c;
    struct micro_cost *cost; /* [member_count] */
    uint32_t micro_batches;
    double *best;   /* [stage_count][block_count + 1] */
    int32_t *begin; /* likewise: where the stage begins */
};

static bool member_fits(const struct recut *r, uint32_t s, uint32_t m, int32_t begin, int32_t end,
                        bool recompute)
{
    const struct place_choice *c = r->c;
    uint32_t behind = c->stage_count - s, members = c->stages[s].member_count;
    uint32_t window = members > 1 ? behind / members + 1 : behind;
    struct memory_need need;
    struct memory_stage stage = {.block_begin = begin,
                                 .block_end = end,
                                 .window = window < r->micro_batches ? window : r->micro_batches,
                                 .micro_batch_rows = c->micro_batch_rows,
                                 .recompute = recompute,
                                 .boundary_buffers = RINGS * ((uint32_t)(s > 0) + (behind > 1)),
                                 .state_share = 1,
                                 .tensor_share = 1};
    memory_stage_need(r->p, &stage, &need);
    return need.total <= r->p->cluster->devices[c->members[m].device].memory_limit_bytes;
}

/* Must a member recompute to hold the blocks? 0, 1, or −1: it cannot hold them. */
static int member_must(const struct recut *r, uint32_t s, uint32_t m, int32_t begin, int32_t end)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        if (micro_recompute_allowed(r->p, recompute) && member_fits(r, s, m, begin, end, recompute))
            return recompute;
    }
    return -1;
}

/* Seconds of a micro-batch of the stage's members together; INFINITY when one cannot hold the blocks. */
static double stage_seconds(const struct recut *r, uint32_t s, int32_t begin, int32_t end)
{
    const struct place_stage *stage = &r->c->stages[s];
    double rate = 0;
    for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
        int recompute = member_must(r, s, m, begin, end);
        if (recompute < 0)
            return INFINITY;
        double each = micro_forward(r->p, &r->cost[m], begin, end) +
                      micro_backward(r->p, &r->cost[m], begin, end, recompute);
        rate += each > 0 ? 1 / each : 0;
    }
    return rate > 0 ? 1 / rate : 0;
}

static void table_fill(struct recut *r)
{
    int32_t blocks = r->p->block_count, stages = (int32_t)r->c->stage_count, row = blocks + 1;
    for (int32_t s = 0; s < stages; s++) {
        for (int32_t end = 0; end <= blocks; end++) {
            double *best = &r->best[s * row + end];
            *best = INFINITY;
            if (end <= s || end > blocks - (stages - s - 1))
                continue;
            for (int32_t begin = end - 1; begin >= s; begin--) {
                double before = s ? r->best[(s - 1) * row + begin] : begin ? INFINITY : 0;
                if (before >= *best)
                    continue;
                double here = stage_seconds(r, (uint32_t)s, begin, end), worst = fmax(before, here);
                if (here >= *best) /* more blocks are no faster, and fit no better */
                    break;
                if (worst < *best) {
                    *best = worst;
                    r->begin[s * row + end] = begin;
                }
            }
        }
    }
}

static bool trace(struct recut *r)
{
    struct place_choice *c = r->c;
    int32_t end = r->p->block_count, row = end + 1;
    bool changed = false;
    if (!(r->best[((int32_t)c->stage_count - 1) * row + end] < INFINITY))
        return false;
    for (uint32_t s = c->stage_count; s-- > 0;) {
        struct place_stage *stage = &c->stages[s];
        int32_t begin = r->begin[(int32_t)s * row + end];
        uint32_t window = c->stage_count - s < r->micro_batches ? c->stage_count - s : r->micro_batches;
        changed = changed || stage->block_begin != begin || stage->block_end != end;
        stage->block_begin = begin;
        stage->block_end = end;
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
            c->members[m].recompute = member_must(r, s, m, begin, end) == 1;
            changed = changed || c->members[m].window != window;
            c->members[m].window = window;
        }
        end = begin;
    }
    return changed;
}

int choice_recut(const struct problem *p, struct place_choice *c, struct err *err)
{
    if (c->stage_count < 2 || p->block_count > RECUT_BLOCKS || (int32_t)c->stage_count > p->block_count)
        return 0;
    size_t cells = (size_t)c->stage_count * ((size_t)p->block_count + 1);
    struct recut r = {.p = p, .c = c, .micro_batches = micro_count(p, c->micro_batch_rows)};
    r.cost = calloc(c->member_count, sizeof(*r.cost));
    r.best = calloc(cells, sizeof(*r.best));
    r.begin = calloc(cells, sizeof(*r.begin));
    int result = -1;
    if (!r.cost || !r.best || !r.begin) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
    } else {
        for (uint32_t m = 0; m < c->member_count; m++)
            micro_cost_init(&r.cost[m], p, c->members[m].device, c->micro_batch_rows);
        table_fill(&r);
        result = trace(&r);
    }
    free(r.cost);
    free(r.best);
    free(r.begin);
    return result;
}
