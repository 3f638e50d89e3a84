/* Members deal micro-batches among themselves as in LoRA; a step begins with gathering weights and ends with
 * scattering gradients, and what members have left is to hold the state together. */
#include "planner/hybrid/few_state.h"

#include <math.h>
#include <stdlib.h>

#include "planner/hybrid/group_state.h"

/* Bytes that blocks take on a device, state aside where others have shards of it, too: with one micro-batch
 * under way, and for each more. */
struct state_need {
    double first, more;
};

struct few_state {
    const struct problem *p;
    uint32_t rows; /* the size in hand */
    struct state_need
        *need; /* [devices][begin][end][alone, in shards][plain, recomputing]; first 0: not known yet */
};

static const struct state_need *need_of(struct few_state *s, const struct few_bound *f, uint32_t d,
                                        int32_t begin, int32_t end, bool shards, bool again)
{
    size_t side = (size_t)s->p->block_count + 1;
    struct state_need *n =
        &s->need[(((d * side + (size_t)begin) * side + (size_t)end) * 2 + shards) * 2 + again];
    struct group_stage stage = {.block_begin = begin,
                                .block_end = end,
                                .members = shards ? 2 : 1,
                                .window = 1,
                                .micro_batch_rows = f->rows,
                                .boundary_buffers =
                                    4 * ((uint32_t)(begin > 0) + (uint32_t)(end < s->p->block_count)),
                                .recompute = again};
    struct memory_need need;
    if (n->first > 0)
        return n;
    group_need(s->p, &stage, shards ? 0 : 1, &need);
    n->first = (double)need.total;
    stage.window = 2;
    group_need(s->p, &stage, shards ? 0 : 1, &need);
    n->more = (double)need.total - n->first;
    return n;
}

static void size_set(void *with, const struct few_bound *f)
{
    struct few_state *s = with;
    size_t side = (size_t)s->p->block_count + 1, cells = 4 * side * side * f->sets.count;
    for (size_t i = 0; i < cells && s->rows != f->rows; i++)
        s->need[i].first = 0;
    s->rows = f->rows;
}

struct state_group {
    uint32_t members, device[FEW_DEVICES];
    double each[2][FEW_DEVICES],
        window[FEW_DEVICES]; /* [plain, recomputing]: seconds; under way at the mean */
};

/* Do they hold it, all recomputing or none, with windows of those or of one? */
static bool group_holds(struct few_state *s, const struct few_bound *f, const struct state_group *g,
                        int32_t begin, int32_t end, bool again, bool tight)
{
    double room = 0;
    for (uint32_t m = 0; m < g->members; m++) {
        const struct state_need *need = need_of(s, f, g->device[m], begin, end, g->members > 1, again);
        double left =
            (double)s->p->cluster->devices[f->sets.device[g->device[m]]].memory_limit_bytes - need->first;
        left -= tight ? 0 : need->more * (ceil(g->window[m] - 1e-9) - 1);
        if (left < 0)
            return false;
        room += left;
    }
    return g->members == 1 || room >= group_state_bytes(s->p, begin, end);
}

static void group_fill(const struct few_bound *f, uint16_t set, int32_t begin, int32_t end, uint32_t behind,
                       struct state_group *g)
{
    double rate = 0;
    g->members = 0;
    for (uint32_t d = 0; d < f->sets.count; d++) {
        if (!(set >> d & 1))
            continue;
        for (int again = 0; again < 2; again++)
            g->each[again][g->members] = micro_forward(f->p, &f->cost[d], begin, end) +
                                         micro_backward(f->p, &f->cost[d], begin, end, again);
        rate += 1 / g->each[0][g->members];
        g->device[g->members++] = d;
    }
    for (uint32_t m = 0; m < g->members; m++)
        g->window[m] = few_window(f, 1 / g->each[0][m] / rate, behind);
}

/* A tied table comes from the first stage to the last, and its gradients go back: over the best link from
 * anybody else, at least. */
static double table_seconds(const struct problem *p, const struct few_bound *f, uint16_t set)
{
    double best = 0;
    for (uint32_t d = 0; d < f->sets.count; d++) {
        for (uint32_t other = 0; other < f->sets.count; other++) {
            double latency, rate;
            bool emulated;
            if (!(set >> d & 1) || (set >> other & 1))
                continue;
            cluster_link(p->cluster, f->sets.device[other], f->sets.device[d], &latency, &rate, &emulated);
            best = fmax(best, rate);
        }
    }
    return best > 0 ? (double)(memory_gathered_bytes(p, 0, 1) + memory_gradient_bytes(p, 0, 1)) / best : 0;
}

static void group_price(void *with, const struct few_bound *f, uint16_t set, int32_t begin, int32_t end,
                        uint32_t behind, double *all, double *one)
{
    struct few_state *s = with;
    struct state_group g;
    uint32_t devices[FEW_DEVICES];
    *all = *one = INFINITY;
    group_fill(f, set, begin, end, behind, &g);
    if (g.members > f->micro_batches)
        return;
    for (int way = 0; way < 4; way++) {
        bool again = way / 2, tight = way % 2;
        double each[FEW_DEVICES], least = INFINITY;
        if (!micro_recompute_allowed(s->p, again) || !group_holds(s, f, &g, begin, end, again, tight))
            continue;
        for (uint32_t m = 0; m < g.members; m++) {
            each[m] = g.each[again][m] * (tight ? g.window[m] : 1);
            least = each[m] < least ? each[m] : least;
        }
        double seconds = few_makespan(f, each, g.members);
        if (seconds < *all) {
            *all = seconds;
            *one = least;
        }
        if (!tight)
            break;
    }
    for (uint32_t m = 0; m < g.members; m++)
        devices[m] = f->sets.device[g.device[m]];
    double sync = g.members > 1 ? group_state_sync(s->p, devices, g.members, begin, end) : 0;
    if (s->p->blocks.tied && begin > 0 && end == s->p->block_count)
        sync += table_seconds(s->p, f, set);
    *all += sync;
    *one += sync / 2; /* weights come before, gradients go beside what others do last */
}

int few_state_walk(struct few_bound *bound, const struct problem *p, struct err *err)
{
    size_t side = (size_t)p->block_count + 1;
    struct few_state s = {.p = p, .need = calloc(4 * side * side * FEW_DEVICES, sizeof(*s.need))};
    struct few_prices prices = {.with = &s, .size = size_set, .group = group_price};
    if (!s.need)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    int result = few_bound_walk(bound, p, false, &prices, err);
    bound->prices = NULL;
    free(s.need);
    return result;
}
