/* Interleaved pipelines, one thing at a time: ranges' ends, ranks' windows, recomputation, devices, rows of
 * micro-batches, how often the devices go round. */
#include "planner/pipeline/lap_moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/pipeline/pipe_order.h"
#include "planner/search/plain_moves.h"

#define LAP_SHARE_RANKS 16u /* interleaved pipelines of more are cut by time alone */
#define RINGS 4u            /* boundary tensors a neighbour is thought to take */

static uint32_t least_window(const struct problem *p, const struct place_choice *c, uint32_t rank)
{
    return pipe_order_window(c->member_count, c->stage_count / c->member_count,
                             micro_count(p, c->micro_batch_rows), rank);
}

/* Windows that say less than the least are that. */
static void windows_settle(const struct problem *p, struct place_choice *c)
{
    uint32_t most = micro_count(p, c->micro_batch_rows) * (c->stage_count / c->member_count);
    for (uint32_t r = 0; r < c->member_count; r++) {
        uint32_t least = least_window(p, c, r), window = c->members[r].window;
        window = window > most ? most : window;
        c->members[r].window = window < least ? least : window;
    }
}

static int window_move(const struct problem *p, struct place_choice *c, uint32_t rank, bool up)
{
    bool any = false;
    for (uint32_t r = 0; r < c->member_count; r++) {
        uint32_t old = c->members[r].window;
        if (r != rank && rank < c->member_count)
            continue;
        if (!up && old == 0)
            continue;
        c->members[r].window = up ? old + 1 : old - 1;
        windows_settle(p, c);
        any = any || c->members[r].window != old;
    }
    return any;
}

static int micro_move(const struct problem *p, struct place_choice *c, uint32_t rows)
{
    if (rows == 0 || rows == c->micro_batch_rows || p->workload->micro_batch_rows || micro_count(p, rows) < 2)
        return 0;
    c->micro_batch_rows = rows;
    for (uint32_t r = 0; r < c->member_count; r++) {
        c->members[r].micro_rows = rows;
        c->members[r].micro_count = micro_count(p, rows);
        c->members[r].window = 0;
    }
    windows_settle(p, c);
    return 1;
}

/* Does a rank hold so many blocks in all, nearly? As if they were one range, with the micro-batches that wait
 * between its ranges on both sides of each. */
static bool rank_holds(const struct problem *p, const struct place_choice *c, uint32_t rank, int32_t blocks)
{
    const struct place_member *x = &c->members[rank];
    uint32_t laps = c->stage_count / c->member_count, count = micro_count(p, c->micro_batch_rows);
    uint32_t live = (x->window + laps - 1) / laps;
    bool last = rank + 1 == c->member_count;
    int32_t begin = rank == 0 ? 0 : last ? p->block_count - blocks : 1;
    struct memory_stage stage = {.block_begin = begin,
                                 .block_end = begin + blocks,
                                 .window = live < count ? live : count,
                                 .micro_batch_rows = c->micro_batch_rows,
                                 .recompute = x->recompute,
                                 .boundary_buffers = RINGS * (2 * laps - (rank == 0) - last),
                                 .state_share = 1,
                                 .tensor_share = 1};
    struct memory_need need;
    memory_stage_need(p, &stage, &need);
    return need.total <= p->cluster->devices[x->device].memory_limit_bytes;
}

/* Seconds of a micro-batch in one layer at the mean, and in the block that only the first or last rank has.
 */
static void rank_seconds(const struct problem *p, const struct place_choice *c, uint32_t rank, double *layer,
                         double *own)
{
    const struct place_member *x = &c->members[rank];
    int32_t last = p->block_count - 1;
    struct micro_cost cost;
    micro_cost_init(&cost, p, x->device, c->micro_batch_rows);
    *own = 0;
    *layer = last > 1 ? (micro_forward(p, &cost, 1, last) + micro_backward(p, &cost, 1, last, x->recompute)) /
                            (last - 1)
                      : 0;
    if (rank == 0)
        *own = micro_forward(p, &cost, 0, 1) + micro_backward(p, &cost, 0, 1, x->recompute) - *layer;
    else if (rank + 1 == c->member_count)
        *own = micro_forward(p, &cost, last, last + 1) +
               micro_backward(p, &cost, last, last + 1, x->recompute) - *layer;
}

bool lap_share(const struct problem *p, struct place_choice *c)
{
    uint32_t ranks = c->member_count, laps = c->stage_count / ranks;
    int32_t held[LAP_SHARE_RANKS], left = p->block_count - (int32_t)c->stage_count, at = 0;
    double layer[LAP_SHARE_RANKS], own[LAP_SHARE_RANKS];
    if (ranks > LAP_SHARE_RANKS)
        return false;
    for (uint32_t r = 0; r < ranks; r++) {
        held[r] = (int32_t)laps;
        rank_seconds(p, c, r, &layer[r], &own[r]);
        if (!rank_holds(p, c, r, held[r]))
            return false;
    }
    for (; left > 0; left--) {
        uint32_t pick = ranks;
        double least = INFINITY;
        for (uint32_t r = 0; r < ranks; r++) {
            double end = own[r] + (held[r] + 1) * layer[r];
            if (end < least && rank_holds(p, c, r, held[r] + 1)) {
                least = end;
                pick = r;
            }
        }
        if (pick == ranks)
            return false;
        held[pick]++;
    }
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t r = s % ranks, more = s / ranks < (uint32_t)held[r] % laps;
        c->stages[s].block_begin = at;
        c->stages[s].block_end = at += held[r] / (int32_t)laps + (int32_t)more;
    }
    return true;
}

/* Ranges by what ranks have time and room for; of nearly equal numbers of blocks where there is no room. */
static int laps_cut(const struct problem *p, struct place_choice *c, uint32_t laps, struct err *err)
{
    uint32_t stages = laps * c->member_count, blocks = (uint32_t)p->block_count;
    if (laps < 2 || c->member_count < 2 || stages > blocks)
        return 0;
    struct place_stage *grown = realloc(c->stages, stages * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    c->stages = grown;
    c->stage_count = stages;
    for (uint32_t s = 0; s < stages; s++) {
        uint64_t begin = (uint64_t)s * blocks / stages, end = (uint64_t)(s + 1) * blocks / stages;
        c->stages[s] = (struct place_stage){.block_begin = (int32_t)begin,
                                            .block_end = (int32_t)end,
                                            .member_first = s % c->member_count,
                                            .member_count = 1};
    }
    for (uint32_t r = 0; r < c->member_count; r++)
        c->members[r].window = 0;
    windows_settle(p, c);
    lap_share(p, c);
    return 1;
}

int lap_begin(const struct problem *p, struct place_choice *c, uint32_t laps, struct err *err)
{
    if (c->schedule == SCHEDULE_INTERLEAVED || c->stage_count != c->member_count ||
        micro_count(p, c->micro_batch_rows) < 2)
        return 0;
    c->schedule = SCHEDULE_INTERLEAVED;
    for (uint32_t r = 0; r < c->member_count; r++)
        c->members[r].delay = 0;
    return laps_cut(p, c, laps, err);
}

static int drop_move(const struct problem *p, struct place_choice *c, uint32_t rank, struct err *err)
{
    uint32_t laps = c->stage_count / c->member_count;
    memmove(&c->members[rank], &c->members[rank + 1], (c->member_count - rank - 1) * sizeof(*c->members));
    c->member_count--;
    return laps_cut(p, c, laps, err);
}

static int add_move(const struct problem *p, struct place_choice *c, uint32_t device, uint32_t at,
                    struct err *err)
{
    uint32_t laps = c->stage_count / c->member_count;
    if (!p->usable[device] || choice_uses(c, device) ||
        laps * (c->member_count + 1) > (uint32_t)p->block_count)
        return 0;
    struct place_member *grown = realloc(c->members, ((size_t)c->member_count + 1) * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    c->members = grown;
    struct place_member member = grown[0];
    member.device = device;
    memmove(&grown[at + 1], &grown[at], (c->member_count - at) * sizeof(*grown));
    grown[at] = member;
    c->member_count++;
    return laps_cut(p, c, laps, err);
}

void lap_move_range(const struct problem *p, const struct place_choice *c, enum move_kind kind,
                    uint32_t *a_count, uint32_t *b_count)
{
    uint32_t ranks = c->member_count, stages = c->stage_count;
    const uint32_t ranges[MOVE_KINDS][2] = {
        [MOVE_CUT] = {stages - 1, 2 * (stages - 1)}, [MOVE_WINDOW] = {ranks + 1, 2},
        [MOVE_RECOMPUTE] = {ranks + 1, 2},           [MOVE_SWAP] = {ranks, ranks},
        [MOVE_REPLACE] = {ranks, p->device_count},   [MOVE_MICRO] = {p->workload->batch_rows + 1, 1},
        [MOVE_REGROUP] = {LAP_MOVES_MAX + 1, 1},     [MOVE_DROP] = {ranks > 2 ? ranks : 0, 1},
        [MOVE_ADD] = {p->device_count, ranks + 1},
    };
    *a_count = ranges[kind][0];
    *b_count = ranges[kind][1];
}

int lap_move_apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a,
                   uint32_t b, struct err *err)
{
    switch (kind) {
    case MOVE_CUT:
        return plain_cut(c, a, b / 2, b % 2 ? 1 : -1);
    case MOVE_WINDOW:
        return window_move(p, c, a, b == 0);
    case MOVE_RECOMPUTE:
        return plain_recompute(p, c, a, b);
    case MOVE_SWAP:
        return plain_swap(c, a, b);
    case MOVE_REPLACE:
        return plain_replace(p, c, a, b);
    case MOVE_MICRO:
        return micro_move(p, c, a);
    case MOVE_REGROUP:
        return a == c->stage_count / c->member_count ? 0 : laps_cut(p, c, a, err);
    case MOVE_DROP:
        return drop_move(p, c, a, err);
    case MOVE_ADD:
        return add_move(p, c, a, b, err);
    default:
        return 0;
    }
}
