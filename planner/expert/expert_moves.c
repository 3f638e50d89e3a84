/* Moves among members that attend to rows, hold experts, or both. */
#include "planner/expert/expert_moves.h"

#include <math.h>
#include <stdlib.h>

#include "planner/cost/micro.h"
#include "planner/expert/expert.h"
#include "planner/search/plain_moves.h"

#define LEAST 1e-9          /* a share below it is none */
#define DELAY_MOST 4u       /* micro-batches that experts run behind attention */
#define EXPERT_PARTS 4u     /* sizes that experts change hands in */
#define PIPELINE_INSTRS 6.0 /* of a rank and micro-batch */
#define LAYER_INSTRS 9.0    /* of a layer with experts, forward and back */

uint32_t expert_program_length(const struct problem *p, const struct place_choice *c)
{
    if (c->placement != PLACE_EXPERT)
        return 1;
    double layers = p->prefix[p->block_count][COST_LAYER_SPARSE];
    return 1 + (uint32_t)(layers * LAYER_INSTRS / PIPELINE_INSTRS);
}

static uint32_t experts_of(const struct problem *p)
{
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d])
            return p->costs[d].experts;
    }
    return 0;
}

/* Members without work go, those with attention come first; false when attention or experts are on none. */
static bool members_settle(struct place_choice *c)
{
    uint32_t count = 0, attending = 0;
    bool holds = false;
    for (uint32_t m = 0; m < c->member_count; m++) {
        struct place_member *x = &c->members[m];
        x->expert_share = x->expert_share < LEAST ? 0 : x->expert_share;
        if (x->micro_rows || x->expert_share > 0)
            c->members[count++] = *x;
        holds |= x->expert_share > 0;
    }
    for (uint32_t m = 0; m < count; m++) { /* stable */
        struct place_member x = c->members[m];
        if (x.micro_rows == 0)
            continue;
        for (uint32_t at = m; at > attending; at--)
            c->members[at] = c->members[at - 1];
        c->members[attending++] = x;
    }
    c->member_count = count;
    c->stages[0].member_count = count;
    return holds && attending > 0 && count > 1;
}

/* One expert of one layer, as a share of them all. */
static uint32_t units_of(const struct problem *p)
{
    return experts_of(p) * p->prefix[p->block_count][COST_LAYER_SPARSE];
}

/* How many of a member's `held` experts (of all layers together) a move takes from it; 0: nothing else than
 * the parts before it take. */
static uint32_t part_of(uint32_t held, uint32_t layers, uint32_t part)
{
    const uint32_t takes[EXPERT_PARTS] = {layers, 1, held / 2, held > 1 ? held - 1 : 0};
    for (uint32_t before = 0; before < part; before++) {
        if (takes[before] == takes[part])
            return 0;
    }
    return takes[part] < held ? takes[part] : part < 2 ? held : 0;
}

static int expert_give(const struct problem *p, struct place_choice *c, uint32_t a, uint32_t b, uint32_t part)
{
    uint32_t units = units_of(p), layers = p->prefix[p->block_count][COST_LAYER_SPARSE];
    if (a == b || c->members[a].expert_share <= 0)
        return 0;
    expert_shares_whole(c->members, c->member_count, units);
    double held = round(c->members[a].expert_share * units), has = round(c->members[b].expert_share * units);
    uint32_t take = part_of((uint32_t)held, layers, part);
    c->members[a].expert_share = (held - take) / units;
    c->members[b].expert_share = (has + take) / units;
    return take && members_settle(c);
}

static int row_give(struct place_choice *c, uint32_t a, uint32_t b)
{
    if (a == b || c->members[a].micro_rows == 0)
        return 0;
    c->members[a].micro_rows--;
    c->members[b].micro_rows++;
    return members_settle(c);
}

/* Members change places with all that is theirs: other rows of a micro-batch, or experts of other layers. */
static int order_change(struct place_choice *c, uint32_t a, uint32_t b)
{
    struct place_member x = c->members[a], y = c->members[b];
    if (a >= b || !x.micro_rows != !y.micro_rows)
        return 0;
    c->members[a] = y;
    c->members[b] = x;
    return 1;
}

static int window_set(const struct problem *p, struct place_choice *c, uint32_t how)
{
    uint32_t most = micro_count(p, c->micro_batch_rows),
             old = c->members[0].window ? c->members[0].window : most;
    const uint32_t values[5] = {old + 1, old - 1, 2 * old, (old + 1) / 2, most};
    uint32_t window = values[how] > most ? most : values[how];
    if (window == 0 || window == old)
        return 0;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].window = window;
    return 1;
}

static int delay_set(struct place_choice *c, bool up)
{
    uint32_t old = c->members[0].delay;
    if (up ? old >= DELAY_MOST : old == 0)
        return 0;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].delay = up ? old + 1 : old - 1;
    return 1;
}

static int drop(struct place_choice *c, uint32_t a, uint32_t b)
{
    if (a == b)
        return 0;
    c->members[b].micro_rows += c->members[a].micro_rows;
    c->members[b].expert_share += c->members[a].expert_share;
    c->members[a].micro_rows = 0;
    c->members[a].expert_share = 0;
    return members_settle(c);
}

/* Takes of member b modulo members: the first EXPERT_PARTS · members, experts; beyond: a row. */
static int add(const struct problem *p, struct place_choice *c, uint32_t device, uint32_t b, struct err *err)
{
    uint32_t n = c->member_count;
    if (!p->usable[device] || choice_uses(c, device))
        return 0;
    struct place_member *grown = realloc(c->members, ((size_t)n + 1) * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    c->members = grown;
    c->members[n] = (struct place_member){.device = device,
                                          .micro_count = c->members[0].micro_count,
                                          .window = c->members[0].window,
                                          .delay = c->members[0].delay,
                                          .recompute = c->members[0].recompute};
    c->member_count = n + 1;
    return b < EXPERT_PARTS * n ? expert_give(p, c, b % n, n, b / n) : row_give(c, b % n, n);
}

/* Micro-batches of other sizes: rows in proportion, at least one where there was one. */
static int micro_set(const struct problem *p, struct place_choice *c, uint32_t rows)
{
    uint32_t old = c->micro_batch_rows, attending = 0, given = 0;
    for (uint32_t m = 0; m < c->member_count; m++)
        attending += c->members[m].micro_rows > 0;
    if (rows == old || rows < attending || rows == 0 || rows > p->workload->batch_rows ||
        p->workload->micro_batch_rows)
        return 0;
    for (uint32_t m = 0; m < attending; m++) {
        uint32_t take = (uint32_t)((uint64_t)rows * c->members[m].micro_rows / old);
        uint32_t most = rows - given - (attending - m - 1);
        take = take < 1 ? 1 : take > most ? most : take;
        c->members[m].micro_rows = take;
        given += take;
    }
    for (uint32_t m = 0; given < rows; m = (m + 1) % attending, given++)
        c->members[m].micro_rows++;
    c->micro_batch_rows = rows;
    for (uint32_t m = 0; m < c->member_count; m++) {
        uint32_t count = micro_count(p, rows);
        c->members[m].micro_count = count;
        c->members[m].window = c->members[m].window < count ? c->members[m].window : count;
    }
    return 1;
}

void expert_move_range(const struct problem *p, const struct place_choice *c, enum move_kind kind,
                       uint32_t *a_count, uint32_t *b_count)
{
    uint32_t n = c->member_count;
    const uint32_t ranges[MOVE_KINDS][2] = {
        [MOVE_CUT] = {n, EXPERT_PARTS * n},
        [MOVE_WINDOW] = {1, 5},
        [MOVE_DELAY] = {1, 2},
        [MOVE_RECOMPUTE] = {n + 1, 2},
        [MOVE_ROWS] = {n, n},
        [MOVE_ORDER] = {n, n},
        [MOVE_SWAP] = {n, n},
        [MOVE_REPLACE] = {n, p->device_count},
        [MOVE_DROP] = {n, n},
        [MOVE_ADD] = {p->device_count, (EXPERT_PARTS + 1) * n},
        [MOVE_MICRO] = {p->workload->batch_rows + 1, 1},
    };
    *a_count = ranges[kind][0];
    *b_count = ranges[kind][1];
}

int expert_move_apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a,
                      uint32_t b, struct err *err)
{
    switch (kind) {
    case MOVE_CUT:
        return expert_give(p, c, a, b % c->member_count, b / c->member_count);
    case MOVE_WINDOW:
        return window_set(p, c, b);
    case MOVE_DELAY:
        return delay_set(c, b == 0);
    case MOVE_RECOMPUTE:
        return plain_recompute(p, c, a, b);
    case MOVE_ROWS:
        return row_give(c, a, b);
    case MOVE_ORDER:
        return order_change(c, a, b);
    case MOVE_SWAP:
        return plain_swap(c, a, b);
    case MOVE_REPLACE:
        return plain_replace(p, c, a, b);
    case MOVE_DROP:
        return drop(c, a, b);
    case MOVE_ADD:
        return add(p, c, a, b, err);
    case MOVE_MICRO:
        return micro_set(p, c, a);
    default:
        return 0;
    }
}
