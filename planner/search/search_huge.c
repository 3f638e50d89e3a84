/* Problems whose programs are long, or which must be planned at once: estimates decide what is emitted and
 * simulated at all. */
#include "planner/search/search_private.h"

#include <math.h>

#include "planner/answer/provenance.h"
#include "planner/search/moves.h"

#define HUGE_WITHIN 1.02 /* of the best simulated: an estimate may be so far above what simulation says */
#define HUGE_FINALISTS                                                                                       \
    12u                  /* simulated where there is time: with more evaluations than usual, or few devices */
#define HUGE_DEVICES 24u /* huge with so many devices, and as many device-rows as HUGE_CELLS */
#define LONG_CELLS 4000u /* or with LONG_DEVICES and so many device-rows */
#define LENGTH_MOST                                                                                          \
    500000u /* rank-micro-batches in a pipeline's length: what would be longer is not emitted if anything    \
               else fits */
#define LENGTH_SWIFT 110000u  /* likewise, where an answer must come at once */
#define FINALIST_CELLS 12000u /* else as many as have so many rank-micro-batches together */
#define FINALIST_SHARDS 3u    /* times, of those whose gradients' sums are large: estimates tell less */
#define SWIFT_POLISH 6000u    /* evaluations */
#define DATA_CELLS 8192u      /* device-rows: splits take longer the more there are */
#define DATA_CELLS_LONG 2048u /* the more so */
#define HUGE_OTHERS 64u       /* part of the evaluations that tensor, expert and server then get, */
#define HUGE_OTHERS_LONG 256u /* and with */
#define HUGE_TENSOR                                                                                          \
    4u /* and such a part of that tensor groups of so many devices, whose estimates are dear */
#define HUGE_LONG_CELLS 32768u /* so many device-rows data, too */

/* An answer must come at once: many devices, and nobody gave more time. */
static bool search_swift(const struct search *s)
{
    return s->problem->device_count >= SWIFT_DEVICES && s->options->evaluations <= EVALUATIONS_DEFAULT;
}

bool search_huge(const struct search *s)
{
    uint32_t devices = s->problem->device_count;
    uint64_t cells = (uint64_t)devices * s->problem->workload->batch_rows;
    return search_swift(s) || (devices >= HUGE_DEVICES && cells >= HUGE_CELLS) ||
           (devices >= LONG_DEVICES && cells >= LONG_CELLS);
}

bool search_long(const struct search *s)
{
    return (uint64_t)s->problem->device_count * s->problem->workload->batch_rows >= HUGE_LONG_CELLS;
}

void huge_limits(const struct search *s, enum plan_placement kind, struct choice_list *list)
{
    list->evaluations_max = s->options->evaluations ? s->options->evaluations : EVALUATIONS_DEFAULT;
    uint64_t cells = (uint64_t)s->problem->device_count * s->problem->workload->batch_rows;
    bool other = kind != PLACE_HYBRID && kind != PLACE_PIPELINE;
    if (search_huge(s) && s->problem->workload->place == -1 && other) {
        if (kind == PLACE_DATA)
            list->evaluations_max /= 1 + cells / (search_long(s) ? DATA_CELLS_LONG : DATA_CELLS);
        else if (search_long(s))
            list->evaluations_max /= HUGE_OTHERS_LONG;
        else
            list->evaluations_max /= HUGE_OTHERS;
    }
    if (search_huge(s) && s->problem->workload->place == -1 && kind == PLACE_TENSOR &&
        s->problem->device_count >= HUGE_DEVICES)
        list->evaluations_max /= HUGE_TENSOR;
}

/* A list of every layer's own instructions for every micro-batch. */
static bool too_long(const struct search *s, const struct place_choice *choice)
{
    bool each = choice->placement == PLACE_TENSOR || choice->placement == PLACE_EXPERT;
    return each && choice_cells(s->problem, choice) > (search_swift(s) ? LENGTH_SWIFT : LENGTH_MOST);
}

uint32_t huge_finalist(const struct search *s, const struct choice_list *list, double *seconds)
{
    uint64_t left = !search_swift(s) ? UINT64_MAX : search_long(s) ? 0 : FINALIST_CELLS;
    if (search_swift(s) && s->problem->workload->method == METHOD_FULL)
        left *= FINALIST_SHARDS;
    uint32_t best = 0;
    double least = INFINITY;
    for (uint32_t i = 0; i < list->count && i < HUGE_FINALISTS; i++) {
        const struct place_choice *choice = &list->choices[i];
        uint64_t cells = choice_cells(s->problem, choice);
        if (cells > left || (i == 0 && cells > left / 2)) /* one alone needs none of it */
            break;
        left -= cells;
        double now = too_long(s, choice) ? 0 : choice_simulate(s->problem, choice, s->steps, s->err);
        if (now > 0 && now < least) {
            least = now;
            best = i;
        }
    }
    *seconds = isfinite(least) ? least : list->choices[0].estimate_s;
    return best;
}

static int least_of(const struct place_choice *const best[PLACE_COUNT], const double seconds[PLACE_COUNT])
{
    int least = -1;
    for (int kind = 0; kind < PLACE_COUNT; kind++) {
        if (best[kind] && (least < 0 || seconds[kind] < seconds[least]))
            least = kind;
    }
    return least;
}

/* Lists of millions of instructions (tensor groups' sums) take seconds to make, and more to send and to
 * check. */
static void lengths_limit(const struct search *s, const struct place_choice *best[PLACE_COUNT])
{
    bool other = false;
    for (int kind = 0; kind < PLACE_COUNT; kind++)
        other = other || (best[kind] && !too_long(s, best[kind]));
    for (int kind = 0; kind < PLACE_COUNT && other; kind++) {
        if (best[kind] && too_long(s, best[kind]))
            best[kind] = NULL;
    }
}

/* Estimates of what is sharded or cut leave out what waits; simulation never said less than them. */
static double within(int kind)
{
    return kind == PLACE_PIPELINE || kind == PLACE_HYBRID ? HUGE_WITHIN : 1;
}

static int fastest_choose(struct search *s, const struct place_choice *best[PLACE_COUNT],
                          double seconds[PLACE_COUNT])
{
    bool simulated[PLACE_COUNT] = {false};
    lengths_limit(s, best);
    for (;;) {
        int kind = least_of(best, seconds), fastest = kind;
        for (int other = 0; other < PLACE_COUNT && kind >= 0 && simulated[kind]; other++) {
            if (best[other] && !simulated[other] && seconds[other] < seconds[fastest] * within(other))
                kind = other;
        }
        if (kind < 0)
            return 0;
        if (simulated[kind]) {
            s->best = *best[kind];
            s->best_s = seconds[kind];
            return 0;
        }
        double now = 0;
        struct plan *plan =
            placement_find((enum plan_placement)kind)->emit(s->problem, best[kind], true, s->err);
        struct price_run run = {0};
        if (!plan ||
            price_plan_run(s->problem, plan, s->steps, PATH_INSTRUCTIONS_MAX, &now, &run, s->err) < 0) {
            plan_destroy(plan);
            if (s->err->code == ERR_NOMEM)
                return -1;
            best[kind] = NULL;
            continue;
        }
        simulated[kind] = true;
        seconds[kind] = now;
        if (s->emitted && s->emitted_s <= now) {
            price_run_fini(&run);
            plan_destroy(plan);
            continue;
        }
        price_run_fini(&s->emitted_run);
        plan_destroy(s->emitted);
        s->emitted_run = run;
        s->emitted = plan;
        s->emitted_s = now;
        s->emitted_of = best[kind]->members;
    }
}

/* The chosen one polished, where its program is short: as many evaluations as were asked for or, where many
 * devices must be quick, a few. */
static int fastest_polish(struct search *s)
{
    enum plan_placement kind = s->best.placement;
    uint64_t cells = choice_cells(s->problem, &s->best), evaluations = s->options->evaluations;
    struct place_choice *choice = NULL;
    for (uint32_t i = 0; i < s->lists[kind].count; i++) {
        if (s->lists[kind].choices[i].members == s->best.members)
            choice = &s->lists[kind].choices[i];
    }
    if (!choice || search_long(s) || cells >= LARGE_CELLS || !move_knows(choice))
        return 0;
    if (search_swift(s))
        evaluations = SWIFT_POLISH;
    else if (evaluations == 0)
        evaluations = EVALUATIONS_DEFAULT;
    uint32_t steps = finalist_steps(s->problem, cells);
    struct polish *polish =
        polish_create(s->problem, steps, evaluations * CELLS_PER_EVALUATION, s->options->seed, s->err);
    if (!polish)
        return -1;
    double seconds = polish_seconds(polish, choice);
    bool faster = seconds > 0 && polish_descend(polish, choice, &seconds);
    polish_destroy(polish);
    if (!faster)
        return s->err->code == ERR_NOMEM ? -1 : 0;
    s->best = *choice;
    s->emitted_of = NULL; /* it is emitted anew */
    seconds = choice_simulate(s->problem, choice, s->steps, s->err);
    s->best_s = seconds > 0 ? seconds : s->best_s;
    return 0;
}

int huge_choose(struct search *s, const struct place_choice *best[PLACE_COUNT], double seconds[PLACE_COUNT])
{
    if (fastest_choose(s, best, seconds) < 0)
        return -1;
    return s->best.member_count ? fastest_polish(s) : 0;
}
