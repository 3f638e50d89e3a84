/* Dealing in turn: members of a stage take micro-batches one after another, as often in a round as
 * micro_count says, and each works in the strict order of 1F1B (Narayanan et al. 2019): as many forwards as
 * its window, then a backward and a forward in turn. Who works as things come keeps windows full of what
 * waits; here every micro-batch stays as long as the one before, so that a window is what a stay is in
 * rounds, rounded up, and the pace is that of the slowest member for as long as windows are that long
 * (docs/PLANNER.md, Many devices).
 *
 * The orders are known beforehand, so times follow from each other and nothing is looked for: every event is
 * taken up once, when what it waits for has been. Wires are taken as unshared. */
#include "planner/hybrid/deal.h"

#include <stdlib.h>

#include "planner/cost/micro.h"

struct turn_rank {
    uint32_t first, count; /* in deal->mine */
    uint32_t window, at;   /* events begun */
    double free, forward_s, backward_s;
};

struct turns {
    struct deal *d;
    struct turn_rank *ranks;
    double *link_s, *occupied_s; /* [ranks · members_most], to the members of the stage behind */
    uint32_t members_most;
    const struct place_choice *choice;
    uint32_t *stack; /* [2 · ranks]: ranks that may go on */
    uint32_t stack_count;
    bool *stacked;
};

/* Which of a rank's events comes n-th. */
static struct deal_event turn_event(const struct turns *t, const struct turn_rank *r, uint32_t n)
{
    uint32_t paired = 2 * (r->count - r->window), turn = n - r->window, which;
    bool backward = n >= r->window && (turn >= paired || turn % 2 == 0);
    if (n < r->window)
        which = n;
    else if (turn < paired)
        which = turn / 2 + (turn % 2 ? r->window : 0);
    else
        which = turn - paired / 2;
    return (struct deal_event){t->d->mine[r->first + which], backward};
}

static void owners_fill(struct turns *t)
{
    struct deal *d = t->d;
    for (uint32_t s = 0; s < d->stages; s++) {
        const struct place_stage *stage = &t->choice->stages[s];
        uint32_t *owner = &d->owner[(size_t)s * d->micro_batches], round = 0;
        for (uint32_t m = 0; m < stage->member_count; m++)
            round += t->choice->members[stage->member_first + m].micro_count;
        for (uint32_t k = 0; k < d->micro_batches; k++) {
            double most = -1;
            if (k >= round) { /* as in the round before */
                owner[k] = owner[k - round];
                t->ranks[owner[k]].count++;
                continue;
            }
            for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
                double share = (double)t->choice->members[m].micro_count / round;
                double due = (k + 1) * share - t->ranks[m].count;
                if (due > most + 1e-9) {
                    most = due;
                    owner[k] = m;
                }
            }
            t->ranks[owner[k]].count++;
        }
    }
}

static void ranks_fill(struct turns *t, const struct problem *p)
{
    struct deal *d = t->d;
    double bytes = p->bytes_per_token * p->mean_step.tokens / micro_count(p, t->choice->micro_batch_rows);
    uint32_t at = 0;
    for (uint32_t rank = 0; rank < d->ranks; rank++) {
        struct turn_rank *r = &t->ranks[rank];
        uint32_t s = d->stage_of[rank], window = t->choice->members[rank].window;
        const struct place_stage *stage = &t->choice->stages[s], *next = stage + 1;
        struct micro_cost cost;
        micro_cost_init(&cost, p, t->choice->members[rank].device, t->choice->micro_batch_rows);
        r->forward_s = micro_forward(p, &cost, stage->block_begin, stage->block_end);
        r->backward_s = micro_backward(p, &cost, stage->block_begin, stage->block_end,
                                       t->choice->members[rank].recompute);
        r->window = window < 1 ? 1 : window;
        r->first = at;
        d->first[rank] = 2 * at;
        at += r->count;
        r->count = 0; /* counted again while they are put down */
        for (uint32_t m = 0; s + 1 < d->stages && m < next->member_count; m++) {
            size_t cell = (size_t)rank * t->members_most + m;
            double latency, rate;
            bool emulated;
            cluster_link(p->cluster, t->choice->members[rank].device,
                         t->choice->members[next->member_first + m].device, &latency, &rate, &emulated);
            t->occupied_s[cell] = bytes / rate;
            t->link_s[cell] = latency + bytes / rate;
        }
    }
    d->first[d->ranks] = 2 * at;
    for (uint32_t s = 0; s < d->stages; s++) {
        for (uint32_t k = 0; k < d->micro_batches; k++) {
            struct turn_rank *r = &t->ranks[deal_owner(d, s, k)];
            d->mine[r->first + r->count++] = k;
        }
    }
}

/* Nobody waits for a forward that is behind a backward of its own: windows reach no further than those of the
 * stage before. */
static void windows_narrow(struct turns *t)
{
    struct deal *d = t->d;
    uint32_t reach = d->micro_batches;
    for (uint32_t s = 0; s < d->stages; s++) {
        const struct place_stage *stage = &t->choice->stages[s];
        uint32_t mine = d->micro_batches;
        for (uint32_t rank = stage->member_first; rank < stage->member_first + stage->member_count; rank++) {
            struct turn_rank *r = &t->ranks[rank];
            r->window = r->window < r->count ? r->window : r->count;
            while (r->window > 1 && d->mine[r->first + r->window - 1] >= reach)
                r->window--;
            if (r->window < r->count && d->mine[r->first + r->window] < mine)
                mine = d->mine[r->first + r->window];
        }
        reach = mine < reach ? mine : reach;
    }
}

static void wake(struct turns *t, uint32_t rank)
{
    if (t->stacked[rank])
        return;
    t->stacked[rank] = true;
    t->stack[t->stack_count++] = rank;
}

/* All that a rank can do with what has come so far. */
static void rank_go(struct turns *t, uint32_t rank)
{
    struct deal *d = t->d;
    struct turn_rank *r = &t->ranks[rank];
    uint32_t s = d->stage_of[rank];
    size_t row = (size_t)s * d->micro_batches;
    bool last = s + 1 == d->stages;
    while (r->at < 2 * r->count) {
        struct deal_event e = turn_event(t, r, r->at);
        size_t cell = row + e.micro_batch, before = cell - d->micro_batches, behind = cell + d->micro_batches;
        double came = 0;
        if (e.backward)
            came = last ? d->forward_end[cell] : d->returned[behind];
        else if (s > 0)
            came = d->forward_end[before];
        if (came < 0)
            return;
        uint32_t other = e.backward ? (last ? rank : d->owner[behind]) : s > 0 ? d->owner[before] : rank;
        if (other != rank) {
            const struct place_stage *stage = &t->choice->stages[e.backward ? s + 1 : s];
            size_t link = e.backward ? (size_t)rank * t->members_most + other - stage->member_first
                                     : (size_t)other * t->members_most + rank - stage->member_first;
            if (e.backward) {
                came = d->backward_end[behind] + t->link_s[link];
            } else {
                d->sent[cell] = came;
                d->passed[cell] = came + t->occupied_s[link];
                came += t->link_s[link];
            }
        }
        double begin = r->free > came ? r->free : came;
        (e.backward ? d->backward_begin : d->forward_begin)[cell] = begin;
        r->free = begin + (e.backward ? r->backward_s : r->forward_s);
        (e.backward ? d->backward_end : d->forward_end)[cell] = r->free;
        d->end_s = d->end_s > r->free ? d->end_s : r->free;
        d->events[d->first[rank] + r->at++] = e;
        if (e.backward && s > 0) {
            uint32_t to = d->owner[before];
            d->returned[cell] =
                r->free +
                t->occupied_s[(size_t)to * t->members_most + rank - t->choice->stages[s].member_first];
            wake(t, to);
        } else if (!e.backward && !last) {
            wake(t, d->owner[behind]);
        }
    }
}

static int run(struct turns *t, struct err *err)
{
    struct deal *d = t->d;
    for (uint32_t rank = d->ranks; rank-- > 0;)
        wake(t, rank);
    while (t->stack_count > 0) {
        uint32_t rank = t->stack[--t->stack_count];
        t->stacked[rank] = false;
        rank_go(t, rank);
    }
    for (uint32_t rank = 0; rank < d->ranks; rank++) {
        if (t->ranks[rank].at < 2 * t->ranks[rank].count)
            return err_set(err, ERR_NOFIT, "planner: windows too short for turns");
    }
    return 0;
}

int deal_turns(struct deal *d, const struct problem *problem, const struct place_choice *choice,
               struct err *err)
{
    struct turns t = {.d = d, .choice = choice, .members_most = 1};
    int result = -1;
    for (uint32_t s = 0; s < d->stages; s++)
        t.members_most =
            choice->stages[s].member_count > t.members_most ? choice->stages[s].member_count : t.members_most;
    size_t ranks = (size_t)d->ranks + 1;
    t.ranks = calloc(ranks, sizeof(*t.ranks));
    t.stack = calloc(ranks, sizeof(*t.stack));
    t.stacked = calloc(ranks, sizeof(*t.stacked));
    t.link_s = calloc(2 * ranks * t.members_most, sizeof(*t.link_s));
    if (t.ranks && t.stack && t.stacked && t.link_s) {
        t.occupied_s = t.link_s + ranks * t.members_most;
        owners_fill(&t);
        ranks_fill(&t, problem);
        windows_narrow(&t);
        result = run(&t, err);
    } else {
        err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    free(t.ranks);
    free(t.stack);
    free(t.stacked);
    free(t.link_s);
    return result;
}
