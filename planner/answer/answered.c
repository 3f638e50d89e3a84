/* What becomes of an answer: its plan simulated for drawing, and its end. */
#include <stdlib.h>

#include "planner/answer/answer.h"
#include "planner/answer/insight.h"
#include "planner/cost/price.h"
#include "planner/cost/problem.h"
#include "planner/simulate/simulate.h"

void plan_answer_destroy(struct plan_answer *answer)
{
    if (!answer)
        return;
    for (uint32_t i = 0; i < answer->alternative_count; i++)
        free(answer->alternatives[i].device);
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        free(answer->left_out[i].device);
        free(answer->left_out[i].why);
    }
    for (uint32_t i = 0; i < answer->warning_count; i++)
        free(answer->warnings[i]);
    free(answer->warnings);
    plan_destroy(answer->plan);
    plan_insight_destroy(answer->insight);
    free(answer->words);
    free(answer->from_words);
    free(answer->alternatives);
    free(answer->rank_like);
    free(answer->left_out);
    free(answer);
}

int plan_simulate(const struct plan *plan, const struct workload *workload, const struct cluster *cluster,
                  struct trace *trace, double *step_s, struct err *err)
{
    struct problem problem;
    struct price price;
    struct sim *sim = NULL;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    int result = price_init(&price, &problem, plan, err);
    if (result == 0) {
        result = sim_create(plan, PROGRAM_TRAIN, &sim, err);
        price.step = problem.step_count / 2;
        struct sim_costs costs = price_costs(&price);
        if (result == 0)
            result = sim_run(sim, &costs, step_s, NULL, trace, 0, err);
        sim_destroy(sim);
        price_fini(&price);
    }
    problem_fini(&problem);
    return result;
}
