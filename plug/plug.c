/* Acceptance of an external planner's answer, and the comparison with the built-in one. */
#include "plug/plug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/insight.h"
#include "planner/answer/provenance.h"
#include "planner/answer/verdict.h"
#include "planner/candidate/from_plan.h"
#include "planner/candidate/objective.h"
#include "planner/kind/kind.h"
#include "plug/document.h"
#include "plug/recount.h"
#include "program/check/check.h"
#include "program/codec.h"

#define LARGE_PLAN 4000u /* candidate_cells above which only one step is simulated, as in plan_search */

/* ---- accepting ---- */

static int plug_assignment_read(const struct problem *problem, const json_t *document, struct candidate *c,
                                struct plan **plan, struct err *err)
{
    if (candidate_from_document(problem, document, true, c, err) < 0)
        return -1;
    *plan = kinds[c->placement]->emit(problem, c, true, err);
    return *plan ? from_plan_check(problem, *plan, err) : -1;
}

/* Reads and checks a whole plan. Its memory is compared with our formulas only after plan_check accepted it.
 */
static int plug_whole_read(const struct problem *problem, const json_t *document, struct candidate *c,
                           struct plan **plan, struct err *err)
{
    *plan = plan_from_json_given(document, PLUG_INSTRUCTIONS_MAX, err);
    if (!*plan || plan_check(*plan, err) < 0 || from_plan_check(problem, *plan, err) < 0)
        return -1;
    const struct placement_kind *kind = kinds[(*plan)->placement];
    if ((kind->from_plan ? kind->from_plan : candidate_from_plan)(problem, *plan, c, err) < 0)
        return -1;
    return candidate_run_check(problem, c, err) < 0 ? -1 : recount_memory(problem, c, *plan, err);
}

/* Reads an answer that is a whole plan or an assignment. The caller frees *plan, which may be set on failure
 * too. */
static int plug_form_read(const struct problem *problem, const json_t *document, struct candidate *c,
                          struct plan **plan, struct err *err)
{
    const json_t *inner = json_object_get(document, "plan");
    const json_t *whole = inner ? inner : document;
    if (!json_is_object(document))
        return err_set(err, ERR_INVALID, "the answer is no object");
    if (json_object_get(document, "stages"))
        return plug_assignment_read(problem, document, c, plan, err);
    if (json_object_get(whole, "ranks"))
        return plug_whole_read(problem, whole, c, plan, err);
    return err_set(err, ERR_INVALID,
                   "the answer is neither a plan (it has no \"ranks\") nor an assignment (no \"stages\")");
}

int plug_accept(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                struct plan **plan, double *step_s, struct err *err)
{
    struct problem problem;
    struct plan *given = NULL;
    struct candidate c = {0};
    *plan = NULL;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    bool read = plug_form_read(&problem, document, &c, &given, err) == 0;
    if (read)
        given->compute = (enum plan_dtype)workload->compute;
    if (read && plan_seal(given, err) == 0)
        *plan =
            from_plan_keep(&problem, given,
                           candidate_cells(&problem, &c) > LARGE_PLAN ? 1 : problem.step_count, step_s, err);
    if (*plan && plan_seal(*plan, err) < 0) {
        plan_destroy(*plan);
        *plan = NULL;
    }
    candidate_fini(&c);
    plan_destroy(given);
    problem_fini(&problem);
    return *plan ? 0 : -1;
}

/* ---- the answer ---- */

static bool plan_has(const struct plan *plan, const char *device)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        if (strcmp(plan->ranks[r].device, device) == 0)
            return true;
    return false;
}

/* Replaces the list of left-out devices by those that this plan leaves out. */
static int plug_left_out_fill(const struct problem *problem, const char *planner, struct plan_answer *answer,
                              struct err *err)
{
    char why[160];
    for (uint32_t i = 0; i < answer->left_out_count; i++) {
        free(answer->left_out[i].device);
        free(answer->left_out[i].why);
    }
    free(answer->left_out);
    answer->left_out_count = 0;
    answer->left_out = calloc((size_t)problem->device_count + 1, sizeof(*answer->left_out));
    if (!answer->left_out)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    snprintf(why, sizeof(why), "left out by planner \"%.80s\"", planner);
    for (uint32_t i = 0; i < problem->device_count; i++) {
        const uint32_t d = problem_listed(problem, i);
        const char *name = cluster_device_name(problem->cluster, d);
        if (plan_has(answer->plan, name))
            continue;
        struct plan_left_out *line = &answer->left_out[answer->left_out_count++];
        line->device = strdup(name);
        line->why = strdup(problem->usable[d] ? why : problem_why_unusable(problem, d));
        if (!line->device || !line->why)
            return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    return 0;
}

static int words_add(struct plan_answer *answer, const char *more, struct err *err)
{
    const char *before = answer->words ? answer->words : "";
    size_t size = strlen(before) + strlen(more) + 2;
    char *words = malloc(size);
    if (!words)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    snprintf(words, size, "%s%s%s", before, *before ? " " : "", more);
    free(answer->words);
    answer->words = words;
    return 0;
}

static int plug_answer_fill(const struct problem *problem, const char *planner, struct plan_answer *answer,
                            struct err *err)
{
    char by[160];
    if (answer_rests(problem, answer, NULL, err) < 0 || plug_left_out_fill(problem, planner, answer, err) < 0)
        return -1;
    answer_value(problem->cluster, answer);
    if (answer_words(problem, NULL, answer, err) < 0 || plan_seal(answer->plan, err) < 0)
        return -1;
    snprintf(by, sizeof(by), "Planned by \"%.100s\".", planner);
    return words_add(answer, by, err);
}

int plug_replace(const struct workload *workload, const struct cluster *cluster, const char *planner,
                 struct plan *plan, double step_s, struct plan_answer *answer, struct err *err)
{
    struct problem problem;
    plan_destroy(answer->plan);
    answer->plan = plan;
    answer->verdict = VERDICT_FITS;
    answer->shortfall_bytes = 0;
    answer->runnable = true;
    answer->step_s = step_s;
    answer->tokens_per_s = plan->costs.tokens_per_s;
    if (answer->lower_bound_s > step_s)
        answer->lower_bound_s = step_s;
    plan->costs.lower_bound_s = answer->lower_bound_s;
    plan_insight_destroy(answer->insight);
    answer->insight = NULL;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    int result = plug_answer_fill(&problem, planner, answer, err);
    problem_fini(&problem);
    return result;
}

int plug_repeat(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                struct plan_answer **answer, struct err *err)
{
    struct plan *plan = NULL;
    double step_s = 0;
    *answer = NULL;
    if (!json_is_object(document))
        return err_set(err, ERR_INVALID, "placement.plan: must be the plan itself, not the name of a file");
    if (plug_accept(document, workload, cluster, &plan, &step_s, err) < 0) {
        if (err->code == ERR_INVALID)
            err->code = ERR_NOFIT;
        return err_wrap(err, "placement.plan");
    }
    *answer = calloc(1, sizeof(**answer));
    if (!*answer) {
        plan_destroy(plan);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    return plug_replace(workload, cluster, "placement.plan", plan, step_s, *answer, err);
}

/* ---- choosing ---- */

/* Keeps the built-in plan and records why. */
static int built_in_stays(struct plan_answer *answer, const char *name, const char *why, json_t *told,
                          struct err *err)
{
    char words[900];
    snprintf(words, sizeof(words), "Planner \"%.80s\": %.600s; %s.", name, why,
             answer->plan ? "the built-in planner's plan is used" : "by the built-in planner nothing fits");
    json_object_set_new(told, "why", json_string(words));
    return words_add(answer, words, err);
}

static int plug_compared(const struct plug_answer *theirs, const struct workload *workload,
                         const struct cluster *cluster, struct plan *plan, double step_s,
                         struct plan_answer *answer, json_t *told, struct err *err)
{
    const double most = theirs->slower_at_most > 0 ? theirs->slower_at_most : PLUG_SLOWER_AT_MOST;
    /* objective_value() reads only the workload and the cluster of a problem. */
    const struct problem asked = {.workload = workload, .cluster = cluster};
    const double ours = answer->plan ? objective_value(&asked, answer->plan, answer->step_s) : 0;
    const double ratio = ours > 0 ? objective_value(&asked, plan, step_s) / ours : 0;
    char why[320], their_time[32], our_time[32];
    json_object_set_new(told, "step_s", json_real(step_s));
    if (ratio > 0)
        json_object_set_new(told, "ratio", json_real(ratio));
    if (ratio <= most) {
        json_object_set_new(told, "verdict", json_string("used"));
        return plug_replace(workload, cluster, theirs->name, plan, step_s, answer, err);
    }
    snprintf(
        why, sizeof(why),
        "its plan takes %s a step and the built-in one %s: %.2f times as much%s, at most %.4g is allowed",
        units_seconds(their_time, step_s), units_seconds(our_time, answer->step_s), ratio,
        workload->objective == OBJECTIVE_TIME   ? ""
        : workload->objective == OBJECTIVE_COST ? " of the price"
                                                : " of the energy",
        most);
    plan_destroy(plan);
    json_object_set_new(told, "verdict", json_string("slower"));
    return built_in_stays(answer, theirs->name, why, told, err);
}

int plug_choose(const struct plug_answer *theirs, const struct workload *workload,
                const struct cluster *cluster, struct plan_answer *answer, json_t **told, struct err *err)
{
    struct plan *plan = NULL;
    struct err why = {0};
    double step_s = 0;
    *told = json_pack("{s:s, s:s, s:n, s:f, s:n, s:o, s:n}", "name", theirs->name, "verdict", "refused",
                      "why", "plan_s", theirs->plan_s, "step_s", "built_in_step_s",
                      answer->plan ? json_real(answer->step_s) : json_null(), "ratio");
    if (!*told)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    int result = 0;
    if (!theirs->document)
        result = built_in_stays(answer, theirs->name, theirs->why ? theirs->why->text : "it said nothing",
                                *told, err);
    else if (plug_accept(theirs->document, workload, cluster, &plan, &step_s, &why) == 0)
        result = plug_compared(theirs, workload, cluster, plan, step_s, answer, *told, err);
    else if (why.code == ERR_NOMEM)
        result = err_set(err, ERR_NOMEM, "%s", why.text);
    else
        result = built_in_stays(answer, theirs->name, why.text, *told, err);
    if (result < 0) {
        json_decref(*told);
        *told = NULL;
    }
    return result;
}
