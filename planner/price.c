/* What each instruction of a plan costs on the cluster: the bridge from cost tables to the simulator. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/placement.h"

int price_init(struct price *price, const struct problem *problem, const struct plan *plan, struct err *err)
{
    *price = (struct price){.problem = problem, .plan = plan};
    price->device = calloc((size_t)plan->rank_count + 1, sizeof(*price->device));
    if (!price->device)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        price->device[r] = cluster_device_find(problem->cluster, plan->ranks[r].device);
        if (price->device[r] == UINT32_MAX) {
            err_set(err, ERR_INVALID, "plan: rank %u is on %s, which the cluster does not have", r,
                    plan->ranks[r].device);
            price_fini(price);
            return -1;
        }
    }
    return 0;
}

void price_fini(struct price *price)
{
    free(price->device);
    price->device = NULL;
}

static struct cost_load instr_load(const struct price *price, const struct instr *x)
{
    uint32_t begin, end;
    uint32_t rows = price->problem->steps[price->step].rows;
    if (x->micro_batch < 0)
        return (struct cost_load){0};
    plan_micro_batch_rows(price->plan, (uint32_t)x->micro_batch, rows, &begin, &end);
    uint32_t last = x->row_end < end - begin ? begin + x->row_end : end;
    uint32_t first = begin + x->row_begin < last ? begin + x->row_begin : last;
    return problem_load(price->problem, price->step, first, last);
}

static double compute_seconds(void *context, uint32_t rank, const struct instr *x)
{
    const struct price *price = context;
    const struct problem *p = price->problem;
    uint32_t device = price->device[rank];
    struct cost_load load;
    switch (x->op) {
    case OP_FORWARD:
        load = instr_load(price, x);
        return problem_seconds(p, device, x->block_begin, x->block_end, COST_FORWARD, &load);
    case OP_BACKWARD:
    case OP_BACKWARD_INPUT:
    case OP_BACKWARD_WEIGHT: {
        load = instr_load(price, x);
        double seconds = problem_seconds(p, device, x->block_begin, x->block_end, COST_BACKWARD, &load);
        if (x->op != OP_BACKWARD)
            seconds /= 2;
        if (x->flags & INSTR_RECOMPUTE)
            seconds += problem_seconds(p, device, x->block_begin, x->block_end, COST_RECOMPUTE, &load);
        return seconds;
    }
    case OP_STEP: {
        const struct plan_rank *r = &price->plan->ranks[rank];
        return problem_step_seconds(p, device, r->block_begin, r->block_end);
    }
    default:
        return 0;
    }
}

static double transfer_bytes(void *context, uint32_t rank, const struct instr *x)
{
    const struct price *price = context;
    const struct plan_slot *slot = &price->plan->ranks[rank].slots[x->slot_in];
    struct cost_load load = instr_load(price, x);
    if (x->micro_batch >= 0 && load.rows <= 0)
        return -1;
    return (double)slot_bytes(slot, (uint64_t)load.tokens, (uint64_t)load.rows);
}

static void wire_between(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    const struct price *price = context;
    bool emulated;
    const struct cluster *cluster = price->problem->cluster;
    uint32_t a = cluster->devices[price->device[from]].node, b = cluster->devices[price->device[to]].node;
    cluster_link(cluster, price->device[from], price->device[to], &wire->latency_s, &wire->bytes_per_s,
                 &emulated);
    /* one wire out of each node to each other one, shared by its ranks; inside a node each pair has its own
     */
    wire->number = a == b ? from * price->plan->rank_count + to : a * cluster->node_count + b;
    if (a != b && cluster->nodes[a].nic_bytes_per_s > 0)
        wire->number = a * cluster->node_count + a;
    wire->number += a == b ? cluster->node_count * cluster->node_count : 0;
    if (price->free_links) {
        wire->latency_s = 0;
        wire->bytes_per_s = INFINITY;
    }
}

/* Worst latency and rate over neighbours in a group's order. */
static void group_links(const struct price *price, const struct plan_group *group, double *latency_s,
                        double *bytes_per_s)
{
    *latency_s = 0;
    *bytes_per_s = INFINITY;
    for (uint32_t i = 0; i < group->rank_count && group->rank_count > 1; i++) {
        uint32_t a = price->device[group->ranks[i]],
                 b = price->device[group->ranks[(i + 1) % group->rank_count]];
        double latency, rate;
        bool emulated;
        cluster_link(price->problem->cluster, a, b, &latency, &rate, &emulated);
        *latency_s = latency > *latency_s ? latency : *latency_s;
        *bytes_per_s = rate < *bytes_per_s ? rate : *bytes_per_s;
    }
}

static double collective_seconds(void *context, const struct plan_group *group, uint32_t rank,
                                 const struct instr *x)
{
    const struct price *price = context;
    double latency, rate, n = group->rank_count;
    if (group->rank_count < 2 || price->free_links)
        return 0;
    group_links(price, group, &latency, &rate);
    const struct plan_rank *r = &price->plan->ranks[rank];
    const struct plan_slot *slot = &r->slots[x->slot_in >= 0 ? x->slot_in : x->slot_out];
    double bytes = (double)slot->bytes_bound, depth = ceil(log2(n + 1)) - 1;
    bool small = slot->kind == SLOT_STEP_SCALARS || slot->kind == SLOT_NORM_SCALAR ||
                 slot->kind == SLOT_BARRIER || slot->kind == SLOT_TOKEN;
    if (small) /* up and down a tree */
        return (x->op == OP_ALL_REDUCE ? 2 : 1) * depth * (latency + bytes / rate);
    double share = (n - 1) / n * bytes / rate + (n - 1) * latency; /* one way round a ring */
    return x->op == OP_ALL_REDUCE ? 2 * share : share;
}

struct sim_costs price_costs(struct price *price)
{
    uint32_t nodes = price->problem->cluster->node_count, ranks = price->plan->rank_count;
    return (struct sim_costs){.context = price,
                              .compute_s = compute_seconds,
                              .bytes = transfer_bytes,
                              .wire = wire_between,
                              .collective_s = collective_seconds,
                              .wire_count = nodes * nodes + ranks * ranks};
}

static void costs_fill(const struct price *price, struct plan *plan, double step_s, const double *busy)
{
    const struct problem *p = price->problem;
    struct plan_costs *c = &plan->costs;
    double by_origin[ORIGIN_COUNT] = {0}, all = 0;
    c->step_s = step_s;
    c->tokens_per_step = p->mean_step.tokens;
    c->labelled_per_step = p->mean_step.labelled;
    c->sum_sq_per_step = p->mean_step.sum_sq;
    c->tokens_per_s = step_s > 0 ? p->mean_step.tokens / step_s : 0;
    c->links_emulated = false;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        plan->ranks[r].busy_s = busy[r];
        by_origin[p->costs[price->device[r]].origin] += busy[r];
        all += busy[r];
        double latency, rate;
        bool emulated = false;
        if (r > 0)
            cluster_link(p->cluster, price->device[r - 1], price->device[r], &latency, &rate, &emulated);
        c->links_emulated |= emulated;
    }
    c->share_measured = all > 0 ? by_origin[ORIGIN_MEASURED] / all : 0;
    c->share_imported = all > 0 ? by_origin[ORIGIN_IMPORTED] / all : 0;
    c->share_estimated = all > 0 ? by_origin[ORIGIN_ESTIMATED] / all : 0;
}

static int steps_run(struct price *price, struct sim *sim, uint32_t count, double *step_s, double *busy,
                     struct err *err)
{
    struct sim_costs costs = price_costs(price);
    uint32_t ranks = price->plan->rank_count, steps = price->problem->step_count;
    struct sim_rank *sums = calloc(ranks, sizeof(*sums));
    if (!sums)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    int result = 0;
    *step_s = 0;
    for (uint32_t s = 0; s < count && result == 0; s++) {
        double seconds = 0;
        price->step = count > 1 ? (uint32_t)((uint64_t)s * (steps - 1) / (count - 1)) : 0;
        result = sim_run(sim, &costs, &seconds, sums, NULL, 0, err);
        *step_s += seconds / count;
        for (uint32_t r = 0; r < ranks; r++)
            busy[r] += sums[r].compute_s / count;
    }
    free(sums);
    return result;
}

int price_plan(const struct problem *problem, struct plan *plan, uint32_t steps_max, double *step_s,
               struct err *err)
{
    struct price price;
    struct sim *sim = NULL;
    uint32_t count = steps_max < problem->step_count ? steps_max : problem->step_count;
    if (price_init(&price, problem, plan, err) < 0)
        return -1;
    double *busy = calloc((size_t)plan->rank_count + 1, sizeof(*busy));
    int result =
        busy ? sim_create(plan, PROGRAM_TRAIN, &sim, err) : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = steps_run(&price, sim, count ? count : 1, step_s, busy, err);
    if (result == 0)
        costs_fill(&price, plan, *step_s, busy);
    sim_destroy(sim);
    free(busy);
    price_fini(&price);
    return result;
}
