/* The search: every placement proposes, the best proposals are emitted and simulated, the fastest is chosen.
 */
#include "planner/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/placement.h"
#include "planner/polish.h"
#include "program/codec.h"

#define EVALUATIONS_DEFAULT 20000u
#define FINALISTS 12u
#define FINALISTS_SMALL CHOICES_MAX /* where simulating is cheap */
#define POLISHED 2u                 /* finalists of a placement that are polished */
#define POLISHED_SMALL 6u
#define SMALL_CELLS 200u  /* ranks * micro-batches up to which it is */
#define LARGE_CELLS 2000u /* and from which it is dear: few finalists, one step each, no polish */
#define FINALISTS_LARGE 2u
#define LEFT_OUT_SIMULATED 16u /* devices up to which those left out are tried again */
#define POLISH_WITHIN 1.1      /* of the best so far */
#define SIMULATIONS 40u        /* for polishing one */
#define STEPS_FINALIST 4u      /* priced steps while choosing; all of them for the chosen one */

struct search {
    const struct problem *problem;
    const struct plan_options *options;
    struct plan_answer *answer;
    struct choice_list lists[PLACE_COUNT];
    bool tried[PLACE_COUNT];
    struct place_choice best; /* borrowed from its list */
    double best_s;
    struct err *err;
};

static double lower_bound(const struct problem *p)
{
    /* rows per step / Σ 1/t_d, t_d the least seconds a row takes through all blocks on d at its best
     * micro-batch */
    double rate = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        double best = INFINITY;
        if (!p->usable[d])
            continue;
        for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
            struct cost_load load = p->mean_row;
            load.rows *= rows;
            load.tokens *= rows;
            load.sum_sq *= rows;
            load.labelled *= rows;
            double seconds = (problem_seconds(p, d, 0, p->block_count, COST_FORWARD, &load) +
                              problem_seconds(p, d, 0, p->block_count, COST_BACKWARD, &load)) /
                             rows;
            best = seconds < best ? seconds : best;
        }
        rate += best > 0 ? 1 / best : 0;
    }
    return rate > 0 ? p->mean_step.rows / rate : 0;
}

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

static uint64_t choice_cells(const struct problem *p, const struct place_choice *choice)
{
    return (uint64_t)choice->member_count * (p->workload->batch_rows / choice->micro_batch_rows + 1);
}

/* The finalists of one placement: simulated, the best of them polished. Writes the best one's seconds. */
static const struct place_choice *placement_best(struct search *s, struct choice_list *list, double *seconds)
{
    double each[FINALISTS_SMALL];
    bool small = list->count > 0 && choice_cells(s->problem, &list->choices[0]) <= SMALL_CELLS;
    bool large = list->count > 0 && choice_cells(s->problem, &list->choices[0]) >= LARGE_CELLS;
    uint32_t most = small ? FINALISTS_SMALL : large ? FINALISTS_LARGE : FINALISTS;
    uint32_t polished = small ? POLISHED_SMALL : POLISHED, steps = large ? 1 : STEPS_FINALIST;
    uint32_t count = list->count < most ? list->count : most;
    const struct place_choice *best = NULL;
    for (uint32_t i = 0; i < count; i++)
        each[i] = choice_simulate(s->problem, &list->choices[i], steps, s->err);
    for (uint32_t turn = 0; turn < polished; turn++) {
        uint32_t pick = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            if (each[i] > 0 && (pick == UINT32_MAX || each[i] < each[pick]))
                pick = i;
        }
        double known = best && (s->best.member_count == 0 || *seconds < s->best_s) ? *seconds : s->best_s;
        if (pick == UINT32_MAX || (known > 0 && each[pick] > known * POLISH_WITHIN && best))
            break;
        double now = each[pick];
        choice_polish(s->problem, &list->choices[pick], &now, large ? 0 : SIMULATIONS, STEPS_FINALIST,
                      s->err);
        each[pick] = -1;
        if (!best || now < *seconds) {
            best = &list->choices[pick];
            *seconds = now;
        }
    }
    return best;
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

/* Each usable device alone is an alternative worth a line, fitting or not. */
static int singles_list(struct search *s)
{
    const struct problem *p = s->problem;
    for (uint32_t d = 0, lines = 0; d < p->device_count && lines < 64; d++) {
        if (!p->usable[d])
            continue;
        struct choice_list *list = &s->lists[PLACE_SINGLE];
        const struct place_choice *mine = NULL;
        for (uint32_t i = 0; i < list->count; i++) {
            if (list->choices[i].members[0].device == d)
                mine = &list->choices[i];
        }
        struct plan_alternative *line = alternative_add(s, PLACE_SINGLE);
        if (!line || !(line->device = strdup(p->cluster->devices[d].name)))
            return err_set(s->err, ERR_NOMEM, "planner: out of memory");
        lines++;
        line->stages = 1;
        line->has_bytes = p->cluster->devices[d].memory_limit_bytes;
        if (mine) {
            line->verdict = VERDICT_FITS;
            line->step_s = choice_simulate(s->problem, mine, STEPS_FINALIST, s->err);
            line->needs_bytes = choice_needs(s, mine, &line->has_bytes);
            line->micro_batch_rows = mine->micro_batch_rows;
            continue;
        }
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
    return 0;
}

static int others_list(struct search *s, const struct place_choice *const best[PLACE_COUNT],
                       const double seconds[PLACE_COUNT])
{
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        const struct choice_list *list = &s->lists[kind];
        bool chosen =
            best[kind] && s->best.placement == (enum plan_placement)kind && s->best_s == seconds[kind];
        if (kind == PLACE_SINGLE || !s->tried[kind] || chosen || (!best[kind] && list->shortfall_bytes == 0))
            continue;
        struct plan_alternative *line = alternative_add(s, (enum plan_placement)kind);
        if (!line)
            return -1;
        line->verdict = best[kind] ? VERDICT_FITS : VERDICT_DOES_NOT_FIT;
        line->step_s = best[kind] ? seconds[kind] : 0;
        if (best[kind]) {
            line->needs_bytes = choice_needs(s, best[kind], &line->has_bytes);
            line->stages = best[kind]->stage_count;
            line->micro_batch_rows = best[kind]->micro_batch_rows;
        } else {
            line->needs_bytes = list->needs_bytes;
            line->has_bytes = list->has_bytes;
        }
    }
    return 0;
}

static bool chosen_uses(const struct search *s, uint32_t device)
{
    for (uint32_t m = 0; m < s->best.member_count; m++) {
        if (s->best.members[m].device == device)
            return true;
    }
    return false;
}

/* The best simulated choice of any placement that uses the device; 0 when there is none in the lists. */
static double seconds_with(struct search *s, uint32_t device)
{
    double best = 0;
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        for (uint32_t i = 0; i < s->lists[kind].count; i++) {
            const struct place_choice *c = &s->lists[kind].choices[i];
            bool uses = false;
            for (uint32_t m = 0; m < c->member_count && !uses; m++)
                uses = c->members[m].device == device;
            double seconds =
                uses && c->member_count > 1 ? choice_simulate(s->problem, c, STEPS_FINALIST, s->err) : 0;
            if (seconds > 0 && (best == 0 || seconds < best))
                best = seconds;
            if (best > 0)
                break;
        }
    }
    return best;
}

static int left_out_list(struct search *s)
{
    const struct problem *p = s->problem;
    struct plan_answer *a = s->answer;
    a->left_out = calloc((size_t)p->device_count + 1, sizeof(*a->left_out));
    if (!a->left_out)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (s->answer->plan && chosen_uses(s, d))
            continue;
        struct plan_left_out *line = &a->left_out[a->left_out_count++];
        const char *why = "not asked for";
        if (p->usable[d] && !s->answer->plan)
            why = "nothing fits";
        else if (p->usable[d]) {
            line->step_s_with = p->device_count <= LEFT_OUT_SIMULATED ? seconds_with(s, d) : 0;
            why = line->step_s_with > s->best_s ? "slower with it" : "not needed";
        }
        line->device = strdup(p->cluster->devices[d].name);
        line->why = strdup(why);
        if (!line->device || !line->why)
            return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    }
    return 0;
}

static int words_set(struct search *s)
{
    struct plan_answer *a = s->answer;
    char text[600], step[32], other[32], third[32];
    if (!a->plan) {
        uint64_t needs = 0, has = 0;
        uint32_t device = 0;
        for (int kind = 0; kind < PLACE_COUNT; kind++) {
            const struct choice_list *list = &s->lists[kind];
            if (list->shortfall_bytes &&
                (a->shortfall_bytes == 0 || list->shortfall_bytes < a->shortfall_bytes)) {
                a->shortfall_bytes = list->shortfall_bytes;
                needs = list->needs_bytes;
                has = list->has_bytes;
                device = list->shortfall_device;
            }
        }
        if (a->shortfall_bytes)
            snprintf(text, sizeof(text),
                     "Does not fit: the nearest placement needs %s on %s, which has %s: %s too little.",
                     units_bytes(step, needs), s->problem->cluster->devices[device].name,
                     units_bytes(other, has), units_bytes(third, a->shortfall_bytes));
        else
            snprintf(text, sizeof(text),
                     "Does not fit: no placement of the kind asked for is possible here.");
    } else {
        int used = snprintf(text, sizeof(text), "Fits on %u of %u devices. %s per step, %.0f tokens/s",
                            s->best.member_count, s->problem->device_count, units_seconds(step, a->step_s),
                            a->tokens_per_s);
        for (uint32_t i = 0; i < a->left_out_count && i < 2 && used > 0 && (size_t)used < sizeof(text); i++) {
            if (a->left_out[i].step_s_with > 0)
                used += snprintf(text + used, sizeof(text) - (size_t)used, "; %s is left out: with it, %s",
                                 a->left_out[i].device, units_seconds(other, a->left_out[i].step_s_with));
        }
        if (used > 0 && (size_t)used < sizeof(text))
            snprintf(text + used, sizeof(text) - (size_t)used,
                     a->uncertainty > 0 ? ". Estimated, not measured: give or take %.0f %%." : ".",
                     a->uncertainty * 100);
    }
    a->words = strdup(text);
    return a->words ? 0 : err_set(s->err, ERR_NOMEM, "planner: out of memory");
}

static int chosen_emit(struct search *s)
{
    const struct problem *p = s->problem;
    struct plan_answer *a = s->answer;
    double seconds = 0;
    uint32_t steps = choice_cells(p, &s->best) >= LARGE_CELLS ? 1 : WORKLOAD_SAMPLE_STEPS;
    struct plan *plan = placement_find(s->best.placement)->emit(p, &s->best, true, s->err);
    if (!plan || price_plan(p, plan, steps, &seconds, s->err) < 0) {
        plan_destroy(plan);
        return -1;
    }
    plan->costs.lower_bound_s = a->lower_bound_s;
    a->plan = plan;
    a->step_s = seconds;
    a->tokens_per_s = plan->costs.tokens_per_s;
    for (uint32_t m = 0; m < s->best.member_count; m++) {
        double each = p->costs[s->best.members[m].device].uncertainty;
        a->uncertainty = each > a->uncertainty ? each : a->uncertainty;
    }
    char text[256];
    snprintf(text, sizeof(text),
             "%.0f %% measured, %.0f %% imported, %.0f %% estimated; %s, %u steps priced by their own rows%s",
             100 * plan->costs.share_measured, 100 * plan->costs.share_imported,
             100 * plan->costs.share_estimated,
             p->workload->row_count ? "row lengths known" : "rows taken at full length", p->step_count,
             plan->costs.links_emulated ? "; emulated links" : "");
    plan->costs.text = strdup(text);
    if (!plan->costs.text)
        return err_set(s->err, ERR_NOMEM, "planner: out of memory");
    if (!s->options->programs) {
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            for (int kind = 0; kind < PROGRAM_KINDS; kind++)
                program_fini(&plan->ranks[r].programs[kind]);
        }
    }
    return plan_seal(plan, s->err);
}

static int placements_run(struct search *s)
{
    const struct place_choice *best[PLACE_COUNT] = {0};
    double seconds[PLACE_COUNT] = {0};
    int wanted = s->problem->workload->place;
    for (uint32_t i = 0; placements[i]; i++) {
        enum plan_placement kind = placements[i]->kind;
        struct choice_list *list = &s->lists[kind];
        struct err why = {0};
        bool asked = wanted == -1 || wanted == (int)kind;
        if (!asked && kind != PLACE_SINGLE)
            continue;
        if (!placements[i]->supports(s->problem, &why)) {
            if (wanted == (int)kind) {
                *s->err = why;
                return -1;
            }
            continue;
        }
        list->evaluations_max = s->options->evaluations ? s->options->evaluations : EVALUATIONS_DEFAULT;
        if (placements[i]->propose(s->problem, list, s->err) < 0)
            return -1;
        s->tried[kind] = true;
        s->answer->evaluations += list->evaluations;
        if (!asked)
            continue;
        best[kind] = placement_best(s, list, &seconds[kind]);
        if (best[kind] && (s->best.member_count == 0 || seconds[kind] < s->best_s)) {
            s->best = *best[kind];
            s->best_s = seconds[kind];
        }
    }
    if (s->best.member_count && chosen_emit(s) < 0)
        return -1;
    if (singles_list(s) < 0 || others_list(s, best, seconds) < 0)
        return -1;
    return 0;
}

int plan_search(const struct workload *workload, const struct cluster *cluster,
                const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    static const struct plan_options none = {0};
    struct problem problem;
    *answer = NULL;
    if (problem_init(&problem, workload, cluster, err) < 0)
        return -1;
    struct search s = {.problem = &problem, .options = options ? options : &none, .err = err};
    int result = -1;
    problem.exhaustive_off = s.options->exhaustive_off;
    s.answer = calloc(1, sizeof(*s.answer));
    if (!s.answer) {
        err_set(err, ERR_NOMEM, "planner: out of memory");
        goto out;
    }
    if (workload->place >= 0 && !placement_find((enum plan_placement)workload->place)) {
        err_set(err, ERR_UNSUPPORTED, "placement.kind: %s is not built yet",
                plan_placement_name(workload->place));
        goto out;
    }
    s.answer->lower_bound_s = lower_bound(&problem);
    if (placements_run(&s) < 0)
        goto out;
    s.answer->verdict = s.answer->plan ? VERDICT_FITS : VERDICT_DOES_NOT_FIT;
    if (left_out_list(&s) < 0 || words_set(&s) < 0)
        goto out;
    result = 0;
out:
    for (int kind = 0; kind < PLACE_COUNT; kind++)
        choice_list_fini(&s.lists[kind]);
    problem_fini(&problem);
    if (result < 0) {
        plan_answer_destroy(s.answer);
        return -1;
    }
    *answer = s.answer;
    return 0;
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
    plan_destroy(answer->plan);
    free(answer->words);
    free(answer->alternatives);
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
