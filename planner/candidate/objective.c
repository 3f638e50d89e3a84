#include "planner/candidate/objective.h"

#include "planner/cost/taught.h"

int objective_check(const struct problem *p, struct err *err)
{
    bool cost = p->workload->objective == OBJECTIVE_COST;
    for (uint32_t i = 0; i < p->device_count; i++) {
        const struct planner_device *d = &p->cluster->devices[i];
        if (!p->usable[i] || p->workload->objective == OBJECTIVE_TIME)
            continue;
        if (cost && d->price_per_hour <= 0)
            return err_set(
                err, ERR_INVALID,
                "objective cost: device %s has no price_per_hour, so what a plan with it costs is not known "
                "(give one, or exclude it)",
                d->name);
        if (!cost && d->watts <= 0 && d->like && d->like->board_watts > 0)
            return err_set(
                err, ERR_INVALID,
                "objective energy: device %s has no watts, so what a plan with it takes is not known (give "
                "them, or exclude it; %s draws at most %.0f)",
                d->name, d->like->name, d->like->board_watts);
        if (!cost && d->watts <= 0)
            return err_set(
                err, ERR_INVALID,
                "objective energy: device %s has no watts, so what a plan with it takes is not known (give "
                "them, or exclude it)",
                d->name);
    }
    return 0;
}

/* Returns the factor by which earlier runs correct the seconds of the candidate. */
static double corrected(const struct problem *p, const struct candidate *c)
{
    uint64_t devices = 0;
    for (uint32_t m = 0; p->taught && m < c->member_count; m++)
        devices += taught_part(p, c->members[m].device);
    return taught_factor(p, c->placement, devices, NULL);
}

double objective_weight(const struct problem *p, const struct candidate *c)
{
    double weight = 0;
    if (p->workload->objective == OBJECTIVE_TIME)
        return corrected(p, c);
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct planner_device *d = &p->cluster->devices[c->members[m].device];
        weight += p->workload->objective == OBJECTIVE_COST ? d->price_per_hour / 3600 : d->watts;
    }
    return weight * corrected(p, c);
}

double objective_value(const struct problem *p, const struct plan *plan, double step_s)
{
    if (p->workload->objective == OBJECTIVE_TIME)
        return step_s;
    return p->workload->objective == OBJECTIVE_COST ? plan_step_price(p->cluster, plan, step_s)
                                                    : plan_step_joules(p->cluster, plan, step_s);
}

double plan_step_price(const struct cluster *cluster, const struct plan *plan, double step_s)
{
    double per_hour = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, plan->ranks[r].device);
        if (d == UINT32_MAX || cluster->devices[d].price_per_hour <= 0)
            return 0;
        per_hour += cluster->devices[d].price_per_hour;
    }
    return per_hour / 3600 * step_s;
}

double plan_step_joules(const struct cluster *cluster, const struct plan *plan, double step_s)
{
    double joules = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t d = cluster_device_find(cluster, plan->ranks[r].device);
        double busy = plan->ranks[r].busy_s, idle = step_s > busy ? step_s - busy : 0;
        if (d == UINT32_MAX || cluster->devices[d].watts <= 0)
            return 0;
        joules += cluster->devices[d].watts * busy + cluster->devices[d].idle_watts * idle;
    }
    return joules;
}
