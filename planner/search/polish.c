/* Rows differ in length, links are shared and rings are short, so estimates mislead: what is found by
 * estimate is tried in earnest. Descent over all moves; a move that changes who does what is judged after its
 * windows, cuts and rows have settled. */
#include "planner/search/polish.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "planner/cost/micro.h"
#include "planner/expert/expert_moves.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/hybrid/deal_quick.h"
#include "planner/hybrid/deal_walk.h"
#include "planner/hybrid/group_fit.h"
#include "planner/hybrid/group_quick.h"
#include "planner/search/recut.h"
#include "planner/sharded/sharded_moves.h"
#include "planner/tensor/tensor.h"
#include "planner/tensor/tensor_quick.h"

#define BETTER 0.999999    /* a change must be worth this much */
#define NEAR 1.25          /* choices so much slower after a change of who does what are still settled */
#define GROUP_SLACK 0.7    /* members of groups take micro-batches lighter than the mean at best so much */
#define QUICK_KICKS 400u   /* in vain */
#define QUICK_HOME 16u     /* and so many until it is the best that is kicked again */
#define QUICK_WORSE 1.03   /* how much worse a walk may become in one */
#define SAME 1e-12         /* quick looks this near are of one and the same order */
#define QUICK_PART 8u      /* a quick look takes this part of a simulation */
#define LOOKS_SIMULATED 2u /* and of a walk (hybrid/deal_walk.h) another such part is simulated */
#define WALK_NEAR 1.03     /* of the best: from what is so near a short walk is worth its time */
#define WALK_LOOKS 1000u
#define DEAL_NEAR 1.03 /* of the best: what is so near by shares is dealt micro-batch by micro-batch */
#define BOUND_ROUNDS (1 - 1e-9) /* sums are taken in another order */
#define KICK_MOVES 5u
#define KICK_FAR 1.4     /* of the best: what is kicked and settled above is let be */
#define FRESH_TRIES 600u /* arrangements that do not fit, until no more are tried */
#define LOOKED 16384u
#define BEEN 8192u
#define MEMO_FIRST 1024u

double choice_simulate(const struct problem *problem, const struct place_choice *choice, uint32_t steps_max,
                       struct err *err)
{
    double seconds = 0;
    struct err why = {0};
    if (problem->runnable_only && !choice_runnable(problem, choice))
        return -1;
    struct plan *plan = placement_find(choice->placement)->emit(problem, choice, true, &why);
    if (!plan) {
        if (why.code == ERR_NOMEM)
            *err = why;
        return -1;
    }
    if (price_plan(problem, plan, steps_max, &seconds, &why) < 0) {
        *err = why;
        seconds = -1;
    }
    plan_destroy(plan);
    return seconds;
}

struct memo_entry {
    uint64_t hash; /* 0: empty */
    double seconds;
};

/* Seconds of all of a step's micro-batches of one size through one block of each class. */
struct work {
    double seconds[COST_CLASSES][COST_WAYS];
};

struct polish {
    const struct problem *problem;
    uint32_t steps_max;
    uint32_t must_use; /* device + 1; 0: any */
    uint64_t left;
    struct rand_stream random;
    uint64_t seed;
    struct memo_entry *memo;
    uint32_t memo_count, memo_size; /* a power of two */
    struct group_quick *quick;
    struct tensor_quick *tensor;
    uint64_t *been;            /* [BEEN]: hashes of where searches have been, the latest of each place */
    struct memo_entry *looked; /* [LOOKED]: quick looks, the latest of each place */
    struct work **work;        /* [batch_rows + 1] → [device_count]; made when asked for */
    struct err *err;
};

struct polish *polish_create(const struct problem *problem, uint32_t steps_max, uint64_t budget,
                             uint64_t seed, struct err *err)
{
    struct polish *p = calloc(1, sizeof(*p));
    if (p) {
        *p = (struct polish){
            .problem = problem, .steps_max = steps_max, .left = budget, .seed = seed, .err = err};
        p->memo_size = MEMO_FIRST;
        p->memo = calloc(p->memo_size, sizeof(*p->memo));
        p->work = calloc((size_t)problem->workload->batch_rows + 1, sizeof(*p->work));
        p->quick = group_quick_create(problem, steps_max, err);
        p->tensor = tensor_quick_create(problem, steps_max, err);
        p->looked = calloc(LOOKED, sizeof(*p->looked));
        p->been = calloc(BEEN, sizeof(*p->been));
        rand_stream_init(&p->random, seed, 17);
    }
    if (!p || !p->memo || !p->work || !p->quick || !p->tensor || !p->looked || !p->been) {
        polish_destroy(p);
        err_set(err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    return p;
}

void polish_destroy(struct polish *p)
{
    if (!p)
        return;
    for (uint32_t rows = 0; p->work && rows <= p->problem->workload->batch_rows; rows++)
        free(p->work[rows]);
    free(p->work);
    group_quick_destroy(p->quick);
    tensor_quick_destroy(p->tensor);
    free(p->looked);
    free(p->been);
    free(p->memo);
    free(p);
}

bool polish_spent(const struct polish *p)
{
    return p->left == 0;
}

/* --- what was simulated before --- */

/* Where a search has been, what it does next is known to lead nowhere: nothing in a descent from an optimum,
 * nothing new in dealing the same start again. */
enum been_as { BEEN_OPTIMUM, BEEN_START };

static bool been(const struct polish *p, const struct place_choice *c, enum been_as as)
{
    uint64_t hash = polish_hash_as(c, as);
    return p->been[hash % BEEN] == hash;
}

static void been_note(struct polish *p, const struct place_choice *c, enum been_as as)
{
    uint64_t hash = polish_hash_as(c, as);
    p->been[hash % BEEN] = hash;
}

bool polish_again(struct polish *p, const struct place_choice *choice)
{
    bool again = been(p, choice, BEEN_START);
    been_note(p, choice, BEEN_START);
    return again;
}

static struct memo_entry *memo_find(struct polish *p, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (p->memo_size - 1);
    while (p->memo[at].hash && p->memo[at].hash != hash)
        at = (at + 1) & (p->memo_size - 1);
    return &p->memo[at];
}

static void memo_add(struct polish *p, uint64_t hash, double seconds)
{
    if (2 * p->memo_count >= p->memo_size) {
        struct memo_entry *old = p->memo, *grown = calloc(2 * (size_t)p->memo_size, sizeof(*grown));
        if (!grown)
            return; /* then it is simulated again */
        uint32_t size = p->memo_size;
        p->memo = grown;
        p->memo_size = 2 * size;
        for (uint32_t i = 0; i < size; i++) {
            if (old[i].hash)
                *memo_find(p, old[i].hash) = old[i];
        }
        free(old);
    }
    *memo_find(p, hash) = (struct memo_entry){hash, seconds};
    p->memo_count++;
}

void polish_must_use(struct polish *p, uint32_t device)
{
    p->must_use = device + 1;
}

double polish_seconds(struct polish *p, const struct place_choice *choice)
{
    bool used = p->must_use == 0;
    for (uint32_t m = 0; m < choice->member_count && !used; m++)
        used = choice->members[m].device + 1 == p->must_use;
    if (!used)
        return -1;
    uint64_t hash = polish_hash(choice);
    struct memo_entry *known = memo_find(p, hash);
    if (known->hash)
        return known->seconds;
    uint32_t steps = p->steps_max < p->problem->step_count ? p->steps_max : p->problem->step_count;
    uint64_t cost = (uint64_t)choice->member_count * micro_count(p->problem, choice->micro_batch_rows);
    cost *= (uint64_t)steps * expert_program_length(p->problem, choice) *
            sharded_program_length(p->problem, choice) *
            ((tensor_program_length(p->problem, choice) + 3) / 4);
    if (p->left == 0)
        return -1;
    double seconds = choice_simulate(p->problem, choice, p->steps_max, p->err);
    if (seconds <= 0) /* cheaper: nothing was simulated */
        cost = cost / 4 + 1;
    p->left -= p->left < cost ? p->left : cost;
    memo_add(p, hash, seconds);
    return seconds;
}

/* --- bounds --- */

static const struct work *work_of(struct polish *p, uint32_t rows, uint32_t device)
{
    const struct problem *problem = p->problem;
    if (!p->work[rows]) {
        uint32_t steps = p->steps_max < problem->step_count ? p->steps_max : problem->step_count;
        struct work *all = calloc(problem->device_count, sizeof(*all));
        for (uint32_t d = 0; all && d < problem->device_count; d++) {
            for (uint32_t t = 0; t < steps && problem->usable[d]; t++) {
                uint32_t step = problem_step_priced(problem, t, steps);
                for (uint32_t row = 0; row < problem->workload->batch_rows; row += rows) {
                    struct cost_load load = problem_load(problem, step, row, row + rows);
                    struct micro_cost cost;
                    micro_cost_load(&cost, problem, d, &load);
                    for (int cls = 0; cls < COST_CLASSES; cls++) {
                        for (int way = 0; way < COST_WAYS; way++)
                            all[d].seconds[cls][way] += cost.seconds[cls][way] / steps;
                    }
                }
            }
        }
        p->work[rows] = all;
    }
    return p->work[rows] ? &p->work[rows][device] : NULL;
}

/* What the busiest rank has to compute; no schedule is faster. */
static double choice_lower(struct polish *p, const struct place_choice *c)
{
    const struct problem *problem = p->problem;
    double worst = 0;
    if (c->placement == PLACE_TENSOR) /* shares of a matrix are no shares of the rows */
        return 0;
    if (c->stage_count < 2) /* which rows a replica has matters more than how many: simulating is as cheap */
        return 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct place_stage *stage = &c->stages[s];
        uint64_t total = 0;
        for (uint32_t m = 0; m < stage->member_count; m++)
            total += c->members[stage->member_first + m].micro_count;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            const struct place_member *x = &c->members[stage->member_first + m];
            const struct work *work = work_of(p, c->micro_batch_rows, x->device);
            double own = 0;
            for (int cls = 0; work && cls < COST_CLASSES; cls++) {
                uint32_t count =
                    problem->prefix[stage->block_end][cls] - problem->prefix[stage->block_begin][cls];
                own += count * (work->seconds[cls][COST_FORWARD] + work->seconds[cls][COST_BACKWARD] +
                                (x->recompute ? work->seconds[cls][COST_RECOMPUTE] : 0));
            }
            if (stage->member_count > 1)
                own *= GROUP_SLACK * x->micro_count / (double)total;
            worst = own > worst ? own : worst;
        }
    }
    return worst;
}

/* Ranks' micro-batches in the steps that are priced. */
static uint64_t cells_of(const struct polish *p, const struct place_choice *c)
{
    uint32_t steps = p->steps_max < p->problem->step_count ? p->steps_max : p->problem->step_count;
    return (uint64_t)c->member_count * micro_count(p->problem, c->micro_batch_rows) * steps;
}

uint64_t polish_looks(const struct polish *p, const struct place_choice *c)
{
    return p->left / (cells_of(p, c) * LOOKS_SIMULATED / QUICK_PART + 1);
}

double polish_quick(struct polish *p, const struct place_choice *c)
{
    uint64_t hash = polish_hash(c);
    struct memo_entry *known = &p->looked[hash % LOOKED];
    if (known->hash == hash)
        return known->seconds;
    uint64_t cells = cells_of(p, c);
    p->left -= p->left < cells / QUICK_PART ? p->left : cells / QUICK_PART;
    *known = (struct memo_entry){hash, c->placement == PLACE_TENSOR ? tensor_quick_seconds(p->tensor, c)
                                                                    : group_quick_seconds(p->quick, c)};
    return known->seconds;
}

double polish_quick_below(struct polish *p, const struct place_choice *c, double most)
{
    return group_quick_least(p->quick, c) * BOUND_ROUNDS >= most ? -1 : polish_quick(p, c);
}

/* How near a quick look comes to simulation: simulated seconds of a choice by its quick ones. 0: not known.
 */
static double quick_scale(struct polish *p, const struct place_choice *c, double seconds)
{
    double quick = polish_quick(p, c);
    return quick > 0 ? seconds / quick : 0;
}

/* Does a bound or a quick look say that a choice takes more than `most` seconds? */
static bool hopeless(struct polish *p, const struct place_choice *c, double most, double scale)
{
    if (choice_lower(p, c) >= most)
        return true;
    double quick = scale > 0 ? polish_quick(p, c) * scale : -1;
    return quick > most * QUICK_SLACK || (quick > 0 && fabs(quick / most - 1) < SAME);
}

/* --- descent --- */

struct coarse_move {
    enum move_kind kind;
    uint32_t a, b;
    bool anew; /* the blocks cut anew after it */
};

static const enum move_kind fine[] = {MOVE_WINDOW, MOVE_CUT,       MOVE_ROWS,  MOVE_DEAL,
                                      MOVE_ORDER,  MOVE_RECOMPUTE, MOVE_DELAY, MOVE_TURN};
static const enum move_kind coarse[] = {MOVE_STAGES,  MOVE_SWAP, MOVE_MICRO, MOVE_REPLACE,
                                        MOVE_REGROUP, MOVE_ADD,  MOVE_DROP};

/* One pass over the fine moves; takes what is faster at once. Returns whether anything was. */
static bool fine_pass(struct polish *p, struct place_choice *c, double *seconds)
{
    bool any = false;
    double scale = quick_scale(p, c, *seconds);
    for (size_t f = 0; f < sizeof(fine) / sizeof(fine[0]); f++) {
        uint32_t a_count, b_count;
        move_range(p->problem, c, fine[f], &a_count, &b_count);
        for (uint32_t a = 0; a < a_count; a++) {
            for (uint32_t b = 0; b < b_count && p->left; b++) {
                struct place_choice trial;
                if (choice_copy(&trial, c, p->err) < 0)
                    return any;
                double now = -1;
                if (move_apply(p->problem, &trial, fine[f], a, b, p->err) > 0 &&
                    !hopeless(p, &trial, *seconds, scale))
                    now = polish_seconds(p, &trial);
                if (now > 0 && now < *seconds * BETTER) {
                    choice_fini(c);
                    *c = trial;
                    *seconds = now;
                    scale = quick_scale(p, c, now);
                    any = true;
                    continue;
                }
                choice_fini(&trial);
            }
        }
    }
    return any;
}

/* Replicas' buffers are of the largest micro-batch: single rows, if more do not fit. */
static bool rows_single(const struct polish *p, struct place_choice *c)
{
    if (c->placement != PLACE_DATA || c->micro_batch_rows == 1 || p->problem->workload->micro_batch_rows)
        return false;
    for (uint32_t m = 0; m < c->member_count; m++) {
        c->members[m].micro_count *= c->members[m].micro_rows;
        c->members[m].micro_rows = 1;
    }
    c->micro_batch_rows = 1;
    return true;
}

/* Recomputes where `way` is odd, with windows no wider than the textbook's from 2 on. */
static void fit_try(const struct polish *p, struct place_choice *c, int way)
{
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            struct place_member *x = &c->members[c->stages[s].member_first + m];
            if (micro_recompute_allowed(p->problem, way % 2))
                x->recompute = way % 2;
            if (way >= 2 && x->window > c->stage_count - s)
                x->window = c->stage_count - s;
        }
    }
}

/* Makes a choice fit, if recomputing, smaller windows or smaller micro-batches do. */
double polish_fit(struct polish *p, struct place_choice *c)
{
    double seconds = polish_seconds(p, c);
    if (seconds <= 0 && rows_single(p, c))
        seconds = polish_seconds(p, c);
    for (int way = 1; way < 4 && seconds <= 0 && p->left; way++) {
        fit_try(p, c, way);
        seconds = polish_seconds(p, c);
    }
    return seconds;
}

void polish_settle(struct polish *p, struct place_choice *choice, double *seconds)
{
    while (*seconds > 0 && p->left && fine_pass(p, choice, seconds))
        ;
}

bool polish_fits(struct polish *p, const struct place_choice *choice)
{
    struct err why = {0};
    struct plan *plan = placement_find(choice->placement)->emit(p->problem, choice, false, &why);
    if (why.code == ERR_NOMEM)
        *p->err = why;
    plan_destroy(plan);
    return plan != NULL;
}

/* As fine_pass, by quick looks alone. */
static bool quick_pass(struct polish *p, struct place_choice *c, double *quick)
{
    static const enum move_kind kinds[] = {MOVE_CUT, MOVE_ROWS, MOVE_ORDER, MOVE_WINDOW};
    bool any = false;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        uint32_t a_count, b_count;
        move_range(p->problem, c, kinds[k], &a_count, &b_count);
        for (uint32_t n = 0; n < a_count * b_count && p->left; n++) {
            struct place_choice trial;
            if (choice_copy(&trial, c, p->err) < 0)
                return any;
            double now = -1;
            if (move_apply(p->problem, &trial, kinds[k], n / b_count, n % b_count, p->err) > 0)
                now = polish_quick_below(p, &trial, *quick * BETTER);
            if (now <= 0 || now >= *quick * BETTER || !polish_fits(p, &trial)) {
                choice_fini(&trial);
                continue;
            }
            choice_fini(c);
            *c = trial;
            *quick = now;
            any = true;
        }
    }
    return any;
}

void polish_quick_deal(struct polish *p, struct place_choice *c, double *quick)
{
    if (c->placement == PLACE_HYBRID)
        deal_quick(p, p->problem, c, quick, p->err);
}

/* As polish_fit, without simulating. */
static bool quick_fit(struct polish *p, struct place_choice *c)
{
    bool fits = polish_fits(p, c);
    double quick;
    if (!fits && c->placement == PLACE_HYBRID)
        return group_fit(p, p->problem, c, &quick, p->err);
    for (int way = 1; way < 4 && !fits; way++) {
        fit_try(p, c, way);
        fits = polish_fits(p, c);
    }
    return fits;
}

void polish_quick_settle(struct polish *p, struct place_choice *choice, double *quick, double most)
{
    while (*quick < most && quick_pass(p, choice, quick))
        ;
}

/* Could a choice, settled, take less than `most` seconds? *settled (choice_fini) is what quick looks make of
 * it; no members: they cannot say. */
static bool promising(struct polish *p, const struct place_choice *c, double most, double scale,
                      struct place_choice *settled)
{
    double quick = scale > 0 ? polish_quick(p, c) : -1;
    *settled = (struct place_choice){0};
    if (quick <= 0)
        return true;
    if (quick * scale > most * NEAR || choice_copy(settled, c, p->err) < 0)
        return false;
    if (!quick_fit(p, settled))
        return false;
    quick = polish_quick(p, settled);
    polish_quick_settle(p, settled, &quick, most * NEAR / scale);
    if (quick * scale <
        most * (settled->dealt ? NEAR : DEAL_NEAR)) /* what was dealt for others is far off first */
        polish_quick_deal(p, settled, &quick);
    return quick * scale < most * QUICK_SLACK;
}

/* One change of who does what, with the cuts as they were or cut anew, settled; *c becomes it when it is
 * faster then. `scale`: quick_scale of *c. */
static bool coarse_try(struct polish *p, struct place_choice *c, double *seconds,
                       const struct coarse_move *move, double scale)
{
    struct place_choice trial, settled = {0};
    if (choice_copy(&trial, c, p->err) < 0)
        return false;
    double now = -1;
    if (move->anew)
        deal_drop(&trial);
    if (move_apply(p->problem, &trial, move->kind, move->a, move->b, p->err) > 0 &&
        (!move->anew || choice_recut(p->problem, &trial, p->err) > 0) &&
        choice_lower(p, &trial) < *seconds * NEAR && promising(p, &trial, *seconds, scale, &settled)) {
        now = settled.member_count ? polish_fit(p, &settled) : -1;
        if (now > 0) {
            choice_fini(&trial);
            trial = settled;
            settled = (struct place_choice){0};
        } else {
            now = polish_fit(p, &trial);
        }
        while (now > 0 && now < *seconds * NEAR && fine_pass(p, &trial, &now))
            ;
    }
    choice_fini(&settled);
    if (now > 0 && now < *seconds * BETTER) {
        choice_fini(c);
        *c = trial;
        *seconds = now;
        return true;
    }
    choice_fini(&trial);
    return false;
}

/* Given up where windows, cuts and rows have settled above `most`. */
static bool descend(struct polish *p, struct place_choice *c, double *seconds, double most)
{
    bool any = false, again = move_knows(c);
    while (again && p->left && !been(p, c, BEEN_OPTIMUM)) {
        again = false;
        while (fine_pass(p, c, seconds))
            any = true;
        if (*seconds > most || been(p, c, BEEN_OPTIMUM))
            break;
        double scale = quick_scale(p, c, *seconds);
        for (size_t k = 0; k < sizeof(coarse) / sizeof(coarse[0]); k++) {
            uint32_t a_count, b_count;
            move_range(p->problem, c, coarse[k], &a_count, &b_count);
            for (uint32_t a = 0; a < a_count; a++) {
                for (uint32_t b = 0; b < b_count && p->left; b++) {
                    struct coarse_move move = {coarse[k], a, b, false}, recut = {coarse[k], a, b, true};
                    if (!coarse_try(p, c, seconds, &move, scale) && !coarse_try(p, c, seconds, &recut, scale))
                        continue;
                    scale = quick_scale(p, c, *seconds);
                    any = again = true; /* ranges may be others now; those beyond do not apply */
                    move_range(p->problem, c, coarse[k], &a_count, &b_count);
                }
            }
        }
        if (!again && p->left)
            been_note(p, c, BEEN_OPTIMUM);
    }
    return any;
}

bool polish_descend(struct polish *p, struct place_choice *c, double *seconds)
{
    return descend(p, c, seconds, INFINITY);
}

/* What is tried at the n-th kick of a choice depends on nothing but the two: searches of clusters that are
 * nearly alike go the same way from where they meet. */
static void kicks_at(struct polish *p, const struct place_choice *c, uint64_t n)
{
    rand_stream_init(&p->random, p->seed ^ polish_hash(c), n);
}

static bool kick(struct polish *p, struct place_choice *c)
{
    uint32_t done = 0, wanted = 1 + rand_stream_below(&p->random, KICK_MOVES);
    for (uint32_t turn = 0; turn < 40 && done < wanted; turn++) {
        enum move_kind kind = (enum move_kind)rand_stream_below(&p->random, c->order   ? MOVE_KINDS
                                                                            : c->dealt ? MOVE_TURN
                                                                                       : MOVE_DEAL);
        uint32_t a_count, b_count;
        struct place_choice trial;
        move_range(p->problem, c, kind, &a_count, &b_count);
        if (a_count == 0 || b_count == 0)
            continue;
        uint32_t a = rand_stream_below(&p->random, a_count), b = rand_stream_below(&p->random, b_count);
        if (choice_copy(&trial, c, p->err) < 0)
            return false;
        if (kind >= MOVE_SWAP && kind < MOVE_DEAL) /* by shares: what is dealt for others leads nowhere new */
            deal_drop(&trial);
        if (move_apply(p->problem, &trial, kind, a, b, p->err) > 0) {
            choice_fini(c);
            *c = trial;
            done++;
        } else {
            choice_fini(&trial);
        }
    }
    if (done > 0 && rand_stream_below(&p->random, 2))
        choice_recut(p->problem, c, p->err);
    return done > 0;
}

static void shuffle(struct polish *p, uint32_t *items, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = rand_stream_below(&p->random, i), held = items[i - 1];
        items[i - 1] = items[k];
        items[k] = held;
    }
}

/* Devices in any order, in as many stages as comes, blocks cut for them. Returns 0 when such a one is no
 * choice. */
static int fresh_fill(struct polish *p, enum plan_placement kind, uint32_t *devices, uint32_t usable,
                      struct place_choice *c)
{
    const struct problem *problem = p->problem;
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(problem, sizes), least = kind == PLACE_HYBRID;
    uint32_t blocks = (uint32_t)problem->block_count, asked = problem->workload->stages;
    shuffle(p, devices, usable);
    uint32_t members = 2 + least + rand_stream_below(&p->random, usable - 1 - least), most = members - least;
    most = most < blocks ? most : blocks;
    uint32_t stages = asked                    ? asked
                      : kind == PLACE_PIPELINE ? members
                                               : 2 + rand_stream_below(&p->random, most - 1);
    if (stages > most || (kind == PLACE_PIPELINE && stages != members))
        return 0;
    *c = (struct place_choice){.placement = kind,
                               .micro_batch_rows = sizes[rand_stream_below(&p->random, size_count)],
                               .stage_count = stages,
                               .member_count = members};
    c->stages = calloc((size_t)stages + 1, sizeof(*c->stages));
    c->members = calloc((size_t)members + 1, sizeof(*c->members));
    if (!c->stages || !c->members)
        return err_set(p->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < stages; s++)
        c->stages[s] = (struct place_stage){.block_begin = (int32_t)s,
                                            .block_end = s + 1 == stages ? (int32_t)blocks : (int32_t)s + 1,
                                            .member_count = 1};
    for (uint32_t extra = stages; extra < members; extra++)
        c->stages[rand_stream_below(&p->random, stages)].member_count++;
    for (uint32_t s = 1; s < stages; s++)
        c->stages[s].member_first = c->stages[s - 1].member_first + c->stages[s - 1].member_count;
    for (uint32_t m = 0; m < members; m++)
        c->members[m] = (struct place_member){.device = devices[m],
                                              .micro_rows = c->micro_batch_rows,
                                              .micro_count = micro_count(problem, c->micro_batch_rows),
                                              .state_share = 1,
                                              .window = 1};
    if (choice_recut(problem, c, p->err) <= 0)
        return 0;
    move_shares(problem, c);
    return 1;
}

bool polish_fresh(struct polish *p, enum plan_placement kind, struct place_choice *choice, double *seconds)
{
    const struct problem *problem = p->problem;
    uint32_t *devices = calloc((size_t)problem->device_count + 1, sizeof(*devices)), usable = 0;
    bool found = false;
    for (uint32_t d = 0; devices && d < problem->device_count; d++) {
        if (problem->usable[d])
            devices[usable++] = d;
    }
    bool shaped = kind == PLACE_PIPELINE ? usable >= 2 : kind == PLACE_HYBRID && usable >= 3;
    *choice = (struct place_choice){0};
    for (uint32_t turn = 0; turn < FRESH_TRIES && shaped && !found && p->left; turn++) {
        choice_fini(choice);
        if (fresh_fill(p, kind, devices, usable, choice) > 0) {
            *seconds = polish_fit(p, choice);
            found = *seconds > 0;
        }
    }
    free(devices);
    if (!found)
        choice_fini(choice);
    return found;
}

/* Kicks that quick looks judge: *walk goes on from what is not much worse, and what may be the fastest is
 * simulated. Until so many in a row found nothing or `reserve` is all that is left. */
static void quick_search(struct polish *p, struct place_choice *choice, double *seconds, uint64_t reserve)
{
    double scale = quick_scale(p, choice, *seconds), at = *seconds / scale;
    bool walks = choice->placement == PLACE_HYBRID;
    double near = walks ? WALK_NEAR : QUICK_SLACK;
    struct place_choice walk;
    if (scale <= 0 || choice_copy(&walk, choice, p->err) < 0)
        return;
    for (uint32_t idle = 0; idle < QUICK_KICKS && p->left > reserve; idle++) {
        struct place_choice trial;
        bool home = idle % QUICK_HOME == QUICK_HOME - 1;
        if (choice_copy(&trial, home ? choice : &walk, p->err) < 0)
            break;
        at = home ? *seconds / scale : at;
        kicks_at(p, choice, idle);
        bool fits = kick(p, &trial) && quick_fit(p, &trial);
        double quick = fits ? polish_quick(p, &trial) : -1;
        if (quick > 0)
            polish_quick_settle(p, &trial, &quick, NEAR * *seconds / scale);
        if (quick > 0 && polish_again(p, &trial))
            quick = -1;
        if (quick > 0 && quick < at * DEAL_NEAR)
            polish_quick_deal(p, &trial, &quick);
        if (quick <= 0 || quick > at * QUICK_WORSE) {
            choice_fini(&trial);
            continue;
        }
        choice_fini(&walk);
        walk = trial;
        at = quick;
        double now = quick * scale < *seconds * near ? polish_seconds(p, &walk) : -1;
        if (now < *seconds * QUICK_SLACK)
            polish_settle(p, &walk, &now);
        if (now <= 0 || now >= *seconds * near || choice_copy(&trial, &walk, p->err) < 0)
            continue;
        if (walks)
            deal_walk(p, p->problem, p->seed, WALK_LOOKS, &trial, &now, p->err);
        if (now >= *seconds * BETTER) {
            choice_fini(&trial);
        } else {
            choice_fini(choice);
            *choice = trial;
            *seconds = now;
            scale = quick_scale(p, choice, now);
            at = now / scale;
            idle = 0;
        }
    }
    choice_fini(&walk);
}

void polish_search(struct polish *p, struct place_choice *choice, double *seconds, uint32_t kicks)
{
    if (!move_knows(choice))
        return;
    polish_descend(p, choice, seconds);
    quick_search(p, choice, seconds, p->left / 4);
    bool asked = p->problem->workload->place == (int)choice->placement; /* then nothing else takes time */
    double far = asked || choice->placement == PLACE_TENSOR ? INFINITY : KICK_FAR;
    for (uint32_t idle = 0; idle < kicks && p->left; idle++) {
        struct place_choice trial;
        if (choice_copy(&trial, choice, p->err) < 0)
            return;
        double now = -1;
        struct place_choice other;
        kicks_at(p, choice, QUICK_KICKS + idle);
        if (idle % 4 == 3 && polish_fresh(p, choice->placement, &other, &now)) {
            choice_fini(&trial);
            trial = other;
        } else if (kick(p, &trial)) {
            now = polish_fit(p, &trial);
        }
        if (now > 0)
            descend(p, &trial, &now, idle % 4 == 3 ? INFINITY : far * *seconds);
        if (now > 0 && now < *seconds * BETTER) {
            choice_fini(choice);
            *choice = trial;
            *seconds = now;
            idle = 0;
            continue;
        }
        choice_fini(&trial);
    }
}
