/* Enumerates all candidates of the placements that give rows of a batch to devices which each run the whole
 * model: single, data (with replicas, or with a sharded state) and server. */
#ifndef TEST_ORACLE_ROWS_H
#define TEST_ORACLE_ROWS_H

#include "planner/oracle.h"

#define SHARE_LEVELS                                                                                         \
    9u /* limits on the ring's seconds per byte that the oracle tries, evenly spaced from the least          \
          possible to the slowest link's, at which no share is limited */

static inline void one_stage(struct oracle *o)
{
    o->stages[0] = (struct candidate_stage){.block_end = o->p->block_count,
                                            .kind = kinds[o->c.placement]->stage_kind,
                                            .member_count = o->c.member_count};
    o->c.stage_count = 1;
    o->c.micro_batch_rows = 1;
    for (uint32_t m = 0; m < o->c.member_count; m++)
        if (o->members[m].rows > o->c.micro_batch_rows)
            o->c.micro_batch_rows = o->members[m].rows;
}

/* --- single and replicas: members one after the other, each with its rows --- */

static inline void replica_add(struct oracle *o, uint32_t row)
{
    const struct problem *p = o->p;
    uint32_t batch = p->workload->batch_rows, m = o->c.member_count;
    bool single = o->c.placement == PLACE_SINGLE;
    if (row == batch && m >= (single ? 1 : 2)) {
        one_stage(o);
        leaf(o);
    }
    if (row == batch || m == p->device_count || (single && m))
        return;
    for (uint32_t d = 0; d < p->device_count; d++) {
        for (uint32_t rows = single ? batch : 1; rows <= batch - row && !o->taken[d]; rows++) {
            for (uint32_t way = 0; way < 2 * rows; way++) {
                uint32_t micro = 1 + way / 2, recompute = way % 2;
                if ((rows % micro && !single) || !allowed(p, (int)recompute) ||
                    hopeless(o, work_mean(p, d, recompute, row, rows, micro)))
                    continue;
                o->members[m] = (struct member){.device = d,
                                                .rows = micro,
                                                .count = single ? 0 : rows / micro,
                                                .state_share = 1,
                                                .window = 1,
                                                .recompute = recompute};
                o->taken[d] = true;
                o->c.member_count++;
                replica_add(o, row + rows);
                o->c.member_count--;
                o->taken[d] = false;
            }
        }
    }
}

/* --- shards and server: members with rows or none --- */

struct layered_walk {
    struct oracle *o;
    bool server, full;
    double work[ORACLE_DEVICES];
};

static inline double bytes_all(const struct problem *p, bool gradients)
{
    double bytes = 0;
    for (int32_t b = 0; b < p->block_count; b++)
        bytes += gradients ? (double)memory_gradient_bytes(p, b, b + 1)
                           : (double)memory_gathered_bytes(p, b, b + 1);
    return bytes;
}

/* Returns a lower bound, over all divisions of the state, on the seconds per byte of the state that the
 * ring's slowest link needs. */
static inline double ring_level(const struct oracle *o)
{
    double rates = 0, n = o->c.member_count;
    for (uint32_t m = 0; m < o->c.member_count; m++) {
        double latency, rate;
        link_of(o, o->members[m].device, o->members[(m + 1) % o->c.member_count].device, &latency, &rate);
        rates += rate;
    }
    return (n - 1) / rates;
}

/* Returns a lower bound on a step's seconds with a sharded state: the ring gathers block 0 before any member
 * computes and passes its gradients on after all have; nor is a step shorter than all transfers of the ring.
 */
static inline double shards_lower(const struct layered_walk *w, double level)
{
    const struct problem *p = w->o->p;
    double first = level * (double)memory_gathered_bytes(p, 0, 1), most = 0;
    double last = w->full ? level * (double)memory_gradient_bytes(p, 0, 1) : 0;
    double moved = level * (bytes_all(p, false) + (w->full ? bytes_all(p, true) : 0));
    for (uint32_t m = 0; m < w->o->c.member_count; m++)
        most = fmax(most, w->work[m]);
    return fmax(first + most + last, moved);
}

/* Writes the shares between floors and rooms with which the slowest optimiser step is shortest. Returns false
 * if no such shares sum to 1. */
static inline bool shares_fill(const double *floors, const double *rooms, const double *steps, uint32_t n,
                               double *shares)
{
    double high = 0, least = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (floors[i] > rooms[i])
            return false;
        least += floors[i];
        most += rooms[i];
        high = fmax(high, steps[i]);
    }
    if (least > 1 || most < 1)
        return false;
    for (double low = 0, turn = 0; turn < 100; turn++) {
        double level = (low + high) / 2, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            shares[i] = fmin(rooms[i], fmax(floors[i], steps[i] > 0 ? level / steps[i] : 1));
            sum += shares[i];
        }
        if (sum > 1)
            high = level;
        else
            low = level;
    }
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += shares[i];
    for (uint32_t i = 0; i < n; i++) { /* the bisection's remainder goes to members with room */
        double more = fmax(floors[i] - shares[i], fmin(rooms[i] - shares[i], 1 - sum));
        shares[i] += more;
        sum += more;
    }
    return fabs(sum - 1) < 1e-12;
}

/* Returns the seconds per byte of the state on the slowest link of the ring with the given shares, for
 * gathering weights or for scattering gradients, whichever is less. */
static inline double shares_level(const struct oracle *o, const double *shares)
{
    uint32_t n = o->c.member_count;
    double gather = 0, scatter = 0;
    for (uint32_t i = 0; i < n; i++) {
        double latency, rate;
        link_of(o, o->members[i].device, o->members[(i + 1) % n].device, &latency, &rate);
        gather = fmax(gather, (1 - shares[(i + 1) % n]) / rate);
        scatter = fmax(scatter, (1 - shares[i]) / rate);
    }
    return fmin(gather, scatter);
}

/* With the rows and devices chosen, tries SHARE_LEVELS limits on the ring's seconds per byte, and for each
 * the shares with the shortest optimiser step. */
static inline void shares_walk(struct layered_walk *w)
{
    struct oracle *o = w->o;
    const struct problem *p = o->p;
    uint32_t n = o->c.member_count;
    double rooms[ORACLE_DEVICES], steps[ORACLE_DEVICES], rates[ORACLE_DEVICES], shares[ORACLE_DEVICES];
    double state = layered_state_bytes(p), least = ring_level(o), most = 0;
    struct layered_buffers buffers = layered_buffers(p, false, o->c.gathered_layers);
    for (uint32_t i = 0; i < n; i++)
        rates[i] = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        struct member *x = &o->members[i];
        struct memory_need need;
        double latency, rate;
        x->state_share = 0;
        layered_need(p, &buffers, LAYERED_MEMBER, x, (struct flat_share){0}, &need);
        rooms[i] =
            ((double)limit_of(p, x->device) - (double)need.total - (double)layered_state_slack(p)) / state;
        rooms[i] = fmin(1, rooms[i]);
        if (rooms[i] < 0)
            return;
        steps[i] = w->full ? problem_step_seconds(p, x->device, 0, p->block_count) : 0;
        link_of(o, x->device, o->members[(i + 1) % n].device, &latency, &rate);
        rates[i] = fmin(rates[i], rate);
        rates[(i + 1) % n] = fmin(rates[(i + 1) % n], rate);
        most = fmax(most, 1 / rate);
    }
    for (uint32_t l = 0; l < SHARE_LEVELS; l++) {
        double level = least + (most - least) * l / (SHARE_LEVELS - 1), floors[ORACLE_DEVICES];
        for (uint32_t i = 0; i < n; i++)
            floors[i] = fmax(0, 1 - level * rates[i] * (1 + 1e-12));
        if (!shares_fill(floors, rooms, steps, n, shares) ||
            hopeless(o, shards_lower(w, shares_level(o, shares))))
            continue;
        for (uint32_t i = 0; i < n; i++)
            o->members[i].state_share = shares[i];
        leaf(o);
    }
}

/* Returns a lower bound on a step's seconds for member m of a parameter server: a worker receives its first
 * weights before it computes, and sends its last gradients afterwards. */
static inline double worker_lower(const struct layered_walk *w, uint32_t m)
{
    const struct problem *p = w->o->p;
    uint32_t holder = w->o->members[0].device, device = w->o->members[m].device;
    double in_latency, in_rate, out_latency, out_rate;
    double in = (double)memory_gradient_bytes(p, 0, p->block_count), out = in, all_in = 0, all_out = 0;
    if (m == 0 || w->o->members[m].count == 0)
        return w->work[m];
    if (w->full) {
        in = (double)memory_gathered_bytes(p, 0, 1);
        out = (double)memory_gradient_bytes(p, 0, 1);
        all_in = bytes_all(p, false);
        all_out = bytes_all(p, true);
    }
    link_of(w->o, holder, device, &in_latency, &in_rate);
    link_of(w->o, device, holder, &out_latency, &out_rate);
    return fmax(in_latency + in / in_rate + w->work[m] + out_latency + out / out_rate,
                fmax(all_in / in_rate, all_out / out_rate));
}

static inline void layered_leaf(struct layered_walk *w)
{
    struct oracle *o = w->o;
    if (o->c.member_count < 2)
        return;
    one_stage(o);
    if (!w->server) {
        if (!hopeless(o, shards_lower(w, ring_level(o))))
            shares_walk(w);
        return;
    }
    leaf(o);
}

static inline void layered_add(struct layered_walk *w, uint32_t row)
{
    struct oracle *o = w->o;
    const struct problem *p = o->p;
    uint32_t batch = p->workload->batch_rows, m = o->c.member_count;
    if (row == batch)
        layered_leaf(w);
    if (m == p->device_count)
        return;
    for (uint32_t d = 0; d < p->device_count; d++) {
        bool idles = w->server ? m == 0 : w->full;
        for (uint32_t rows = idles ? 0 : 1; rows <= batch - row && !o->taken[d]; rows++) {
            for (uint32_t way = 0; way < (rows ? 2 * rows : 1); way++) {
                uint32_t micro = 1 + way / 2, recompute = rows ? way % 2 : 0;
                if (rows % micro || (rows && !allowed(p, (int)recompute)))
                    continue;
                uint32_t count = rows / micro;
                w->work[m] = work_mean(p, d, recompute, row, rows, micro);
                o->members[m] = (struct member){.device = d,
                                                .rows = micro,
                                                .count = count,
                                                .state_share = w->server && m == 0,
                                                .window = w->full && count ? count : 1,
                                                .recompute = recompute};
                if (!w->full && !w->server)
                    o->members[m].window = count;
                if (hopeless(o, w->server ? worker_lower(w, m) : w->work[m]))
                    continue;
                o->taken[d] = true;
                o->c.member_count++;
                layered_add(w, row + rows);
                o->c.member_count--;
                o->taken[d] = false;
            }
        }
    }
}

/* Tries all candidates of one kind, data parallelism with sharded state (with LoRA: a sharded frozen base) or
 * the parameter server, with every number of buffers for gathered layers. */
static inline void layered_run(struct oracle *o, enum plan_placement kind)
{
    struct layered_walk w = {.o = o, .server = kind == PLACE_SERVER, .full = full_of(o->p)};
    bool at_once = w.server && !w.full;
    uint32_t ring = layers_most(o->p);
    if (o->p->workload->config->experts && w.full)
        return;
    for (uint32_t layers = at_once ? 1 : ring < 2 ? ring : 2; layers <= (at_once ? 1 : ring); layers++) {
        candidate_start(o, kind);
        o->c.gathered_layers = layers;
        layered_add(&w, 0);
    }
}

static inline void single_run(struct oracle *o)
{
    candidate_start(o, PLACE_SINGLE);
    replica_add(o, 0);
}

static inline void data_run(struct oracle *o)
{
    if (!full_of(o->p)) {
        candidate_start(o, PLACE_DATA);
        replica_add(o, 0);
    }
    layered_run(o, PLACE_DATA);
}

static inline void server_run(struct oracle *o)
{
    layered_run(o, PLACE_SERVER);
}

#endif
