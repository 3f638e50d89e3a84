/* A choice's order is dealt once; each priced step then passes through it. */
#include "planner/hybrid/group_quick.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/hybrid/deal.h"

#define QUICK_DEVICES 16u
#define QUICK_NODES 16u
#define QUICK_CELLS 8192u /* devices · steps · micro-batches of one size */

/* Of one size of micro-batches. */
struct quick_loads {
    struct micro_cost *cost; /* [device_count][steps][micro_batches] */
    double *bytes;           /* [steps][micro_batches] */
};

struct quick_event {
    uint32_t rank, micro_batch;
    bool backward;
};

/* How often a rank's blocks cost which of micro_cost's seconds; classes without any left out. */
struct quick_rank {
    uint32_t device, class_count, class[COST_CLASSES];
    double blocks[COST_CLASSES];
    bool recompute;
};

struct group_quick {
    const struct problem *p;
    uint32_t steps;
    struct quick_loads *loads; /* [batch_rows + 1] */
    double latency[QUICK_DEVICES][QUICK_DEVICES], rate[QUICK_DEVICES][QUICK_DEVICES];
    struct err err; /* nobody's: what fails is not known */
    /* of the choice in hand */
    const struct place_choice *c;
    const struct quick_loads *at;
    struct deal deal;
    struct quick_event *order; /* kept from choice to choice: [2 · room] */
    double *came;              /* likewise, twice [stages · micro_batches] */
    size_t room;
    struct quick_rank ranks[QUICK_DEVICES];
    double wire[QUICK_NODES][QUICK_NODES], out[QUICK_NODES], in[QUICK_NODES]; /* free from then on */
    double sync[QUICK_DEVICES];                                               /* [stages] */
};

struct group_quick *group_quick_create(const struct problem *problem, uint32_t steps_max, struct err *err)
{
    struct group_quick *q = calloc(1, sizeof(*q));
    if (q) {
        q->p = problem;
        q->steps = steps_max < problem->step_count ? steps_max : problem->step_count;
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

void group_quick_destroy(struct group_quick *q)
{
    if (!q)
        return;
    for (uint32_t rows = 0; rows <= q->p->workload->batch_rows; rows++) {
        free(q->loads[rows].cost);
        free(q->loads[rows].bytes);
    }
    free(q->loads);
    free(q->order);
    free(q->came);
    free(q);
}

static bool loads_fill(struct group_quick *q, struct quick_loads *loads, uint32_t rows, uint32_t count)
{
    const struct problem *p = q->p;
    loads->cost = calloc((size_t)p->device_count * q->steps * count + 1, sizeof(*loads->cost));
    loads->bytes = calloc((size_t)q->steps * count + 1, sizeof(*loads->bytes));
    if (!loads->cost || !loads->bytes)
        return false;
    for (uint32_t t = 0; t < q->steps; t++) {
        uint32_t step = problem_step_priced(p, t, q->steps);
        for (uint32_t k = 0; k < count; k++) {
            struct cost_load load = problem_load(p, step, k * rows, (k + 1) * rows);
            loads->bytes[t * count + k] = floor(p->bytes_per_token * load.tokens);
            for (uint32_t d = 0; d < p->device_count && load.rows > 0; d++) {
                if (p->usable[d])
                    micro_cost_load(&loads->cost[((size_t)d * q->steps + t) * count + k], p, d, &load);
            }
        }
    }
    return true;
}

/* The order of begins as dealt: nothing in it comes before what it waits for. */
static bool order_fill(struct group_quick *q)
{
    const struct deal *d = &q->deal;
    uint32_t next[QUICK_DEVICES], total = d->first[d->ranks];
    memcpy(next, d->first, d->ranks * sizeof(*next));
    for (uint32_t n = 0; n < d->turn_count; n++) {
        const struct deal_event *e = &d->events[next[d->turns[n]]++];
        q->order[n] = (struct quick_event){d->turns[n], e->micro_batch, e->backward};
    }
    if (d->turn_count == total)
        return true;
    for (uint32_t n = 0; n < total; n++) {
        uint32_t best = UINT32_MAX;
        double least = INFINITY;
        for (uint32_t r = 0; r < d->ranks; r++) {
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
        const struct deal_event *e = &d->events[next[best]++];
        q->order[n] = (struct quick_event){best, e->micro_batch, e->backward};
    }
    return true;
}

static double arrival(struct group_quick *q, uint32_t from, uint32_t to, double bytes, double at)
{
    const struct cluster *cluster = q->p->cluster;
    uint32_t a = cluster->devices[from].node, b = cluster->devices[to].node;
    double latency = q->latency[from][to], rate = q->rate[from][to], start = at;
    if (bytes <= 0)
        return at;
    if (a != b) {
        double leaves = cluster->nodes[a].nic_bytes_per_s, comes = cluster->nodes[b].nic_bytes_per_s;
        start = later(at, later(q->wire[a][b], later(q->out[a], q->in[b])));
        q->wire[a][b] = start + bytes / rate;
        q->out[a] = leaves > 0 ? start + bytes / leaves : 0;
        q->in[b] = comes > 0 ? start + bytes / comes : 0;
    }
    return start + bytes / rate + latency;
}

/* Seconds of summing a stage's gradients over its members' ring. */
static double sync_seconds(const struct group_quick *q, const struct place_stage *stage)
{
    double bytes = 0, slowest = 0, delay = 0, n = stage->member_count;
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        bytes += 4 * (double)q->p->blocks.blocks[b].lora_params;
    for (uint32_t m = 0; m < stage->member_count && stage->member_count > 1; m++) {
        uint32_t next = (m + 1) % stage->member_count;
        uint32_t from = q->c->members[stage->member_first + m].device;
        uint32_t to = q->c->members[stage->member_first + next].device;
        slowest = fmax(slowest, 1 / q->rate[from][to]);
        delay = fmax(delay, q->latency[from][to]);
    }
    return stage->member_count > 1 ? 2 * ((n - 1) / n * bytes * slowest + (n - 1) * delay) : 0;
}

static void ranks_fill(struct group_quick *q)
{
    for (uint32_t r = 0; r < q->c->member_count; r++) {
        const struct place_stage *stage = &q->c->stages[q->deal.stage_of[r]];
        struct quick_rank *rank = &q->ranks[r];
        *rank =
            (struct quick_rank){.device = q->c->members[r].device, .recompute = q->c->members[r].recompute};
        for (uint32_t cls = 0; cls < COST_CLASSES; cls++) {
            uint32_t blocks = q->p->prefix[stage->block_end][cls] - q->p->prefix[stage->block_begin][cls];
            if (blocks == 0)
                continue;
            rank->blocks[rank->class_count] = blocks;
            rank->class[rank->class_count++] = cls;
        }
    }
}

static double rank_seconds(const struct quick_rank *rank, const struct micro_cost *cost, bool backward)
{
    double seconds = 0, again = 0;
    for (uint32_t i = 0; i < rank->class_count; i++) {
        const double *one = cost->seconds[rank->class[i]];
        seconds += rank->blocks[i] * one[backward ? COST_BACKWARD : COST_FORWARD];
        again += rank->blocks[i] * one[COST_RECOMPUTE];
    }
    return backward && rank->recompute ? seconds + again : seconds;
}

/* One priced step through the order; negative when the order does not hold. */
static double step_seconds(struct group_quick *q, uint32_t t)
{
    const struct deal *d = &q->deal;
    uint32_t count = d->micro_batches, total = d->first[d->ranks];
    size_t cells = (size_t)d->stages * count;
    double free_at[QUICK_DEVICES] = {0}, *forward = q->came, *backward = q->came + cells, latest = 0;
    memset(q->wire, 0, sizeof(q->wire));
    memset(q->out, 0, sizeof(q->out));
    memset(q->in, 0, sizeof(q->in));
    for (size_t i = 0; i < 2 * cells; i++)
        q->came[i] = i < count ? 0 : -1;
    for (uint32_t n = 0; n < total; n++) {
        const struct quick_event *e = &q->order[n];
        const struct quick_rank *rank = &q->ranks[e->rank];
        uint32_t s = d->stage_of[e->rank], k = e->micro_batch, device = rank->device;
        size_t here = (size_t)s * count + k;
        double came = e->backward ? backward[here] : forward[here];
        if (came < 0)
            return -1;
        const struct micro_cost *cost = &q->at->cost[((size_t)device * q->steps + t) * count + k];
        double end = later(free_at[e->rank], came) + rank_seconds(rank, cost, e->backward);
        double bytes = q->at->bytes[t * count + k];
        free_at[e->rank] = end;
        if (!e->backward && s + 1 == d->stages)
            backward[here] = end;
        else if (!e->backward)
            forward[here + count] = arrival(q, device, q->ranks[deal_owner(d, s + 1, k)].device, bytes, end);
        else if (s > 0)
            backward[here - count] = arrival(q, device, q->ranks[deal_owner(d, s - 1, k)].device, bytes, end);
    }
    for (uint32_t r = 0; r < d->ranks; r++)
        latest = fmax(latest, free_at[r] + q->sync[d->stage_of[r]]);
    return latest;
}

static bool room_make(struct group_quick *q, size_t cells)
{
    if (cells <= q->room)
        return true;
    free(q->order);
    free(q->came);
    q->room = cells;
    q->order = malloc(2 * cells * sizeof(*q->order));
    q->came = malloc(2 * cells * sizeof(*q->came));
    if (!q->order || !q->came)
        q->room = 0;
    return q->room > 0;
}

static double choice_run(struct group_quick *q)
{
    size_t cells = (size_t)q->deal.stages * q->deal.micro_batches;
    double sum = 0;
    bool good = room_make(q, cells) && order_fill(q);
    ranks_fill(q);
    for (uint32_t s = 0; s < q->c->stage_count; s++)
        q->sync[s] = sync_seconds(q, &q->c->stages[s]);
    for (uint32_t t = 0; t < q->steps && good; t++) {
        double seconds = step_seconds(q, t);
        good = seconds >= 0;
        sum += seconds / q->steps;
    }
    return good ? sum : -1;
}

double group_quick_seconds(struct group_quick *q, const struct place_choice *choice)
{
    const struct problem *p = q->p;
    uint32_t rows = choice->micro_batch_rows, count = micro_count(p, rows);
    struct quick_loads *loads = &q->loads[rows];
    if (choice->placement != PLACE_HYBRID || p->workload->method != METHOD_LORA ||
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
