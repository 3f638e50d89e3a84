/* Groupings that promise most (few_bound.h), settled and dealt by quick looks; the best of those are
 * simulated. */
#include "planner/hybrid/few.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/few/few_bound.h"
#include "planner/hybrid/few_state.h"
#include "planner/hybrid/group_fit.h"
#include "planner/search/moves.h"
#include "planner/search/polish.h"
#include "planner/search/recut.h"

#define FEW_LOOKED 64u    /* of them settled by quick looks, because they look best at first, */
#define FEW_PROMISED 80u  /* and because their promise is */
#define FEW_SETTLED 144u  /* of both together */
#define FEW_FIRST 1.25    /* of the quickest settled: what looks slower is not settled */
#define FEW_SPREAD 1.15   /* of the quickest settled: what looks slower is let be */
#define FEW_NEAR 1.08     /* of the fastest settled: what is simulated above is not settled */
#define FEW_DEALT 48u     /* so many, by looks, are dealt micro-batch by micro-batch */
#define FEW_DEAL_NEAR 1.2 /* of the quickest settled: what looks slower by shares is not dealt so */
#define FEW_STEPS 4u      /* priced steps simulated */
#define FEW_CELLS 32u     /* parts of the budget: rank-micro-batches an evaluation */
#define FEW_LONG 128u     /* devices · rows from which it is half of that */
#define FEW_TIGHT 1.1     /* of the bound: what fits but is slower is cut anew, too */
#define FEW_SMALL 6u      /* devices beyond which the budget is so many times that */
#define FEW_MORE 4u
#define SHARES_WHOLE 1000.0

struct few_found {
    struct place_choice choice;
    double quick;
    uint32_t number;
};

struct few {
    const struct problem *p;
    struct few_bound bound;
    struct polish *polish, *run; /* for quick looks, and for what is left to be simulated */
    struct err *err;
};

/* A stage's members, fastest first. */
static void stage_fill(const struct few *f, const struct few_node *node, uint32_t s, struct place_choice *c)
{
    struct place_stage *stage = &c->stages[s];
    double each[FEW_DEVICES];
    struct few_alone alone;
    bool shards = f->p->workload->method == METHOD_FULL;
    double share = shards ? 1.0 / __builtin_popcount(node->group[s]) : 1;
    *stage = (struct place_stage){
        .block_begin = s ? node->end[s - 1] : 0, .block_end = node->end[s], .member_first = c->member_count};
    for (uint32_t d = 0; d < f->bound.sets.count; d++) {
        uint32_t at = stage->member_count;
        if (!(node->group[s] >> d & 1))
            continue;
        few_alone_fill(&f->bound, d, stage->block_begin, stage->block_end, share, &alone);
        bool again = alone.room[0] == 0;
        double own = alone.seconds[again];
        for (; at > 0 && own < each[at - 1]; at--) {
            each[at] = each[at - 1];
            c->members[stage->member_first + at] = c->members[stage->member_first + at - 1];
        }
        each[at] = own;
        c->members[stage->member_first + at] = (struct place_member){.device = f->bound.sets.device[d],
                                                                     .micro_rows = node->rows,
                                                                     .micro_count = 1,
                                                                     .state_share = 1,
                                                                     .window = f->bound.micro_batches,
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

/* Windows `slack` times as wide as the walk took them to be, as far as there is room, recomputing where it
 * did. Returns whether that fits. */
static bool windows_walked(struct few *f, struct place_choice *c, double slack)
{
    uint32_t devices = 0;
    for (uint32_t s = c->stage_count; s-- > 0;) {
        const struct place_stage *stage = &c->stages[s];
        struct few_alone alone[FEW_DEVICES];
        double rate = 0;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            uint32_t d = 0;
            while (f->bound.sets.device[d] != c->members[stage->member_first + m].device)
                d++;
            few_alone_fill(&f->bound, d, stage->block_begin, stage->block_end, 1, &alone[m]);
            rate += 1 / fmin(alone[m].seconds[0], alone[m].seconds[1]);
        }
        for (uint32_t m = 0; m < stage->member_count; m++) {
            struct place_member *x = &c->members[stage->member_first + m];
            double share = 1 / fmin(alone[m].seconds[0], alone[m].seconds[1]) / rate;
            bool fits = few_alone_seconds(&alone[m], few_window(&f->bound, share, devices), &x->recompute,
                                          &x->window) < INFINITY;
            if (!fits)
                return false;
            uint32_t wide = (uint32_t)ceil(slack * few_window(&f->bound, share, devices) - 1e-9);
            wide = wide < f->bound.micro_batches ? wide : f->bound.micro_batches;
            x->window = wide < alone[m].room[x->recompute] ? wide : alone[m].room[x->recompute];
        }
        devices += stage->member_count;
    }
    return polish_fits(f->polish, c);
}

/* The choice itself if it fits, or windows of its own as wide as can be, or what group_fit.h finds. */
static bool windows_fit(struct few *f, struct few_found *x)
{
    static const double slacks[] = {4, 2.8, 2, 1.4, 1};
    bool fits = polish_fits(f->polish, &x->choice);
    bool shards = f->p->workload->method == METHOD_FULL; /* whose shares are for group_fit to find */
    for (size_t i = 0; i < sizeof(slacks) / sizeof(slacks[0]) && !fits && !shards; i++) {
        struct place_choice walked;
        if (choice_copy(&walked, &x->choice, f->err) < 0)
            return false;
        fits = windows_walked(f, &walked, slacks[i]);
        if (!fits) {
            choice_fini(&walked);
            continue;
        }
        choice_fini(&x->choice);
        x->choice = walked;
        x->quick = polish_quick(f->polish, &walked);
    }
    return fits || group_fit(f->polish, f->p, &x->choice, &x->quick, f->err);
}

/* What fits of a node's choice, with its own cuts or with cuts that think of memory. */
static bool node_fit(struct few *f, struct few_found *x)
{
    struct place_choice recut;
    double other = -1;
    few_size_set(&f->bound, x->choice.micro_batch_rows);
    if (choice_copy(&recut, &x->choice, f->err) < 0)
        return false;
    bool own = windows_fit(f, x), anew = false;
    if (!own || x->quick > FEW_TIGHT * f->bound.nodes[x->number].bound)
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
    for (uint32_t i = 0; i < f->bound.node_count; i++) {
        struct place_choice start;
        int result = 0;
        few_size_set(&f->bound, f->bound.nodes[i].rows);
        found[i].number = i;
        if (node_choice(f, &f->bound.nodes[i], &start) < 0)
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
        found[i].quick = found[i].quick > 0 ? found[i].quick : f->bound.nodes[i].bound;
    }
    qsort(found, f->bound.node_count, sizeof(*found), by_quick);
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

/* Puts what promised most right behind what looks best: where rows are of unlike length, who is dealt what is
 * all that a first look sees. */
static void promised_forward(const struct few *f, struct few_found *found)
{
    uint32_t at = FEW_LOOKED;
    for (uint32_t i = FEW_LOOKED; i < f->bound.node_count; i++) {
        struct few_found x = found[i];
        if (x.number >= FEW_PROMISED)
            continue;
        memmove(&found[at + 1], &found[at], (i - at) * sizeof(*found));
        found[at++] = x;
    }
}

/* The best of them settled by quick looks. */
static uint32_t found_settle(struct few *f, struct few_found *found)
{
    uint32_t count = f->bound.node_count < FEW_SETTLED ? f->bound.node_count : FEW_SETTLED, done = 0;
    double best = INFINITY;
    promised_forward(f, found);
    for (; done < count && !polish_spent(f->polish); done++) {
        struct few_found *x = &found[done];
        bool promised = x->number < FEW_PROMISED;
        if (!promised && x->quick >= best * FEW_FIRST)
            continue;
        if (!node_fit(f, x)) {
            x->quick = INFINITY;
            continue;
        }
        x->quick = x->quick > 0 ? x->quick : f->bound.nodes[x->number].bound;
        polish_quick_settle(f->polish, &x->choice, &x->quick, promised ? INFINITY : best * FEW_FIRST);
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
    struct few_found *found = calloc((size_t)f->bound.node_count + 1, sizeof(*found));
    if (!found)
        return err_set(f->err, ERR_NOMEM, "planner: out of memory");
    int result = nodes_look(f, found);
    if (result == 0)
        result = found_run(f, found, found_settle(f, found), list);
    for (uint32_t i = 0; i < f->bound.node_count; i++)
        choice_fini(&found[i].choice);
    free(found);
    return result;
}

int few_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct few *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    f->p = p;
    f->err = err;
    int result = 0;
    if (p->workload->method == METHOD_LORA)
        result = few_bound_walk(&f->bound, p, false, NULL, err);
    else if (p->workload->config->experts == 0)
        result = few_state_walk(&f->bound, p, err);
    if (result > 0 && f->bound.node_count > 0) {
        bool large = (uint64_t)f->bound.sets.count * p->workload->batch_rows > FEW_LONG;
        uint64_t budget = list->evaluations_max / (large ? 2 : 1) * FEW_CELLS;
        if (f->bound.sets.count > FEW_SMALL)
            budget *= FEW_MORE;
        f->polish = polish_create(p, FEW_STEPS, budget, 0, err);
        f->run = f->polish ? polish_create(p, FEW_STEPS, budget, 0, err) : NULL;
        result = f->run ? nodes_run(f, list) : -1;
    }
    polish_destroy(f->polish);
    polish_destroy(f->run);
    few_bound_fini(&f->bound);
    free(f);
    return result < 0 ? -1 : 0;
}
