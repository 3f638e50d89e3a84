#include "planner/search/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/search/local.h"
#include "planner/search/seeds.h"

/* The limits of a search. They decide how long it looks, never what a plan is said to cost. All but the unit
 * are rules of thumb; no measurement in bench/results supports them yet. */
static const struct {
    uint64_t units;      /* units of local search per evaluation, each half to one microsecond of a core */
    double many_devices; /* With fewer devices the budget shrinks by (devices/16)²; six take half a second. */
    double swift_devices; /* From this many devices on, a search spends only a part of its budget. */
    uint32_t swift_part;  /* The number by which the budget is divided from swift_devices devices on. */
    uint64_t least_units; /* Few devices never reduce a budget below this many units, if it had as many. */
    uint32_t seeds_part;  /* Seeds of a placement with several stages get the budget divided by this. */
    uint32_t sets_part;   /* Placements with one stage have fewer seeds and get the budget divided by this. */
    uint32_t estimate_part; /* Local search on estimates begins with the budget divided by this. */
    uint32_t simulate_part; /* Local search on simulations begins with the budget divided by this. */
    uint32_t with_part; /* The search with a left-out device gets the budget divided by this, or by the number
                           of devices if that is more. */
    double near;        /* A placement within this ratio of the best one is searched further. */
    uint32_t finalists; /* This many candidates of each placement are simulated. */
    uint64_t long_cells;  /* From this many ranks × micro-batches on, one step is simulated, and local
                             search is left out. */
    uint64_t steps_cells; /* A search simulates about this many ranks × micro-batches per candidate. */
    uint32_t rounds;      /* This many perturbations in a row without improvement end a local search. */
} limits = {
    .units = 150,
    .many_devices = 16,
    .swift_devices = 64,
    .swift_part = 6,
    .least_units = 40000,
    .seeds_part = 6,
    .sets_part = 24,
    .estimate_part = 4,
    .simulate_part = 2,
    .with_part = 4,
    .near = 1.3,
    .finalists = 8,
    .long_cells = 4000,
    .steps_cells = 800,
    .rounds = 60,
};

uint64_t search_budget(uint64_t evaluations, uint32_t devices)
{
    uint64_t given = limits.units * (evaluations ? evaluations : EVALUATIONS_DEFAULT), budget = given;
    uint64_t least = given < limits.least_units ? given : limits.least_units;
    double part = devices / limits.many_devices;
    if (devices >= limits.swift_devices)
        budget = given / limits.swift_part;
    else if (part < 1)
        budget = (uint64_t)((double)given * part * part);
    return budget > least ? budget : least;
}

struct search {
    const struct problem *problem;
    const struct search_options *options;
    struct search_found *found;
    struct workbench *bench;
    struct candidate_list lists[PLACE_COUNT];
    uint64_t *seen;
    uint64_t budget;
    uint32_t must_use;
    struct err *err;
};

static struct local_state local_of(struct search *s, int placement, uint64_t budget)
{
    struct local_state l = {.bench = s->bench,
                            .kind = kinds[placement],
                            .steps = 1,
                            .must_use = s->must_use,
                            .runnable_only = s->options->runnable_only,
                            .budget = budget,
                            .found = &s->lists[placement],
                            .seen = s->seen,
                            .even = true,
                            .estimated = INFINITY};
    rand_stream_init(&l.rand, s->options->seed, (uint64_t)placement);
    memset(s->seen, 0, LOCAL_SEEN * sizeof(*s->seen));
    return l;
}

static double estimated_value(const struct search *s, int k)
{
    return s->lists[k].count ? s->lists[k].items[0].estimate_s : INFINITY;
}

static double simulated_value(const struct search *s, int k)
{
    return s->found->best[k].estimate_s;
}

static double best_of(const struct search *s, double (*value)(const struct search *, int))
{
    double best = INFINITY;
    for (int k = 0; k < PLACE_COUNT; k++)
        best = fmin(best, value(s, k));
    return best;
}

/* Runs `run` for the placements whose value is near the best, best first; each gets half the budget of the
 * one before. */
static int near_best_search(struct search *s, uint64_t budget, double (*value)(const struct search *, int),
                            int (*run)(struct search *, int, uint64_t))
{
    bool done[PLACE_COUNT] = {0};
    for (;; budget /= 2) {
        int pick = -1;
        for (int k = 0; k < PLACE_COUNT; k++)
            if (!done[k] && value(s, k) < best_of(s, value) * limits.near + 1e-300 &&
                (pick < 0 || value(s, k) < value(s, pick)))
                pick = k;
        if (pick < 0)
            return 0;
        done[pick] = true;
        if (run(s, pick, budget) < 0)
            return -1;
    }
}

static int seeds_run(struct search *s)
{
    int wanted = s->problem->workload->place;
    for (int k = 0; k < PLACE_COUNT; k++) {
        struct err why = {0};
        if (wanted != -1 && wanted != k)
            continue;
        if (!kind_supports(kinds[k], s->problem, &why)) {
            if (wanted != k || why.code == ERR_NOFIT)
                continue;
            *s->err = why;
            return err_wrap(s->err, "placement.kind: %s", plan_placement_name(k));
        }
        s->found->tried[k] = true;
        struct local_state l =
            local_of(s, k, s->budget / (kinds[k]->look ? limits.seeds_part : limits.sets_part));
        if (seeds_add(&l, &s->lists[k]) < 0)
            return -1;
        s->found->evaluations += l.spent / limits.units;
    }
    return 0;
}

/* Runs local search on estimates from a placement's best seed. */
static int drafts_search(struct search *s, int k, uint64_t budget)
{
    struct candidate now = {0};
    struct local_state l = local_of(s, k, budget);
    int result = candidate_copy(&now, &s->lists[k].items[0], s->err);
    double seconds = now.estimate_s;
    if (result == 0)
        result = local_search(&l, &now, &seconds, limits.rounds);
    s->found->evaluations += l.spent / limits.units;
    candidate_fini(&now);
    return result;
}

static uint32_t search_steps_of(const struct problem *p, uint64_t cells)
{
    uint64_t steps = cells ? limits.steps_cells / cells : 1;
    return steps < 1 || cells > limits.long_cells ? 1
           : steps < p->step_count                ? (uint32_t)steps
                                                  : p->step_count;
}

/* Simulates a candidate over found->steps steps, and keeps it if it is the best of its placement. */
static int best_update(struct search *s, const struct candidate *c)
{
    struct search_found *f = s->found;
    if ((s->options->runnable_only && !kind_runnable(s->problem, c)) || !candidate_has_order(s->problem, c))
        return 0;
    double best = f->best[c->placement].estimate_s, seconds;
    double value = candidate_simulate(s->problem, c, f->steps, best, &seconds, s->err);
    int result = value < 0 ? -1 : 0;
    if (result == 0 && seconds < f->fastest_s) {
        f->fastest_s = seconds;
        f->fastest_value = value;
    }
    if (result == 0 && value < f->best[c->placement].estimate_s) {
        result = candidate_copy(&f->best[c->placement], c, s->err);
        f->best[c->placement].estimate_s = value;
        f->seconds[c->placement] = seconds;
    }
    if (result == 0 && value < f->runnable.estimate_s && kind_runnable(s->problem, c)) {
        result = candidate_copy(&f->runnable, c, s->err);
        f->runnable.estimate_s = value;
        f->runnable_s = seconds;
    }
    return result;
}

/* Simulates the best few candidates of every placement, in the order of their estimates. Estimates of long
 * programs are accurate, so of those only candidates are simulated whose estimate is below every simulated
 * value. */
static int finalists_run(struct search *s)
{
    uint32_t next[PLACE_COUNT] = {0};
    struct candidate now = {0};
    int result = 0, pick = 0;
    while (pick >= 0 && result >= 0) {
        pick = -1;
        for (int k = 0; k < PLACE_COUNT; k++)
            if (next[k] < s->lists[k].count && next[k] < limits.finalists &&
                (pick < 0 ||
                 s->lists[k].items[next[k]].estimate_s < s->lists[pick].items[next[pick]].estimate_s))
                pick = k;
        if (pick < 0)
            break;
        const struct candidate *c = &s->lists[pick].items[next[pick]++];
        bool known = s->found->best[pick].estimate_s < INFINITY;
        bool dear = candidate_cells(s->problem, c) > limits.long_cells;
        if ((known || dear) && c->estimate_s > best_of(s, simulated_value) * (dear ? 1 : limits.near))
            continue;
        result = candidate_copy(&now, c, s->err);
        result = result < 0 ? -1 : candidate_fit(s->problem, &now, s->err);
        result = result > 0 ? best_update(s, &now) : result;
    }
    candidate_fini(&now);
    return result < 0 ? -1 : 0;
}

/* Runs local search on simulations from a candidate, unless the candidate's programs are long. */
static int simulated_search(struct search *s, const struct candidate *from, uint64_t budget)
{
    const struct problem *p = s->problem;
    struct candidate now = {0};
    struct local_state l = local_of(s, (int)from->placement, budget);
    uint64_t cells = candidate_cells(p, from);
    l.simulate = true;
    l.found = NULL;
    l.steps = search_steps_of(p, cells);
    if (cells > limits.long_cells)
        return 0;
    int result = candidate_copy(&now, from, s->err);
    double value = result == 0 ? candidate_simulate(p, &now, l.steps, 0, NULL, s->err) : -1;
    if (result == 0 && value < INFINITY)
        result = value < 0 ? -1 : local_search(&l, &now, &value, limits.rounds);
    if (result == 0 && value < INFINITY)
        result = best_update(s, &now);
    s->found->evaluations += l.spent / limits.units;
    candidate_fini(&now);
    return result;
}

/* Runs local search on simulations from a placement's best seed under each other schedule, since local search
 * does not lead from one schedule to another; best_update keeps the best result. */
static int schedules_search(struct search *s, int placement, uint64_t budget)
{
    const struct placement_kind *kind = kinds[placement];
    struct candidate start = {0};
    uint32_t count = move_range(s->problem, kind, &s->found->best[placement], MOVE_SCHEDULE).a;
    int result = 0;
    for (uint32_t a = 1; a < count && result == 0; a++) {
        struct move move = {MOVE_SCHEDULE, a, 0};
        struct err why = {0};
        const struct candidate *from =
            s->lists[placement].count ? &s->lists[placement].items[0] : &s->found->best[placement];
        result = candidate_copy(&start, from, s->err);
        if (result == 0 && move_apply(s->problem, kind, &start, move, &why) > MOVE_VOID &&
            (!s->options->runnable_only || kind_runnable(s->problem, &start)))
            result = simulated_search(s, &start, budget / (4 * count));
    }
    candidate_fini(&start);
    return result;
}

/* Gives a pipeline the schedule that the job asks for (placement.order), in the `way`th way. Returns 0 if
 * there is no such way. */
static int order_apply(const struct problem *p, const struct placement_kind *kind, struct candidate *c,
                       uint32_t way, struct err *err)
{
    enum plan_schedule order = (enum plan_schedule)(p->workload->order - 1);
    uint32_t count = micro_count(p, c->micro_batch_rows);
    if (order == SCHEDULE_SPLIT || order == SCHEDULE_INTERLEAVED) {
        uint32_t first = order == SCHEDULE_SPLIT ? 1 : 3, ways = order == SCHEDULE_SPLIT ? 1 : 3;
        for (uint32_t m = 0; m < c->member_count && order == SCHEDULE_SPLIT; m++)
            /* A split backward cannot recompute. */
            c->members[m].recompute &= !micro_recompute_allowed(p, false);
        struct move move = {MOVE_SCHEDULE, first + way, 0};
        return way < ways ? move_apply(p, kind, c, move, err) : 0;
    }
    c->schedule = SCHEDULE_1F1B;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = c->stages[s].member_first;
             m < c->stages[s].member_first + c->stages[s].member_count; m++) {
            uint32_t least = c->stage_count - s;
            c->members[m].recompute |= way == 1 && micro_recompute_allowed(p, true);
            c->members[m].window = order == SCHEDULE_GPIPE        ? count
                                   : c->members[m].window < least ? c->members[m].window
                                                                  : least;
        }
    }
    return way < 2;
}

/* If the job asks for a schedule, gives it to the best few pipelines of each placement and runs local search
 * on simulations from each. */
static int orders_run(struct search *s)
{
    struct candidate start = {0};
    int result = 0;
    for (int k = 0; k < PLACE_COUNT && s->problem->workload->order; k++) {
        for (uint32_t i = 0; i < s->lists[k].count && i < limits.finalists && result >= 0; i++) {
            for (uint32_t way = 0; way < 3 && result >= 0; way++) {
                struct err why = {0};
                if (s->lists[k].items[i].stage_count < 2 || kinds[k]->stage_kind != STAGE_REPLICAS)
                    continue;
                result = candidate_copy(&start, &s->lists[k].items[i], s->err);
                if (result == 0 && order_apply(s->problem, kinds[k], &start, way, &why) > 0)
                    result =
                        simulated_search(s, &start, s->budget / (limits.simulate_part * limits.finalists));
            }
        }
    }
    candidate_fini(&start);
    return result;
}

static int placement_search(struct search *s, int k, uint64_t budget)
{
    if (schedules_search(s, k, budget) < 0)
        return -1;
    return simulated_search(s, &s->found->best[k], 3 * budget / 4);
}

/* Simulates options->from, the candidate to begin with, and runs local search on simulations from it. */
static int from_run(struct search *s)
{
    const struct candidate *from = s->options->from;
    if (best_update(s, from) < 0)
        return -1;
    return simulated_search(s, from, s->budget / limits.simulate_part);
}

/* bench: of an earlier search, borrowed; NULL, or of another problem: *found gets one of its own. */
static int search_init(struct search *s, const struct problem *problem, const struct search_options *options,
                       struct workbench *bench, struct search_found *found, struct err *err)
{
    *s = (struct search){.problem = problem, .options = options, .found = found, .err = err};
    *found = (struct search_found){.chosen = -1, .fastest_s = INFINITY, .runnable = {.estimate_s = INFINITY}};
    for (int k = 0; k < PLACE_COUNT; k++)
        found->best[k].estimate_s = INFINITY;
    s->budget = search_budget(options->evaluations, problem_usable_count(problem));
    if (!bench || bench->problem != problem) {
        bench = found->bench = malloc(sizeof(*bench));
        if (bench)
            workbench_init(bench, problem, err);
    }
    s->bench = bench;
    s->seen = calloc(LOCAL_SEEN, sizeof(*s->seen));
    if (!bench || !s->seen)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    bench->err = err;
    return 0;
}

/* Frees the search and chooses the best of what it found. */
static void search_end(struct search *s)
{
    struct search_found *f = s->found;
    for (int k = 0; k < PLACE_COUNT; k++)
        if (f->best[k].estimate_s < INFINITY &&
            (f->chosen < 0 || f->best[k].estimate_s < f->best[f->chosen].estimate_s))
            f->chosen = k;
    if (s->bench)
        memcpy(f->shortage, s->bench->shortage, sizeof(f->shortage));
    for (int k = 0; k < PLACE_COUNT; k++)
        candidate_list_fini(&s->lists[k]);
    free(s->seen);
}

/* Chooses how many of the problem's sampled steps candidates are compared over: all, or one if programs are
 * long. */
static void steps_choose(struct search *s)
{
    s->found->steps = s->problem->step_count;
    for (int k = 0; k < PLACE_COUNT; k++)
        if (s->lists[k].count && candidate_cells(s->problem, &s->lists[k].items[0]) > limits.long_cells)
            s->found->steps = 1;
}

int search_run(const struct problem *problem, const struct search_options *options,
               struct search_found *found, struct err *err)
{
    struct search s;
    int result = search_init(&s, problem, options, NULL, found, err);
    if (result == 0)
        result = seeds_run(&s);
    if (result == 0)
        result = near_best_search(&s, s.budget / limits.estimate_part, estimated_value, drafts_search);
    steps_choose(&s);
    if (result == 0)
        result = finalists_run(&s);
    if (result == 0)
        result = orders_run(&s);
    if (result == 0)
        result = near_best_search(&s, s.budget / limits.simulate_part, simulated_value, placement_search);
    if (result == 0 && options->from)
        result = from_run(&s);
    search_end(&s);
    return result;
}

void search_found_fini(struct search_found *found)
{
    for (int k = 0; k < PLACE_COUNT; k++)
        candidate_fini(&found->best[k]);
    candidate_fini(&found->runnable);
    if (found->bench)
        workbench_fini(found->bench);
    free(found->bench);
}

/* --- searching with a device that the best candidate leaves out --- */

/* Adds a device to a candidate in the `way`th way: as a stage of its own or as the last of a stage's members,
 * in a member's place, or as the first of a stage's members (of members that do equally well, settle() keeps
 * the first). Returns the move's level, MOVE_VOID if there is no such way, -1 on ERR_NOMEM. */
static int device_join_by(const struct search *s, const struct placement_kind *kind, uint32_t device,
                          uint32_t way, struct candidate *c)
{
    uint32_t adds = move_range(s->problem, kind, c, MOVE_ADD).b, members = c->member_count;
    if (way >= adds && way < adds + members)
        return move_apply(s->problem, kind, c, (struct move){MOVE_REPLACE, way - adds, device}, s->err);
    bool first = way >= adds;
    uint32_t stage = first ? way - adds - members : way;
    int level = move_apply(s->problem, kind, c, (struct move){MOVE_ADD, device, stage}, s->err);
    if (first && level != MOVE_VOID && level >= 0) {
        struct member *list = &c->members[c->stages[stage].member_first];
        uint32_t last = c->stages[stage].member_count - 1;
        struct member joined = list[last];
        memmove(&list[1], list, last * sizeof(*list));
        list[0] = joined;
    }
    return level;
}

/* Adds a device to a candidate in the way with the best estimate; *c receives the result. */
static int device_join(struct search *s, struct local_state *l, uint32_t device, struct candidate *c)
{
    struct candidate trial = {0}, best = {0};
    double least = INFINITY;
    uint32_t ways = move_range(s->problem, l->kind, c, MOVE_ADD).b + c->member_count + c->stage_count;
    int result = 0;
    for (uint32_t way = 0; way < ways && result == 0; way++) {
        result = candidate_copy(&trial, c, s->err);
        if (result < 0)
            break;
        int level = device_join_by(s, l->kind, device, way, &trial);
        if (level == MOVE_VOID)
            continue;
        double seconds = level < 0 ? -1 : local_value(l, &trial, (enum move_level)level, least);
        if (seconds < 0)
            result = -1;
        else if (seconds < least && (result = candidate_copy(&best, &trial, s->err)) == 0)
            least = seconds;
    }
    if (result == 0 && least < INFINITY)
        result = candidate_copy(c, &best, s->err);
    c->estimate_s = least;
    candidate_fini(&trial);
    candidate_fini(&best);
    return result;
}

/* Makes *c a candidate of one placement with the stages and members of a candidate of another. A device that
 * is in several stages stays in the first. */
static int reshape(const struct search *s, const struct placement_kind *kind, const struct candidate *from,
                   uint32_t micro_batch_rows, struct candidate *c)
{
    uint32_t devices[UINT8_MAX + 1];
    candidate_fini(c);
    *c = (struct candidate){.placement = kind->placement, .micro_batch_rows = micro_batch_rows};
    for (uint32_t i = 0; i < from->stage_count; i++) {
        const struct candidate_stage *stage = &from->stages[i];
        uint32_t count = 0;
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count; m++)
            if (!candidate_uses(c, from->members[m].device) && count <= UINT8_MAX)
                devices[count++] = from->members[m].device;
        if (count > 0 && move_append(c, kind, devices, count, s->err) < 0)
            return -1;
    }
    return 0;
}

/* Lists candidates of placement k that use the device. It is added to the best candidate of k, and to those
 * of other placements changed into k's kind of stages: a slow device is often best as a stage before what is
 * best without it. A placement that is far from the best one without the device is left out. */
static int device_join_all(struct search *s, const struct search_found *found, int k, uint32_t device)
{
    struct local_state l = local_of(s, k, s->budget);
    struct candidate now = {0};
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(s->problem, sizes);
    const double best_s = found->best[k].estimate_s;
    int result = 0;
    if (best_s > limits.near * found->best[found->chosen].estimate_s && best_s < INFINITY)
        return 0;
    for (int from = 0; from < PLACE_COUNT && result == 0; from++) {
        if (!(found->best[from].estimate_s < INFINITY) || (from != k && !kinds[k]->look))
            continue;
        for (uint32_t i = 0; i <= (kinds[k]->look ? count : 0) && result == 0; i++) {
            if (i == 0 && from != k)
                continue;
            result = i == 0 ? candidate_copy(&now, &found->best[from], s->err)
                            : reshape(s, kinds[k], &found->best[from], sizes[i - 1], &now);
            if (result == 0)
                result = device_join(s, &l, device, &now);
            if (result == 0 && now.estimate_s < INFINITY)
                result = candidate_list_add(&s->lists[k], &now, s->err);
        }
    }
    candidate_fini(&now);
    return result;
}

int search_with(const struct problem *problem, const struct search_options *options,
                const struct search_found *found, uint32_t device, struct candidate *with, double *seconds,
                struct err *err)
{
    struct search_found mine;
    struct search s;
    int result = search_init(&s, problem, options, found->bench, &mine, err);
    *with = (struct candidate){0};
    *seconds = INFINITY;
    mine.steps = found->steps;
    s.must_use = device + 1;
    s.budget /= problem->device_count > limits.with_part ? problem->device_count : limits.with_part;
    if (result == 0)
        result = seeds_run(&s);
    for (int k = 0; k < PLACE_COUNT && result == 0; k++)
        if (mine.tried[k])
            result = device_join_all(&s, found, k, device);
    if (result == 0)
        result = near_best_search(&s, s.budget / limits.estimate_part, estimated_value, drafts_search);
    if (result == 0)
        result = finalists_run(&s);
    if (result == 0)
        result = near_best_search(&s, s.budget / limits.simulate_part, simulated_value, placement_search);
    search_end(&s);
    if (result == 0 && mine.chosen >= 0) {
        *seconds = mine.seconds[mine.chosen];
        result = candidate_copy(with, &mine.best[mine.chosen], err);
    }
    search_found_fini(&mine);
    return result;
}

int search_single(const struct problem *problem, uint32_t device, struct candidate *single, double *seconds,
                  struct shortage *shortage, struct err *err)
{
    struct search_options options = {0};
    struct search_found found;
    struct search s;
    int result = search_init(&s, problem, &options, NULL, &found, err);
    s.must_use = device + 1;
    if (result == 0) {
        struct local_state l = local_of(&s, PLACE_SINGLE, s.budget);
        result = seeds_add(&l, &s.lists[PLACE_SINGLE]);
    }
    *seconds = INFINITY;
    if (result == 0 && s.lists[PLACE_SINGLE].count) {
        result = candidate_copy(single, &s.lists[PLACE_SINGLE].items[0], err);
        if (result == 0 && candidate_simulate(problem, single, problem->step_count, 0, seconds, err) < 0)
            result = -1;
    }
    search_end(&s);
    *shortage = found.shortage[PLACE_SINGLE];
    search_found_fini(&found);
    return result;
}
