/* Writes the answer as a document, simulates its plan for drawing, and destroys it. */
#include "planner/answer/answer.h"

#include <stdio.h>
#include <stdlib.h>

#include "planner/answer/insight.h"
#include "planner/cost/price.h"
#include "planner/given/catalogue.h"
#include "planner/given/kernels.h"
#include "program/plan_doc.h"

static bool same_as_first(const struct plan_rank *rank, uint32_t first, uint32_t count, uint32_t at)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_experts *a = &rank->experts[first + i], *b = &rank->experts[at + i];
        if (at + i >= rank->expert_count || a->begin != b->begin || a->end != b->end ||
            b->block != rank->experts[at].block)
            return false;
    }
    return at + count == rank->expert_count || rank->experts[at + count].block != rank->experts[at].block;
}

/* Writes "experts 0..12 of every layer", "experts 0..4 and 7..9 of every layer", or, if layers differ, "11
 * to 13 experts a layer, uneven by layer". */
static void expert_words(const struct plan_rank *rank, char *text, size_t size)
{
    uint32_t runs = 0, least = UINT32_MAX, most = 0;
    bool even = true;
    text[0] = '\0';
    while (runs < rank->expert_count && rank->experts[runs].block == rank->experts[0].block)
        runs++;
    for (uint32_t i = 0; i < rank->expert_count;) {
        int32_t block = rank->experts[i].block;
        uint32_t count = 0;
        even = even && same_as_first(rank, 0, runs, i);
        for (; i < rank->expert_count && rank->experts[i].block == block; i++)
            count += (uint32_t)(rank->experts[i].end - rank->experts[i].begin);
        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    if (rank->expert_count == 0)
        return;
    if (!even || runs > 4) {
        const char *by = even ? "of every layer" : "a layer, uneven by layer";
        if (least == most)
            snprintf(text, size, "%u experts %s", least, by);
        else
            snprintf(text, size, "%u to %u experts %s", least, most, by);
        return;
    }
    int used = snprintf(text, size, "experts");
    for (uint32_t i = 0; i < runs && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s %d..%d",
                         i == 0          ? ""
                         : i + 1 == runs ? " and"
                                         : ",",
                         rank->experts[i].begin, rank->experts[i].end);
    if (used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, " of every layer");
}

/* Sets "like" if the device's times are estimated from a catalogue entry, and "runs": whether that was tried
 * on a real one. Returns the object. */
static json_t *like_set(json_t *object, const char *like)
{
    const struct catalogue_entry *entry = like ? catalogue_find(like) : NULL;
    if (object && entry) {
        json_object_set_new(object, "like", json_string(like));
        json_object_set_new(object, "runs", json_string(catalogue_runs_names[catalogue_runs(entry)]));
    }
    return object;
}

/* Writes a rank as its plan does, less what only workers need. */
static json_t *answer_rank_json(const struct plan_rank *rank, uint32_t number, struct err *err)
{
    static const char *const workers_only[] = {"node",   "rows_share", "owns_tied", "copies_tied",
                                               "bounds", "slots",      "ranges"};
    json_t *all = json_pack("{s:I}", "rank", (json_int_t)number);
    char held[96];
    uint32_t experts = 0;
    if (doc_add(&plan_rank_doc, rank, all, err) < 0) {
        json_decref(all);
        return NULL;
    }
    for (uint32_t i = 0; i < rank->expert_count; i++)
        experts += (uint32_t)(rank->experts[i].end - rank->experts[i].begin);
    if (rank->expert_count > 0) {
        expert_words(rank, held, sizeof(held));
        json_object_set(all, "expert_ranges", json_object_get(all, "experts"));
        json_object_set_new(all, "experts", json_integer(experts));
        json_object_set_new(all, "experts_held", json_string(held));
    }
    json_object_set(all, "block_ranges", json_object_get(all, "ranges"));
    for (size_t i = 0; i < sizeof(workers_only) / sizeof(workers_only[0]); i++)
        json_object_del(all, workers_only[i]);
    return all;
}

/* Returns the schedule's name; NULL if the plan has only one stage. */
static const char *schedule_words(const struct plan *plan)
{
    bool stages = false;
    for (uint32_t r = 1; r < plan->rank_count; r++)
        stages = stages || plan->ranks[r].stage != plan->ranks[0].stage;
    return stages ? plan_schedule_name(plan->schedule) : NULL;
}

static json_t *alternative_json(const struct plan_alternative *a)
{
    bool fits = a->verdict == VERDICT_FITS;
    json_t *line = json_pack(
        "{s:s,s:s?,s:s,s:o,s:o,s:o,s:I,s:I,s:o}", "placement", plan_placement_name(a->placement), "device",
        a->device, "verdict", fits ? "fits" : "does not fit", "step_s",
        fits ? json_real(a->step_s) : json_null(), "needs_bytes", json_integer((json_int_t)a->needs_bytes),
        "has_bytes", json_integer((json_int_t)a->has_bytes), "stages", (json_int_t)a->stages,
        "micro_batch_rows", (json_int_t)a->micro_batch_rows, "runnable",
        fits ? json_boolean(a->runnable) : json_null());
    if (a->schedule)
        json_object_set_new(line, "schedule", json_string(a->schedule));
    return like_set(line, a->like);
}

static json_t *plan_part(const struct plan_answer *answer, struct err *err)
{
    const struct plan *plan = answer->plan;
    if (!plan)
        return json_pack("{s:s,s:n,s:n,s:n,s:f,s:f,s:n,s:n,s:[],s:I}", "verdict", "does not fit", "placement",
                         "step_s", "tokens_per_s", "lower_bound_s", answer->lower_bound_s, "plan_s",
                         answer->plan_s, "micro_batch_rows", "micro_batches", "ranks", "shortfall_bytes",
                         (json_int_t)answer->shortfall_bytes);
    json_t *ranks = json_array();
    for (uint32_t r = 0; ranks && r < plan->rank_count; r++) {
        const char *like = r < answer->rank_like_count ? answer->rank_like[r] : NULL;
        if (json_array_append_new(ranks, like_set(answer_rank_json(&plan->ranks[r], r, err), like)) < 0) {
            json_decref(ranks);
            return NULL;
        }
    }
    return json_pack("{s:s,s:s,s:s?,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:o,s:s,s:f,s:{s:f,s:f,s:f},s:b,s:I}",
                     "verdict", "fits", "placement", plan_placement_name(plan->placement), "schedule",
                     schedule_words(plan), "step_s", answer->step_s, "tokens_per_s", answer->tokens_per_s,
                     "lower_bound_s", answer->lower_bound_s, "used_bound_s", answer->used_bound_s, "plan_s",
                     answer->plan_s, "micro_batch_rows", (json_int_t)plan->rows_bound, "micro_batches",
                     (json_int_t)plan->micro_batch_count, "ranks", ranks, "digest", plan->digest,
                     "uncertainty", answer->uncertainty, "rests_on", "measured", plan->costs.share_measured,
                     "imported", plan->costs.share_imported, "estimated", plan->costs.share_estimated,
                     "links_emulated", plan->costs.links_emulated, "steps", (json_int_t)answer->steps);
}

json_t *answer_to_json(const struct plan_answer *answer, struct err *err)
{
    json_t *root = plan_part(answer, err), *alternatives = json_array(), *left_out = json_array();
    int bad = !root || !alternatives || !left_out;
    for (uint32_t i = 0; !bad && i < answer->alternative_count; i++)
        bad |= json_array_append_new(alternatives, alternative_json(&answer->alternatives[i]));
    for (uint32_t i = 0; !bad && i < answer->left_out_count; i++) {
        const struct plan_left_out *l = &answer->left_out[i];
        json_t *line = json_pack("{s:s,s:s,s:o}", "device", l->device, "why", l->why, "step_s_with",
                                 l->step_s_with > 0 ? json_real(l->step_s_with) : json_null());
        bad |= json_array_append_new(left_out, like_set(line, l->like));
    }
    if (bad) {
        json_decref(root);
        json_decref(alternatives);
        json_decref(left_out);
        err_set(err, ERR_NOMEM, "planner: out of memory for the answer");
        return NULL;
    }
    json_object_set_new(root, "runnable", json_boolean(answer->runnable));
    if (answer->parameters)
        json_object_set_new(root, "model",
                            json_pack("{s:I,s:I,s:s}", "parameters", (json_int_t)answer->parameters,
                                      "trained", (json_int_t)answer->trained, "method", answer->method));
    if (answer->from_words)
        json_object_set_new(root, "from",
                            json_pack("{s:o,s:s}", "step_s",
                                      answer->from_step_s > 0 ? json_real(answer->from_step_s) : json_null(),
                                      "words", answer->from_words));
    json_object_set_new(root, "words", json_string(answer->words ? answer->words : ""));
    json_object_set_new(root, "alternatives", alternatives);
    json_object_set_new(root, "left_out", left_out);
    json_t *warnings = json_array();
    for (uint32_t i = 0; i < answer->warning_count; i++)
        json_array_append_new(warnings, json_string(answer->warnings[i]));
    json_object_set_new(root, "warnings", warnings);
    json_t *gains = json_array();
    for (uint32_t i = 0; i < answer->gain_count; i++) {
        const struct plan_gain *gain = &answer->gains[i];
        json_array_append_new(gains, json_pack("{s:s,s:f,s:f}", "what", gain->what, "step_s", gain->step_s,
                                               "tokens_per_s", gain->tokens_per_s));
    }
    json_object_set_new(root, "would_gain", gains);
    if (answer->plan) {
        double cost = answer->cost_per_million_tokens, kwh = answer->kwh_per_million_tokens;
        json_object_set_new(root, "cost_per_million_tokens", cost > 0 ? json_real(cost) : json_null());
        json_object_set_new(root, "kwh_per_million_tokens", kwh > 0 ? json_real(kwh) : json_null());
        json_object_set_new(root, "basis",
                            json_string(answer->plan->costs.text ? answer->plan->costs.text : ""));
        if (answer->plan->costs.corrected_runs > 0)
            json_object_set_new(root, "corrected",
                                json_pack("{s:I,s:f}", "runs", (json_int_t)answer->plan->costs.corrected_runs,
                                          "times", answer->plan->costs.corrected));
    }
    if (answer->insight && plan_insight_json(answer->insight, root, err) < 0) {
        json_decref(root);
        return NULL;
    }
    return root;
}

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
    for (uint32_t i = 0; i < answer->rival_count; i++)
        plan_destroy(answer->rivals[i].plan);
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
        price.step = problem.step_count / 2;
        result = price_step(&price, &sim, step_s, NULL, trace, err);
        sim_destroy(sim);
        price_fini(&price);
    }
    problem_fini(&problem);
    return result;
}
