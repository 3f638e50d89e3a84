/* From the search to the answer. */
#include "planner/answer/best.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/alternatives.h"
#include "planner/answer/doubts.h"
#include "planner/answer/provenance.h"
#include "planner/answer/verdict.h"
#include "planner/candidate/from_plan.h"
#include "planner/candidate/objective.h"
#include "planner/cost/bound.h"
#include "planner/cost/price.h"
#include "planner/emit/shared.h"
#include "planner/given/cluster_sort.h"
#include "program/codec.h"

struct plan_request {
    const struct problem *problem;
    const struct plan_options *options;
    struct search_options search;
    struct search_found found;
    struct candidate from; /* the candidate of options->from */
    struct plan *kept;     /* a copy of options->from; NULL if it cannot be kept */
    double kept_s, kept_value;
    struct plan_answer *answer;
    struct err *err;
};

/* Checks whether options->from can be kept and finds its candidate. *why receives the reason if not. */
static int from_read(struct plan_request *q, struct err *why)
{
    const struct problem *p = q->problem;
    const struct plan *from = q->options->from;
    const struct placement_kind *kind = kinds[from->placement];
    struct err reason = {0};
    if (from_plan_check(p, from, why) < 0)
        return 0;
    bool read = (kind->from_plan ? kind->from_plan : candidate_from_plan)(p, from, &q->from, &reason) == 0;
    if (q->options->runnable_only && (!read || !kind_runnable(p, &q->from))) {
        candidate_fini(&q->from);
        err_set(why, ERR_UNSUPPORTED, "this release cannot run it");
        return 0;
    }
    q->search.from = read ? &q->from : NULL;
    q->kept = from_plan_keep(p, from, p->step_count, &q->kept_s, why);
    if (q->kept)
        q->kept_value = objective_value(p, q->kept, q->kept_s);
    return q->kept || why->code != ERR_NOMEM ? 0 : err_set(q->err, ERR_NOMEM, "planner: out of memory");
}

/* Writes from_words. On equal values the given plan is kept, so that a running job is not moved for
 * nothing. */
static int from_say(struct plan_request *q, const struct err *why)
{
    char text[700], step[32], now[32];
    int chosen = q->found.chosen;
    bool better = chosen >= 0 && q->found.best[chosen].estimate_s < q->kept_value * (1 - 1e-9);
    q->answer->from_step_s = q->kept ? q->kept_s : 0;
    if (q->kept && !better) {
        snprintf(text, sizeof(text), "The plan given is kept.");
    } else if (q->kept) {
        snprintf(text, sizeof(text), "The plan given would take %s, this one takes %s.",
                 units_seconds(step, q->kept_s), units_seconds(now, q->found.seconds[chosen]));
        plan_destroy(q->kept);
        q->kept = NULL;
    } else {
        snprintf(text, sizeof(text), "The plan given cannot be kept: %s.", why->text);
    }
    q->answer->from_words = strdup(text);
    return q->answer->from_words ? 0 : err_set(q->err, ERR_NOMEM, "planner: out of memory");
}

/* Makes the plan of a candidate, or takes the kept plan, and fills everything that depends on its times. */
static int plan_put(struct plan_request *q, const struct candidate *c)
{
    const struct problem *p = q->problem;
    struct plan_answer *a = q->answer;
    struct plan *plan = q->kept;
    double seconds = q->kept_s;
    struct price_run run = {0};
    const struct placement_kind *kind = kinds[plan ? plan->placement : c->placement];
    q->kept = NULL;
    a->runnable = kind_runnable(p, plan ? &q->from : c);
    if (!plan) {
        plan = kind->emit(p, c, true, q->err);
        if (!plan || plan_share_slots(plan, p->cluster, q->err) < 0 ||
            price_plan_run(p, plan, q->found.steps, PATH_INSTRUCTIONS_MAX, &seconds, &run, q->err) < 0) {
            plan_destroy(plan);
            return -1;
        }
    }
    plan_destroy(a->plan);
    /* The bound is for the mean step; fewer steps may have been priced, or rows may be divided. */
    a->lower_bound_s = fmin(a->lower_bound_s, seconds);
    plan->costs.lower_bound_s = a->lower_bound_s;
    a->plan = plan;
    a->step_s = seconds;
    a->tokens_per_s = plan->costs.tokens_per_s;
    answer_value(p->cluster, a);
    int rested = answer_rests(p, a, &run, q->err);
    price_run_fini(&run);
    return rested;
}

static int answer_fill(struct plan_request *q)
{
    const struct problem *p = q->problem;
    struct plan_answer *a = q->answer;
    struct err why = {0};
    a->runnable = true;
    a->lower_bound_s = bound_time(p);
    if (q->options->from && from_read(q, &why) < 0)
        return -1;
    if (search_run(p, &q->search, &q->found, q->err) < 0 || (q->options->from && from_say(q, &why) < 0))
        return -1;
    a->evaluations = q->found.evaluations;
    if ((q->kept || q->found.chosen >= 0) &&
        plan_put(q, &q->found.best[q->found.chosen < 0 ? 0 : q->found.chosen]) < 0)
        return -1;
    a->verdict = a->plan ? VERDICT_FITS : VERDICT_DOES_NOT_FIT;
    if (!q->options->brief) {
        bool kept = q->options->from && a->plan && q->found.chosen < 0;
        int better;
        while ((better = left_out_fill(p, &q->search, kept ? NULL : &q->found, a, q->err)) > 0) {
            if (plan_put(q, &q->found.best[q->found.chosen]) < 0)
                return -1;
        }
        if (better < 0)
            return -1;
        if (alternatives_fill(p, &q->found, a, q->err) < 0 || problem_doubts(p, a, q->err) < 0)
            return -1;
    }
    return answer_words(p, q->found.shortage, a, q->err);
}

/* Appends "The fastest found takes 12 s a step, at 0.14." */
static int fastest_say(const struct plan_request *q)
{
    const struct workload *w = q->problem->workload;
    struct plan_answer *a = q->answer;
    double millions = a->tokens_per_s * a->step_s / 1e6, paid = q->found.fastest_value / millions;
    char step[32], text[2400];
    if (w->objective == OBJECTIVE_TIME || !a->plan || q->found.fastest_s >= a->step_s * (1 - 1e-9))
        return 0;
    paid /= w->objective == OBJECTIVE_ENERGY ? OBJECTIVE_KWH : 1;
    snprintf(text, sizeof(text), "%s The fastest found takes %s a step, at %.4g%s.", a->words,
             units_seconds(step, q->found.fastest_s), paid, w->objective == OBJECTIVE_COST ? "" : " kWh");
    free(a->words);
    a->words = strdup(text);
    return a->words ? 0 : err_set(q->err, ERR_NOMEM, "planner: out of memory");
}

static int answer_end(struct plan_request *q)
{
    struct plan_answer *a = q->answer;
    if (fastest_say(q) < 0)
        return -1;
    for (uint32_t r = 0; a->plan && r < a->plan->rank_count && !q->options->programs && !q->options->insight;
         r++) {
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            program_fini(&a->plan->ranks[r].programs[kind]);
    }
    return a->plan ? plan_seal(a->plan, q->err) : 0;
}

/* listed: the user's order of the devices. */
static int ask(const struct workload *workload, const struct cluster *cluster, const uint32_t *listed,
               const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    struct problem problem;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    problem.listed = listed;
    problem.runnable_only = options->runnable_only;
    struct plan_request q = {.problem = &problem,
                             .options = options,
                             .search = {.evaluations = options->evaluations,
                                        .seed = options->seed,
                                        .runnable_only = options->runnable_only},
                             .answer = calloc(1, sizeof(*q.answer)),
                             .err = err};
    int result =
        q.answer ? objective_check(&problem, err) : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = answer_fill(&q);
    if (result == 0)
        result = answer_end(&q);
    search_found_fini(&q.found);
    candidate_fini(&q.from);
    plan_destroy(q.kept);
    problem_fini(&problem);
    if (result < 0)
        plan_answer_destroy(q.answer);
    else
        *answer = q.answer;
    return result;
}

/* Sorts the cluster first, so that names and the order of lists do not influence the plan. */
int plan_best(const struct workload *workload, const struct cluster *cluster,
              const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    uint32_t *listed = calloc((size_t)cluster->device_count + 1, sizeof(*listed));
    struct cluster *sorted = listed ? cluster_sorted(cluster, listed, err) : NULL;
    *answer = NULL;
    if (!listed)
        err_set(err, ERR_NOMEM, "planner: out of memory");
    int result = sorted ? ask(workload, sorted, listed, options, answer, err) : -1;
    cluster_sorted_destroy(sorted);
    free(listed);
    return result;
}
