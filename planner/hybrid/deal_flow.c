/* Dealing as it comes: a pipeline of groups run once by events, each micro-batch given to the member that
 * would be done with it first.
 *
 * Backwards first, among few ranks: that frees what is held soonest. Through many stages it makes bunches,
 * since whoever is late does all its backwards at once, and the one before it then as well: the pace falls
 * for hundreds of micro-batches (by 20 % over 37 stages) and windows are now full, now empty. Who does
 * forwards and backwards in turn while there are both takes a bunch apart, as 1F1B does.
 *
 * Members of one group may be very unlike: a fast one carries the first and the last micro-batches, a slow
 * one works in between, and nobody waits for it, since every rank works in the order of arrival. Buffers are
 * bounded as in the programs: a rank has a few arrivals waiting and two results on their way out, and the
 * rest waits where it is. Greedy by earliest finish: docs/PLANNER.md, Time. */
#include "planner/hybrid/deal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"

#define WAITING_MAX 2u /* arrivals waiting at a rank, beside those that come while it works on one */
#define COMING_MAX 8u
#define LEAVING_MAX                                                                                          \
    2u /* results of either way that a rank holds until they have left, beside those on slow links */
#define ALTERNATE_RANKS 8u /* with more, who could do either does what it did not do last */
#define NONE UINT32_MAX
#define LINKS_MAX ((uint64_t)1 << 16) /* pairs of nodes whose links are kept */
#define WIRES_MAX ((uint64_t)1 << 22) /* beyond, links are taken as unshared */

enum flow_kind { FLOW_DONE, FLOW_FORWARD_COMES, FLOW_BACKWARD_COMES, FLOW_ROOM };

struct flow_event {
    double at;
    uint64_t order; /* of creation, so that ties are settled */
    uint32_t what;  /* rank, or cell */
    uint32_t kind;
};

#define EXITS_MAX (LEAVING_MAX + COMING_MAX)
struct flow_exits { /* results on a wire, until when */
    uint32_t count;
    double until[EXITS_MAX];
};

struct flow_list { /* of cells, first in first out */
    uint32_t head, tail;
};

struct flow_rank {
    double forward_s, backward_s;
    double given;   /* micro-batches */
    uint32_t limit; /* micro-batches between forward and backward */
    uint32_t most_waiting;
    uint32_t most_leaving;
    uint32_t held, waiting;
    uint32_t leaving; /* forwards' results that nobody has taken yet; then they are on a wire: */
    struct flow_exits sent, returned; /* of forwards and of backwards */
    double room_at;                   /* when it was last told to look for room */
    uint32_t busy;                    /* cell, or NONE */
    bool busy_backward;
    struct flow_list forwards, backwards; /* arrived */
};

struct flow_past { /* what was done, in the order of its ends */
    uint32_t rank;
    struct deal_event event;
};

struct flow_link {     /* of a boundary tensor from one node to another */
    double occupied_s; /* 0: not known yet */
    double latency_s;
};

struct flow {
    struct deal *d;
    const struct problem *p;
    const struct place_choice *choice;
    struct flow_rank *ranks;
    struct flow_list *pending; /* [stages]: micro-batches that no member has been given yet */
    uint32_t *next;            /* [cells]: of whichever list a cell is in */
    struct flow_past *past;    /* [2 · cells] */
    uint64_t past_count;
    struct flow_event *heap;
    uint32_t heap_count, heap_capacity;
    uint64_t created;
    double *dealt, *quickest,
        *rates;        /* [stages]: micro-batches given; seconds of the fastest member; of all together */
    double *wire_free; /* [nodes · nodes]; NULL: unshared */
    struct flow_link *links; /* [nodes · nodes]: as they were first asked for; NULL: too many */
    double bytes, now;
    bool failed;
};

static void list_put(struct flow *f, struct flow_list *list, uint32_t cell)
{
    f->next[cell] = NONE;
    if (list->head == NONE)
        list->head = cell;
    else
        f->next[list->tail] = cell;
    list->tail = cell;
}

static uint32_t list_take(struct flow *f, struct flow_list *list)
{
    uint32_t cell = list->head;
    list->head = f->next[cell];
    return cell;
}

static bool earlier(const struct flow_event *a, const struct flow_event *b)
{
    return (a->at < b->at) |
           ((a->at == b->at) & (a->order < b->order)); /* without jumps: neither is likelier */
}

static void event_put(struct flow *f, double at, uint32_t kind, uint32_t what)
{
    struct flow_event event = {at, f->created++, what, kind};
    if (f->heap_count == f->heap_capacity) {
        uint32_t capacity = f->heap_capacity * 2 + 64;
        struct flow_event *grown = realloc(f->heap, capacity * sizeof(*grown));
        if (!grown) {
            f->failed = true;
            return;
        }
        f->heap = grown;
        f->heap_capacity = capacity;
    }
    uint32_t i = f->heap_count++;
    while (i > 0 && earlier(&event, &f->heap[(i - 1) / 2])) {
        f->heap[i] = f->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    f->heap[i] = event;
}

static struct flow_event event_take(struct flow *f)
{
    struct flow_event first = f->heap[0], last = f->heap[--f->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= f->heap_count)
            break;
        child += child + 1 < f->heap_count && earlier(&f->heap[child + 1], &f->heap[child]);
        if (!earlier(&f->heap[child], &last))
            break;
        f->heap[i] = f->heap[child];
        i = child;
    }
    f->heap[i] = last;
    return first;
}

/* Those still there now. */
static uint32_t exits_count(struct flow_exits *exits, double now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < exits->count; i++) {
        if (exits->until[i] > now)
            exits->until[kept++] = exits->until[i];
    }
    return exits->count = kept;
}

static void exits_put(struct flow_exits *exits, double until)
{
    assert(exits->count < EXITS_MAX);
    exits->until[exits->count++] = until;
}

/* A rank that could go on if a result had left looks again when the first has. */
static void room_wait(struct flow *f, uint32_t rank, const struct flow_exits *exits)
{
    struct flow_rank *r = &f->ranks[rank];
    double soonest = INFINITY;
    for (uint32_t i = 0; i < exits->count; i++)
        soonest = exits->until[i] < soonest ? exits->until[i] : soonest;
    if (soonest == INFINITY || (r->room_at > f->now && r->room_at <= soonest))
        return;
    r->room_at = soonest;
    event_put(f, soonest, FLOW_ROOM, rank);
}

/* All devices of a node have the same links. */
static struct flow_link link_of(const struct flow *f, uint32_t from_device, uint32_t to_device)
{
    const struct cluster *cluster = f->p->cluster;
    uint32_t here = cluster->devices[from_device].node, there = cluster->devices[to_device].node;
    struct flow_link *kept = f->links ? &f->links[(size_t)here * cluster->node_count + there] : NULL;
    double rate;
    bool emulated;
    if (kept && kept->occupied_s > 0)
        return *kept;
    struct flow_link link;
    cluster_link(cluster, from_device, to_device, &link.latency_s, &rate, &emulated);
    link.occupied_s = f->bytes / rate;
    if (kept)
        *kept = link;
    return link;
}

/* When a boundary tensor that leaves now is there; *passed: when it has left. */
static double arrival(struct flow *f, uint32_t from, uint32_t to, double *passed)
{
    const struct cluster *cluster = f->p->cluster;
    uint32_t a = f->choice->members[from].device, b = f->choice->members[to].device;
    uint32_t here = cluster->devices[a].node, there = cluster->devices[b].node;
    double begin = f->now;
    struct flow_link link = link_of(f, a, b);
    double occupied = link.occupied_s;
    if (here != there && f->wire_free) { /* shared as price.c has it */
        bool card = cluster->nodes[here].nic_bytes_per_s > 0;
        double *busy = &f->wire_free[(size_t)here * cluster->node_count + (card ? here : there)];
        begin = *busy > begin ? *busy : begin;
        *busy = begin + occupied;
    }
    *passed = begin + occupied;
    return *passed + link.latency_s;
}

static void rank_start(struct flow *f, uint32_t rank);

/* Would it be done only after the others had done all that is left? */
static bool comes_late(const struct flow *f, uint32_t s, const struct flow_rank *r)
{
    double left = f->d->micro_batches - f->dealt[s];
    return r->forward_s + r->backward_s > f->quickest[s] + left / f->rates[s];
}

/* Gives what is pending before a stage to those of its members that have room, in proportion to their speeds.
 */
static void stage_give(struct flow *f, uint32_t s)
{
    struct deal *d = f->d;
    const struct place_stage *stage = &f->choice->stages[s];
    while (f->pending[s].head != NONE) {
        uint32_t best = NONE, cell = f->pending[s].head, k = cell % d->micro_batches;
        double least = INFINITY;
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++) {
            const struct flow_rank *r = &f->ranks[m];
            double each = (r->given + 1) * (r->forward_s + r->backward_s);
            if (r->held + r->waiting < r->limit + 1 && r->waiting < r->most_waiting && each < least &&
                !comes_late(f, s, r)) {
                least = each;
                best = m;
            }
        }
        if (best == NONE)
            return;
        f->ranks[best].given++;
        f->dealt[s]++;
        list_take(f, &f->pending[s]);
        f->ranks[best].waiting++;
        d->owner[cell] = best;
        d->sent[cell] = f->now;
        if (s == 0) {
            list_put(f, &f->ranks[best].forwards, cell);
            rank_start(f, best);
            continue;
        }
        uint32_t from = deal_owner(d, s - 1, k);
        event_put(f, arrival(f, from, best, &d->passed[cell]), FLOW_FORWARD_COMES, cell);
        struct flow_rank *maker = &f->ranks[from];
        exits_count(&maker->sent, f->now);
        exits_put(&maker->sent, d->passed[cell]);
        maker->leaving--;
        if (maker->busy == NONE && maker->leaving + maker->sent.count >= maker->most_leaving)
            room_wait(f, from, &maker->sent);
    }
}

static void rank_start(struct flow *f, uint32_t rank)
{
    struct deal *d = f->d;
    struct flow_rank *r = &f->ranks[rank];
    if (r->busy != NONE)
        return;
    bool forward = r->forwards.head != NONE && r->held < r->limit, backward = r->backwards.head != NONE;
    if (forward && r->leaving + exits_count(&r->sent, f->now) >= r->most_leaving) {
        forward = false;
        room_wait(f, rank, &r->sent);
    }
    if (backward && exits_count(&r->returned, f->now) >= r->most_leaving) {
        backward = false;
        room_wait(f, rank, &r->returned);
    }
    if (!forward && !backward)
        return;
    bool turn = r->busy_backward && d->ranks > ALTERNATE_RANKS; /* of a forward */
    r->busy_backward = backward && !(forward && turn);
    r->busy = list_take(f, r->busy_backward ? &r->backwards : &r->forwards);
    (r->busy_backward ? d->backward_begin : d->forward_begin)[r->busy] = f->now;
    event_put(f, f->now + (r->busy_backward ? r->backward_s : r->forward_s), FLOW_DONE, rank);
    if (!r->busy_backward) {
        r->held++;
        r->waiting--;
        stage_give(f, d->stage_of[rank]);
    }
}

static void rank_done(struct flow *f, uint32_t rank)
{
    struct deal *d = f->d;
    struct flow_rank *r = &f->ranks[rank];
    uint32_t cell = r->busy, s = d->stage_of[rank], k = cell % d->micro_batches;
    bool backward = r->busy_backward;
    (backward ? d->backward_end : d->forward_end)[cell] = f->now;
    f->past[f->past_count++] = (struct flow_past){rank, {k, backward}};
    d->end_s = fmax(d->end_s, f->now);
    r->busy = NONE;
    if (backward) {
        r->held--;
        if (s > 0) {
            uint32_t to = deal_owner(d, s - 1, k);
            event_put(f, arrival(f, rank, to, &d->returned[cell]), FLOW_BACKWARD_COMES,
                      cell - d->micro_batches);
            exits_count(&r->returned, f->now);
            exits_put(&r->returned, d->returned[cell]);
        }
        stage_give(f, s);
    } else if (s + 1 < d->stages) {
        r->leaving++;
        list_put(f, &f->pending[s + 1], cell + d->micro_batches);
        stage_give(f, s + 1);
    } else {
        list_put(f, &r->backwards, cell);
    }
    rank_start(f, rank);
}

/* As many as are on the longest way between a rank and the members of another stage while it works on one. */
static uint32_t underway(const struct flow *f, uint32_t rank, uint32_t stage, double each_s, bool arrives)
{
    const struct place_stage *other = &f->choice->stages[stage];
    double longest = 0;
    for (uint32_t m = 0; m < other->member_count; m++) {
        uint32_t a = f->choice->members[other->member_first + m].device, b = f->choice->members[rank].device;
        struct flow_link link = link_of(f, arrives ? a : b, arrives ? b : a);
        double seconds = (arrives ? link.latency_s : 0) + link.occupied_s;
        longest = seconds > longest ? seconds : longest;
    }
    double coming = each_s > 0 ? ceil(longest / each_s) : 0;
    return coming < COMING_MAX ? (uint32_t)coming : COMING_MAX;
}

static void ranks_fill(struct flow *f)
{
    const struct place_choice *choice = f->choice;
    for (uint32_t rank = 0; rank < f->d->ranks; rank++) {
        const struct place_stage *stage = &choice->stages[f->d->stage_of[rank]];
        const struct place_member *member = &choice->members[rank];
        int32_t begin = stage->block_begin, end = stage->block_end;
        struct micro_cost cost;
        micro_cost_init(&cost, f->p, member->device, choice->micro_batch_rows);
        f->ranks[rank] =
            (struct flow_rank){.forward_s = micro_forward(f->p, &cost, begin, end),
                               .backward_s = micro_backward(f->p, &cost, begin, end, member->recompute),
                               .limit = member->window ? member->window : 1,
                               .busy = NONE,
                               .forwards = {NONE, NONE},
                               .backwards = {NONE, NONE}};
        uint32_t s = f->d->stage_of[rank], before = 0, behind = 0;
        double each = f->ranks[rank].forward_s + f->ranks[rank].backward_s, *quickest = &f->quickest[s];
        if (s > 0)
            before = underway(f, rank, s - 1, each, false);
        if (s + 1 < f->d->stages)
            behind = underway(f, rank, s + 1, each, false);
        f->ranks[rank].most_waiting = WAITING_MAX + (s > 0 ? underway(f, rank, s - 1, each, true) : 0);
        before = before > behind ? before : behind;
        f->ranks[rank].most_leaving = LEAVING_MAX + (before ? before - 1 : 0);
        f->rates[s] += 1 / each;
        *quickest = *quickest == 0 || each < *quickest ? each : *quickest;
    }
}

/* Every rank's events in a row of its own. */
static void events_sort(struct flow *f)
{
    struct deal *d = f->d;
    for (uint64_t i = 0; i < f->past_count; i++)
        d->first[f->past[i].rank + 1]++;
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        d->first[rank + 1] += d->first[rank];
    for (uint64_t i = f->past_count; i-- > 0;)
        d->events[--d->first[f->past[i].rank + 1]] = f->past[i].event;
    memmove(d->first, d->first + 1, d->ranks * sizeof(*d->first));
    d->first[d->ranks] = (uint32_t)f->past_count;
}

static int flow_alloc(struct flow *f, struct err *err)
{
    size_t cells = (size_t)f->d->stages * f->d->micro_batches + 1;
    uint64_t nodes = f->p->cluster->node_count;
    f->ranks = calloc((size_t)f->d->ranks + 1, sizeof(*f->ranks));
    f->pending = malloc(((size_t)f->d->stages + 1) * sizeof(*f->pending));
    f->dealt = calloc(3 * ((size_t)f->d->stages + 1), sizeof(*f->dealt));
    f->next = malloc(cells * sizeof(*f->next));
    f->past = malloc(2 * cells * sizeof(*f->past));
    f->wire_free = nodes * nodes <= WIRES_MAX ? calloc(nodes * nodes, sizeof(double)) : NULL;
    f->links = nodes * nodes <= LINKS_MAX ? calloc(nodes * nodes, sizeof(*f->links)) : NULL;
    if (!f->dealt || !f->ranks || !f->pending || !f->next || !f->past ||
        (nodes * nodes <= WIRES_MAX && !f->wire_free))
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    f->quickest = f->dealt + f->d->stages;
    f->rates = f->quickest + f->d->stages;
    return 0;
}

static int flow_run(struct flow *f, struct err *err)
{
    struct deal *d = f->d;
    for (uint32_t s = 0; s < d->stages; s++)
        f->pending[s] = (struct flow_list){NONE, NONE};
    for (uint32_t k = 0; k < d->micro_batches; k++)
        list_put(f, &f->pending[0], k);
    stage_give(f, 0);
    while (f->heap_count > 0 && !f->failed) {
        struct flow_event event = event_take(f);
        f->now = event.at;
        if (event.kind == FLOW_DONE) {
            rank_done(f, event.what);
            continue;
        }
        if (event.kind == FLOW_ROOM) {
            rank_start(f, event.what);
            continue;
        }
        struct flow_rank *r = &f->ranks[d->owner[event.what]];
        list_put(f, event.kind == FLOW_BACKWARD_COMES ? &r->backwards : &r->forwards, event.what);
        rank_start(f, d->owner[event.what]);
    }
    if (f->failed)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (f->past_count != 2 * (uint64_t)d->stages * d->micro_batches)
        return err_set(err, ERR_INTERNAL, "planner: a pipeline of groups stands still");
    events_sort(f);
    return 0;
}

int deal_flow(struct deal *deal, const struct problem *problem, const struct place_choice *choice,
              struct err *err)
{
    struct flow f = {.d = deal,
                     .p = problem,
                     .choice = choice,
                     .bytes = problem->bytes_per_token * problem->mean_step.tokens /
                              micro_count(problem, choice->micro_batch_rows)};
    int result = flow_alloc(&f, err);
    if (result == 0) {
        ranks_fill(&f);
        result = flow_run(&f, err);
    }
    free(f.ranks);
    free(f.dealt);
    free(f.pending);
    free(f.next);
    free(f.past);
    free(f.heap);
    free(f.wire_free);
    free(f.links);
    return result;
}
