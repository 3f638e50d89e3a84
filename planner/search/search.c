/* The search: every placement proposes, the best proposals are emitted and simulated, the fastest is chosen.
 */
#include "planner/search/search_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/answer/insight.h"
#include "planner/answer/provenance.h"
#include "planner/answer/verdict.h"
#include "planner/cost/alike.h"
#include "planner/cost/bound.h"
#include "planner/expert/expert.h"
#include "planner/expert/expert_moves.h"
#include "planner/given/cluster_sort.h"
#include "planner/given/doubts.h"
#include "planner/pipeline/pipeline.h"
#include "planner/search/from_plan.h"
#include "planner/search/left_out.h"
#include "planner/search/moves.h"
#include "planner/search/objective.h"
#include "planner/search/placement.h"
#include "planner/search/polish.h"
#include "planner/search/tight.h"
#include "planner/tensor/tensor.h"
#include "program/codec.h"

#define FINALISTS 12u
#define FRESH_DEVICES 32u  /* devices up to which arrangements at random are tried */
#define PIPELINES_FRESH 8u /* pipelines at random to make a hybrid of */
#define SMALL_CELLS 200u   /* ranks * micro-batches up to which it is */
#define FULL_CELLS 96u     /* and from which hybrids' searches are shorter the longer their programs */
#define MANY_GROUPS 6u     /* of LONG_DEVICES and more hybrids get so much more */
#define DEALT_DEVICES 9u   /* up to which it is searched for hybrids who takes what, in which order; */
#define DEALT_PART 18u     /* from LONG_DEVICES on with so small a part of the budget */
#define RUNNABLE_PART 4u   /* of the budget: for what can be run beside a forecast */
#define TENSOR_CELLS                                                                                         \
    15u                 /* the same for few devices' tensor groups, whatever the length of their programs    \
                         */
#define POLISH_SHORT 4u /* beyond, few devices get such a part of it: much else is looked at */
#define FINALISTS_LARGE 2u
#define STEPS_FINALIST 4u   /* priced steps while choosing; all of them for the chosen one */
#define RUNNABLE_DEVICES 6u /* up to which a plan for today is searched for beside a forecast */

static struct plan_alternative *alternative_add(struct search *s, enum plan_placement placement)
{
    struct plan_answer *a = s->answer;
    struct plan_alternative *grown =
        realloc(a->alternatives, ((size_t)a->alternative_count + 1) * sizeof(*grown));
    if (!grown) {
        err_set(s->err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    a->alternatives = grown;
    grown[a->alternative_count] = (struct plan_alternative){.placement = placement};
    return &grown[a->alternative_count++];
}

uint64_t choice_cells(const struct problem *p, const struct place_choice *choice)
{
    return (uint64_t)choice->member_count * (p->workload->batch_rows / choice->micro_batch_rows + 1) *
           expert_program_length(p, choice) * tensor_program_length(p, choice);
}

uint32_t finalist_steps(const struct problem *p, uint64_t cells)
{
    if (cells >= LARGE_CELLS)
        return 1;
    return cells * p->step_count <= SMALL_CELLS ? p->step_count : STEPS_FINALIST;
}

/* A hybrid out of a pipeline: one more device beside one that has its stage alone, or two stages' devices put
 * together. */
static bool grouped_from(struct search *s, struct polish *polish, const struct place_choice *from,
                         struct place_choice *choice, double *seconds)
{
    for (int move = 0; move < 2 && from->schedule != SCHEDULE_INTERLEAVED; move++) {
        uint32_t count = move ? s->problem->device_count : from->member_count;
        for (uint32_t n = 0; n < count * from->stage_count; n++) {
            if (choice_copy(choice, from, s->err) < 0)
                return false;
            choice->placement = PLACE_HYBRID;
            choice->schedule = SCHEDULE_1F1B;
            if (move_apply(s->problem, choice, move ? MOVE_ADD : MOVE_REGROUP, n / from->stage_count,
                           n % from->stage_count, s->err) > 0 &&
                (*seconds = polish_seconds(polish, choice)) > 0)
                return true;
            choice_fini(choice);
        }
    }
    return false;
}

static bool grouped_find(struct search *s, struct polish *polish, enum plan_placement kind,
                         struct place_choice *choice, double *seconds)
{
    const struct choice_list *list = &s->lists[PLACE_PIPELINE];
    bool found = false;
    for (uint32_t i = 0; kind == PLACE_HYBRID && i < list->count && !found; i++)
        found = grouped_from(s, polish, &list->choices[i], choice, seconds);
    for (uint32_t i = 0; kind == PLACE_HYBRID && i < PIPELINES_FRESH && !found; i++) {
        struct place_choice fresh;
        if (!polish_fresh(polish, PLACE_PIPELINE, &fresh, seconds))
            break;
        found = grouped_from(s, polish, &fresh, choice, seconds);
        choice_fini(&fresh);
    }
    return found;
}

/* Where nothing that was proposed fits (memory is tight), an arrangement at random may. */
static void fresh_add(struct search *s, struct polish *polish, enum plan_placement kind,
                      struct choice_list *list, double each[CHOICES_MAX], uint32_t *count)
{
    struct place_choice choice;
    double seconds = 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (each[i] > 0)
            return;
    }
    if (s->problem->device_count > FRESH_DEVICES ||
        (!polish_fresh(polish, kind, &choice, &seconds) && !grouped_find(s, polish, kind, &choice, &seconds)))
        return;
    for (uint32_t i = 0; i < list->count; i++)
        choice_fini(&list->choices[i]);
    list->count = 0;
    choice.estimate_s = seconds;
    if (choice_list_add(list, &choice, s->err) == 0 && list->count == 1) {
        each[0] = seconds;
        *count = 1;
    }
    choice_fini(&choice);
}

/* So far behind, with so many devices or with programs as long as tensor groups' (but for the first finalist
 * of many devices, which is no more than an estimate's best) or as shards', that polishing is not worth its
 * while. */
static bool hopeless(const struct search *s, const struct place_choice *choice, bool first, bool small,
                     double seconds)
{
    bool dear = (choice->placement == PLACE_TENSOR && (!first || s->problem->device_count <= TENSOR_FEW)) ||
                ((!small || choice->gathered_layers > 0) && s->problem->device_count >= LONG_DEVICES);
    return dear && s->fastest_s > 0 && seconds > s->fastest_s * POLISH_WITHIN;
}

/* Of ranks * micro-batches * steps. Few devices' groupings are enumerated and their pipelines looked at to
 * the end, and who takes which micro-batch matters less the more of them there are; of more devices,
 * polishing is all that changes what the proposals say. */
static uint64_t polish_budget(const struct search *s, enum plan_placement kind, uint64_t cells)
{
    uint64_t each = CELLS_PER_EVALUATION, least = CELLS_PER_EVALUATION / POLISH_SHORT;
    if (cells >= LARGE_CELLS)
        return 0;
    if (kind == PLACE_TENSOR && s->problem->device_count <= TENSOR_FEW)
        return (uint64_t)TENSOR_CELLS * s->lists[kind].evaluations_max;
    if (s->problem->device_count < LONG_DEVICES) {
        if (cells > SMALL_CELLS)
            each = least;
        else if (kind == PLACE_HYBRID && cells > FULL_CELLS)
            each = each * FULL_CELLS / cells > least ? each * FULL_CELLS / cells : least;
    } else if (kind == PLACE_HYBRID) {
        each *= MANY_GROUPS;
    }
    return each * s->lists[kind].evaluations_max;
}

/* The finalists of one placement: simulated, the best of them polished into f. */
static int placement_descend(struct search *s, enum plan_placement kind, struct finalists *f)
{
    struct choice_list *list = &s->lists[kind];
    double each[CHOICES_MAX];
    uint64_t cells = list->count > 0 ? choice_cells(s->problem, &list->choices[0]) : 0;
    bool small = cells <= SMALL_CELLS, large = cells >= LARGE_CELLS;
    uint32_t most = small ? CHOICES_MAX : large ? FINALISTS_LARGE : FINALISTS;
    uint32_t count = list->count < most ? list->count : most;
    *f = (struct finalists){.cells = cells, .best = UINT32_MAX, .known = UINT32_MAX};
    f->budget = polish_budget(s, kind, cells);
    if (cells >= HUGE_CELLS || (cells && search_huge(s))) { /* huge_choose simulates */
        f->best = huge_finalist(s, list, &f->seconds);
        return 0;
    }
    f->polish =
        polish_create(s->problem, finalist_steps(s->problem, cells), f->budget, s->options->seed, s->err);
    if (!f->polish)
        return -1;
    for (uint32_t i = 0; i < count; i++)
        each[i] = choice_simulate(s->problem, &list->choices[i], finalist_steps(s->problem, cells), s->err);
    fresh_add(s, f->polish, kind, list, each, &count);
    f->few = kind == PLACE_HYBRID && s->problem->device_count <= DEALT_DEVICES;
    f->few_budget = s->problem->device_count < LONG_DEVICES ? f->budget : f->budget / DEALT_PART;
    for (uint32_t turn = 0; turn < (f->few ? POLISHED_FEW : POLISHED); turn++) {
        uint32_t pick = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            if (each[i] > 0 && (pick == UINT32_MAX || each[i] < each[pick]))
                pick = i;
        }
        if (pick == UINT32_MAX || (f->best != UINT32_MAX && each[pick] > f->seconds * POLISH_WITHIN))
            break;
        double now = each[pick];
        if (!hopeless(s, &list->choices[pick], turn == 0, small, now))
            polish_descend(f->polish, &list->choices[pick], &now);
        each[pick] = -1;
        f->descended_s[pick] = now;
        if (move_knows(&list->choices[pick]) && (f->known == UINT32_MAX || now < f->known_s)) {
            f->known = pick; /* the best of those that can be kicked about */
            f->known_s = now;
        }
        if (f->best == UINT32_MAX || now < f->seconds) {
            f->best = pick;
            f->seconds = now;
        }
    }
    for (uint32_t i = 0; i < count && f->few; i++)
        f->simulated_s[i] = each[i] > 0 ? each[i] : 0;
    return 0;
}

static uint64_t choice_needs(struct search *s, const struct place_choice *choice, uint64_t *has)
{
    struct err why;
    struct plan *plan = placement_find(choice->placement)->emit(s->problem, choice, false, &why);
    uint64_t needs = 0;
    double fullest = -1;
    for (uint32_t r = 0; plan && r < plan->rank_count; r++) {
        double full = (double)plan->ranks[r].memory_bytes / (double)plan->ranks[r].memory_limit_bytes;
        if (full > fullest) {
            fullest = full;
            needs = plan->ranks[r].memory_bytes;
            *has = plan->ranks[r].memory_limit_bytes;
        }
    }
    plan_destroy(plan);
    return needs;
}

static void single_short(const struct problem *p, struct plan_alternative *line)
{
    bool recompute = p->workload->recompute != RECOMPUTE_NO;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = 1,
                             .micro_batch_rows =
                                 p->workload->micro_batch_rows ? p->workload->micro_batch_rows : 1,
                             .recompute = recompute,
                             .state_share = 1,
                             .tensor_share = 1};
    struct memory_need need;
    memory_stage_need(p, &m, &need);
    line->verdict = VERDICT_DOES_NOT_FIT;
    line->needs_bytes = need.total;
    line->micro_batch_rows = m.micro_batch_rows;
}

/* A device alone; simulated where it is among the fastest. */
static int single_fill(struct search *s, uint32_t d, struct plan_alternative *line)
{
    const struct problem *p = s->problem;
    const struct choice_list *list = &s->lists[PLACE_SINGLE];
    struct choice_list own = {.must_use = d + 1, .runnable_on = list->runnable_on};
    const struct place_choice *mine = NULL;
    struct err why = {0};
    for (uint32_t k = 0; k < list->count; k++) {
        if (list->choices[k].members[0].device == d)
            mine = &list->choices[k];
    }
    bool fast = mine != NULL;
    if (!mine && list->count == CHOICES_MAX && place_single.supports(p, &why)) {
        if (place_single.propose(p, &own, s->err) < 0) {
            choice_list_fini(&own);
            return -1;
        }
        mine = own.count ? &own.choices[0] : NULL;
    }
    if (mine) {
        line->verdict = VERDICT_FITS;
        line->step_s = fast ? choice_simulate(p, mine, STEPS_FINALIST, s->err) : mine->estimate_s;
        line->needs_bytes = choice_needs(s, mine, &line->has_bytes);
        line->micro_batch_rows = mine->micro_batch_rows;
        line->runnable = choice_runnable(p, mine);
    } else {
        single_short(p, line);
    }
    choice_list_fini(&own);
    return 0;
}

/* Each usable device alone is an alternative worth a line, fitting or not. */
static int singles_list(struct search *s)
{
    const struct problem *p = s->problem;
    for (uint32_t i = 0, lines = 0; i < p->device_count && lines < 64; i++) {
        uint32_t d = problem_listed(p, i);
        if (!p->usable[d])
            continue;
        struct plan_alternative *line = alternative_add(s, PLACE_SINGLE);
        if (!line || !(line->device = strdup(p->cluster->devices[d].name)))
            return err_set(s->err, ERR_NOMEM, "planner: out of memory");
        lines++;
        line->stages = 1;
        line->has_bytes = p->cluster->devices[d].memory_limit_bytes;
        if (single_fill(s, d, line) < 0)
            return -1;
    }
    return 0;
}

static void alternative_fill(struct search *s, struct plan_alternative *line,
                             const struct place_choice *choice, double seconds)
{
    bool several = choice->stage_count > choice->member_count; /* ranges a device */
    line->verdict = VERDICT_FITS;
    line->step_s = seconds;
    line->needs_bytes = choice_needs(s, choice, &line->has_bytes);
    line->stages = several ? choice->member_count : choice->stage_count;
    line->schedule = choice->stage_count > 1 ? plan_schedule_name(choice->schedule) : NULL;
    line->micro_batch_rows = choice->micro_batch_rows;
    line->runnable = choice_runnable(s->problem, choice);
}

static int others_list(struct search *s, const struct place_choice *const best[PLACE_COUNT],
                       const double seconds[PLACE_COUNT])
{
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        const struct choice_list *list = &s->lists[kind];
        bool chosen = best[kind] && !s->keeps && s->best.stages == best[kind]->stages;
        if (kind == PLACE_SINGLE || !s->tried[kind] || chosen || (!best[kind] && list->shortfall_bytes == 0))
            continue;
        struct plan_alternative *line = alternative_add(s, (enum plan_placement)kind);
        if (!line)
            return -1;
        if (best[kind]) {
            alternative_fill(s, line, best[kind], seconds[kind]);
        } else {
            line->verdict = VERDICT_DOES_NOT_FIT;
            line->needs_bytes = list->needs_bytes;
            line->has_bytes = list->has_bytes;
        }
    }
    return 0;
}

/* The line of a plan of that placement that can be run: the one there is, if it is no faster, else a new one.
 */
static struct plan_alternative *runnable_line(struct search *s, const struct plan_answer *other)
{
    for (uint32_t i = 0; i < s->answer->alternative_count; i++) {
        struct plan_alternative *line = &s->answer->alternatives[i];
        if (line->placement == other->plan->placement && line->runnable && line->verdict == VERDICT_FITS &&
            (!line->device || strcmp(line->device, other->plan->ranks[0].device) == 0))
            return line;
    }
    struct plan_alternative *line = alternative_add(s, other->plan->placement);
    if (line && line->placement == PLACE_SINGLE && !(line->device = strdup(other->plan->ranks[0].device))) {
        err_set(s->err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    return line;
}

/* Of placements whose best is a forecast: the first proposal that workers of this release can run. */
static int runnable_proposals(struct search *s, const struct place_choice *const best[PLACE_COUNT])
{
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        const struct choice_list *list = &s->lists[kind];
        uint32_t at = 0;
        if (kind == PLACE_SINGLE || !best[kind] || choice_runnable(s->problem, best[kind]))
            continue;
        while (at < list->count && !choice_runnable(s->problem, &list->choices[at]))
            at++;
        double seconds =
            at < list->count ? choice_simulate(s->problem, &list->choices[at], STEPS_FINALIST, s->err) : 0;
        struct plan_alternative *line = seconds > 0 ? alternative_add(s, (enum plan_placement)kind) : NULL;
        if (seconds > 0 && !line)
            return -1;
        if (line)
            alternative_fill(s, line, &list->choices[at], seconds);
    }
    return 0;
}

/* Beside a forecast, what can be run today: searched for by itself among few devices. */
static int runnable_list(struct search *s, const struct place_choice *const best[PLACE_COUNT])
{
    struct plan_options options = *s->options;
    struct plan_answer *other = NULL;
    if (!s->answer->plan || s->answer->runnable || search_long(s))
        return 0;
    if (s->problem->device_count > RUNNABLE_DEVICES)
        return runnable_proposals(s, best);
    options.brief = options.runnable_only = true;
    uint64_t evaluations = options.evaluations ? options.evaluations : EVALUATIONS_DEFAULT;
    options.evaluations = evaluations / RUNNABLE_PART + 1; /* 0 would be the default */
    options.insight = options.programs = false;
    options.from = NULL;
    if (plan_search(s->problem->workload, s->problem->cluster, &options, &other, s->err) < 0)
        return -1;
    struct plan_alternative *line = other->plan ? runnable_line(s, other) : NULL;
    int result = other->plan && !line ? -1 : 0;
    if (line && (line->step_s <= 0 || other->step_s < line->step_s)) {
        const struct plan *plan = other->plan;
        double fullest = -1;
        line->verdict = VERDICT_FITS;
        line->step_s = other->step_s;
        line->micro_batch_rows = plan->rows_bound;
        line->runnable = true;
        line->stages = 1;
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            const struct plan_rank *rank = &plan->ranks[r];
            double full = (double)rank->memory_bytes / (double)rank->memory_limit_bytes;
            line->stages = (uint32_t)rank->stage >= line->stages ? (uint32_t)rank->stage + 1 : line->stages;
            if (full <= fullest)
                continue;
            fullest = full;
            line->needs_bytes = rank->memory_bytes;
            line->has_bytes = rank->memory_limit_bytes;
        }
        line->schedule = line->stages > 1 ? plan_schedule_name(plan->schedule) : NULL;
    }
    plan_answer_destroy(other);
    return result;
}

/* options->from as a choice, polished, beside what the placements found. `kept`: the plan itself, with
 * *kept_s its time; NULL when it cannot be kept, with the reason in *why. */
static int from_read(struct search *s, struct plan **kept, double *kept_s, struct err *why)
{
    const struct problem *p = s->problem;
    const struct plan *from = s->options->from;
    struct err reason = {0};
    double seconds = 0;
    if (from_plan_check(p, from, why) < 0)
        return 0;
    bool read = from_plan_choice(p, from, &s->from, &reason) == 0;
    if (p->runnable_only && (!read || !choice_runnable(p, &s->from))) {
        choice_fini(&s->from);
        err_set(why, ERR_UNSUPPORTED, "this release cannot run it");
        return 0;
    }
    if (read)
        seconds = choice_simulate(p, &s->from, STEPS_FINALIST, s->err);
    if (seconds > 0 && choice_cells(p, &s->from) < LARGE_CELLS) {
        uint64_t evaluations = s->options->evaluations ? s->options->evaluations : EVALUATIONS_DEFAULT;
        struct polish *polish =
            polish_create(p, STEPS_FINALIST, evaluations * CELLS_PER_EVALUATION, s->options->seed, s->err);
        if (!polish)
            return -1;
        polish_search(polish, &s->from, &seconds, KICKS);
        polish_destroy(polish);
    } else if (seconds <= 0) {
        choice_fini(&s->from);
    }
    *kept = from_plan_keep(p, from, s->steps, kept_s, why);
    return *kept || why->code != ERR_NOMEM ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
}

/* Ties keep the plan that is there: a running job is not moved for nothing. */
static int from_compare(struct search *s)
{
    struct plan_answer *a = s->answer;
    struct plan *kept = NULL;
    struct err why = {0};
    char text[700], step[32], now[32];
    double kept_s = 0;
    if (from_read(s, &kept, &kept_s, &why) < 0)
        return -1;
    double polished_s = s->from.member_count ? choice_simulate(s->problem, &s->from, s->steps, s->err) : 0;
    if (polished_s > 0 && (s->best.member_count == 0 || polished_s < s->best_s)) {
        s->best = s->from;
        s->best_s = polished_s;
    }
    a->from_step_s = kept ? kept_s : 0;
    if (kept && (s->best.member_count == 0 || kept_s <= s->best_s)) {
        s->kept = kept;
        s->keeps = true;
        s->best_s = kept_s;
        snprintf(text, sizeof(text), "The plan given is kept.");
    } else if (kept) {
        snprintf(text, sizeof(text), "The plan given would take %s, this one takes %s.",
                 units_seconds(step, kept_s), units_seconds(now, s->best_s));
        plan_destroy(kept);
    } else {
        snprintf(text, sizeof(text), "The plan given cannot be kept: %s.", why.text);
    }
    a->from_words = strdup(text);
    return a->from_words ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
}

static int chosen_emit(struct search *s)
{
    const struct problem *p = s->problem;
    struct plan_answer *a = s->answer;
    double seconds = s->best_s;
    struct plan *plan = s->kept;
    struct price_run run = {0};
    s->kept = NULL;
    if (!plan && s->emitted && s->emitted_of == s->best.members) {
        plan = s->emitted;
        run = s->emitted_run;
        s->emitted_run = (struct price_run){0};
        seconds = s->emitted_s;
        s->emitted = NULL;
        a->runnable = choice_runnable(p, &s->best);
    } else if (!plan) {
        plan = placement_find(s->best.placement)->emit(p, &s->best, true, s->err);
        if (!plan || price_plan_run(p, plan, s->steps, PATH_INSTRUCTIONS_MAX, &seconds, &run, s->err) < 0) {
            plan_destroy(plan);
            return -1;
        }
        a->runnable = choice_runnable(p, &s->best);
    } else {
        a->runnable = s->from.member_count == 0 || choice_runnable(p, &s->from);
    }
    /* the mean step's bound, where fewer steps than that were priced, or rows are worked on in parts */
    a->lower_bound_s = fmin(a->lower_bound_s, seconds);
    plan->costs.lower_bound_s = a->lower_bound_s;
    a->plan = plan;
    a->step_s = seconds;
    a->tokens_per_s = plan->costs.tokens_per_s;
    int rested = answer_rests(p, a, &run, s->err);
    price_run_fini(&run);
    if (rested < 0)
        return -1;
    answer_value(p->cluster, a);
    if (!s->options->programs && !s->options->insight) {
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            for (int kind = 0; kind < PROGRAM_KINDS; kind++)
                program_fini(&plan->ranks[r].programs[kind]);
        }
    }
    return plan_seal(plan, s->err);
}

/* Of those tried and left out before it, one that is alike in everything; UINT32_MAX: none. */
static uint32_t left_out_twin(const struct search *s, uint32_t device)
{
    uint32_t d = 0;
    while (d < device &&
           !(s->with_s[d] > 0 && !choice_uses(&s->best, d) && devices_alike(s->problem, d, device)))
        d++;
    return d < device ? d : UINT32_MAX;
}

/* Devices of a small cluster that the best choice leaves out are each tried again; what turns out faster with
 * one is taken, and the devices that it drops have the old best as theirs. */
static int left_out_run(struct search *s, const struct place_choice *const best[PLACE_COUNT],
                        const double seconds_of[PLACE_COUNT])
{
    const struct problem *p = s->problem;
    uint64_t evaluations = s->options->evaluations ? s->options->evaluations : EVALUATIONS_DEFAULT;
    if (s->options->brief || p->device_count > LEFT_OUT_TRIED || s->best.member_count == 0 || s->keeps ||
        choice_cells(p, &s->best) >= LARGE_CELLS)
        return 0;
    s->with_s = calloc((size_t)p->device_count + 1, sizeof(*s->with_s));
    if (!s->with_s)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count; d++) {
        struct place_choice choice;
        double seconds = 0;
        if (!p->usable[d] || choice_uses(&s->best, d))
            continue;
        uint32_t twin = left_out_twin(s, d);
        if (twin != UINT32_MAX) {
            s->with_s[d] = s->with_s[twin];
            continue;
        }
        struct left_out_found found = {
            .best = &s->best, .best_s = s->best_s, .of = best, .of_s = seconds_of, .lists = s->lists};
        if (left_out_try(p, &found, d, evaluations / 4, s->steps, &choice, &seconds, s->err) < 0)
            return -1;
        s->with_s[d] = seconds;
        if (choice.member_count == 0 || seconds >= s->best_s) {
            choice_fini(&choice);
            continue;
        }
        for (uint32_t other = 0; other < p->device_count; other++) {
            if (choice_uses(&s->best, other) && !choice_uses(&choice, other))
                s->with_s[other] = s->best_s;
        }
        choice_fini(&s->with);
        s->with = s->best = choice;
        s->best_s = seconds;
    }
    return 0;
}

/* The best of every placement, and the plan given, over the same steps; the fastest is chosen. */
static int best_choose(struct search *s, const struct place_choice *best[PLACE_COUNT],
                       double seconds[PLACE_COUNT])
{
    bool huge = search_huge(s);
    s->steps = WORKLOAD_SAMPLE_STEPS;
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        uint64_t cells = best[kind] ? choice_cells(s->problem, best[kind]) : 0;
        s->steps = cells >= LARGE_CELLS ? 1 : s->steps;
        huge = huge || cells >= HUGE_CELLS;
    }
    const struct plan *from = s->options->from;
    if (from && (uint64_t)from->rank_count * from->micro_batch_count >= LARGE_CELLS)
        s->steps = 1;
    if (huge && huge_choose(s, best, seconds) < 0)
        return -1;
    for (int kind = 0; kind < PLACE_COUNT && !huge; kind++) {
        if (!best[kind])
            continue;
        double now = choice_simulate(s->problem, best[kind], s->steps, s->err);
        if (now > 0)
            seconds[kind] = now;
        if (s->best.member_count == 0 || seconds[kind] < s->best_s) {
            s->best = *best[kind];
            s->best_s = seconds[kind];
        }
    }
    return from ? from_compare(s) : 0;
}

/* What every placement finds. */
static int placements_search(struct search *s, struct finalists all[PLACE_COUNT])
{
    int wanted = s->problem->workload->place;
    for (uint32_t i = 0; placements[i]; i++) {
        enum plan_placement kind = placements[i]->kind;
        struct choice_list *list = &s->lists[kind];
        struct err why = {0};
        bool asked = wanted == -1 || wanted == (int)kind;
        if (!asked && kind != PLACE_SINGLE)
            continue;
        if (!placements[i]->supports(s->problem, &why)) {
            if (wanted == (int)kind && why.code != ERR_NOFIT) {
                *s->err = why;
                return err_wrap(s->err, "placement.kind: %s", plan_placement_name(kind));
            }
            continue;
        }
        list->runnable_on = s->problem->runnable_only ? s->problem : NULL;
        list->rival_s = s->fastest_s;
        huge_limits(s, kind, list);
        if (placements[i]->propose(s->problem, list, s->err) < 0)
            return -1;
        if (kind == PLACE_PIPELINE && list->count == 0 && tight_pipeline(s->problem, true, list, s->err) < 0)
            return -1;
        if (kind == PLACE_HYBRID && wanted == PLACE_HYBRID && list->count == 0 &&
            tight_pipeline(s->problem, false, list, s->err) <
                0) /* groups hold no less than stages of one do */
            return -1;
        s->tried[kind] = true;
        s->answer->evaluations += list->evaluations;
        if (!asked)
            continue;
        if (placement_descend(s, kind, &all[kind]) < 0)
            return -1;
        if (all[kind].best != UINT32_MAX && (s->fastest_s == 0 || all[kind].seconds < s->fastest_s))
            s->fastest_s = all[kind].seconds;
    }
    return search_kick(s, all);
}

static int placements_run(struct search *s)
{
    const struct place_choice *best[PLACE_COUNT] = {0};
    double seconds[PLACE_COUNT] = {0};
    struct finalists all[PLACE_COUNT];
    for (int kind = 0; kind < PLACE_COUNT; kind++)
        all[kind] = (struct finalists){.best = UINT32_MAX, .known = UINT32_MAX};
    int result = placements_search(s, all);
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        polish_destroy(all[kind].polish);
        if (all[kind].best == UINT32_MAX)
            continue;
        best[kind] = &s->lists[kind].choices[all[kind].best];
        seconds[kind] = all[kind].seconds;
    }
    if (result < 0)
        return -1;
    if (best_choose(s, best, seconds) < 0 || left_out_run(s, best, seconds) < 0)
        return -1;
    if ((s->best.member_count || s->kept) && chosen_emit(s) < 0)
        return -1;
    if (s->options->brief)
        return 0;
    if (singles_list(s) < 0 || others_list(s, best, seconds) < 0 || runnable_list(s, best) < 0)
        return -1;
    return 0;
}

/* listed: where each of the devices is, as they were given; NULL: there. */
static int search_run(const struct workload *workload, const struct cluster *cluster, const uint32_t *listed,
                      const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    struct problem problem;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    struct search s = {.problem = &problem, .options = options, .err = err};
    int result = -1;
    problem.listed = listed;
    problem.exhaustive_off = s.options->exhaustive_off;
    problem.runnable_only = s.options->runnable_only;
    s.answer = calloc(1, sizeof(*s.answer));
    if (!s.answer) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
        goto out;
    }
    s.answer->runnable = true;
    if (workload->place >= 0 && !placement_find((enum plan_placement)workload->place)) {
        err_set(err, ERR_UNSUPPORTED, "placement.kind: %s is not built yet",
                plan_placement_name(workload->place));
        goto out;
    }
    s.answer->lower_bound_s = bound_time(&problem);
    if (placements_run(&s) < 0)
        goto out;
    s.answer->verdict = s.answer->plan ? VERDICT_FITS : VERDICT_DOES_NOT_FIT;
    if (!s.options->brief && left_out_fill(&problem, s.with_s, s.answer, err) < 0)
        goto out;
    if (!s.options->brief && problem_doubts(&problem, s.answer, err) < 0)
        goto out;
    if (answer_words(&problem, s.lists, s.answer, err) < 0)
        goto out;
    if (s.options->insight && s.answer->plan &&
        plan_insight_fill(workload, cluster, s.options, s.answer, err) < 0)
        goto out;
    result = 0;
out:
    for (int kind = 0; kind < PLACE_COUNT; kind++)
        choice_list_fini(&s.lists[kind]);
    choice_fini(&s.from);
    choice_fini(&s.with);
    free(s.with_s);
    plan_destroy(s.kept);
    price_run_fini(&s.emitted_run);
    plan_destroy(s.emitted);
    problem_fini(&problem);
    if (result < 0) {
        plan_answer_destroy(s.answer);
        return -1;
    }
    *answer = s.answer;
    return 0;
}

/* What many devices are is looked at in an order that neither names nor the order given decide. */
static int sorted_search(const struct workload *workload, const struct cluster *cluster,
                         const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    if (cluster->device_count < LONG_DEVICES)
        return search_run(workload, cluster, NULL, options, answer, err);
    uint32_t *listed = calloc(cluster->device_count, sizeof(*listed));
    struct cluster *sorted = listed ? cluster_sorted(cluster, listed, err) : NULL;
    if (!listed)
        err_set(err, ERR_NOMEM, "planner: out of memory");
    int result = sorted ? search_run(workload, sorted, listed, options, answer, err) : -1;
    cluster_sorted_destroy(sorted);
    free(listed);
    return result;
}

static bool answer_faster(const struct plan_answer *a, const struct plan_answer *b)
{
    return a->plan && (!b->plan || a->step_s < b->step_s);
}

/* What longer walks end with need not be better: with more evaluations than a search has when nobody says,
 * what it then answers is beaten or kept. */
int plan_search(const struct workload *workload, const struct cluster *cluster,
                const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    static const struct plan_options none = {0};
    struct plan_answer *usual = NULL;
    *answer = NULL;
    options = options ? options : &none;
    if (workload->objective != OBJECTIVE_TIME)
        return objective_search(workload, cluster, options, answer, err);
    if (options->evaluations > EVALUATIONS_DEFAULT) {
        struct plan_options fewer = *options;
        fewer.evaluations = 0;
        if (sorted_search(workload, cluster, &fewer, &usual, err) < 0)
            return -1;
    }
    int result = sorted_search(workload, cluster, options, answer, err);
    if (result == 0 && usual) {
        struct plan_answer *other = *answer;
        bool kept = answer_faster(usual, other);
        *answer = kept ? usual : other;
        (*answer)->evaluations = usual->evaluations + other->evaluations;
        usual = kept ? other : usual;
    }
    plan_answer_destroy(usual);
    return result;
}
