/* The bound, from the tail: R[s][b] is the least time from a micro-batch's arrival at stage s, which begins
 * at block b, until all is back from there, were nobody to wait but for the first and the last micro-batch:
 *
 *     R[s][b] = min over e of max(makespan_s(b, e), passage_s(b, e) + hops + R[s+1][e])
 *
 * makespan: all micro-batches of a step dealt to the group's members by who is done first; passage: one of
 * them there and back on the fastest member. Stages are put in front one at a time, so groupings with the
 * same tail share its table. */
#include "planner/hybrid/few.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/hybrid/group_fit.h"
#include "planner/hybrid/group_state.h"
#include "planner/search/moves.h"
#include "planner/search/polish.h"
#include "planner/search/recut.h"

#define FEW_KEPT 768u     /* groupings simulated at most */
#define FEW_SETTLED 128u  /* of them settled by quick looks */
#define FEW_FIRST 1.25    /* of the quickest settled: what looks slower is not settled */
#define FEW_SPREAD 1.15   /* of the quickest settled: what looks slower is let be */
#define FEW_NEAR 1.08     /* of the fastest settled: what is simulated above is not settled */
#define FEW_DEALT 48u     /* so many, by looks, are dealt micro-batch by micro-batch */
#define FEW_DEAL_NEAR 1.2 /* of the quickest settled: what looks slower by shares is not dealt so */
#define FEW_STEPS 4u      /* priced steps simulated */
#define FEW_CELLS 32u     /* parts of the budget: rank-micro-batches an evaluation */
#define FEW_LONG 128u     /* devices · rows from which it is half of that */
#define FEW_TIGHT 1.1     /* of the bound: what fits but is slower is cut anew, too */
#define SHARES_WHOLE 1000.0
#define MAKESPAN_CELLS 64000u /* groups · blocks² up to which makespans are of whole micro-batches */

struct few_node { /* one ordered grouping at one size */
    double bound;
    uint32_t number; /* of creation: ties keep the first */
    uint32_t rows, stages;
    uint8_t group[FEW_DEVICES], end[FEW_DEVICES]; /* sets of devices, and their blocks, from the head */
};

struct few_found {
    struct place_choice choice;
    double quick;
    uint32_t number;
};

struct few {
    const struct problem *p;
    struct polish *polish, *run; /* for quick looks, and for what is left to be simulated */
    uint32_t count, device[FEW_DEVICES];
    int32_t blocks;
    uint32_t rows, micro_batches;                 /* in hand */
    struct micro_cost cost[FEW_DEVICES];          /* likewise */
    double hop[FEW_DEVICES][FEW_DEVICES];         /* there and back, seconds */
    double *alone;                                /* [count][blocks + 1][blocks + 1]; INFINITY: too small */
    double *makespan, *passage;                   /* [sets of devices][blocks + 1][blocks + 1] */
    double rest[FEW_DEVICES + 1][FEW_BLOCKS + 1]; /* by depth, from the tail: R */
    int32_t cut[FEW_DEVICES + 1][FEW_BLOCKS + 1]; /* likewise: where the stage ends */
    uint8_t chosen[FEW_DEVICES];                  /* by depth */
    struct few_node *nodes;                       /* [2 · FEW_KEPT] */
    uint32_t node_count, created;
    double worst; /* bound above which nothing is kept any more */
    struct err *err;
};

static size_t cell(const struct few *f, uint32_t row, int32_t begin, int32_t end)
{
    size_t side = (size_t)f->blocks + 1;
    return (row * side + (size_t)begin) * side + (size_t)end;
}

/* Could the device hold the blocks, with as little beside them as can be? */
static bool fits(const struct few *f, uint32_t d, int32_t begin, int32_t end, bool recompute)
{
    struct memory_need need;
    struct group_stage stage = {.block_begin = begin,
                                .block_end = end,
                                .members = 1,
                                .window = 1,
                                .micro_batch_rows = f->rows,
                                .boundary_buffers = 4 * ((uint32_t)(begin > 0) + (end < f->blocks)),
                                .recompute = recompute};
    group_need(f->p, &stage, 1, &need);
    return need.total <= f->p->cluster->devices[f->device[d]].memory_limit_bytes;
}

static double alone_seconds(const struct few *f, uint32_t d, int32_t begin, int32_t end)
{
    for (int again = 0; again < 2; again++) {
        if (micro_recompute_allowed(f->p, again) && fits(f, d, begin, end, again))
            return micro_forward(f->p, &f->cost[d], begin, end) +
                   micro_backward(f->p, &f->cost[d], begin, end, again);
    }
    return INFINITY;
}

/* All micro-batches by the members together; `whole`: as whole ones, each given to who is done first. */
static double makespan(const struct few *f, const double *each, uint32_t members, bool whole)
{
    double rate = 0, latest = 0, done[FEW_DEVICES] = {0};
    for (uint32_t m = 0; m < members; m++)
        rate += 1 / each[m];
    if (!whole)
        return f->micro_batches / rate;
    for (uint32_t k = 0; k < f->micro_batches; k++) {
        uint32_t best = 0;
        for (uint32_t m = 1; m < members; m++) {
            if (done[m] + each[m] < done[best] + each[best])
                best = m;
        }
        done[best] += each[best];
        latest = fmax(latest, done[best]);
    }
    return latest;
}

static void group_fill(struct few *f, uint32_t group)
{
    size_t side = (size_t)f->blocks + 1;
    bool whole = (side * side << f->count) <= MAKESPAN_CELLS;
    for (int32_t begin = 0; begin < f->blocks; begin++) {
        for (int32_t end = begin + 1; end <= f->blocks; end++) {
            double each[FEW_DEVICES], least = INFINITY, most = 0;
            uint32_t members = 0;
            for (uint32_t d = 0; d < f->count; d++) {
                if (!(group >> d & 1))
                    continue;
                each[members] = f->alone[cell(f, d, begin, end)];
                least = fmin(least, each[members]);
                most = fmax(most, each[members++]);
            }
            bool can = most < INFINITY;
            f->makespan[cell(f, group, begin, end)] = can ? makespan(f, each, members, whole) : INFINITY;
            f->passage[cell(f, group, begin, end)] = can ? least : INFINITY;
        }
    }
}

static void size_set(struct few *f, uint32_t rows)
{
    f->rows = rows;
    f->micro_batches = micro_count(f->p, rows);
    for (uint32_t d = 0; d < f->count; d++)
        micro_cost_init(&f->cost[d], f->p, f->device[d], rows);
}

/* The tables of the size in hand. */
static void tables_fill(struct few *f)
{
    const struct problem *p = f->p;
    double bytes = p->bytes_per_token * p->mean_step.tokens / f->micro_batches;
    for (uint32_t d = 0; d < f->count; d++) {
        for (uint32_t other = 0; other < f->count; other++) {
            double latency, rate;
            bool emulated;
            f->hop[d][other] = 0;
            for (int back = 0; back < 2 && other != d; back++) {
                cluster_link(p->cluster, f->device[back ? other : d], f->device[back ? d : other], &latency,
                             &rate, &emulated);
                f->hop[d][other] += latency + bytes / rate;
            }
        }
        for (int32_t begin = 0; begin < f->blocks; begin++) {
            for (int32_t end = begin + 1; end <= f->blocks; end++)
                f->alone[cell(f, d, begin, end)] = alone_seconds(f, d, begin, end);
        }
    }
    for (uint32_t group = 1; group < 1u << f->count; group++)
        group_fill(f, group);
}

static double hop_least(const struct few *f, uint32_t from, uint32_t to)
{
    double least = INFINITY;
    for (uint32_t a = 0; a < f->count; a++) {
        for (uint32_t b = 0; b < f->count && from >> a & 1; b++)
            least = to >> b & 1 ? fmin(least, f->hop[a][b]) : least;
    }
    return least;
}

/* R of a group put in front of `depth` stages. */
static void front_put(struct few *f, uint32_t depth, uint32_t group)
{
    const double *next = depth ? f->rest[depth - 1] : NULL;
    double hop = depth ? hop_least(f, group, f->chosen[depth - 1]) : 0;
    f->chosen[depth] = (uint8_t)group;
    for (int32_t begin = 0; begin < f->blocks; begin++) {
        double best = INFINITY;
        int32_t where = f->blocks;
        for (int32_t end = depth ? begin + 1 : f->blocks; end <= f->blocks - (depth > 0); end++) {
            double all = f->makespan[cell(f, group, begin, end)];
            if (all >= best)
                break;
            double last = next ? f->passage[cell(f, group, begin, end)] + hop + next[end] : 0;
            if (fmax(all, last) < best) {
                best = fmax(all, last);
                where = end;
            }
        }
        f->rest[depth][begin] = best;
        f->cut[depth][begin] = where;
    }
}

static int by_bound(const void *left, const void *right)
{
    const struct few_node *a = left, *b = right;
    if (a->bound != b->bound)
        return a->bound < b->bound ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void nodes_sort(struct few *f)
{
    qsort(f->nodes, f->node_count, sizeof(*f->nodes), by_bound);
    if (f->node_count > FEW_KEPT)
        f->node_count = FEW_KEPT;
    if (f->node_count == FEW_KEPT)
        f->worst = f->nodes[FEW_KEPT - 1].bound;
}

static void node_add(struct few *f, uint32_t stages)
{
    double bound = f->rest[stages - 1][0];
    if (!(bound < f->worst))
        return;
    struct few_node *node = &f->nodes[f->node_count++];
    *node = (struct few_node){.bound = bound, .number = f->created++, .rows = f->rows, .stages = stages};
    for (uint32_t s = 0; s < stages; s++) {
        node->group[s] = f->chosen[stages - 1 - s];
        node->end[s] = (uint8_t)f->cut[stages - 1 - s][s ? node->end[s - 1] : 0];
    }
    if (f->node_count == 2 * FEW_KEPT)
        nodes_sort(f);
}

/* Every grouping of the devices that are left, in front of `depth` stages of which some are groups. */
static void groupings_walk(struct few *f, uint32_t depth, uint32_t left, bool grouped)
{
    uint32_t asked = f->p->workload->stages;
    if (depth >= 2 && grouped && (asked == 0 || asked == depth))
        node_add(f, depth);
    if ((int32_t)depth >= f->blocks || (asked && depth == asked))
        return;
    for (uint32_t group = left; group > 0; group = (group - 1) & left) {
        uint32_t members = (uint32_t)__builtin_popcount(group);
        if (members > f->micro_batches)
            continue;
        front_put(f, depth, group);
        groupings_walk(f, depth + 1, left & ~group, grouped || members > 1);
    }
}

/* A stage's members, fastest first. */
static void stage_fill(const struct few *f, const struct few_node *node, uint32_t s, struct place_choice *c)
{
    struct place_stage *stage = &c->stages[s];
    double each[FEW_DEVICES];
    *stage = (struct place_stage){
        .block_begin = s ? node->end[s - 1] : 0, .block_end = node->end[s], .member_first = c->member_count};
    for (uint32_t d = 0; d < f->count; d++) {
        uint32_t at = stage->member_count;
        if (!(node->group[s] >> d & 1))
            continue;
        bool again =
            !micro_recompute_allowed(f->p, false) || !fits(f, d, stage->block_begin, stage->block_end, false);
        double own = micro_forward(f->p, &f->cost[d], stage->block_begin, stage->block_end) +
                     micro_backward(f->p, &f->cost[d], stage->block_begin, stage->block_end, again);
        for (; at > 0 && own < each[at - 1]; at--) {
            each[at] = each[at - 1];
            c->members[stage->member_first + at] = c->members[stage->member_first + at - 1];
        }
        each[at] = own;
        c->members[stage->member_first + at] = (struct place_member){.device = f->device[d],
                                                                     .micro_rows = node->rows,
                                                                     .micro_count = 1,
                                                                     .state_share = 1,
                                                                     .window = f->micro_batches,
                                                                     .recompute = again};
        stage->member_count++;
        c->member_count++;
    }
}

/* The choice of a node of the size in hand, windows as wide as can be (choice_fini). */
static int node_choice(struct few *f, const struct few_node *node, struct place_choice *c)
{
    struct place_stage stages[FEW_DEVICES];
    struct place_member members[FEW_DEVICES];
    struct place_choice made = {.placement = PLACE_HYBRID,
                                .micro_batch_rows = node->rows,
                                .stage_count = node->stages,
                                .stages = stages,
                                .members = members};
    for (uint32_t s = 0; s < node->stages; s++)
        stage_fill(f, node, s, &made);
    move_shares(f->p, &made);
    return choice_copy(c, &made, f->err);
}

/* Micro-batches in proportion to speed, whatever that comes to. */
static void shares_exact(struct few *f, struct place_choice *c)
{
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct place_stage *stage = &c->stages[s];
        double rate = 0;
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
                struct micro_cost cost;
                micro_cost_init(&cost, f->p, c->members[m].device, c->micro_batch_rows);
                double own = micro_forward(f->p, &cost, stage->block_begin, stage->block_end) +
                             micro_backward(f->p, &cost, stage->block_begin, stage->block_end,
                                            c->members[m].recompute);
                if (turn == 0)
                    rate += 1 / own;
                else
                    c->members[m].micro_count = 1 + (uint32_t)(SHARES_WHOLE / own / rate);
            }
        }
    }
}

/* What fits of a node's choice, with its own cuts or with cuts that think of memory. */
static bool node_fit(struct few *f, struct few_found *x)
{
    struct place_choice recut;
    double other = -1;
    if (choice_copy(&recut, &x->choice, f->err) < 0)
        return false;
    bool own = group_fit(f->polish, f->p, &x->choice, &x->quick, f->err), anew = false;
    if (!own || x->quick > FEW_TIGHT * f->nodes[x->number].bound)
        anew = choice_recut(f->p, &recut, f->err) > 0 && group_fit(f->polish, f->p, &recut, &other, f->err);
    if (anew && (!own || (other > 0 && other < x->quick))) {
        choice_fini(&x->choice);
        x->choice = recut;
        x->quick = other;
    } else {
        choice_fini(&recut);
    }
    return own || anew;
}

static int by_quick(const void *left, const void *right)
{
    const struct few_found *a = left, *b = right;
    if (a->quick != b->quick)
        return a->quick < b->quick ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Keeps a copy of the start that a quick look likes best. */
static int start_try(struct few *f, struct few_found *x, const struct place_choice *start)
{
    double quick = polish_quick(f->polish, start);
    if (x->choice.member_count && !(quick > 0 && (x->quick <= 0 || quick < x->quick)))
        return 0;
    choice_fini(&x->choice);
    x->quick = quick;
    return choice_copy(&x->choice, start, f->err);
}

/* A quick look at every node, with whole micro-batches and with shares as they are, windows wide and not; the
 * best one stays. */
static int nodes_look(struct few *f, struct few_found *found)
{
    static const uint32_t ways[] = {WINDOW_WAYS, 3, 2};
    for (uint32_t i = 0; i < f->node_count; i++) {
        struct place_choice start;
        int result = 0;
        size_set(f, f->nodes[i].rows);
        found[i].number = i;
        if (node_choice(f, &f->nodes[i], &start) < 0)
            return -1;
        for (int exact = 0; exact < 2; exact++) {
            if (exact)
                shares_exact(f, &start);
            for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]) && result == 0; w++) {
                group_windows(f->p, &start, ways[w]);
                result = start_try(f, &found[i], &start);
            }
        }
        choice_fini(&start);
        if (result < 0)
            return -1;
        found[i].quick = found[i].quick > 0 ? found[i].quick : f->nodes[i].bound;
    }
    qsort(found, f->node_count, sizeof(*found), by_quick);
    return 0;
}

/* Deals outright, from windows as they are and, where it is `near`, from others; the best one stays. */
static void found_deal(struct few *f, struct few_found *x, bool near, double most)
{
    static const uint32_t ways[] = {2, WINDOW_WAYS};
    struct place_choice first;
    if (choice_copy(&first, &x->choice, f->err) < 0)
        return;
    polish_quick_deal(f->polish, &x->choice, &x->quick);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]) && near; w++) {
        struct place_choice other;
        double quick = -1;
        if (choice_copy(&other, &first, f->err) < 0)
            break;
        group_windows(f->p, &other, ways[w]);
        if (group_fit(f->polish, f->p, &other, &quick, f->err) && quick > 0) {
            polish_quick_settle(f->polish, &other, &quick, most);
            if (quick < most)
                polish_quick_deal(f->polish, &other, &quick);
        }
        if (quick > 0 && quick < x->quick) {
            choice_fini(&x->choice);
            x->choice = other;
            x->quick = quick;
        } else {
            choice_fini(&other);
        }
    }
    choice_fini(&first);
}

/* The best of them settled by quick looks. */
static uint32_t found_settle(struct few *f, struct few_found *found)
{
    uint32_t count = f->node_count < FEW_SETTLED ? f->node_count : FEW_SETTLED, done = 0;
    double best = INFINITY;
    for (; done < count && !polish_spent(f->polish) && found[done].quick < best * FEW_FIRST; done++) {
        struct few_found *x = &found[done];
        if (!node_fit(f, x)) {
            x->quick = INFINITY;
            continue;
        }
        x->quick = x->quick > 0 ? x->quick : f->nodes[x->number].bound;
        polish_quick_settle(f->polish, &x->choice, &x->quick, best * FEW_FIRST);
        best = fmin(best, x->quick);
    }
    qsort(found, done, sizeof(*found), by_quick);
    best = done ? found[0].quick : INFINITY;
    for (uint32_t i = 0; i < done && i < FEW_DEALT && found[i].quick < best * FEW_DEAL_NEAR; i++)
        found_deal(f, &found[i], found[i].quick < best * FEW_NEAR, best * FEW_SPREAD);
    qsort(found, done, sizeof(*found), by_quick);
    return done;
}

/* Simulates what was found, quickest first, and settles in earnest what is near the fastest. */
static int found_run(struct few *f, struct few_found *found, uint32_t count, struct choice_list *list)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < count && !polish_spent(f->run); i++) {
        struct place_choice *c = &found[i].choice;
        double seconds = found[i].quick < best * FEW_SPREAD ? polish_seconds(f->run, c) : -1;
        if (seconds <= 0)
            continue;
        if (seconds < best * FEW_NEAR)
            polish_settle(f->run, c, &seconds);
        best = fmin(best, seconds);
        c->estimate_s = seconds;
        if (choice_list_add(list, c, f->err) < 0)
            return -1;
    }
    return 0;
}

static int nodes_run(struct few *f, struct choice_list *list)
{
    struct few_found *found = calloc((size_t)f->node_count + 1, sizeof(*found));
    if (!found)
        return err_set(f->err, ERR_NOMEM, "planner: out of memory");
    int result = nodes_look(f, found);
    if (result == 0)
        result = found_run(f, found, found_settle(f, found), list);
    for (uint32_t i = 0; i < f->node_count; i++)
        choice_fini(&found[i].choice);
    free(found);
    return result;
}

static int few_alloc(struct few *f, uint64_t evaluations)
{
    size_t cells = ((size_t)f->blocks + 1) * ((size_t)f->blocks + 1);
    f->alone = calloc(cells * f->count, sizeof(double));
    f->makespan = calloc(cells << f->count, sizeof(double));
    f->passage = calloc(cells << f->count, sizeof(double));
    f->nodes = calloc(2 * (size_t)FEW_KEPT, sizeof(*f->nodes));
    if (!f->alone || !f->makespan || !f->passage || !f->nodes)
        return err_set(f->err, ERR_NOMEM, "planner: out of memory");
    f->polish = polish_create(f->p, FEW_STEPS, evaluations * FEW_CELLS, 0, f->err);
    f->run = f->polish ? polish_create(f->p, FEW_STEPS, evaluations * FEW_CELLS, 0, f->err) : NULL;
    return f->run ? 0 : -1;
}

static void few_fini(struct few *f)
{
    polish_destroy(f->polish);
    polish_destroy(f->run);
    free(f->alone);
    free(f->makespan);
    free(f->passage);
    free(f->nodes);
    free(f);
}

int few_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes), usable = 0;
    for (uint32_t d = 0; d < p->device_count; d++)
        usable += p->usable[d];
    if (usable < 3 || usable > FEW_DEVICES || p->block_count < 2 || p->block_count > FEW_BLOCKS ||
        p->workload->method != METHOD_LORA)
        return 0;
    struct few *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    f->p = p;
    f->err = err;
    f->blocks = p->block_count;
    f->worst = INFINITY;
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d])
            f->device[f->count++] = d;
    }
    bool large = (uint64_t)f->count * p->workload->batch_rows > FEW_LONG;
    int result = few_alloc(f, list->evaluations_max / (large ? 2 : 1));
    for (uint32_t i = 0; i < size_count && result == 0; i++) {
        size_set(f, sizes[i]);
        if (f->micro_batches < 2 || f->micro_batches > FEW_MICRO)
            continue;
        tables_fill(f);
        groupings_walk(f, 0, (1u << f->count) - 1, false);
    }
    nodes_sort(f);
    if (result == 0)
        result = nodes_run(f, list);
    few_fini(f);
    return result;
}
