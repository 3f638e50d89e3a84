#include "replay/jitter.h"

#include <math.h>
#include <stdlib.h>

#include "planner/cost/price.h"

static int jitter_rising(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static int runs_make(struct price *price, double sigma, uint64_t seed, uint32_t runs, double *seconds,
                     struct plan_spread *spread, struct err *err)
{
    struct sim *sim = NULL;
    struct sim_costs costs = price_costs(price);
    int result = sim_create(price->plan, PROGRAM_TRAIN, &sim, err);
    if (result == 0)
        result = sim_run(sim, &costs, &spread->still_s, NULL, NULL, 0, err);
    costs.jitter_sigma = sigma;
    for (uint32_t i = 0; i < runs && result == 0; i++) {
        costs.jitter_seed = seed + i;
        result = sim_run(sim, &costs, &seconds[i], NULL, NULL, 0, err);
        spread->mean_s += seconds[i] / runs;
    }
    sim_destroy(sim);
    return result;
}

int plan_jitter(const struct plan *plan, const struct workload *workload, const struct cluster *cluster,
                double sigma, uint64_t seed, uint32_t runs, struct plan_spread *spread, struct err *err)
{
    struct problem problem;
    struct price price;
    struct workload w = *workload;
    *spread = (struct plan_spread){.runs = runs};
    if (!isfinite(sigma) || sigma < 0 || sigma > 2 || runs < 1 || runs > JITTER_RUNS_MAX)
        return err_set(err, ERR_INVALID, "jitter: a deviation of %g in %u runs; 0 to 2, and 1 to %u runs",
                       sigma, runs, JITTER_RUNS_MAX);
    w.objective = OBJECTIVE_TIME;
    if (problem_init(&problem, &w, cluster, err) < 0)
        return -1;
    double *seconds = calloc(runs, sizeof(*seconds));
    int result =
        seconds ? price_init(&price, &problem, plan, err) : err_set(err, ERR_NOMEM, "jitter: out of memory");
    if (result == 0) {
        price.step = problem.step_count / 2;
        result = runs_make(&price, sigma, seed, runs, seconds, spread, err);
        price_fini(&price);
    }
    if (result == 0) {
        qsort(seconds, runs, sizeof(*seconds), jitter_rising);
        spread->low_s = seconds[runs / 20];
        spread->median_s = seconds[runs / 2];
        spread->high_s = seconds[runs - 1 - runs / 20];
    }
    free(seconds);
    problem_fini(&problem);
    return result;
}
