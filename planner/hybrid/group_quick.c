/* A choice's order is dealt once; priced steps then pass through it, LANES of them at a time: the compiler
 * makes vectors of loops over lanes. */
#include "planner/hybrid/group_quick.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/cost/ring.h"
#include "planner/hybrid/deal.h"
#include "planner/hybrid/group_state.h"

#define QUICK_DEVICES 16u
#define QUICK_NODES 16u
#define QUICK_CELLS 8192u /* devices · steps · micro-batches of one size */
#define LANES 4u

/* Of steps: [LANES], zeros where there are no more. */
struct quick_cost {
    double seconds[COST_CLASSES][COST_WAYS][LANES];
};

/* Of one size of micro-batches. */
struct quick_loads {
    struct quick_cost *cost;  /* [device_count][parts][micro_batches] */
    double (*bytes)[LANES];   /* [parts][micro_batches] */
    struct micro_cost *mean;  /* [device_count][micro_batches]: over the priced steps */
    struct micro_cost *least; /* [device_count]: over those and all micro-batches */
};

/* A rank's forward or backward, what that makes setting out, or a stage's gradients summed. */
enum quick_what { QUICK_COMPUTE, QUICK_LEAVES, QUICK_SUM };
struct quick_event {
    uint32_t rank, micro_batch; /* QUICK_SUM: the stage's first */
    bool backward;
    uint8_t what;
};

/* Of a stage whose gradients are summed over a ring. */
struct quick_sum {
    bool any;
    double seconds, rate; /* of it all; bytes/s of its slowest link */
};

/* How often a rank's blocks cost which of micro_cost's seconds; classes without any left out. */
struct quick_rank {
    uint32_t device, class_count, class[COST_CLASSES];
    double blocks[COST_CLASSES];
    bool recompute;
};

struct group_quick {
    const struct problem *p;
    uint32_t steps, parts;     /* priced; and of up to LANES of them */
    struct quick_loads *loads; /* [batch_rows + 1] */
    double latency[QUICK_DEVICES][QUICK_DEVICES], rate[QUICK_DEVICES][QUICK_DEVICES];
    struct err err; /* nobody's: what fails is not known */
    /* of the choice in hand */
    const struct place_choice *c;
    const struct quick_loads *at;
    struct deal deal;
    struct quick_event *order; /* [event_count], kept from choice to choice: [4 · room] */
    uint32_t event_count;
    double (*came)[LANES]; /* likewise, twice [stages · micro_batches] */
    size_t room;
    struct quick_rank ranks[QUICK_DEVICES];
    double wire[QUICK_NODES][QUICK_NODES][LANES]; /* free from then on; likewise: */
    double out[QUICK_NODES][LANES], in[QUICK_NODES][LANES];
    struct quick_sum sums[QUICK_DEVICES]; /* [stages] */
    double fetch[QUICK_DEVICES],
        sync[QUICK_DEVICES]; /* [stages]: before a step's first event, and after its last */
};

struct group_quick *group_quick_create(const struct problem *problem, uint32_t steps_max, struct err *err)
{
    struct group_quick *q = calloc(1, sizeof(*q));
    if (q) {
        q->p = problem;
        q->steps = steps_max < problem->step_count ? steps_max : problem->step_count;
        q->parts = (q->steps + LANES - 1) / LANES;
        q->loads = calloc((size_t)problem->workload->batch_rows + 1, sizeof(*q->loads));
        for (uint32_t a = 0; a < problem->device_count && a < QUICK_DEVICES; a++) {
            bool emulated;
            for (uint32_t b = 0; b < problem->device_count && b < QUICK_DEVICES; b++)
                cluster_link(problem->cluster, a, b, &q->latency[a][b], &q->rate[a][b], &emulated);
        }
    }
    if (!q || !q->loads) {
        free(q);
        err_set(err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    return q;
}

static void loads_fini(struct quick_loads *loads)
{
    free(loads->cost);
    free(loads->bytes);
    free(loads->mean);
    free(loads->least);
    *loads = (struct quick_loads){0};
}

void group_quick_destroy(struct group_quick *q)
{
    if (!q)
        return;
    for (uint32_t rows = 0; rows <= q->p->workload->batch_rows; rows++)
        loads_fini(&q->loads[rows]);
    free(q->loads);
    free(q->order);
    free(q->came);
    free(q);
}

/* Of every device the least of everything; 0 where a micro-batch has no rows. */
static void least_fill(const struct group_quick *q, struct quick_loads *loads, uint32_t count)
{
    for (uint32_t d = 0; d < q->p->device_count; d++) {
        for (int way = 0; way < COST_CLASSES * COST_WAYS; way++) {
            double *least = &loads->least[d].seconds[way / COST_WAYS][way % COST_WAYS];
            *least = INFINITY;
            for (uint32_t n = 0; n < q->steps * count; n++) {
                size_t at = ((size_t)d * q->parts + n / count / LANES) * count + n % count;
                *least = fmin(*least,
                              loads->cost[at].seconds[way / COST_WAYS][way % COST_WAYS][n / count % LANES]);
            }
        }
    }
}

static bool loads_fill(struct group_quick *q, struct quick_loads *loads, uint32_t rows, uint32_t count)
{
    const struct problem *p = q->p;
    loads->cost = calloc((size_t)p->device_count * q->parts * count + 1, sizeof(*loads->cost));
    loads->bytes = calloc((size_t)q->parts * count + 1, sizeof(*loads->bytes));
    loads->mean = calloc((size_t)p->device_count * count + 1, sizeof(*loads->mean));
    loads->least = calloc((size_t)p->device_count + 1, sizeof(*loads->least));
    if (!loads->cost || !loads->bytes || !loads->mean || !loads->least) {
        loads_fini(loads);
        return false;
    }
    for (uint32_t t = 0; t < q->steps; t++) {
        uint32_t step = problem_step_priced(p, t, q->steps), part = t / LANES, lane = t % LANES;
        for (uint32_t k = 0; k < count; k++) {
            struct cost_load load = problem_load(p, step, k * rows, (k + 1) * rows);
            loads->bytes[part * count + k][lane] = floor(p->bytes_per_token * load.tokens);
            for (uint32_t d = 0; d < p->device_count && load.rows > 0; d++) {
                struct quick_cost *to = &loads->cost[((size_t)d * q->parts + part) * count + k];
                struct micro_cost cost, *mean = &loads->mean[d * count + k];
                if (!p->usable[d])
                    continue;
                micro_cost_load(&cost, p, d, &load);
                for (int cls = 0; cls < COST_CLASSES; cls++) {
                    for (int way = 0; way < COST_WAYS; way++) {
                        to->seconds[cls][way][lane] = cost.seconds[cls][way];
                        mean->seconds[cls][way] += cost.seconds[cls][way] / q->steps;
                    }
                }
            }
        }
    }
    least_fill(q, loads, count);
    return true;
}

#define QUICK_PENDING (2 * QUICK_DEVICES)

/* What was made and has not set out yet: every rank's last event, if others wait for it, and the stages whose
 * work is done; last made first. */
struct quick_pending {
    uint32_t count;
    double end[QUICK_PENDING];
    struct quick_event event[QUICK_PENDING];
    double last[QUICK_DEVICES];   /* [stages]: end of what was added */
    uint32_t left[QUICK_DEVICES]; /* [stages]: events to come */
};

/* Whatever is made by then sets out, first made first. */
static void order_leave(struct group_quick *q, struct quick_pending *made, double by)
{
    while (made->count > 0 && made->end[made->count - 1] <= by)
        q->order[q->event_count++] = made->event[--made->count];
}

/* Of what is made at the same time, ranks' goes first, the first rank's before the next one's. */
static void pending_add(struct quick_pending *made, double end, struct quick_event event)
{
    uint32_t at = made->count++;
    for (; at > 0; at--) {
        const struct quick_event *other = &made->event[at - 1];
        if (made->end[at - 1] > end ||
            (made->end[at - 1] == end &&
             (other->what > event.what || (other->what == event.what && other->rank > event.rank))))
            break;
        made->end[at] = made->end[at - 1];
        made->event[at] = *other;
    }
    made->end[at] = end;
    made->event[at] = event;
}

static void order_add(struct group_quick *q, struct quick_pending *made, uint32_t rank,
                      const struct deal_event *e)
{
    const struct deal *d = &q->deal;
    uint32_t s = d->stage_of[rank];
    size_t cell = (size_t)s * d->micro_batches + e->micro_batch;
    double end = e->backward ? d->backward_end[cell] : d->forward_end[cell];
    order_leave(q, made, e->backward ? d->backward_begin[cell] : d->forward_begin[cell]);
    q->order[q->event_count++] = (struct quick_event){rank, e->micro_batch, e->backward, QUICK_COMPUTE};
    made->last[s] = later(made->last[s], end);
    if (--made->left[s] == 0 && q->sums[s].any)
        pending_add(made, made->last[s],
                    (struct quick_event){q->c->stages[s].member_first, 0, false, QUICK_SUM});
    if (e->backward ? s > 0 : s + 1 < d->stages)
        pending_add(made, end, (struct quick_event){rank, e->micro_batch, e->backward, QUICK_LEAVES});
}

/* The order of begins as dealt, and of what sets out in between: nothing in it comes before what it waits
 * for.
 */
static bool order_fill(struct group_quick *q)
{
    const struct deal *d = &q->deal;
    struct quick_pending made;
    uint32_t next[QUICK_DEVICES], total = d->first[d->ranks];
    bool known = d->turn_count == total;
    memcpy(next, d->first, d->ranks * sizeof(*next));
    q->event_count = made.count = 0;
    for (uint32_t s = 0; s < d->stages; s++) {
        made.last[s] = 0;
        made.left[s] = 2 * d->micro_batches;
    }
    for (uint32_t n = 0; n < total; n++) {
        uint32_t best = known ? d->turns[n] : UINT32_MAX;
        double least = INFINITY;
        for (uint32_t r = 0; r < d->ranks && !known; r++) {
            if (next[r] == d->first[r + 1])
                continue;
            const struct deal_event *e = &d->events[next[r]];
            size_t cell = (size_t)d->stage_of[r] * d->micro_batches + e->micro_batch;
            double begin = e->backward ? d->backward_begin[cell] : d->forward_begin[cell];
            if (begin < least) {
                least = begin;
                best = r;
            }
        }
        if (best == UINT32_MAX)
            return false;
        order_add(q, &made, best, &d->events[next[best]++]);
    }
    order_leave(q, &made, INFINITY);
    return true;
}

/* When tensors that are ready at `at` are there. Here and below `lanes`, 1 or LANES, is a constant to the
 * compiler. */
static inline __attribute__((always_inline)) void arrival(struct group_quick *q, uint32_t from, uint32_t to,
                                                          const double bytes[LANES], const double at[LANES],
                                                          double came[LANES], uint32_t lanes)
{
    const struct cluster *cluster = q->p->cluster;
    uint32_t a = cluster->devices[from].node, b = cluster->devices[to].node;
    double latency = q->latency[from][to], rate = q->rate[from][to], start[LANES], occupied[LANES];
    for (uint32_t l = 0; l < lanes; l++) {
        start[l] = at[l];
        occupied[l] = bytes[l] / rate;
    }
    if (a != b) {
        double leaves = cluster->nodes[a].nic_bytes_per_s, comes = cluster->nodes[b].nic_bytes_per_s;
        double *wire = q->wire[a][b], *out = q->out[a], *in = q->in[b];
        for (uint32_t l = 0; l < lanes; l++) {
            double begin = later(at[l], later(wire[l], later(out[l], in[l])));
            bool any = bytes[l] > 0; /* of lanes without any nothing is moved */
            start[l] = any ? begin : at[l];
            wire[l] = any ? begin + occupied[l] : wire[l];
        }
        for (uint32_t l = 0; l < lanes && leaves > 0; l++)
            out[l] = bytes[l] > 0 ? start[l] + bytes[l] / leaves : out[l];
        for (uint32_t l = 0; l < lanes && comes > 0; l++)
            in[l] = bytes[l] > 0 ? start[l] + bytes[l] / comes : in[l];
    }
    for (uint32_t l = 0; l < lanes; l++)
        came[l] = bytes[l] > 0 ? start[l] + occupied[l] + latency : at[l];
}

static uint32_t member_device(const struct group_quick *q, const struct place_stage *stage, uint32_t m)
{
    return q->c->members[stage->member_first + m % stage->member_count].device;
}

/* Summing a stage's gradients over its members' ring. */
static void sum_fill(struct group_quick *q, uint32_t s)
{
    const struct place_stage *stage = &q->c->stages[s];
    struct quick_sum *sum = &q->sums[s];
    double bytes = 0, slowest = INFINITY, delay = 0, n = stage->member_count;
    uint32_t ring[QUICK_DEVICES];
    *sum = (struct quick_sum){.any = stage->member_count > 1, .rate = INFINITY};
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        bytes += 4 * (double)q->p->blocks.blocks[b].lora_params;
    for (uint32_t m = 0; m < stage->member_count; m++)
        ring[m] = member_device(q, stage, m);
    for (uint32_t m = 0; m < stage->member_count && sum->any; m++) {
        double latency, rate = ring_hop(q->p->cluster, ring, NULL, stage->member_count, m, &latency);
        slowest = fmin(slowest, rate);
        delay = fmax(delay, latency);
        sum->rate = fmin(sum->rate, q->rate[ring[m]][member_device(q, stage, m + 1)]);
    }
    sum->seconds = sum->any ? 2 * ((n - 1) / n * bytes / slowest + (n - 1) * delay) : 0;
}

/* The ring keeps what it passes busy, each thing for the bytes at its own rate; members are done with it. */
static inline __attribute__((always_inline)) void
sum_run(struct group_quick *q, uint32_t s, double free_at[QUICK_DEVICES][LANES], uint32_t lanes)
{
    const struct cluster *cluster = q->p->cluster;
    const struct place_stage *stage = &q->c->stages[s];
    const struct quick_sum *sum = &q->sums[s];
    double start[LANES] = {0};
    for (uint32_t m = 0; m < stage->member_count; m++) {
        uint32_t from = cluster->devices[member_device(q, stage, m)].node;
        uint32_t to = cluster->devices[member_device(q, stage, m + 1)].node;
        for (uint32_t l = 0; l < lanes; l++) {
            start[l] = later(start[l], free_at[stage->member_first + m][l]);
            if (from != to)
                start[l] = later(start[l], later(q->wire[from][to][l], later(q->out[from][l], q->in[to][l])));
        }
    }
    for (uint32_t m = 0; m < stage->member_count; m++) {
        uint32_t a = member_device(q, stage, m), b = member_device(q, stage, m + 1);
        uint32_t from = cluster->devices[a].node, to = cluster->devices[b].node;
        double leaves = cluster->nodes[from].nic_bytes_per_s, comes = cluster->nodes[to].nic_bytes_per_s;
        double bytes = sum->seconds * sum->rate, rate = q->rate[a][b];
        for (uint32_t l = 0; l < lanes; l++) {
            free_at[stage->member_first + m][l] = start[l] + sum->seconds;
            if (from == to)
                continue;
            q->wire[from][to][l] = later(q->wire[from][to][l], start[l] + bytes / rate);
            if (leaves > 0)
                q->out[from][l] = later(q->out[from][l], start[l] + bytes / fmax(leaves, sum->rate));
            if (comes > 0)
                q->in[to][l] = later(q->in[to][l], start[l] + bytes / fmax(comes, sum->rate));
        }
    }
}

static void rank_fill(struct group_quick *q, uint32_t s, uint32_t r)
{
    const struct place_stage *stage = &q->c->stages[s];
    struct quick_rank *rank = &q->ranks[r];
    rank->device = q->c->members[r].device;
    rank->recompute = q->c->members[r].recompute;
    rank->class_count = 0;
    for (uint32_t cls = 0; cls < COST_CLASSES; cls++) {
        uint32_t blocks = q->p->prefix[stage->block_end][cls] - q->p->prefix[stage->block_begin][cls];
        if (blocks == 0)
            continue;
        rank->blocks[rank->class_count] = blocks;
        rank->class[rank->class_count++] = cls;
    }
}

/* Of the choice in hand. */
static void ranks_fill(struct group_quick *q)
{
    for (uint32_t s = 0; s < q->c->stage_count; s++) {
        for (uint32_t m = 0; m < q->c->stages[s].member_count; m++)
            rank_fill(q, s, q->c->stages[s].member_first + m);
    }
}

static inline __attribute__((always_inline)) void rank_seconds(const struct quick_rank *rank,
                                                               const struct quick_cost *cost, bool backward,
                                                               double seconds[LANES], uint32_t lanes)
{
    double again[LANES] = {0};
    for (uint32_t l = 0; l < lanes; l++)
        seconds[l] = 0;
    for (uint32_t i = 0; i < rank->class_count; i++) {
        const double *one = cost->seconds[rank->class[i]][backward ? COST_BACKWARD : COST_FORWARD];
        for (uint32_t l = 0; l < lanes; l++)
            seconds[l] += rank->blocks[i] * one[l];
    }
    for (uint32_t i = 0; i < rank->class_count && backward && rank->recompute; i++) {
        const double *one = cost->seconds[rank->class[i]][COST_RECOMPUTE];
        for (uint32_t l = 0; l < lanes; l++)
            again[l] += rank->blocks[i] * one[l];
    }
    for (uint32_t l = 0; l < lanes; l++)
        seconds[l] += again[l];
}

/* The priced steps of a part through the order, added up; negative when the order does not hold. */
static inline __attribute__((always_inline)) double part_run(struct group_quick *q, uint32_t part,
                                                             uint32_t lanes)
{
    const struct deal *d = &q->deal;
    uint32_t count = d->micro_batches, steps = q->steps - part * LANES;
    size_t cells = (size_t)d->stages * count;
    double free_at[QUICK_DEVICES][LANES], (*forward)[LANES] = q->came, sum = 0;
    double(*backward)[LANES] = q->came + cells;
    memset(q->wire, 0, q->p->cluster->node_count * sizeof(*q->wire));
    memset(q->out, 0, sizeof(q->out));
    memset(q->in, 0, sizeof(q->in));
    memset(q->came, 0, count * sizeof(*q->came));
    for (uint32_t r = 0; r < d->ranks; r++) {
        for (uint32_t l = 0; l < lanes; l++)
            free_at[r][l] = q->fetch[d->stage_of[r]];
    }
    for (size_t i = count; i < 2 * cells; i++)
        q->came[i][0] = -1;
    for (uint32_t n = 0; n < q->event_count; n++) {
        const struct quick_event *e = &q->order[n];
        const struct quick_rank *rank = &q->ranks[e->rank];
        uint32_t s = d->stage_of[e->rank], k = e->micro_batch, device = rank->device;
        size_t here = (size_t)s * count + k;
        const double *came = e->backward ? backward[here] : forward[here];
        double *end = free_at[e->rank], seconds[LANES];
        const double *bytes = q->at->bytes[part * count + k];
        if (e->what == QUICK_SUM) {
            sum_run(q, s, free_at, lanes);
            continue;
        }
        if (e->what == QUICK_LEAVES) {
            uint32_t to = e->backward ? s - 1 : s + 1;
            arrival(q, device, q->ranks[deal_owner(d, to, k)].device, bytes, end,
                    e->backward ? backward[here - count] : forward[here + count], lanes);
            continue;
        }
        if (came[0] < 0)
            return -1;
        rank_seconds(rank, &q->at->cost[((size_t)device * q->parts + part) * count + k], e->backward, seconds,
                     lanes);
        for (uint32_t l = 0; l < lanes; l++)
            end[l] = later(end[l], came[l]) + seconds[l];
        if (!e->backward && s + 1 == d->stages)
            memcpy(backward[here], end, lanes * sizeof(*end));
    }
    for (uint32_t l = 0; l < lanes && l < steps; l++) {
        double latest = 0;
        for (uint32_t r = 0; r < d->ranks; r++)
            latest = fmax(latest, free_at[r][l] + q->sync[d->stage_of[r]]);
        sum += latest / q->steps;
    }
    return sum;
}

static double part_seconds(struct group_quick *q, uint32_t part)
{
    return q->steps - part * LANES == 1 ? part_run(q, part, 1) : part_run(q, part, LANES);
}

static bool room_make(struct group_quick *q, size_t cells)
{
    if (cells <= q->room)
        return true;
    free(q->order);
    free(q->came);
    q->room = cells;
    q->order = malloc((4 * cells + QUICK_DEVICES) * sizeof(*q->order));
    q->came = malloc(2 * cells * sizeof(*q->came));
    if (!q->order || !q->came)
        q->room = 0;
    return q->room > 0;
}

static double choice_run(struct group_quick *q)
{
    size_t cells = (size_t)q->deal.stages * q->deal.micro_batches;
    double sum = 0;
    ranks_fill(q);
    for (uint32_t s = 0; s < q->c->stage_count; s++) {
        bool full = q->p->workload->method == METHOD_FULL;
        q->fetch[s] = q->sync[s] = 0;
        q->sums[s].any = false;
        if (full)
            group_state_moves(q->p, q->c, s, &q->fetch[s], &q->sync[s]);
        else
            sum_fill(q, s);
    }
    bool good = room_make(q, cells) && order_fill(q);
    for (uint32_t part = 0; part < q->parts && good; part++) {
        double seconds = part_seconds(q, part);
        good = seconds >= 0;
        sum += seconds;
    }
    return good ? sum : -1;
}

double group_quick_seconds(struct group_quick *q, const struct place_choice *choice)
{
    const struct problem *p = q->p;
    uint32_t rows = choice->micro_batch_rows, count = micro_count(p, rows);
    struct quick_loads *loads = &q->loads[rows];
    if (choice->placement != PLACE_HYBRID ||
        (p->workload->method != METHOD_LORA && p->workload->config->experts > 0) ||
        p->device_count > QUICK_DEVICES || p->cluster->node_count > QUICK_NODES ||
        (uint64_t)p->device_count * q->steps * count > QUICK_CELLS || choice->members[0].micro_count == 0 ||
        choice->in_turn || (!loads->cost && !loads_fill(q, loads, rows, count)))
        return -1;
    q->c = choice;
    q->at = loads;
    if (deal_init(&q->deal, p, choice, count, &q->err) < 0)
        return -1;
    double seconds = choice_run(q);
    deal_fini(&q->deal);
    return seconds;
}

static double blocks_seconds(const struct quick_rank *rank, const struct micro_cost *cost, bool forward,
                             bool backward)
{
    double seconds = 0;
    for (uint32_t i = 0; i < rank->class_count; i++) {
        const double *one = cost->seconds[rank->class[i]];
        seconds +=
            rank->blocks[i] * ((forward ? one[COST_FORWARD] : 0) + (backward ? one[COST_BACKWARD] : 0) +
                               (backward && rank->recompute ? one[COST_RECOMPUTE] : 0));
    }
    return seconds;
}

double group_quick_least(struct group_quick *q, const struct place_choice *choice)
{
    uint32_t count = choice->dealt ? choice->dealt_count / choice->stage_count : 0;
    double load[QUICK_DEVICES] = {0}, head[QUICK_DEVICES], tail[QUICK_DEVICES], least = 0;
    double there[QUICK_DEVICES], back[QUICK_DEVICES];
    const struct quick_loads *at = &q->loads[choice->micro_batch_rows];
    if (count == 0 || !at->cost || choice->placement != PLACE_HYBRID || choice->member_count > QUICK_DEVICES)
        return 0;
    q->c = choice;
    ranks_fill(q);
    for (uint32_t r = 0; r < choice->member_count; r++) {
        const struct micro_cost *own = &at->least[q->ranks[r].device];
        there[r] = blocks_seconds(&q->ranks[r], own, true, false);
        back[r] = blocks_seconds(&q->ranks[r], own, false, true);
        head[r] = tail[r] = INFINITY;
    }
    for (uint32_t k = 0; k < count; k++) {
        double before = 0, behind = 0; /* of the micro-batch: until it comes, and once it has left */
        for (uint32_t s = 0; s < choice->stage_count; s++) {
            uint32_t r = choice->stages[s].member_first + choice->dealt[s * count + k];
            load[r] += blocks_seconds(&q->ranks[r], &at->mean[q->ranks[r].device * count + k], true, true);
            head[r] = fmin(head[r], before);
            tail[r] = fmin(tail[r], behind);
            before += there[r];
            behind += back[r];
        }
    }
    for (uint32_t s = 0; s < choice->stage_count; s++) {
        const struct place_stage *stage = &choice->stages[s];
        for (uint32_t r = stage->member_first; r < stage->member_first + stage->member_count; r++)
            least = fmax(least, load[r] > 0 ? head[r] + load[r] + tail[r] : 0);
    }
    return least;
}
