/* Computes the cost of each instruction of a plan on the cluster. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/expert_price.h"
#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/cost/price.h"
#include "planner/cost/taught.h"
#include "planner/cost/tensor_cost.h"
#include "planner/simulate/simulate.h"

/* Refuses a plan in which two ranks exchange anything whose nodes cannot connect to each other. */
static int check_reach(const struct price *price, struct err *err)
{
    const struct cluster *cluster = price->problem->cluster;
    const struct plan *plan = price->plan;
    if (!cluster->some_unreachable)
        return 0;
    bool *peers = calloc(plan->rank_count, sizeof(*peers));
    int result = peers ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        plan_rank_peers(plan, r, peers);
        for (uint32_t q = 0; q < plan->rank_count && result == 0; q++)
            if (peers[q] && cluster_link(cluster, price->device[r], price->device[q]).unreachable)
                result = err_set(err, ERR_NOFIT, "plan: %s and %s cannot connect to each other",
                                 plan->ranks[r].device, plan->ranks[q].device);
    }
    free(peers);
    return result;
}

/* Returns what a token's sum takes of the rank's computing, which is beside it where micro-batches are worked
 * on in turns: then the sums of one half of a block come one after the other. */
static double host_seconds(const struct price *price, uint32_t rank)
{
    const struct plan_rank *r = &price->plan->ranks[rank];
    const struct program *program = &r->programs[PROGRAM_TRAIN];
    const struct instr *before = NULL;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (x->op != INSTR_ALL_REDUCE || x->slot_in < 0 || r->slots[x->slot_in].kind != SLOT_PARTIAL)
            continue;
        if (before && before->block_begin == x->block_begin && before->tag == x->tag &&
            before->micro_batch != x->micro_batch)
            return tensor_host_seconds(price->problem, price->device[rank],
                                       price->plan->groups[x->group].rank_count,
                                       tensor_token_bytes(price->problem));
        before = x;
    }
    return 0;
}

int price_init(struct price *price, const struct problem *problem, const struct plan *plan, struct err *err)
{
    bool experts = false;
    *price = (struct price){.problem = problem, .plan = plan};
    price->device = calloc((size_t)plan->rank_count + 1, sizeof(*price->device));
    price->groups = calloc((size_t)plan->group_count + 1, sizeof(*price->groups));
    price->host_s = calloc((size_t)plan->rank_count + 1, sizeof(*price->host_s));
    int result = price->device && price->groups && price->host_s
                     ? 0
                     : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        price->device[r] = cluster_device_find(problem->cluster, plan->ranks[r].device);
        if (price->device[r] == UINT32_MAX)
            result = err_set(err, ERR_INVALID, "plan: rank %u is on %s, which the cluster does not have", r,
                             plan->ranks[r].device);
        else if (problem->lacks[price->device[r]])
            result = err_set(err, ERR_NOFIT, "plan: rank %u is on %s, which cannot be priced: %s", r,
                             plan->ranks[r].device, problem->lacks[price->device[r]]);
        experts |= plan->ranks[r].expert_count > 0;
        if (result == 0 && plan->ranks[r].tensor.column_end)
            price->host_s[r] = host_seconds(price, r);
    }
    if (result == 0)
        result = check_reach(price, err);
    if (result == 0 && experts)
        result = expert_price_init(&price->expert, problem, plan, price->device, err);
    if (result < 0)
        price_fini(price);
    return result;
}

void price_fini(struct price *price)
{
    free(price->device);
    free(price->groups);
    free(price->host_s);
    expert_price_fini(price->expert);
    price->device = NULL;
    price->groups = NULL;
    price->host_s = NULL;
    price->expert = NULL;
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

static double group_share(const struct plan_group *group, uint32_t rank)
{
    int position = plan_group_position(group, rank);
    return group->shares && position >= 0 ? group->shares[position] : 1.0 / group->rank_count;
}

/* Returns the bytes of weights or gradients that an instruction moves for its blocks; negative: the
 * instruction moves something else. */
static double blocks_bytes(const struct problem *p, const struct plan *plan, const struct instr *x)
{
    bool chain = plan->placement == PLACE_PIPELINE || plan->placement == PLACE_HYBRID;
    bool parameters = x->tag == TAG_PARAMETERS, lora = p->workload->method == METHOD_LORA;
    bool moves = x->op == INSTR_ALL_GATHER || x->op == INSTR_REDUCE_SCATTER || x->op == INSTR_PUSH;
    if (chain && x->op == INSTR_ALL_GATHER && x->block_begin == 0 && x->block_end == 1)
        return (double)memory_table_bytes(p);
    if (!moves || x->block_end <= x->block_begin || (!parameters && x->tag != TAG_PARAMETER_GRADIENTS))
        return -1;
    if (parameters && (x->op == INSTR_ALL_GATHER || !lora))
        return (double)memory_gathered_bytes(p, x->block_begin, x->block_end);
    return (double)memory_trained_bytes(p, x->block_begin, x->block_end);
}

static bool loads_equal(const struct cost_load *a, const struct cost_load *b)
{
    return a->rows == b->rows && a->tokens == b->tokens && a->sum_sq == b->sum_sq &&
           a->labelled == b->labelled;
}

/* Returns the seconds of a FORWARD or BACKWARD of whole blocks. The last result of each is cached. */
static double price_pass_seconds(struct price *price, uint32_t rank, const struct instr *x)
{
    const struct problem *p = price->problem;
    uint32_t device = price->device[rank];
    bool backward = x->op == INSTR_BACKWARD;
    struct price_again *again = &price->again[backward];
    struct cost_load load = instr_load(price, x);
    if (again->known && again->rank == rank && again->block_begin == x->block_begin &&
        again->block_end == x->block_end && again->flags == x->flags && loads_equal(&again->load, &load))
        return again->seconds;
    double seconds = problem_seconds(p, device, x->block_begin, x->block_end,
                                     backward ? COST_BACKWARD : COST_FORWARD, &load);
    int32_t again_end = price->plan->ranks[rank].recompute_end;
    again_end = again_end > 0 && again_end < x->block_end ? again_end : x->block_end;
    if (backward && (x->flags & FLAG_RECOMPUTE) && again_end > x->block_begin)
        seconds += problem_seconds(p, device, x->block_begin, again_end, COST_RECOMPUTE, &load);
    *again = (struct price_again){true, rank, x->block_begin, x->block_end, x->flags, load, seconds};
    return seconds;
}

static double compute_seconds(void *context, uint32_t rank, const struct instr *x)
{
    struct price *price = context;
    const struct problem *p = price->problem;
    uint32_t device = price->device[rank];
    struct cost_load load;
    if (price->expert &&
        (x->op == INSTR_ATTENTION || x->op == INSTR_ROUTE || x->op == INSTR_EXPERTS || x->op == INSTR_STEP)) {
        load = instr_load(price, x);
        return expert_compute_seconds(price->expert, rank, x, &load);
    }
    if (price->plan->ranks[rank].tensor.column_end) { /* the rank keeps parts of matrices */
        load = instr_load(price, x);
        return tensor_instr_seconds(p, device, &price->plan->ranks[rank], x, &load) +
               ((x->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF)) && !price->free_links
                    ? price->host_s[rank] * load.tokens
                    : 0);
    }
    switch (x->op) {
    case INSTR_FORWARD:
    case INSTR_BACKWARD:
        return price_pass_seconds(price, rank, x);
    case INSTR_BACKWARD_INPUT:
    case INSTR_BACKWARD_WEIGHT: {
        load = instr_load(price, x);
        double seconds = problem_seconds(p, device, x->block_begin, x->block_end, COST_BACKWARD, &load);
        double share = micro_weight_share(p, x->block_begin, x->block_end, &load);
        seconds *= x->op == INSTR_BACKWARD_WEIGHT ? share : 1 - share;
        if (x->flags & FLAG_RECOMPUTE)
            seconds += problem_seconds(p, device, x->block_begin, x->block_end, COST_RECOMPUTE, &load);
        return seconds;
    }
    case INSTR_STEP: {
        const struct plan_rank *r = &price->plan->ranks[rank];
        double seconds = r->range_count ? 0 : problem_step_seconds(p, device, r->block_begin, r->block_end);
        for (uint32_t i = 0; i < r->range_count; i++)
            seconds += problem_step_seconds(p, device, r->ranges[i].begin, r->ranges[i].end);
        return x->group < 0 ? seconds : seconds * group_share(&price->plan->groups[x->group], rank);
    }
    default:
        return 0;
    }
}

static double price_transfer_bytes(void *context, uint32_t rank, const struct instr *x)
{
    const struct price *price = context;
    const struct plan_slot *slot = &price->plan->ranks[rank].slots[x->slot_in];
    struct cost_load load = instr_load(price, x);
    double blocks = blocks_bytes(price->problem, price->plan, x);
    if (x->micro_batch >= 0 && load.rows <= 0)
        return -1;
    return blocks >= 0 ? blocks : (double)slot_bytes(slot, (uint64_t)load.tokens, (uint64_t)load.rows);
}

static void price_wire_between(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    const struct price *price = context;
    const struct cluster *cluster = price->problem->cluster;
    uint64_t a = cluster->devices[price->device[from]].node, b = cluster->devices[price->device[to]].node;
    struct cluster_link link = cluster_link(cluster, price->device[from], price->device[to]);
    *wire = (struct sim_wire){.latency_s = link.latency_s, .bytes_per_s = link.bytes_per_s};
    if (price->free_links)
        *wire = (struct sim_wire){.bytes_per_s = INFINITY};
    if (a == b || price->free_links) /* devices of one node: every pair has a link that no other pair uses */
        return;
    /* Each node has one wire to every other node, and its network card is two resources, one for each
     * direction. */
    wire->shared[wire->shared_count].number = a * CLUSTER_NODES_MAX + b;
    wire->shared[wire->shared_count++].bytes_per_s = wire->bytes_per_s;
    for (int receives = 0; receives < 2; receives++) {
        uint64_t node = receives ? b : a;
        if (cluster->nodes[node].nic_bytes_per_s <= 0)
            continue;
        wire->shared[wire->shared_count].number =
            (uint64_t)CLUSTER_NODES_MAX * CLUSTER_NODES_MAX + 2 * node + (uint64_t)receives;
        wire->shared[wire->shared_count++].bytes_per_s = cluster->nodes[node].nic_bytes_per_s;
    }
}

/* Returns the figures of a group's ring, which are found on first use. */
static const struct ring_figures *group_ring(struct price *price, const struct plan_group *group)
{
    struct price_group *own = &price->groups[group - price->plan->groups];
    if (!own->known)
        own->ring = ring_figures(price->problem->cluster, group->ranks, price->device, group->shares,
                                 group->rank_count);
    own->known = true;
    return &own->ring;
}

/* Returns the seconds that scalars travel from this member up the group's tree to the root and back. */
static double lead_seconds(void *context, const struct plan_group *group, uint32_t rank,
                           const struct instr *x)
{
    struct price *price = context;
    const struct plan_slot *slot =
        &price->plan->ranks[rank].slots[x->slot_in >= 0 ? x->slot_in : x->slot_out];
    if (group->rank_count < 2 || price->free_links || x->op != INSTR_ALL_REDUCE ||
        !slot_holds_scalars(slot->kind))
        return 0;
    const struct ring_figures *ring = group_ring(price, group);
    bool all = rank < group->rank_count && group->ranks[rank] == rank; /* the group contains all ranks */
    int position = all ? (int)rank : plan_group_position(group, rank);
    /* The hops to the root are the position's depth in plan_group_tree: 0 for the root, 1 for positions 1 and
     * 2, 2 for positions 3 to 6, …. */
    double hops = floor(log2(position + 1.0));
    return 2 * hops * (ring->latency_s + (double)slot->bytes_bound / ring->bytes_per_s);
}

static double collective_seconds(void *context, const struct plan_group *group, uint32_t rank,
                                 const struct instr *x)
{
    struct price *price = context;
    double n = group->rank_count;
    if (group->rank_count < 2 || price->free_links)
        return 0;
    if (x->op == INSTR_DISPATCH || x->op == INSTR_COMBINE)
        return price->expert ? expert_group_seconds(price->expert, x, price->step) : 0;
    const struct ring_figures *ring = group_ring(price, group);
    double latency = ring->latency_s, rate = ring->bytes_per_s;
    const struct plan_rank *r = &price->plan->ranks[rank];
    const struct plan_slot *slot = &r->slots[x->slot_in >= 0 ? x->slot_in : x->slot_out];
    double blocks = blocks_bytes(price->problem, price->plan, x);
    if (blocks >= 0)
        return blocks * (x->op == INSTR_ALL_GATHER ? ring->gather_s : ring->scatter_s) + (n - 1) * latency;
    double bytes = (double)slot->bytes_bound, depth = ceil(log2(n + 1)) - 1;
    if (x->op == INSTR_ALL_REDUCE && slot->kind == SLOT_GRADIENTS && x->block_end > x->block_begin &&
        !r->tensor.column_end && !price->expert)
        bytes = (double)memory_gradient_bytes(price->problem, x->block_begin, x->block_end);
    if (x->micro_batch >=
        0) { /* A tensor of one micro-batch has the bytes of its rows; without rows, nothing is sent. */
        struct cost_load load = instr_load(price, x);
        if (load.rows <= 0)
            return 0;
        bytes = (double)slot_bytes(slot, (uint64_t)load.tokens, (uint64_t)load.rows);
    }
    if (slot_holds_scalars(slot->kind)) /* the time of an ALL_REDUCE of scalars is in lead_seconds */
        return x->op == INSTR_ALL_REDUCE ? 0 : depth * (latency + bytes / rate);
    if (slot->kind == SLOT_PARTIAL && x->op == INSTR_ALL_REDUCE)
        return tensor_sum_seconds(ring, group->rank_count, bytes);
    if (slot->kind == SLOT_PARTIAL)
        return tensor_broadcast_seconds(ring, group->rank_count, bytes);
    if (x->op == INSTR_BROADCAST) /* all bytes pass every link of a chain, in pieces */
        return bytes / rate + (n - 1) * latency;
    double pass = ring_pass_seconds(ring, group->rank_count, bytes);
    return x->op == INSTR_ALL_REDUCE ? 2 * pass : pass;
}

struct sim_costs price_costs(struct price *price)
{
    return (struct sim_costs){.context = price,
                              .compute_s = compute_seconds,
                              .bytes = price_transfer_bytes,
                              .wire = price_wire_between,
                              .collective_s = collective_seconds,
                              .lead_s = lead_seconds};
}

static void price_costs_fill(const struct price *price, struct plan *plan, double step_s, const double *busy)
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
        c->links_emulated |=
            r > 0 && cluster_link(p->cluster, price->device[r - 1], price->device[r]).emulated;
    }
    c->share_measured = all > 0 ? by_origin[ORIGIN_MEASURED] / all : 0;
    c->share_imported = all > 0 ? by_origin[ORIGIN_IMPORTED] / all : 0;
    c->share_estimated = all > 0 ? by_origin[ORIGIN_ESTIMATED] / all : 0;
}

int price_step(struct price *price, struct sim **sim, double *seconds, struct sim_rank *sums,
               struct trace *trace, struct err *err)
{
    struct sim_costs costs = price_costs(price);
    if (!*sim && sim_create(price->plan, PROGRAM_TRAIN, sim, err) < 0)
        return -1;
    return sim_run(*sim, &costs, seconds, sums, trace, 0, err);
}

/* Corrects the seconds of a step by what earlier runs measured. */
static void correct(const struct price *price, struct plan *plan, double *step_s)
{
    uint64_t devices = 0;
    for (uint32_t r = 0; price->problem->taught && r < plan->rank_count; r++) {
        bool again = false; /* the device has an earlier rank */
        for (uint32_t k = 0; k < r && !again; k++)
            again = price->device[k] == price->device[r];
        devices += again ? 0 : taught_part(price->problem, price->device[r]);
    }
    struct plan_costs *costs = &plan->costs;
    const double factor = taught_factor(price->problem, plan->placement, devices, &costs->corrected_runs);
    costs->corrected = costs->corrected_runs > 0 ? factor : 0;
    *step_s *= factor;
}

void price_run_fini(struct price_run *run)
{
    sim_destroy(run->sim);
    *run = (struct price_run){0};
}

static int steps_run(struct price *price, uint32_t count, double *step_s, double *busy, struct price_run *run,
                     struct err *err)
{
    uint32_t ranks = price->plan->rank_count;
    struct sim_rank *sums = calloc(ranks, sizeof(*sums));
    int result = sums ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    *step_s = 0;
    for (uint32_t s = 0; s < count && result == 0; s++) {
        double seconds = 0;
        price->step = run->step = problem_step_priced(price->problem, s, count);
        result = price_step(price, &run->sim, &seconds, sums, NULL, err);
        run->ran = result == 0;
        *step_s += seconds / count;
        for (uint32_t r = 0; r < ranks; r++)
            busy[r] += sums[r].compute_s / count;
    }
    free(sums);
    return result;
}

int price_plan_run(const struct problem *problem, struct plan *plan, uint32_t steps_max,
                   uint64_t instructions_most, double *step_s, struct price_run *run, struct err *err)
{
    struct price price;
    uint32_t count = steps_max < problem->step_count ? steps_max : problem->step_count;
    *run = (struct price_run){0};
    if (price_init(&price, problem, plan, err) < 0)
        return -1;
    double *busy = calloc((size_t)plan->rank_count + 1, sizeof(*busy));
    int result = busy ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = steps_run(&price, count ? count : 1, step_s, busy, run, err);
    if (result == 0) {
        correct(&price, plan, step_s);
        price_costs_fill(&price, plan, *step_s, busy);
    }
    if (run->sim && (result < 0 || sim_graph(run->sim)->total > instructions_most)) {
        sim_destroy(run->sim);
        run->sim = NULL;
    }
    if (result < 0)
        price_run_fini(run);
    free(busy);
    price_fini(&price);
    return result;
}

int price_plan(const struct problem *problem, struct plan *plan, uint32_t steps_max, double *step_s,
               struct err *err)
{
    struct price_run run;
    int result = price_plan_run(problem, plan, steps_max, 0, step_s, &run, err);
    price_run_fini(&run);
    return result;
}
