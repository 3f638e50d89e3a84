/* List scheduling: of all ranks, the one whose next forward or backward can begin first goes on. */
#include "planner/schedule/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/schedule/order.h"

/* Most nodes of a cluster for which wires and network cards that transfers share are simulated; with more
 * nodes, neighbours in a pipeline seldom share one. */
#define SHARED_NODES_MAX 64u

#define BLOCK 16u /* ranks of which the one that can begin first is looked for at once */
/* Sums of the same seconds in another order differ by less. */
#define SURE (1 - 1e-9)

/* The state of a rank while the schedule is made. */
struct scheduled_rank {
    double free_s;    /* time at which the rank's current event ends */
    double left_s;    /* seconds of the rank's events that are not scheduled, if there is a limit */
    double sent_s[2]; /* time at which the rank's last activations, and its last gradients, have left */
    uint32_t done;    /* number of the rank's events that are scheduled */
    uint32_t forwards, backwards; /* how many scheduled events are forwards, and whole backwards */
    uint32_t mine, count, limit;  /* mine, count: the rank's micro-batches are list_scheduler.mine[mine … mine
                                     + count − 1]; limit: most in flight (the window) */
};

struct list_scheduler {
    struct schedule *s;
    const struct problem *problem;
    const struct candidate *c;
    const struct stage_price *prices;
    struct scheduled_rank *runners;
    uint32_t *mine;                 /* every rank's micro-batches, stage after stage, ascending */
    double *act_ready, *grad_ready; /* [stages · micro_batches]: when activations and gradients arrive;
                                       negative: not yet known */
    double
        *best; /* [blocks · BLOCK]: the time at which each rank can begin its next event; INFINITY: never */
    double *least;                 /* [blocks]: the least of each block of `best`, if there are several */
    uint32_t blocks;               /* of BLOCK ranks */
    uint32_t groups;               /* stages that a micro-batch passes before it comes to a rank again */
    struct schedule_event *next;   /* [ranks]: the event that the rank can begin earliest */
    double *wire_free, *card_free; /* when each wire ([nodes²]) and each network card ([2 · nodes]: sending,
                                      receiving) is free; NULL: not simulated */
    double bytes;                  /* mean bytes of a boundary tensor */
    const double *scale;           /* [micro_batches]: factor on the mean seconds, or NULL: 1 */
    bool follow;                   /* the order of the events is given; only their times are computed */
    bool apart;      /* that order, and transfers that share nothing: events may be timed in any sequence */
    double limit_s;  /* INFINITY: none */
    double *drain_s; /* [stages]: least seconds from the end of a stage's last backward to the step's end */
    bool over;       /* some rank ends no sooner than limit_s */
};

/* --- the rank that can begin first --- */

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double block_least(const double *at)
{
    double a = at[0], b = at[1], c = at[2], d = at[3];
    for (uint32_t i = 4; i < BLOCK; i += 4) {
        a = smaller(a, at[i]);
        b = smaller(b, at[i + 1]);
        c = smaller(c, at[i + 2]);
        d = smaller(d, at[i + 3]);
    }
    return smaller(smaller(a, b), smaller(c, d));
}

static void best_set(struct list_scheduler *r, uint32_t rank, double at)
{
    r->best[rank] = at;
    if (r->blocks > 1)
        r->least[rank / BLOCK] = block_least(&r->best[rank / BLOCK * BLOCK]);
}

/* Returns the rank whose next event can begin first, at *at; of several the one with the lowest index. */
static uint32_t best_rank(const struct list_scheduler *r, double *at)
{
    uint32_t block = 0, rank;
    for (uint32_t i = 1; i < r->blocks; i++)
        block = r->least[i] < r->least[block] ? i : block;
    *at = block_least(&r->best[block * BLOCK]);
    for (rank = block * BLOCK; r->best[rank] != *at;)
        rank++;
    return rank;
}

/* --- the next event of a rank --- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Returns the time at which an event's input has arrived; negative: not yet known. */
static double ready_at(const struct list_scheduler *r, const struct schedule_event *e)
{
    size_t cell = (size_t)e->stage * r->s->micro_batches + e->micro_batch;
    if (e->kind == EVENT_FORWARD)
        return r->act_ready[cell];
    if (e->kind == EVENT_WEIGHT)
        return r->s->backward_end[cell];
    return r->grad_ready[cell];
}

static void look_eager(struct list_scheduler *r, uint32_t rank, uint32_t stage)
{
    struct scheduled_rank *x = &r->runners[rank];
    struct schedule_event forward = {stage, 0, EVENT_FORWARD}, backward = {stage, 0, EVENT_BACKWARD};
    double f = INFINITY, b = INFINITY, ready;
    if (x->forwards < x->count && x->forwards - x->backwards < x->limit) {
        forward.micro_batch = r->mine[x->mine + x->forwards];
        ready = ready_at(r, &forward);
        f = ready >= 0 ? later(ready, x->free_s) : f;
    }
    if (x->backwards < x->forwards) {
        backward.micro_batch = r->mine[x->mine + x->backwards];
        ready = ready_at(r, &backward);
        b = ready >= 0 ? later(ready, x->free_s) : b;
    }
    r->next[rank] = b <= f ? backward : forward;
    best_set(r, rank, b <= f ? b : f);
}

static void schedule_look(struct list_scheduler *r, uint32_t rank, uint32_t stage)
{
    struct scheduled_rank *x = &r->runners[rank];
    if (r->apart)
        return;
    if (r->c->eager && !r->follow) {
        look_eager(r, rank, stage);
        return;
    }
    uint32_t at = r->s->first[rank] + x->done;
    if (at == r->s->first[rank + 1]) {
        best_set(r, rank, INFINITY);
        return;
    }
    double ready = ready_at(r, &r->s->events[at]);
    r->next[rank] = r->s->events[at];
    best_set(r, rank, ready >= 0 ? later(ready, x->free_s) : INFINITY);
}

static double schedule_scale_of(const struct list_scheduler *r, uint32_t micro_batch)
{
    return r->scale ? r->scale[micro_batch] : 1;
}

/* --- transfers between ranks --- */

static void link_occupy(double *free_s, double *begin, double seconds)
{
    *begin = later(*begin, *free_s);
    *free_s = *begin + seconds;
}

/* Sends a boundary tensor that is ready at the time `at`. Writes to *left when the sender's buffer is free
 * again. Returns the time of arrival. */
static double schedule_transfer(struct list_scheduler *r, uint32_t from, uint32_t to, bool back, double at,
                                double bytes, double *left)
{
    const struct cluster *cluster = r->problem->cluster;
    uint32_t a = r->c->members[from].device, b = r->c->members[to].device;
    uint32_t x = cluster->devices[a].node, y = cluster->devices[b].node;
    struct problem_link link = problem_link(r->problem, a, b);
    double seconds = bytes / link.bytes_per_s, begin = later(at, r->runners[from].sent_s[back]);
    if (from == to) {
        *left = at;
        return at;
    }
    if (x != y && r->wire_free) {
        double out = cluster->nodes[x].nic_bytes_per_s, in = cluster->nodes[y].nic_bytes_per_s;
        link_occupy(&r->wire_free[x * cluster->node_count + y], &begin, seconds);
        if (out > 0)
            link_occupy(&r->card_free[2 * x], &begin, bytes / out);
        if (in > 0)
            link_occupy(&r->card_free[2 * y + 1], &begin, bytes / in);
    }
    r->runners[from].sent_s[back] = *left = begin + seconds;
    return begin + seconds + link.latency_s;
}

/* --- beginning an event --- */

static const struct stage_price *price_of(const struct list_scheduler *r, uint32_t rank, uint32_t stage)
{
    const struct candidate_stage *x = &r->c->stages[stage];
    uint32_t lap = stage < r->groups ? 0 : stage / r->groups;
    return &r->prices[x->kind == STAGE_TENSOR ? stage : lap * r->s->ranks + rank];
}

/* Sends the result of an event to the rank that needs it, and chooses that rank's next event again. */
static void result_pass(struct list_scheduler *r, uint32_t rank, const struct schedule_event *e, double end)
{
    struct schedule *s = r->s;
    size_t cell = (size_t)e->stage * s->micro_batches + e->micro_batch;
    bool back = e->kind != EVENT_FORWARD, last = e->stage + 1 == s->stages;
    double *left = back ? &s->backward_left[cell] : &s->forward_left[cell];
    *left = end;
    if (!back && last) {
        r->grad_ready[cell] = end;
        return;
    }
    if (back && e->stage == 0)
        return;
    size_t other = back ? cell - s->micro_batches : cell + s->micro_batches;
    uint32_t to = s->owner[other];
    (back ? r->grad_ready : r->act_ready)[other] =
        schedule_transfer(r, rank, to, back, end, r->bytes * schedule_scale_of(r, e->micro_batch), left);
    if (to != rank)
        schedule_look(r, to, back ? e->stage - 1 : e->stage + 1);
}

/* Returns the seconds by which an event takes longer than its mean, in a stage that shares a layer with a
 * neighbour and runs it for some of the micro-batches. */
static double layers_seconds(const struct list_scheduler *r, const struct stage_price *price,
                             const struct schedule_event *e)
{
    uint32_t count = micro_count(r->problem, r->c->micro_batch_rows);
    int32_t s = (int32_t)e->stage;
    bool back = e->kind != EVENT_FORWARD;
    double next = price->next_s[back], first = price->first_s[back], seconds = 0;
    if (next > 0)
        seconds += next * (candidate_runs_next(r->c, e->stage, e->micro_batch, count) -
                           (double)candidate_next_count(r->c, s) / count);
    if (first > 0)
        seconds -= first * (candidate_runs_next(r->c, e->stage - 1, e->micro_batch, count) -
                            (double)candidate_next_count(r->c, s - 1) / count);
    return seconds;
}

static void schedule_begin(struct list_scheduler *r, uint32_t rank, double at)
{
    struct schedule *s = r->s;
    struct scheduled_rank *x = &r->runners[rank];
    struct schedule_event e = r->next[rank];
    const struct stage_price *price = price_of(r, rank, e.stage);
    size_t cell = (size_t)e.stage * s->micro_batches + e.micro_batch;
    double seconds = e.kind == EVENT_FORWARD  ? price->forward_s
                     : e.kind == EVENT_WEIGHT ? price->weight_s
                                              : price->backward_s;
    if (price->next_s[0] > 0 || price->first_s[0] > 0)
        seconds += layers_seconds(r, price, &e);
    seconds *= schedule_scale_of(r, e.micro_batch);
    double end = at + seconds;
    x->left_s -= seconds;
    r->over |= (end + x->left_s + r->drain_s[e.stage]) * SURE >= r->limit_s;
    s->events[s->first[rank] + x->done++] = e;
    x->forwards += e.kind == EVENT_FORWARD;
    x->backwards += e.kind == EVENT_BACKWARD;
    x->free_s = s->rank_end[rank] = end;
    if (e.kind == EVENT_FORWARD) {
        s->forward_begin[cell] = at;
        s->forward_end[cell] = end;
    } else if (e.kind != EVENT_WEIGHT) {
        s->backward_begin[cell] = at;
        s->backward_end[cell] = end;
    }
    if (e.kind != EVENT_WEIGHT)
        result_pass(r, rank, &e, end);
    schedule_look(r, rank, e.stage);
}

/* --- which member works on which micro-batch --- */

/* Gives each member of a stage at least one micro-batch if there are enough: a member without one takes the
 * last of the member that has the most. A plan whose rank never had a micro-batch would be refused. */
static void stage_assign_all(struct list_scheduler *r, uint32_t stage)
{
    const struct candidate_stage *x = &r->c->stages[stage];
    uint32_t *owner = &r->s->owner[(size_t)stage * r->s->micro_batches], count = r->s->micro_batches;
    double *given = r->best; /* [member]: micro-batches; r->best is not in use yet */
    for (uint32_t m = 0; m < x->member_count; m++)
        given[m] = 0;
    for (uint32_t k = 0; k < count; k++)
        given[owner[k] - x->member_first]++;
    for (uint32_t m = 0; m < x->member_count && x->member_count <= count; m++) {
        uint32_t most = 0, last = count;
        if (given[m] > 0)
            continue;
        for (uint32_t i = 0; i < x->member_count; i++)
            most = given[i] > given[most] ? i : most;
        while (owner[--last] != x->member_first + most)
            continue;
        owner[last] = x->member_first + m;
        given[most]--;
        given[m]++;
    }
}

/* Assigns a stage's micro-batches to its members by minimum completion time: micro-batches arrive one period
 * apart, and each goes to the member that would finish its forward and backward first. */
static void stage_assign(struct list_scheduler *r, uint32_t stage, double period)
{
    const struct candidate_stage *x = &r->c->stages[stage];
    uint32_t *owner = &r->s->owner[(size_t)stage * r->s->micro_batches];
    double *done = r->best; /* r->best is not in use yet */
    for (uint32_t m = 0; m < x->member_count; m++)
        done[m] = 0;
    for (uint32_t k = 0; k < r->s->micro_batches; k++) {
        double least = INFINITY, now = k * period;
        uint32_t best = 0;
        for (uint32_t m = 0; m < x->member_count; m++) {
            const struct stage_price *price = price_of(r, x->member_first + m, stage);
            double end = later(done[m], now) + price->forward_s + price->backward_s;
            if (end < least) {
                least = end;
                best = m;
            }
        }
        done[best] = least;
        owner[k] = x->member_first + best;
    }
    stage_assign_all(r, stage);
}

/* Assigns consecutive micro-batches to the members of a single stage, as many as each member's count. */
static bool counts_assign(struct list_scheduler *r)
{
    const struct candidate *c = r->c;
    uint32_t k = 0;
    for (uint32_t m = 0; m < c->member_count && c->stage_count == 1; m++)
        for (uint32_t n = 0; n < c->members[m].count && k < r->s->micro_batches; n++)
            r->s->owner[k++] = m;
    return k == r->s->micro_batches;
}

static void deal(struct list_scheduler *r)
{
    const struct candidate *c = r->c;
    uint32_t count = r->s->micro_batches;
    double period = 0;
    if (c->stages[0].kind != STAGE_TENSOR && counts_assign(r))
        return;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        double rate = 0;
        for (uint32_t m = 0; m < (x->kind == STAGE_TENSOR ? 1 : x->member_count); m++) {
            const struct stage_price *price = price_of(r, x->member_first + m, s);
            rate += 1 / (price->forward_s + price->backward_s);
        }
        period = later(period, 1 / rate);
    }
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        bool said = c->owner && c->owner_count == c->stage_count * count;
        if (s >= r->groups) /* interleaved: a micro-batch comes back to the same member */
            memcpy(&r->s->owner[(size_t)s * count], &r->s->owner[(size_t)(s - r->groups) * count],
                   count * sizeof(*r->s->owner));
        else if (said || x->member_count == 1 || x->kind == STAGE_TENSOR)
            for (uint32_t k = 0; k < count; k++)
                r->s->owner[(size_t)s * count + k] =
                    x->member_first + (said ? c->owner[(size_t)s * count + k] : 0);
        else
            stage_assign(r, s, period);
    }
}

/* --- allocating and running a schedule --- */

/* Reserves the next `bytes` of the memory at `base`; with base NULL only the size is counted. */
static void *schedule_array_reserve(char *base, size_t *used, size_t bytes)
{
    void *at = base ? base + *used : NULL;
    *used += (bytes + 15) / 16 * 16;
    return at;
}

/* Lays out the schedule's arrays from `base` on and returns their bytes. */
static size_t arrays_layout(struct list_scheduler *r, char *base)
{
    struct schedule *s = r->s;
    size_t cells = (size_t)s->stages * s->micro_batches, ranks = s->ranks, used = 0;
    size_t nodes = r->problem->cluster->node_count, each = r->c->schedule == SCHEDULE_SPLIT ? 3 : 2;
    bool shared = nodes > 1 && nodes <= SHARED_NODES_MAX;
    double **const times[] = {&s->forward_begin, &s->forward_end,   &s->forward_left, &s->backward_begin,
                              &s->backward_end,  &s->backward_left, &r->act_ready,    &r->grad_ready};
    for (size_t t = 0; t < sizeof(times) / sizeof(*times); t++)
        *times[t] = schedule_array_reserve(base, &used, cells * sizeof(double));
    s->owner = schedule_array_reserve(base, &used, cells * sizeof(*s->owner));
    s->first = schedule_array_reserve(base, &used, (ranks + 1) * sizeof(*s->first));
    s->events = schedule_array_reserve(base, &used, each * cells * sizeof(*s->events));
    s->rank_end = schedule_array_reserve(base, &used, ranks * sizeof(double));
    r->runners = schedule_array_reserve(base, &used, ranks * sizeof(*r->runners));
    r->next = schedule_array_reserve(base, &used, ranks * sizeof(*r->next));
    r->best = schedule_array_reserve(base, &used, (size_t)r->blocks * BLOCK * sizeof(double));
    r->least = schedule_array_reserve(base, &used, r->blocks * sizeof(double));
    r->mine = schedule_array_reserve(base, &used, cells * sizeof(*r->mine));
    r->drain_s = schedule_array_reserve(base, &used, (size_t)s->stages * sizeof(double));
    r->wire_free = shared ? schedule_array_reserve(base, &used, nodes * nodes * sizeof(double)) : NULL;
    r->card_free = shared ? schedule_array_reserve(base, &used, 2 * nodes * sizeof(double)) : NULL;
    return used;
}

static int schedule_make_room(struct list_scheduler *r, struct err *err)
{
    struct schedule *s = r->s;
    size_t cells = (size_t)s->stages * s->micro_batches, nodes = r->problem->cluster->node_count;
    size_t bytes = arrays_layout(r, NULL);
    if (bytes > s->capacity) {
        free(s->memory);
        s->capacity = 0;
        s->memory = malloc(bytes + bytes / 2);
        if (!s->memory)
            return err_set(err, ERR_NOMEM, "planner: out of memory");
        s->capacity = bytes + bytes / 2;
    }
    arrays_layout(r, s->memory);
    memset(s->rank_end, 0, s->ranks * sizeof(double));
    memset(r->runners, 0, s->ranks * sizeof(*r->runners));
    if (r->wire_free) {
        memset(r->wire_free, 0, nodes * nodes * sizeof(double));
        memset(r->card_free, 0, 2 * nodes * sizeof(double));
    }
    for (size_t i = 0; i < cells; i++) {
        r->act_ready[i] = i < s->micro_batches ? 0 : -1;
        r->grad_ready[i] = s->backward_end[i] = -1;
    }
    return 0;
}

/* Lists each rank's micro-batches and divides the array of events among the ranks. */
static void events_count(struct list_scheduler *r)
{
    struct schedule *s = r->s;
    size_t cells = (size_t)s->stages * s->micro_batches;
    uint32_t at = 0, each = r->c->schedule == SCHEDULE_SPLIT ? 3 : 2;
    for (size_t i = 0; i < cells; i++)
        r->runners[s->owner[i]].count++;
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        s->first[rank] = each * at;
        r->runners[rank].mine = at;
        r->runners[rank].limit = r->c->members[rank].window ? r->c->members[rank].window : s->micro_batches;
        at += r->runners[rank].count;
        r->runners[rank].count = 0;
    }
    s->first[s->ranks] = each * at;
    for (size_t i = 0; i < cells; i++) {
        struct scheduled_rank *x = &r->runners[s->owner[i]];
        r->mine[x->mine + x->count++] = (uint32_t)(i % s->micro_batches);
    }
}

/* Writes the events of all ranks in advance, if the order is strict. */
static void orders_fill(struct list_scheduler *r)
{
    struct schedule *s = r->s;
    for (uint32_t stage = 0; stage < s->stages && !r->c->eager; stage++) {
        const struct candidate_stage *x = &r->c->stages[stage];
        bool group = x->kind == STAGE_TENSOR;
        if (stage >= r->groups)
            break;
        for (uint32_t m = 0; m < (group ? 1 : x->member_count); m++) {
            uint32_t rank = x->member_first + m;
            const struct order_of order = {.schedule = r->c->schedule,
                                           .groups = r->groups,
                                           .stages = s->stages,
                                           .micro_batches = s->micro_batches,
                                           .alone = r->groups == s->ranks,
                                           .stage = stage,
                                           .count = r->runners[rank].count,
                                           .mine = &r->mine[r->runners[rank].mine],
                                           .window = r->runners[rank].limit,
                                           .delay = r->c->members[rank].delay};
            order_fill(&order, &s->events[s->first[rank]]);
        }
    }
}

/* Whether the order of all events is given and no two links share a wire or a network card. */
static bool transfers_apart(struct list_scheduler *r)
{
    const struct cluster *cluster = r->problem->cluster;
    bool apart = (!r->c->eager || r->follow) && r->s->ranks == r->s->stages && r->groups == r->s->stages;
    for (uint32_t rank = 0; rank + 1 < r->s->ranks && apart && r->wire_free; rank++) {
        uint32_t x = cluster->devices[r->c->members[rank].device].node,
                 y = cluster->devices[r->c->members[rank + 1].device].node;
        double *there = &r->wire_free[x * cluster->node_count + y],
               *back = &r->wire_free[y * cluster->node_count + x];
        if (x == y)
            continue;
        apart = *there == 0 && *back == 0 && !(cluster->nodes[x].nic_bytes_per_s > 0) &&
                !(cluster->nodes[y].nic_bytes_per_s > 0);
        *there = *back = -1; /* marks the wires as used; they are free from before the step on */
    }
    return apart;
}

/* Notes the seconds that each rank computes, and those that a step goes on after a stage's last backward at
 * least: the backwards of the stages before. Where a rank runs a shared layer for some micro-batches, in
 * halves of a backward and in interleaved stages, none are certain. */
static void limit_prepare(struct list_scheduler *r)
{
    struct schedule *s = r->s;
    bool drains = r->c->schedule == SCHEDULE_1F1B && !r->scale;
    memset(r->drain_s, 0, s->stages * sizeof(*r->drain_s));
    for (uint32_t stage = 0; stage < s->stages && r->limit_s < INFINITY; stage++) {
        const struct candidate_stage *x = &r->c->stages[stage];
        const uint32_t *owner = &s->owner[(size_t)stage * s->micro_batches];
        double least = INFINITY;
        for (uint32_t m = 0; m < (x->kind == STAGE_TENSOR ? 1 : x->member_count); m++) {
            const struct stage_price *price = price_of(r, x->member_first + m, stage);
            bool shares = price->next_s[0] > 0 || price->first_s[0] > 0;
            double seconds = price->forward_s + price->backward_s + price->weight_s, micro_batches = 0;
            for (uint32_t k = 0; k < s->micro_batches; k++)
                micro_batches += owner[k] == x->member_first + m ? schedule_scale_of(r, k) : 0;
            r->runners[x->member_first + m].left_s += micro_batches * seconds;
            r->limit_s = shares && r->scale ? INFINITY : r->limit_s;
            least = shares ? 0 : fmin(least, price->backward_s);
        }
        if (stage + 1 < s->stages && drains)
            r->drain_s[stage + 1] = r->drain_s[stage] + least;
    }
}

/* Times events whose sequence does not matter, rank by rank as far as their inputs are known. Returns how
 * many are left. */
static uint32_t run_apart(struct list_scheduler *r, uint32_t left)
{
    const struct schedule *s = r->s;
    for (uint32_t before = left + 1; left < before && !r->over;) {
        before = left;
        for (uint32_t i = 0; i < 2 * s->ranks; i++) { /* towards the last rank and back */
            uint32_t rank = i < s->ranks ? i : 2 * s->ranks - 1 - i;
            struct scheduled_rank *x = &r->runners[rank];
            for (double ready; s->first[rank] + x->done < s->first[rank + 1] && !r->over; left--) {
                r->next[rank] = s->events[s->first[rank] + x->done];
                if ((ready = ready_at(r, &r->next[rank])) < 0)
                    break;
                schedule_begin(r, rank, later(ready, x->free_s));
            }
        }
    }
    return left;
}

/* Returns 1 if the limit ended it. */
static int run_all(struct list_scheduler *r, struct err *err)
{
    struct schedule *s = r->s;
    uint32_t left = s->first[s->ranks];
    limit_prepare(r);
    r->apart = transfers_apart(r);
    for (uint32_t i = 0; i < r->blocks * BLOCK; i++)
        r->best[i] = r->least[i / BLOCK] = INFINITY;
    for (uint32_t stage = 0; stage < s->stages; stage++) {
        const struct candidate_stage *x = &r->c->stages[stage];
        for (uint32_t rank = x->member_first; rank < x->member_first + x->member_count; rank++) {
            if (r->runners[rank].count == 0)
                continue;
            r->runners[rank].free_s = price_of(r, rank, stage)->ready_s;
            schedule_look(r, rank, stage);
        }
    }
    if (r->apart)
        left = run_apart(r, left);
    double at = r->apart ? INFINITY : 0;
    for (uint32_t rank; left > 0 && at < INFINITY && !r->over; left -= at < INFINITY)
        if ((rank = best_rank(r, &at), at < INFINITY))
            schedule_begin(r, rank, at);
    if (left > 0 && !r->over)
        return err_set(err, ERR_NOFIT, "planner: %u micro-batches cannot go through %u ranks in this order",
                       s->micro_batches, s->ranks);
    s->end_s = 0;
    for (uint32_t rank = 0; rank < s->ranks; rank++)
        s->end_s = later(s->end_s, s->rank_end[rank]);
    return r->over;
}

static void run_init(struct list_scheduler *r, struct schedule *schedule, const struct problem *problem,
                     const struct candidate *candidate, const struct stage_price *prices)
{
    uint32_t whole = micro_count(problem, candidate->micro_batch_rows);
    *r = (struct list_scheduler){.s = schedule, .problem = problem, .c = candidate, .prices = prices};
    schedule->ranks = candidate->member_count;
    schedule->stages = candidate->stage_count;
    r->groups = candidate_groups(candidate);
    r->blocks = schedule->ranks / BLOCK + 1;
    r->bytes = problem_boundary_bytes(problem, problem->mean_step.tokens, problem->mean_step.rows) / whole *
               (candidate->together > 1 ? candidate->together : 1);
}

static int deal_all(struct list_scheduler *r, struct schedule *schedule, const struct problem *problem,
                    const struct candidate *candidate, const struct stage_price *prices,
                    uint32_t micro_batches, struct err *err)
{
    schedule->micro_batches = micro_batches;
    run_init(r, schedule, problem, candidate, prices);
    if (schedule_make_room(r, err) < 0)
        return -1;
    deal(r);
    events_count(r);
    return 0;
}

int schedule_deal(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                  const struct stage_price *prices, uint32_t micro_batches, struct err *err)
{
    struct list_scheduler r;
    return deal_all(&r, schedule, problem, candidate, prices, micro_batches, err);
}

int schedule_run(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                 const struct stage_price *prices, uint32_t micro_batches, double limit_s, struct err *err)
{
    struct list_scheduler r;
    if (deal_all(&r, schedule, problem, candidate, prices, micro_batches, err) < 0)
        return -1;
    orders_fill(&r);
    r.limit_s = limit_s;
    return run_all(&r, err);
}

int schedule_follow(struct schedule *schedule, const struct problem *problem,
                    const struct candidate *candidate, const struct stage_price *prices, const double *scale,
                    double limit_s, struct err *err)
{
    struct list_scheduler r;
    run_init(&r, schedule, problem, candidate, prices);
    r.scale = scale;
    r.limit_s = limit_s;
    r.follow = true;
    if (schedule_make_room(&r, err) < 0)
        return -1;
    events_count(&r);
    return run_all(&r, err);
}

void schedule_fini(struct schedule *schedule)
{
    free(schedule->memory);
    *schedule = (struct schedule){0};
}
