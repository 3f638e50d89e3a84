/* Sets of devices, each searched for time. */
#include "planner/objective.h"

int objective_search(const struct workload *workload, const struct cluster *cluster,
                     const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    struct workload time = *workload;
    time.objective = OBJECTIVE_TIME;
    return plan_search(&time, cluster, options, answer, err);
}
