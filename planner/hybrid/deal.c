/* List scheduling of a pipeline of groups. */
#include "planner/hybrid/deal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"

#define DEAL_TIMES 7u   /* arrays of times */
#define RUNNERS_FEW 17u /* more than the ranks or stages for which nothing is allocated while it runs */

/* A rank while it runs: its own micro-batches in order, how far forward and backward are, when it is free. */
struct runner {
    uint32_t first, count; /* in mine[] */
    uint32_t forwards, backwards, limit;
    double free, forward_s, backward_s;
    double next; /* start of its next event, as far as is known; INFINITY: it waits for others */
    bool next_backward;
};

struct run {
    struct deal *d;
    struct runner *runners;
    double *link_s;       /* [stages] */
    const uint8_t *order; /* said by the choice, or NULL */
};

static void owners_fill(struct deal *d, const struct place_choice *choice, uint32_t s, uint32_t *given)
{
    const struct place_stage *stage = &choice->stages[s];
    const struct place_member *members = &choice->members[stage->member_first];
    uint32_t *owner = &d->owner[(size_t)s * d->micro_batches], k = 0;
    double total = 0;
    if (choice->dealt) {
        for (k = 0; k < d->micro_batches; k++)
            owner[k] = stage->member_first + choice->dealt[(size_t)s * d->micro_batches + k];
        return;
    }
    if (d->stages == 1) {
        for (uint32_t m = 0; m < stage->member_count; m++) {
            for (uint32_t n = 0; n < members[m].micro_count && k < d->micro_batches; n++)
                owner[k++] = m;
        }
        return;
    }
    for (uint32_t m = 0; m < stage->member_count; m++) {
        total += members[m].micro_count;
        given[m] = 0;
    }
    for (k = 0; k < d->micro_batches; k++) { /* every prefix keeps the shares */
        double most = -INFINITY;
        uint32_t best = 0;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            double due = (k + 1) * members[m].micro_count / total - given[m];
            if (due > most + 1e-12) {
                most = due;
                best = m;
            }
        }
        given[best]++;
        owner[k] = stage->member_first + best;
    }
}

uint32_t deal_limit(uint32_t window, uint32_t own, uint32_t all, uint32_t members)
{
    double share = (double)own / all;
    return (uint32_t)ceil((window ? window : 1) * share) + (members > 1);
}

/* Who takes which of a stage's micro-batches, each member's in a row, the members' from mine[at] on. */
static void mine_fill(struct run *r, const struct place_stage *stage, uint32_t s, uint32_t at)
{
    struct deal *d = r->d;
    const uint32_t *owner = &d->owner[(size_t)s * d->micro_batches];
    struct runner *members = &r->runners[stage->member_first];
    for (uint32_t m = 0; m < stage->member_count; m++)
        members[m] = (struct runner){0};
    for (uint32_t k = 0; k < d->micro_batches; k++)
        r->runners[owner[k]].count++;
    for (uint32_t m = 0; m < stage->member_count; m++) {
        members[m].first = at;
        d->first[stage->member_first + m] = 2 * at;
        at += members[m].count;
        members[m].count = 0;
    }
    for (uint32_t k = 0; k < d->micro_batches; k++) {
        struct runner *own = &r->runners[owner[k]];
        d->mine[own->first + own->count++] = k;
    }
}

static void runners_fill(struct run *r, const struct problem *problem, const struct place_choice *choice)
{
    struct deal *d = r->d;
    for (uint32_t s = 0; s < d->stages; s++) {
        const struct place_stage *stage = &choice->stages[s];
        uint32_t window = choice->members[stage->member_first].window;
        mine_fill(r, stage, s, s * d->micro_batches);
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
            struct micro_cost cost;
            const struct place_member *member = &choice->members[m];
            struct runner *own = &r->runners[m];
            uint32_t limit = deal_limit(window, own->count, d->micro_batches, stage->member_count);
            micro_cost_init(&cost, problem, member->device, choice->micro_batch_rows);
            own->limit = d->stages == 1 ? 1 : limit;
            own->forward_s = micro_forward(problem, &cost, stage->block_begin, stage->block_end);
            own->backward_s =
                micro_backward(problem, &cost, stage->block_begin, stage->block_end, member->recompute);
        }
    }
    d->first[d->ranks] = 2 * d->stages * d->micro_batches;
}

static void links_fill(struct run *r, const struct problem *problem, const struct place_choice *choice)
{
    double bytes = problem->bytes_per_token * problem->mean_step.tokens / r->d->micro_batches;
    for (uint32_t s = 0; s + 1 < r->d->stages; s++) {
        double latency, rate;
        bool emulated;
        cluster_link(problem->cluster, choice->members[choice->stages[s].member_first].device,
                     choice->members[choice->stages[s + 1].member_first].device, &latency, &rate, &emulated);
        r->link_s[s] = latency + bytes / rate;
    }
}

/* When the order said lets a rank do what comes next in it; INFINITY: not as things are. */
static void runner_follow(struct run *r, uint32_t rank)
{
    struct deal *d = r->d;
    struct runner *at = &r->runners[rank];
    uint32_t s = d->stage_of[rank], n = at->forwards + at->backwards;
    size_t row = (size_t)s * d->micro_batches;
    double came = -1, link = 0;
    at->next = INFINITY;
    if (n == 2 * at->count)
        return;
    at->next_backward = r->order[2 * at->first + n];
    if (at->next_backward && at->backwards < at->forwards) {
        uint32_t k = d->mine[at->first + at->backwards];
        bool last = s + 1 == d->stages;
        came = last ? d->forward_end[row + k] : d->backward_end[row + d->micro_batches + k];
        link = last ? 0 : r->link_s[s];
    } else if (!at->next_backward && at->forwards < at->count) {
        uint32_t k = d->mine[at->first + at->forwards];
        came = s ? d->forward_end[row - d->micro_batches + k] : 0;
        link = s ? r->link_s[s - 1] : 0;
    }
    if (came >= 0)
        at->next = later(at->free, came + link);
}

/* What a rank would do next, from what has arrived so far. */
static void runner_look(struct run *r, uint32_t rank)
{
    struct deal *d = r->d;
    struct runner *at = &r->runners[rank];
    uint32_t s = d->stage_of[rank];
    size_t row = (size_t)s * d->micro_batches;
    double forward = INFINITY, backward = INFINITY;
    if (r->order) {
        runner_follow(r, rank);
        return;
    }
    if (at->forwards < at->count && at->forwards - at->backwards < at->limit) {
        uint32_t k = r->d->mine[at->first + at->forwards];
        double came = s ? d->forward_end[row - d->micro_batches + k] : 0; /* negative: not yet */
        if (came >= 0)
            forward = later(at->free, came + (s ? r->link_s[s - 1] : 0));
    }
    if (at->backwards < at->forwards) {
        uint32_t k = r->d->mine[at->first + at->backwards];
        double came =
            s + 1 < d->stages ? d->backward_end[row + d->micro_batches + k] : d->forward_end[row + k];
        if (came >= 0)
            backward = later(at->free, came + (s + 1 < d->stages ? r->link_s[s] : 0));
    }
    at->next_backward = backward <= forward;
    at->next = at->next_backward ? backward : forward;
}

static void runner_go(struct run *r, uint32_t rank)
{
    struct deal *d = r->d;
    struct runner *at = &r->runners[rank];
    uint32_t s = d->stage_of[rank], n = at->forwards + at->backwards;
    bool backward = at->next_backward;
    uint32_t k = r->d->mine[at->first + (backward ? at->backwards++ : at->forwards++)];
    size_t cell = (size_t)s * d->micro_batches + k;
    (backward ? d->backward_begin : d->forward_begin)[cell] = at->next;
    at->free = at->next + (backward ? at->backward_s : at->forward_s);
    (backward ? d->backward_end : d->forward_end)[cell] = at->free;
    d->end_s = later(d->end_s, at->free);
    d->turns[d->turn_count++] = rank;
    d->events[d->first[rank] + n] = (struct deal_event){k, backward};
    runner_look(r, rank);
    if (!backward && s + 1 < d->stages)
        runner_look(r, deal_owner(d, s + 1, k));
    if (backward && s > 0)
        runner_look(r, deal_owner(d, s - 1, k));
}

static int run_all(struct run *r, struct err *err)
{
    struct deal *d = r->d;
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        runner_look(r, rank);
    for (uint64_t left = d->first[d->ranks]; left > 0; left--) {
        uint32_t best = 0;
        for (uint32_t rank = 1; rank < d->ranks; rank++) {
            if (r->runners[rank].next < r->runners[best].next)
                best = rank;
        }
        if (!(r->runners[best].next < INFINITY))
            return err_set(err, r->order ? ERR_NOFIT : ERR_INTERNAL,
                           "planner: a pipeline of groups stands still");
        runner_go(r, best);
    }
    return 0;
}

/* The next `bytes` of the deal's memory; only counts them while there is none yet. */
static void *carve(struct deal *d, size_t *used, size_t bytes)
{
    char *at = d->memory ? (char *)d->memory + *used : NULL;
    *used += (bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
    return at;
}

/* Everything in one piece, as deals are made by the hundred thousand: first what begins as zeros. Returns its
 * bytes, and those of the zeros. */
static size_t deal_carve(struct deal *d, size_t *zeros)
{
    size_t cells = (size_t)d->stages * d->micro_batches + 1, ranks = (size_t)d->ranks + 1, used = 0;
    size_t micro_batches = (size_t)d->micro_batches + 1;
    d->owner = carve(d, &used, cells * sizeof(*d->owner));
    d->stage_of = carve(d, &used, ranks * sizeof(*d->stage_of));
    d->first = carve(d, &used, ranks * sizeof(*d->first));
    *zeros = used;
    d->events = carve(d, &used, 2 * cells * sizeof(*d->events));
    d->turns = carve(d, &used, 2 * cells * sizeof(*d->turns));
    d->soonest = carve(d, &used, 2 * micro_batches * sizeof(*d->soonest));
    d->held = carve(d, &used, micro_batches * sizeof(*d->held));
    d->held_turn = carve(d, &used, micro_batches * sizeof(*d->held_turn));
    d->apart = carve(d, &used, micro_batches);
    d->mine = carve(d, &used, cells * sizeof(*d->mine));
    d->forward_end = carve(d, &used, (micro_batches + DEAL_TIMES * cells) * sizeof(double));
    return used;
}

static int deal_alloc(struct deal *d, struct err *err)
{
    size_t cells = (size_t)d->stages * d->micro_batches + 1, zeros;
    d->memory = malloc(deal_carve(d, &zeros));
    if (!d->memory)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    deal_carve(d, &zeros);
    memset(d->memory, 0, zeros);
    d->forward_end += d->micro_batches; /* a row before the first stage's, see deal_shares */
    double **const times[DEAL_TIMES] = {&d->forward_end,    &d->forward_begin, &d->backward_end,
                                        &d->backward_begin, &d->sent,          &d->passed,
                                        &d->returned};
    for (size_t t = 1; t < DEAL_TIMES; t++)
        *times[t] = d->forward_end + t * cells;
    for (size_t i = 0; i < DEAL_TIMES * cells; i++)
        d->forward_end[i] = -1;
    return 0;
}

static int deal_shares(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
                       struct err *err)
{
    struct runner few[RUNNERS_FEW];
    double links[RUNNERS_FEW];
    bool fits = deal->ranks < RUNNERS_FEW && deal->stages < RUNNERS_FEW;
    struct run r = {.d = deal,
                    .order = choice->dealt ? choice->order : NULL,
                    .runners = fits ? few : calloc((size_t)deal->ranks + 1, sizeof(*r.runners)),
                    .link_s = fits ? links : calloc((size_t)deal->stages + 1, sizeof(*r.link_s))};
    int result = -1;
    if (!r.runners || !r.link_s) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
        goto out;
    }
    for (uint32_t s = 0; s < deal->stages; s++)
        owners_fill(deal, choice, s, deal->first); /* which is filled only after this */
    runners_fill(&r, problem, choice);
    links_fill(&r, problem, choice);
    result = run_all(&r, err);
    deal->sent = deal->passed = deal->forward_end - deal->micro_batches; /* of the stage before */
    deal->returned = deal->backward_end;
out:
    if (!fits) {
        free(r.runners);
        free(r.link_s);
    }
    return result;
}

int deal_init(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
              uint32_t micro_batches, struct err *err)
{
    *deal = (struct deal){
        .stages = choice->stage_count, .micro_batches = micro_batches, .ranks = choice->member_count};
    int result = deal_alloc(deal, err);
    for (uint32_t s = 0; s < deal->stages && result == 0; s++) {
        for (uint32_t m = 0; m < choice->stages[s].member_count; m++)
            deal->stage_of[choice->stages[s].member_first + m] = s;
    }
    if (result == 0 && choice->in_turn && !choice->dealt)
        result = deal_turns(deal, problem, choice, err);
    else if (result == 0 && choice->members[0].micro_count == 0 && !choice->dealt)
        result = deal_flow(deal, problem, choice, err);
    else if (result == 0)
        result = deal_shares(deal, problem, choice, err);
    if (result < 0)
        deal_fini(deal);
    return result;
}

void deal_fini(struct deal *deal)
{
    free(deal->memory);
    *deal = (struct deal){0};
}

/* The least ring of `least` or more in which micro-batches do not collide that are held at once: each from
 * begin[k] to end[k]. Two collide when the ring divides their distance, so the distances are collected. Held:
 * at most as many turns lie between a micro-batch and the oldest one that is not done when it comes. */
static struct deal_ring ring_search(const struct deal *d, uint32_t rank, bool backward, const double *begin,
                                    const double *end, uint32_t least)
{
    const struct deal_event *events = &d->events[d->first[rank]];
    uint32_t count = d->first[rank + 1] - d->first[rank], held = 0, furthest = 0, turn = 0;
    struct deal_ring result = {least, least};
    double soonest = INFINITY;
    for (uint32_t i = count; i-- > 0;) { /* the least begin from here on: what ends before it is never met */
        if (events[i].backward == backward)
            soonest = fmin(soonest, begin[events[i].micro_batch]);
        d->soonest[i] = soonest;
    }
    memset(d->apart, 0, d->micro_batches + 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t kept = 0, k = events[i].micro_batch, oldest = turn;
        if (events[i].backward != backward)
            continue;
        for (uint32_t h = 0; h < held; h++) {
            uint32_t before = d->held[h], distance = k > before ? k - before : before - k;
            if (end[before] > begin[k]) {
                d->apart[distance] = 1;
                furthest = distance > furthest ? distance : furthest;
                oldest = d->held_turn[h] < oldest ? d->held_turn[h] : oldest;
            }
            if (end[before] > d->soonest[i]) {
                d->held_turn[kept] = d->held_turn[h];
                d->held[kept++] = before;
            }
        }
        result.held = turn - oldest + 1 > result.held ? turn - oldest + 1 : result.held;
        d->held_turn[kept] = turn++;
        d->held[kept++] = k;
        held = kept;
    }
    for (bool collides = true; collides && result.ring < d->micro_batches;) {
        collides = false;
        for (uint32_t at = result.ring; at <= furthest && !collides; at += result.ring)
            collides = d->apart[at];
        result.ring += collides;
    }
    result.held = result.held < result.ring ? result.held : result.ring;
    return result;
}

uint32_t deal_window(const struct deal *deal, uint32_t rank, uint32_t *ring)
{
    const struct deal_event *events = &deal->events[deal->first[rank]];
    uint32_t live = 0, most = 1;
    size_t row = (size_t)deal->stage_of[rank] * deal->micro_batches;
    for (uint32_t i = 0; i < deal->first[rank + 1] - deal->first[rank]; i++) {
        live += events[i].backward ? -1u : 1;
        most = live > most ? live : most;
    }
    if (ring)
        *ring =
            ring_search(deal, rank, false, &deal->forward_begin[row], &deal->backward_end[row], most).ring;
    return most;
}

uint32_t deal_boundaries(const struct deal *d, uint32_t rank, struct deal_rings *rings)
{
    uint32_t s = d->stage_of[rank];
    size_t row = (size_t)s * d->micro_batches, next = row + d->micro_batches;
    *rings = (struct deal_rings){0};
    if (s + 1 < d->stages) {
        rings->leaving = ring_search(d, rank, false, &d->forward_begin[row], &d->passed[next], 2);
        rings->gradients = ring_search(d, rank, true, &d->backward_end[next], &d->backward_end[row], 2);
    }
    if (s > 0) {
        rings->activations = ring_search(d, rank, false, &d->sent[row], &d->forward_end[row], 2);
        rings->returning = ring_search(d, rank, true, &d->backward_begin[row], &d->returned[row], 2);
    }
    return rings->activations.held + rings->gradients.held + rings->leaving.held + rings->returning.held;
}
