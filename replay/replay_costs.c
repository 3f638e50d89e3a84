/* Computes the costs of a recorded run, for planning again. It is separate from replay_run.c because it needs
 * whole planning problems and specifications. */
#include <string.h>

#include "planner/given/cluster.h"
#include "planner/given/inputs.h"
#include "replay/change.h"
#include "replay/replay.h"
#include "planner/cost/price.h"

/* Prices the plan with the cost tables of an inputs document and fills the ranks' busy_s. *step_s is 0 if the
 * document lacks a device or its costs. */
static int price(struct plan *plan, const json_t *inputs, double *step_s, struct err *err)
{
    struct plan_inputs given;
    struct problem problem = {0};
    *step_s = 0;
    int result = plan_inputs_read(inputs, &given, err);
    for (uint32_t r = 0; result == 0 && r < plan->rank_count; r++) {
        if (cluster_device_find(given.cluster, plan->ranks[r].device) == UINT32_MAX) {
            plan_inputs_fini(&given);
            return 0;
        }
    }
    if (result == 0)
        result = problem_init(&problem, &given.workload, given.cluster, err);
    if (result == 0) {
        result = price_plan(&problem, plan, UINT32_MAX, step_s, err);
        problem_fini(&problem);
    }
    if (result < 0 && err->code == ERR_NOFIT) { /* a device of the plan has no costs */
        err_clear(err);
        *step_s = 0;
        result = 0;
    }
    plan_inputs_fini(&given);
    return result;
}

int replay_calibrate(struct plan *plan, const double *compute_s, json_t *inputs, double *priced_s,
                     struct err *err)
{
    int result = price(plan, inputs, priced_s, err);
    if (result < 0 || *priced_s <= 0)
        return result;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (!(compute_s[r] > 0) || !(plan->ranks[r].busy_s > 0))
            continue;
        bool first = true; /* a device with several ranks is corrected once, by its first rank */
        for (uint32_t before = 0; before < r; before++)
            first &= strcmp(plan->ranks[before].device, plan->ranks[r].device) != 0;
        if (first &&
            plan_inputs_speed(inputs, plan->ranks[r].device, plan->ranks[r].busy_s / compute_s[r], err) < 0)
            return -1;
    }
    return price(plan, inputs, priced_s, err);
}
