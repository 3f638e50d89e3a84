/* Searches the best plan and makes a struct plan_answer from it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/answer_private.h"
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
    struct candidate from; /* the candidate that was read back from options->from */
    struct plan *kept;     /* a copy of options->from; NULL if that plan cannot run on this cluster as it
                              is */
    double kept_s, kept_value;
    /* The same problem with recomputation forbidden, which doubtful_search() may use instead. */
    struct workload plain;
    struct problem restricted;
    /* The share of a step's time that the best plan with recomputation would save, if it was declined because
     * the measured times are noisy (doubtful_search); 0: no plan was declined. */
    double declined;
    struct plan_answer *answer;
    struct err *err;
};

/* Checks whether the plan options->from can be kept, and rebuilds the candidate that it came from. If it
 * cannot, *why receives the reason. */
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

/* Sets answer->from_words and from_step_s. If the plan given and the one found have equal values, the one
 * given is kept, so that a running job is not moved for nothing. */
static int from_say(struct plan_request *q, const struct err *why)
{
    char text[700], step[32], now[32];
    int chosen = q->found.chosen;
    bool better = chosen >= 0 && q->found.best[chosen].estimate_s < q->kept_value * (1 - 1e-9);
    q->answer->from_step_s = q->kept ? q->kept_s : 0;
    q->answer->from_corrected = q->kept ? q->kept->costs.corrected : 0;
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

/* Returns whether a plan, which has programs that plan_check accepts, can run: a worker can on each of its
 * devices. */
static bool plan_runnable(const struct problem *p, const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        if (p->planned_only[cluster_device_find(p->cluster, plan->ranks[r].device)])
            return false;
    return true;
}

/* Puts the plan of a candidate, or the plan that is kept, into the answer, with everything that depends on
 * the plan's times. */
static int plan_put(struct plan_request *q, const struct candidate *c)
{
    const struct problem *p = q->problem;
    struct plan_answer *a = q->answer;
    struct plan *plan = q->kept;
    double seconds = q->kept_s;
    struct price_run run = {0};
    const struct placement_kind *kind = kinds[plan ? plan->placement : c->placement];
    q->kept = NULL;
    a->runnable = plan ? plan_runnable(p, plan) : kind_runnable(p, c);
    if (!plan) {
        plan = kind->emit(p, c, EMIT_PROGRAMS, q->err);
        if (!plan || plan_share_slots(plan, p->cluster, q->err) < 0 ||
            price_plan_run(p, plan, q->found.steps, PATH_INSTRUCTIONS_MAX, &seconds, &run, q->err) < 0) {
            plan_destroy(plan);
            return -1;
        }
    }
    plan_destroy(a->plan);
    /* The bound assumes a mean step in which one device computes each block of a row. A plan can be faster if
     * it was priced over other steps, or if its tensor groups divide blocks. */
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

/* Sets used_bound_s, the lower bound of a step on the plan's devices alone: how much of the distance to the
 * lower bound is due to those left out. */
static int used_bound(const struct problem *p, struct plan_answer *a, struct err *err)
{
    struct problem used = *p;
    if (!a->plan)
        return 0;
    used.usable = calloc(p->device_count, sizeof(*used.usable));
    if (!used.usable)
        return err_set(err, ERR_NOMEM, "out of memory for a plan's devices");
    for (uint32_t r = 0; r < a->plan->rank_count; r++)
        used.usable[cluster_device_find(p->cluster, a->plan->ranks[r].device)] = true;
    a->steps = workload_step_count(p->workload);
    a->used_bound_s = fmin(bound_time(&used), a->step_s);
    free(used.usable);
    return 0;
}

/* Returns the largest relative error of the measured times of the candidate's devices, from noise while they
 * were measured; 0: the candidate does not recompute, or the machines were quiet. */
static double recompute_noise(const struct problem *p, const struct candidate *c)
{
    bool recomputes = false;
    double noise = 0;
    for (uint32_t m = 0; m < c->member_count; m++) {
        recomputes |= c->members[m].recompute;
        noise = fmax(noise, p->costs[c->members[m].device].noise);
    }
    return recomputes ? noise : 0;
}

/* Searches the best plan. Larger micro-batches with recomputation often take nearly as long as smaller ones
 * without, so noise in the measured times can decide between them. Where the times are uncertain, a plan that
 * recomputes is therefore taken only if it gains more than their relative error; else the rest of the answer
 * is about plans that do not recompute. This does not apply with a plan to start from, which was chosen
 * before. */
static int doubtful_search(struct plan_request *q)
{
    const struct problem *p = q->problem;
    struct search_found *found = &q->found, without;
    if (search_run(p, &q->search, found, q->err) < 0)
        return -1;
    if (found->chosen < 0 || q->options->from || p->workload->recompute != RECOMPUTE_AUTO)
        return 0;
    double noise = recompute_noise(p, &found->best[found->chosen]);
    if (noise <= 0)
        return 0;
    q->plain = *p->workload;
    q->plain.recompute = RECOMPUTE_NO;
    q->restricted = *p;
    q->restricted.workload = &q->plain;
    int result = search_run(&q->restricted, &q->search, &without, q->err);
    uint64_t evaluations = found->evaluations + without.evaluations;
    if (result == 0 && without.chosen >= 0 &&
        without.best[without.chosen].estimate_s * (1 - noise) <= found->best[found->chosen].estimate_s) {
        struct search_found with = *found;
        *found = without;
        without = with;
        q->declined = 1 - with.best[with.chosen].estimate_s / found->best[found->chosen].estimate_s;
        q->problem = &q->restricted;
    }
    found->evaluations = evaluations;
    search_found_fini(&without);
    return result;
}

static int best_answer_fill(struct plan_request *q)
{
    struct plan_answer *a = q->answer;
    struct err why = {0};
    a->runnable = true;
    a->lower_bound_s = bound_time(q->problem);
    if (q->options->from && from_read(q, &why) < 0)
        return -1;
    if (doubtful_search(q) < 0 || (q->options->from && from_say(q, &why) < 0))
        return -1;
    const struct problem *p = q->problem;
    a->evaluations = q->found.evaluations;
    if ((q->kept || q->found.chosen >= 0) &&
        plan_put(q, &q->found.best[q->found.chosen < 0 ? 0 : q->found.chosen]) < 0)
        return -1;
    a->verdict = a->plan ? VERDICT_FITS : VERDICT_DOES_NOT_FIT;
    if (!q->options->brief) {
        bool kept = q->options->from && a->plan && q->found.chosen < 0;
        int better;
        while ((better = left_out_fill(p, &q->search, kept ? NULL : &q->found, a, q->err)) > 0)
            if (plan_put(q, &q->found.best[q->found.chosen]) < 0)
                return -1;
        if (better < 0)
            return -1;
        if (alternatives_fill(p, &q->found, a, q->err) < 0 || problem_doubts(p, a, q->err) < 0)
            return -1;
        if (!q->options->from && rivals_fill(p, &q->found, q->options->rivals, a, q->err) < 0)
            return -1;
    }
    return used_bound(p, a, q->err) < 0 ? -1 : answer_words(p, q->found.shortage, a, q->err);
}

/* If the plan is not the fastest one found, appends to the answer's words a sentence like "The fastest found
 * takes 12 s per step, at 0.14." */
static int fastest_say(const struct plan_request *q)
{
    const struct workload *w = q->problem->workload;
    struct plan_answer *a = q->answer;
    char step[32], text[2400];
    if (w->objective == OBJECTIVE_TIME || !a->plan || q->found.fastest_s >= a->step_s * (1 - 1e-9))
        return 0;
    double millions = a->tokens_per_s * a->step_s / 1e6, paid = q->found.fastest_value / millions;
    paid /= w->objective == OBJECTIVE_ENERGY ? OBJECTIVE_KWH : 1;
    snprintf(text, sizeof(text), "%s The fastest found takes %s per step, at %.4g%s.", a->words,
             units_seconds(step, q->found.fastest_s), paid, w->objective == OBJECTIVE_COST ? "" : " kWh");
    free(a->words);
    a->words = strdup(text);
    return a->words ? 0 : err_set(q->err, ERR_NOMEM, "planner: out of memory");
}

/* Appends to the answer's words that the plan does not recompute activations, and what recomputing would save
 * according to the uncertain times. */
static int declined_say(const struct plan_request *q)
{
    struct plan_answer *a = q->answer;
    char text[2400];
    if (!a->plan || q->declined < ANSWER_SHARE_TOLD)
        return 0;
    snprintf(text, sizeof(text),
             "%s By these times recomputing would save %.0f %%, less than they are uncertain: it does not.",
             a->words, 100 * q->declined);
    free(a->words);
    a->words = strdup(text);
    return a->words ? 0 : err_set(q->err, ERR_NOMEM, "planner: out of memory");
}

static int answer_end(struct plan_request *q)
{
    struct plan_answer *a = q->answer;
    if (fastest_say(q) < 0 || declined_say(q) < 0)
        return -1;
    for (uint32_t r = 0; a->plan && r < a->plan->rank_count && !q->options->programs && !q->options->insight;
         r++) {
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            program_fini(&a->plan->ranks[r].programs[kind]);
    }
    return a->plan ? plan_seal(a->plan, q->err) : 0;
}

/* Prepares the problem, searches and makes the answer. `listed`: the devices in the user's order. */
static int best_ask(const struct workload *workload, const struct cluster *cluster, const uint32_t *listed,
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
        result = best_answer_fill(&q);
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
    if (sorted)
        sorted->runnable_only = options->runnable_only;
    int result = sorted ? best_ask(workload, sorted, listed, options, answer, err) : -1;
    cluster_destroy(sorted);
    free(listed);
    return result;
}
