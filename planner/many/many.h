/* Arranging many devices: an order of them cut into groups, each group a stage whose members take whole
 * micro-batches as they come, layers by what speed and memory allow at a period.
 *
 * many_table.c prepares one micro-batch size; many_cover.c finds the least period of an order by dynamic
 * programming; many_choice.c turns a layout into a choice and runs it once; many_cuts.c changes it by
 * running it; many_order.c changes orders; many_orders.c says which are tried, many_search.c at which sizes
 * and with which widths. For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_MANY_MANY_H
#define MOTLEY_PLANNER_MANY_MANY_H

#include <math.h>

#include "planner/cost/micro.h"
#include "planner/search/placement.h"

#define MANY_WAYS 2         /* plain, with recomputation */
#define MANY_BOUNDARIES 6u  /* boundary tensors a side that a rank is taken to hold before it is run */
#define MANY_GROUP_MAX 512u /* members of a stage */
#define MANY_VAST 4096u     /* devices beyond which less is looked at, so that 10,000 take about a minute */

/* Stages hold other things at the ends: the embedding first, norm and head last. */
enum many_role { MANY_INNER, MANY_FIRST, MANY_LAST, MANY_ROLES };

struct many_unit { /* a usable device at one micro-batch size */
    uint32_t device, node;
    uint32_t kind; /* units of one kind are alike in all that follows */
    double rate;   /* layers a second, plainly where that is allowed */
    double memory;
    double layer_s[MANY_WAYS]; /* a layer, forward and backward */
    double extra_s[MANY_ROLES][MANY_WAYS];
};

struct many {
    const struct problem *p;
    struct choice_list *list;
    uint32_t rows, micro_batches, count;
    int32_t layers; /* blocks between embedding and head */
    bool allowed[MANY_WAYS];
    uint32_t group_max; /* members of a stage; 1: a pipeline of single devices */
    uint32_t stages_asked;
    struct many_unit *units; /* [count] */
    /* bytes of a stage of n layers: fixed + each · micro-batches held; [MANY_ROLES][MANY_WAYS][layers + 1] */
    double *fixed, *each;
    bool shards;    /* full fine-tuning: several members hold a stage's state in shards (group_state.h) */
    double *shared; /* then as fixed, of one of several, none of the state */
    /* bytes of a stage's state, and of what its members gather and scatter in a step; [MANY_ROLES][layers +
     * 1] */
    double *state, *moved;
    double boundary_bytes; /* of a mean micro-batch */
    uint32_t nodes;
    double *link_s; /* [nodes · nodes], one way; NULL: too many nodes, looked up */
    double *byte_s; /* likewise, of a byte of shards */
};

/* Fills everything at a micro-batch size; count is that of usable devices. ERR_NOMEM. */
int many_init(struct many *many, const struct problem *problem, uint32_t micro_batch_rows, struct err *err);
void many_fini(struct many *many);
/* Adds seconds on the way between two nodes to the wire, or to the sender's card; wires[nodes · nodes]. */
static inline void many_wire_add(const struct many *many, uint32_t from, uint32_t to, double seconds,
                                 double *wires)
{
    const struct cluster *cluster = many->p->cluster;
    uint32_t at = cluster->nodes[from].nic_bytes_per_s > 0 ? from : to;
    if (from != to)
        wires[(size_t)from * cluster->node_count + at] += seconds;
}
/* Seconds of a boundary tensor between two units, one way, alone on the wire. */
double many_link_far(const struct many *many, uint32_t from_unit, uint32_t to_unit);
static inline double many_link(const struct many *many, uint32_t from_unit, uint32_t to_unit)
{
    if (!many->link_s)
        return many_link_far(many, from_unit, to_unit);
    return many->link_s[(size_t)many->units[from_unit].node * many->nodes + many->units[to_unit].node];
}

static inline size_t many_bytes_at(const struct many *many, enum many_role role, int way, int32_t layers)
{
    return ((size_t)role * MANY_WAYS + (size_t)way) * ((size_t)many->layers + 1) + (size_t)layers;
}

static inline size_t many_state_at(const struct many *many, enum many_role role, int32_t layers)
{
    return (size_t)role * ((size_t)many->layers + 1) + (size_t)layers;
}

/* What one of `size` members holds: of shards an even part, though what is emitted need not be even. */
static inline double many_bytes(const struct many *many, uint32_t size, enum many_role role, int way,
                                int32_t layers, double held)
{
    size_t at = many_bytes_at(many, role, way, layers);
    double fixed = many->fixed[at];
    if (many->shards && size > 1)
        fixed = many->shared[at] + many->state[many_state_at(many, role, layers)] / size;
    return fixed + many->each[at] * held;
}

/* Seconds of a byte of shards from one unit to another. */
double many_byte_far(const struct many *many, uint32_t from_unit, uint32_t to_unit);
static inline double many_byte(const struct many *many, uint32_t from_unit, uint32_t to_unit)
{
    if (!many->byte_s)
        return many_byte_far(many, from_unit, to_unit);
    return many->byte_s[(size_t)many->units[from_unit].node * many->nodes + many->units[to_unit].node];
}

/* The best end of a pipeline that the devices from a place in the order on can be. */
struct many_tail {
    int32_t layers, own;  /* covered in all; of its first stage */
    uint32_t begin, size; /* its first stage: order[begin …); size 0: none */
    uint32_t stages;
    double wait;    /* seconds from entering it to having left it backwards, at the mean of members */
    double fill;    /* at the fastest members, nobody before */
    double moved_s; /* the most that a stage gathers and scatters in a step */
};

struct many_cover {
    const struct many *m;
    const uint32_t *order;   /* [count] of units */
    struct many_tail *tails; /* [count + 1] */
    uint32_t count;          /* of order */
    double slack;            /* windows beyond what means say: arrivals are uneven */
    double within;           /* a period is found so nearly; 0: 1.001, or 1.01 of more than 2,048 devices */
    bool in_turn;            /* members take micro-batches in turn: windows are what a stay is in rounds */
    double lean;       /* seconds that a stage's period may be longer for each second of its tail's wait */
    double moved_most; /* seconds that a stage may gather and scatter in a step */
    /* layers that must still be within reach of the devices before: else it is given up, and the first place
     * covers none; 0: never */
    int32_t least_layers;
    uint32_t start; /* where the whole begins, once it is covered */
    struct many_tail whole;
};

/* Does the order cover all layers at this period, in two stages or more? Places from `changed` on are taken
 * as they were left by the last call with equal period. */
bool many_covers(struct many_cover *cover, double period, uint32_t changed);
/* Least period, as nearly as the cover says; INFINITY when it covers at none up to
 * `most`. Leaves the cover at it. */
double many_period(struct many_cover *cover, double least, double most);
struct many_member {
    bool way;
    uint32_t window, turns; /* turns: of a round; 0: as they come */
};
/* Devices looked at as a stage: order[begin, begin + size) before `next`. Neighbours of one kind do the same,
 * so that it is worked out once for all of them. */
struct many_stage {
    uint32_t begin, size, kinds;
    const struct many_tail *next;
    double own;          /* its period (many_own_period) */
    double link_s;       /* to `next`, one way; negative: not looked up yet */
    double wait_most;    /* who waits as long is of no use */
    double memory_least; /* of all members */
    double byte_s;       /* of shards over the slowest hop from one to the next */
    struct {
        const struct many_unit *unit; /* one of them */
        uint32_t count;
    } of[MANY_GROUP_MAX]; /* [kinds] */
};
static inline void many_stage_begin(struct many_stage *stage, uint32_t begin)
{
    stage->begin = begin;
    stage->size = stage->kinds = 0;
    stage->memory_least = INFINITY;
    stage->byte_s = 0;
}
/* Adds order[begin + size] to a stage. */
static inline void many_stage_grow(const struct many_cover *c, struct many_stage *stage)
{
    const struct many_unit *unit = &c->m->units[c->order[stage->begin + stage->size++]];
    if (c->m->shards && stage->size > 1) {
        double hop = many_byte(c->m, c->order[stage->begin + stage->size - 2],
                               c->order[stage->begin + stage->size - 1]);
        stage->byte_s = hop > stage->byte_s ? hop : stage->byte_s;
    }
    if (stage->kinds > 0 && stage->of[stage->kinds - 1].unit->kind == unit->kind) {
        stage->of[stage->kinds - 1].count++;
        return;
    }
    stage->of[stage->kinds].unit = unit;
    stage->of[stage->kinds++].count = 1;
    stage->memory_least = unit->memory < stage->memory_least ? unit->memory : stage->memory_least;
}
/* A stage's way to `next` of a covered order; of a stage that was grown. */
void many_stage_before(const struct many_cover *cover, double period, struct many_stage *stage,
                       const struct many_tail *next);
/* Are n layers (with the role's own blocks) held by the stage at the period? Fills the tail that it then
 * begins; `members` (may be NULL) gets what each does. */
bool many_group_holds(const struct many_cover *cover, double period, struct many_stage *stage,
                      enum many_role role, int32_t layers, struct many_member *members,
                      struct many_tail *as_tail);
/* The same where members take turns (many_turns.c). */
bool many_turns_hold(const struct many_cover *cover, double period, struct many_stage *stage,
                     enum many_role role, int32_t layers, struct many_member *members,
                     struct many_tail *as_tail);
/* Seconds that its members gather and scatter in a step; 0 where nothing is in shards. */
static inline double many_moved(const struct many_cover *c, const struct many_stage *stage,
                                enum many_role role, int32_t layers)
{
    const struct many *m = c->m;
    if (!m->shards || stage->size < 2)
        return 0;
    double back = many_byte(m, c->order[stage->begin + stage->size - 1], c->order[stage->begin]);
    return m->moved[many_state_at(m, role, layers)] * (stage->size - 1) / stage->size *
           (back > stage->byte_s ? back : stage->byte_s);
}
/* Seconds between the stage and the one behind it, one way. */
double many_stage_link(const struct many_cover *cover, struct many_stage *stage);

/* As many micro-batches as that many are, rounded up, and `more`: one at least, all at most. */
static inline uint32_t many_held(double micro_batches, uint32_t more, uint32_t most)
{
    if (!(micro_batches <= most))
        return most;
    uint32_t held = (uint32_t)micro_batches;
    held += (held < micro_batches) + more;
    return held < 1 ? 1 : held > most ? most : held;
}

static inline double many_seconds(const struct many_unit *unit, enum many_role role, int way, int32_t layers)
{
    return layers * unit->layer_s[way] + unit->extra_s[role][way];
}

/* The last stage stands idle while the pipeline fills and drains, the first one never: what is longer away
 * from the tail may take longer for each, as long as it begins early enough to stay ahead. */
static inline double many_own_period(const struct many_cover *c, double period, const struct many_tail *next)
{
    return period + c->lean * next->wait;
}

/* Seconds that the busiest wire between nodes needs for a micro-batch of what is covered; wires is scratch,
 * [nodes · nodes]. */
double many_load(const struct many_cover *cover, double *wires);

/* Room to change orders in, of so many devices as they have; wires NULL: too many nodes to look at. */
struct many_room {
    uint32_t *trial, *walk; /* [count] */
    struct many_tail *kept; /* [count + 1] */
    double *wires;          /* [nodes · nodes] */
};
/* Perfect balance without anybody waiting. */
double many_period_least(const struct many *many);
/* No longer one makes a step of so many seconds. */
double many_period_most(const struct many *many, double seconds);
/* Seconds of a step, as means have it, of what is covered at a period: that or the busiest wire, and filling.
 */
double many_promise(const struct many_room *room, const struct many_cover *cover, double period);
/* Changes an order while its period falls; the rest is regrouped each time. */
void many_order_improve(const struct many_room *room, struct many_cover *cover, uint32_t *order,
                        double *period, uint32_t changes);
/* Changes an order that covers at the period so that the step it promises gets shorter, now and then longer.
 */
void many_order_anneal(const struct many_room *room, struct many_cover *cover, uint32_t *order,
                       double *period, uint64_t steps);

/* A covered order as a choice; seconds: of a step, INFINITY when it does not fit. */
struct many_draft {
    const struct many *m;
    struct place_choice choice;
    uint32_t *wanted; /* [members]: windows that means ask for */
    double period, wait_s, seconds, lean;
    uint64_t cells; /* stages * micro-batches that the last run took */
};
/* Makes a draft of what covers at the period. ERR_NOMEM. */
int many_draft_init(struct many_draft *draft, const struct many_cover *cover, double period, struct err *err);
void many_draft_fini(struct many_draft *draft);
/* Runs it once, with so many micro-batches, or some flights, and the rest at the pace they had, lowering
 * windows until buffers fit; sets seconds. ERR_NOMEM. */
int many_draft_run(struct many_draft *draft, uint32_t micro_batches, struct err *err);
/* Moves its cuts, and groups past each other, while that makes a whole run shorter; stages * micro-batches
 * run: about cells_most at most. Of a hybrid's draft that was run whole. ERR_NOMEM. */
int many_draft_cut(struct many_draft *draft, uint64_t cells_most, struct err *err);

/* Proposes arrangements of more devices than can be enumerated; group_max 1: of single devices. */
int many_propose(const struct problem *problem, uint32_t group_max, struct choice_list *list,
                 struct err *err);

#endif
