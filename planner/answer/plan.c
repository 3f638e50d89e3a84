#include "planner/answer/plan.h"

#include "planner/answer/best.h"
#include "planner/answer/insight_fill.h"

int plan_search(const struct workload *workload, const struct cluster *cluster,
                const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    static const struct plan_options none = {0};
    options = options ? options : &none;
    if (plan_best(workload, cluster, options, answer, err) < 0)
        return -1;
    if (!options->insight || !(*answer)->plan ||
        plan_insight_fill(workload, cluster, options, *answer, err) == 0)
        return 0;
    plan_answer_destroy(*answer);
    *answer = NULL;
    return -1;
}
