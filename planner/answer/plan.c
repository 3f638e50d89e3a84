#include "planner/answer/plan.h"

#include "planner/answer/answer_private.h"
#include "planner/given/inputs.h"

int plan_search(struct workload *workload, const struct cluster *cluster, const struct plan_options *options,
                struct plan_answer **answer, struct err *err)
{
    static const struct plan_options none = {0};
    options = options ? options : &none;
    const bool open = workload->compute_open;
    if (precision_best(workload, cluster, options, answer, err) < 0)
        return -1;
    if ((!options->advise || would_fit_say(workload, cluster, options, *answer, err) == 0) &&
        (!options->gains || would_gain_find(workload, open, cluster, options, *answer, err) == 0) &&
        (!options->insight || !(*answer)->plan ||
         plan_insight_fill(workload, cluster, options, *answer, err) == 0))
        return 0;
    plan_answer_destroy(*answer);
    *answer = NULL;
    return -1;
}

int plan_from_cluster(const json_t *spec, const json_t *cluster, const json_t *config_json,
                      const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    struct plan_inputs inputs;
    const struct plan_rows unknown = {0};
    *answer = NULL;
    int result = plan_inputs_from_files(spec, cluster, config_json, &unknown, &inputs, err);
    if (result == 0)
        result = plan_search(&inputs.workload, inputs.cluster, options, answer, err);
    plan_inputs_fini(&inputs);
    return result;
}
