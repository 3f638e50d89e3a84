#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/answer/answer_private.h"
#include "planner/candidate/objective.h"
#include "planner/cost/alike.h"

#define SINGLES_MAX 64u /* most devices for which a plan on that device alone is listed */

/* Returns a new line; alternatives_fill made room for all that there can be. */
static struct plan_alternative *alternatives_line_add(struct plan_answer *a, enum plan_placement placement)
{
    a->alternatives[a->alternative_count] = (struct plan_alternative){.placement = placement};
    return &a->alternatives[a->alternative_count++];
}

/* Fills an alternative from a candidate that fits in memory: seconds of a step, and memory of the fullest
 * rank. */
static void line_fill(const struct problem *p, struct plan_alternative *line, const struct candidate *c,
                      double step_s)
{
    struct err why = {0};
    struct plan *plan = kinds[c->placement]->emit(p, c, EMIT_NO_PROGRAMS, &why);
    double fullest = -1;
    for (uint32_t r = 0; plan && r < plan->rank_count; r++) {
        double full = (double)plan->ranks[r].memory_bytes / (double)plan->ranks[r].memory_limit_bytes;
        if (full <= fullest)
            continue;
        fullest = full;
        line->needs_bytes = plan->ranks[r].memory_bytes;
        line->has_bytes = plan->ranks[r].memory_limit_bytes;
    }
    plan_destroy(plan);
    line->verdict = VERDICT_FITS;
    line->step_s = step_s;
    line->stages = candidate_groups(c);
    line->schedule = c->stage_count > 1 ? plan_schedule_name(c->schedule) : NULL;
    line->micro_batch_rows = c->micro_batch_rows;
    line->runnable = kind_runnable(p, c);
}

/* Adds an alternative for each usable device alone, whether the job fits on it or not. */
static int singles_add(const struct problem *p, struct plan_answer *a, struct err *err)
{
    struct err why = {0};
    for (uint32_t i = 0, lines = 0; i < p->device_count && lines < SINGLES_MAX; i++) {
        uint32_t d = problem_listed(p, i);
        struct candidate single = {0};
        struct shortage lacks = {0};
        double seconds = INFINITY;
        if (!p->usable[d])
            continue;
        struct plan_alternative *line = alternatives_line_add(a, PLACE_SINGLE);
        if (!(line->device = strdup(p->cluster->devices[d].name)))
            return err_set(err, ERR_NOMEM, "planner: out of memory");
        lines++;
        line->stages = 1;
        line->has_bytes = p->cluster->devices[d].memory_limit_bytes;
        bool possible = kind_supports(kinds[PLACE_SINGLE], p, &why);
        if (possible && search_single(p, d, &single, &seconds, &lacks, err) < 0)
            return -1;
        if (seconds < INFINITY) {
            line_fill(p, line, &single, seconds);
        } else {
            line->verdict = VERDICT_DOES_NOT_FIT;
            line->needs_bytes = lacks.needs_bytes;
            line->micro_batch_rows = p->workload->micro_batch_rows ? p->workload->micro_batch_rows : 1;
        }
        candidate_fini(&single);
    }
    return 0;
}

int alternatives_fill(const struct problem *p, const struct search_found *found, struct plan_answer *a,
                      struct err *err)
{
    a->alternatives = calloc(SINGLES_MAX + PLACE_COUNT + 1, sizeof(*a->alternatives));
    if (!a->alternatives)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (singles_add(p, a, err) < 0)
        return -1;
    for (int k = 0; k < PLACE_COUNT; k++) {
        const struct shortage *lacks = &found->shortage[k];
        bool fits = found->best[k].estimate_s < INFINITY;
        if (k == PLACE_SINGLE || !found->tried[k] || (a->plan && (int)a->plan->placement == k) ||
            (!fits && lacks->missing_bytes == 0))
            continue;
        struct plan_alternative *line = alternatives_line_add(a, (enum plan_placement)k);
        if (fits) {
            line_fill(p, line, &found->best[k], found->seconds[k]);
        } else {
            line->verdict = VERDICT_DOES_NOT_FIT;
            line->needs_bytes = lacks->needs_bytes;
            line->has_bytes = lacks->has_bytes;
        }
    }
    if (a->plan && !a->runnable && found->runnable.estimate_s < INFINITY &&
        found->runnable.placement != PLACE_SINGLE) {
        for (uint32_t i = 0; i < a->alternative_count; i++)
            if (a->alternatives[i].placement == found->runnable.placement && a->alternatives[i].runnable)
                return 0;
        line_fill(p, alternatives_line_add(a, found->runnable.placement), &found->runnable,
                  found->runnable_s);
    }
    return 0;
}

/* --- devices that the plan leaves out --- */

/* The best plan found with a device that the answer leaves out; zeros: unknown. */
struct with_it {
    double step_s, value; /* value: by the job's objective (seconds, price or energy) */
};

static void why_left_out(const struct problem *p, const struct plan_answer *a, uint32_t d,
                         const struct with_it *with, char *text, size_t size)
{
    int objective = (int)p->workload->objective;
    double millions = a->tokens_per_s * a->step_s / 1e6;
    const char *why = p->device_count > LEFT_OUT_TRIED
                          ? "not needed (not tried one by one in a cluster this large)"
                          : "nothing was found that fits and has work for it";
    if (!p->usable[d])
        why = problem_why_unusable(p, d);
    else if (!a->plan)
        why = "nothing fits";
    else if (p->workload->place == PLACE_SINGLE)
        why = "one device is asked for (placement.kind)";
    else if (with->step_s > 0 && objective == OBJECTIVE_TIME)
        why = with->step_s > a->step_s * (1 + PROBLEM_SAME) ? "slower with it" : "no faster with it";
    else if (with->step_s > 0) {
        bool cost = objective == OBJECTIVE_COST;
        snprintf(text, size, "%.4g%s per million tokens with it, %.4g without",
                 with->value / millions / (cost ? 1 : OBJECTIVE_KWH), cost ? "" : " kWh",
                 cost ? a->cost_per_million_tokens : a->kwh_per_million_tokens);
        return;
    }
    snprintf(text, size, "%s", why);
}

/* Searches the best plan with a device that the answer leaves out, or takes the result of an equal device
 * tried before. Returns 1 if that plan beats everything found so far; *found then has it as the best. */
static int search_with_device(const struct problem *p, const struct search_options *options,
                              struct search_found *found, uint32_t d, struct with_it *with, struct err *err)
{
    struct candidate trial;
    double seconds;
    for (uint32_t other = 0; other < d; other++) {
        if (with[other].step_s > 0 && devices_alike(p, other, d)) {
            with[d] = with[other];
            return 0;
        }
    }
    if (search_with(p, options, found, d, &trial, &seconds, err) < 0)
        return -1;
    int result = 0;
    if (seconds < INFINITY)
        with[d] = (struct with_it){seconds, trial.estimate_s};
    if (seconds < INFINITY && !options->from &&
        trial.estimate_s < found->best[found->chosen].estimate_s * (1 - PROBLEM_SAME)) {
        found->chosen = (int)trial.placement;
        found->seconds[trial.placement] = seconds;
        result = candidate_copy(&found->best[trial.placement], &trial, err) < 0 ? -1 : 1;
    }
    candidate_fini(&trial);
    return result;
}

/* Searches with each device that the answer leaves out. Returns 1 as soon as one gives a better plan. */
static int left_out_search(const struct problem *p, const struct search_options *options,
                           struct search_found *found, const bool *used, struct with_it *with,
                           struct err *err)
{
    int result = 0;
    for (uint32_t d = 0; d < p->device_count && result == 0; d++)
        if (p->usable[d] && !used[d])
            result = search_with_device(p, options, found, d, with, err);
    return result;
}

int left_out_fill(const struct problem *p, const struct search_options *options, struct search_found *found,
                  struct plan_answer *a, struct err *err)
{
    bool *used = calloc((size_t)p->device_count + 1, sizeof(*used));
    struct with_it *with = calloc((size_t)p->device_count + 1, sizeof(*with));
    char why[512];
    a->left_out = calloc((size_t)p->device_count + 1, sizeof(*a->left_out));
    int result = used && with && a->left_out ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; result == 0 && a->plan && r < a->plan->rank_count; r++) {
        uint32_t d = cluster_device_find(p->cluster, a->plan->ranks[r].device);
        if (d != UINT32_MAX)
            used[d] = true;
    }
    if (result == 0 && found && found->chosen >= 0 && p->device_count <= LEFT_OUT_TRIED &&
        p->workload->place != PLACE_SINGLE)
        result = left_out_search(p, options, found, used, with, err);
    for (uint32_t i = 0; i < p->device_count && result == 0; i++) {
        uint32_t d = problem_listed(p, i);
        if (used[d])
            continue;
        struct plan_left_out *line = &a->left_out[a->left_out_count++];
        line->step_s_with = a->plan ? with[d].step_s : 0;
        why_left_out(p, a, d, &with[d], why, sizeof(why));
        line->device = strdup(p->cluster->devices[d].name);
        line->why = strdup(why);
        if (!line->device || !line->why)
            result = err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    if (result > 0) {
        free(a->left_out);
        a->left_out = NULL;
    }
    free(used);
    free(with);
    return result;
}
