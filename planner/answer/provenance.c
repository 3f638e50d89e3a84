/* Finds what a predicted time rests on: links by their time on the critical path, devices by the seconds that
 * each rank computes. */
#include "planner/answer/provenance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/given/cluster_private.h"
#include "planner/simulate/timeline.h"

/* Relative error of a transfer's seconds by the origin of the link's rate. Rule of thumb: a rate that
 * somebody wrote down is about right; the default rate of a link that nobody described is right to an order
 * of magnitude. */
static const double link_uncertainty[ORIGIN_COUNT] = {[ORIGIN_IMPORTED] = 0.1, [ORIGIN_ESTIMATED] = 0.5};

/* Most devices whose corrected speeds are named. */
enum { SPEEDS_TOLD = 4 };

struct rests_on {
    double share[ORIGIN_COUNT]; /* shares of the step, which sum to 1 */
    double links_share;         /* share of the step that transfers take, whatever their rates' origin */
    double uncertainty;         /* relative error of the step: each part's error weighted by its share */
    bool links_emulated;        /* some link that the plan uses is emulated */
};

static struct cluster_link hop_of(const struct price *price, uint32_t from_rank, uint32_t to_rank)
{
    return cluster_link(price->problem->cluster, price->device[from_rank], price->device[to_rank]);
}

/* Returns the least certain origin of the links in a group's ring, and whether one of them is emulated. */
static struct cluster_link provenance_ring_of(const struct price *price, const struct plan_group *group)
{
    struct cluster_link worst = {.origin = ORIGIN_MEASURED};
    for (uint32_t i = 0; i < group->rank_count && group->rank_count > 1; i++) {
        struct cluster_link hop = hop_of(price, group->ranks[i], group->ranks[(i + 1) % group->rank_count]);
        worst.origin = hop.origin > worst.origin ? hop.origin : worst.origin;
        worst.emulated |= hop.emulated;
    }
    return worst;
}

/* Divides the computing part of a step over the ranks in proportion to their computing seconds. Ranks beside
 * the critical path count, too: if their times were underestimated, the step would take longer. */
static void compute_add(const struct price *price, const struct plan *plan, double part,
                        struct rests_on *rests)
{
    double all = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        all += plan->ranks[r].busy_s;
    for (uint32_t r = 0; r < plan->rank_count && all > 0; r++) {
        const struct cost_device *cost = &price->problem->costs[price->device[r]];
        double share = part * plan->ranks[r].busy_s / all;
        rests->share[cost->origin] += share;
        rests->uncertainty += share * cost->uncertainty;
    }
}

/* Fills the shares from the critical path of the priced plan, whose ranks' busy_s are set. */
static void rests_of_path(const struct price *price, const struct plan_graph *graph,
                          const struct sim_path *path, struct rests_on *rests)
{
    *rests = (struct rests_on){0};
    double whole = path->count ? path->parts[path->count - 1].end_s : 0;
    for (uint32_t i = 0; i < path->count && whole > 0; i++) {
        const struct sim_path_part *part = &path->parts[i];
        double share = (part->end_s - part->begin_s) / whole;
        if (part->kind == PATH_COMPUTE)
            continue;
        const struct instr *x = graph_instr(graph, part->number);
        /* A collective has no peer; its links are those of its group's ring. */
        enum cost_origin origin = x->queue == QUEUE_GROUP
                                      ? provenance_ring_of(price, &graph->plan->groups[x->group]).origin
                                      : hop_of(price, part->rank, (uint32_t)part->peer).origin;
        rests->links_share += share;
        rests->share[origin] += share;
        rests->uncertainty += share * link_uncertainty[origin];
    }
    compute_add(price, graph->plan, 1 - rests->links_share, rests);
    for (uint32_t p = 0; p < graph->pair_count; p++)
        rests->links_emulated |= hop_of(price, graph->pairs[p].from, graph->pairs[p].to).emulated;
    for (uint32_t g = 0; g < graph->plan->group_count; g++)
        rests->links_emulated |= provenance_ring_of(price, &graph->plan->groups[g]).emulated;
}

/* Simulates one step if `run` did not, and finds the shares along its critical path. Returns 1; 0 if the
 * programs are longer than PATH_INSTRUCTIONS_MAX; −1 with *err set. */
static int step_path(const struct problem *problem, const struct plan *plan, uint64_t instructions,
                     const struct price_run *run, struct rests_on *rests, struct err *err)
{
    struct price price;
    struct sim *sim = NULL;
    struct sim_path path = {0};
    double seconds;
    if (price_init(&price, problem, plan, err) < 0)
        return -1;
    price.step = problem->step_count / 2;
    bool known = run && run->ran && run->step == price.step;
    const struct sim *ran = known ? run->sim : NULL;
    int result = 0;
    if (!known && instructions <= PATH_INSTRUCTIONS_MAX) {
        result = price_step(&price, &sim, &seconds, NULL, NULL, err);
        ran = sim;
    }
    if (result >= 0 && ran)
        result = sim_path(ran, &path, err) < 0 ? -1 : 1;
    if (result == 1)
        rests_of_path(&price, sim_graph(ran), &path, rests);
    sim_path_fini(&path);
    sim_destroy(sim);
    price_fini(&price);
    return result;
}

/* Fills the shares by the ranks' computing seconds, without a critical path; links do not count. */
static void rests_of_busy(const struct problem *problem, const struct plan *plan, struct rests_on *rests)
{
    double all = 0;
    *rests = (struct rests_on){
        .share = {plan->costs.share_measured, plan->costs.share_imported, plan->costs.share_estimated},
        .links_emulated = plan->costs.links_emulated};
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t device = cluster_device_find(problem->cluster, plan->ranks[r].device);
        rests->uncertainty += plan->ranks[r].busy_s * problem->costs[device].uncertainty;
        all += plan->ranks[r].busy_s;
    }
    rests->uncertainty /= all > 0 ? all : 1;
}

/* Has the plan a device that only takes the time of given rates (engine/cpu/paced.c)? */
static bool has_paced(const struct problem *problem, const struct plan *plan)
{
    bool paced = false;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t device = cluster_device_find(problem->cluster, plan->ranks[r].device);
        paced = paced || strcmp(problem->cluster->devices[device].kind, "paced") == 0;
    }
    return paced;
}

/* Appends how much slower or faster than their profiles the plan's devices are taken to be, by what runs or
 * the cluster's file say: "; a/cpu0 4 % slower, b/cpu0 2 % faster than measured". At most SPEEDS_TOLD.
 */
static void speeds_add(const struct problem *problem, const struct plan *plan, char *text, size_t size)
{
    size_t used = strlen(text);
    uint32_t told = 0;
    for (uint32_t r = 0; r < plan->rank_count && told < SPEEDS_TOLD; r++) {
        const uint32_t d = cluster_device_find(problem->cluster, plan->ranks[r].device);
        const struct planner_device *device = &problem->cluster->devices[d];
        const double slower = 1 / device->speed - 1; /* of its times */
        bool again = false;
        for (uint32_t before = 0; before < r; before++)
            again = again || strcmp(plan->ranks[before].device, plan->ranks[r].device) == 0;
        if (again || !device->profile.present || fabs(slower) < ANSWER_SHARE_TOLD || used >= size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%.64s %.0f %% %s", told ? ", " : "; ",
                                 device->name, 100 * fabs(slower), slower > 0 ? "slower" : "faster");
        told++;
    }
    if (told > 0 && used < size)
        snprintf(text + used, size - used, " than measured");
}

int answer_rests(const struct problem *problem, struct plan_answer *answer, const struct price_run *run,
                 struct err *err)
{
    struct plan *plan = answer->plan;
    struct rests_on rests = {0};
    uint64_t instructions = 0;
    char text[800] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        instructions += plan->ranks[r].programs[PROGRAM_TRAIN].instr_count;
    int walked = instructions ? step_path(problem, plan, instructions, run, &rests, err) : 0;
    if (walked < 0)
        return -1;
    if (!walked)
        rests_of_busy(problem, plan, &rests);
    plan->costs.share_measured = rests.share[ORIGIN_MEASURED];
    plan->costs.share_imported = rests.share[ORIGIN_IMPORTED];
    plan->costs.share_estimated = rests.share[ORIGIN_ESTIMATED];
    plan->costs.links_emulated = rests.links_emulated;
    answer->uncertainty = rests.uncertainty;
    for (int o = 0; o < ORIGIN_COUNT; o++)
        if (rests.share[o] >= ANSWER_SHARE_TOLD)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.0f %% %s", used ? ", " : "",
                                     100 * rests.share[o], cost_origin_name((enum cost_origin)o));
    if (walked)
        used += (size_t)snprintf(text + used, sizeof(text) - used, " (links %.0f %% of the time)",
                                 100 * rests.links_share);
    if (problem->workload->row_count)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "; the rows' own lengths, over %u step%s",
                                 problem->step_count, problem->step_count == 1 ? "" : "s");
    else
        used += (size_t)snprintf(text + used, sizeof(text) - used, "; rows taken to be full, %u tokens each",
                                 problem->workload->sequence_tokens);
    snprintf(text + used, sizeof(text) - used, "%s%s", rests.links_emulated ? "; emulated links" : "",
             has_paced(problem, plan) ? "; paced devices" : "");
    speeds_add(problem, plan, text, sizeof(text));
    used = strlen(text);
    if (plan->costs.corrected_runs > 0 && used < sizeof(text))
        snprintf(text + used, sizeof(text) - used, "; corrected by %u run%s: %+.0f %%",
                 plan->costs.corrected_runs, plan->costs.corrected_runs == 1 ? "" : "s",
                 100 * (plan->costs.corrected - 1));
    free(plan->costs.text);
    plan->costs.text = strdup(text);
    return plan->costs.text ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
}
