#include "planner/search/local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/candidate/objective.h"
#include "planner/cost/price.h"
#include "planner/kind/cut.h"
#include "program/check/check.h"

#define BETTER (1 - 1e-9) /* a value is better if it is below this multiple of the old one */
/* A candidate is simulated if its estimate is at most this multiple of the best candidate's, since estimates
 * of similar candidates have similar errors. */
#define FILTER 1.02
/* After a change of devices or stages, single blocks are moved if the value is at most this multiple of the
 * best. */
#define NEAR 1.03
#define REFINED 8u   /* most stages of a candidate for moving single blocks in refine() */
#define FIT_TRIES 3u /* attempts to fit, each with a sixth fewer micro-batches in flight */
#define FIT_PART 6u
#define KICK_LEAST 2u /* a perturbation is two to four random moves */
#define KICK_SPREAD 3u
#define OWNED_CELLS 1200u /* most stages · micro-batches for which moves reassign single micro-batches */
/* Units of work for filling in a candidate, without its schedule; a unit is half to one microsecond (as
 * measured by bench_planner_search). */
#define SETTLE_UNITS 10u
/* Units of work for emitting and simulating a candidate, besides one unit for each of its cells
 * (candidate_cells) in each simulated step. */
#define SIMULATE_UNITS 20u

double candidate_simulate(const struct problem *problem, const struct candidate *c, uint32_t steps_max,
                          double checked, double *seconds, struct err *err)
{
    struct err why = {0};
    double step_s = INFINITY, value = INFINITY;
    struct plan *plan = kinds[c->placement]->emit(problem, c, checked > 0 ? EMIT_PROGRAMS : EMIT_TRAIN, &why);
    if (plan && price_plan(problem, plan, steps_max, &step_s, &why) == 0)
        value = objective_value(problem, plan, step_s);
    if (value < checked && plan_check(plan, &why) < 0)
        value = INFINITY;
    plan_destroy(plan);
    if (seconds)
        *seconds = value < INFINITY ? step_s : INFINITY;
    if (why.code == ERR_NOMEM) {
        *err = why;
        return -1;
    }
    return value;
}

/* In a stage of several members the number of buffers follows from the schedule and can be more than the
 * estimate assumed; with fewer micro-batches in flight the plan may fit. */
int candidate_fit(const struct problem *problem, struct candidate *c, struct err *err)
{
    bool groups = c->member_count > c->stage_count && c->stage_count > 1;
    for (uint32_t i = 0; groups && i <= FIT_TRIES; i++) {
        struct err why = {0};
        struct plan *plan = kinds[c->placement]->emit(problem, c, EMIT_NO_PROGRAMS, &why);
        plan_destroy(plan);
        if (why.code == ERR_NOMEM)
            *err = why;
        if (plan || why.code == ERR_NOMEM)
            return plan ? 1 : -1;
        for (uint32_t m = 0; m < c->member_count && i < FIT_TRIES; m++)
            c->members[m].window -= c->members[m].window / FIT_PART +
                                    (c->members[m].window > 1 && c->members[m].window < FIT_PART);
    }
    return !groups;
}

static void candidate_swap(struct candidate *a, struct candidate *b)
{
    struct candidate held = *a;
    *a = *b;
    *b = held;
}

static bool allowed(const struct local_state *l, const struct candidate *c)
{
    if (l->must_use && !candidate_uses(c, l->must_use - 1))
        return false;
    if (l->simulate && !candidate_has_order(l->bench->problem, c))
        return false;
    return !l->runnable_only || kind_runnable(l->bench->problem, c);
}

/* Returns whether the candidate was simulated before, and records that it now is. */
static bool seen_before(struct local_state *l, const struct candidate *c)
{
    uint64_t hash = candidate_hash(c) | 1, *at = l->seen ? &l->seen[hash / 2 % LOCAL_SEEN] : NULL;
    bool before = at && *at == hash;
    if (at)
        *at = hash;
    return before;
}

/* Returns a hash of what estimate() is asked: the candidate, the level, the cut and the seconds to beat. */
static uint64_t question_hash(const struct local_state *l, const struct candidate *c, enum move_level level)
{
    uint64_t bits;
    memcpy(&bits, &l->bench->rival_s, sizeof(bits));
    bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9u + ((uint64_t)level << 1 | l->bench->even);
    return candidate_hash(c) ^ bits * 0x94d049bb133111ebu;
}

/* Returns the estimated seconds of a step; INFINITY if the candidate does not fit or is not below
 * bench->rival_s. A question that was in vain before is not worked on again, but counts as the same work.
 * Negative: ERR_NOMEM. */
static double estimate(struct local_state *l, struct candidate *c, enum move_level level)
{
    uint64_t before = l->bench->spent;
    int result = 1;
    l->bench->even =
        l->cut == CUT_EITHER ? (rand_stream_below(&l->rand, 4) > 0) == l->even : l->cut == CUT_EVEN;
    uint64_t key = question_hash(l, c, level), at = key >> 32 & (VAIN_KEPT - 1);
    if (l->bench->vain[at].key == key) {
        l->spent += l->bench->vain[at].spent;
        return INFINITY;
    }
    if (level == MOVE_CUT && l->kind->look && c->stage_count > 1)
        result = cut_blocks(l->bench, l->kind, c);
    if (result > 0)
        result = level == MOVE_AS_IS ? l->kind->estimate(l->bench, c) : l->kind->settle(l->bench, c);
    uint64_t spent = SETTLE_UNITS + c->member_count + l->bench->spent - before;
    l->spent += spent;
    if (result == 0 || (result > 0 && c->estimate_s >= l->bench->rival_s)) {
        l->bench->vain[at].key = key;
        l->bench->vain[at].spent = spent;
        return INFINITY;
    }
    return result < 0 ? -1 : c->estimate_s;
}

double local_value(struct local_state *l, struct candidate *c, enum move_level level, double rival)
{
    const struct problem *p = l->bench->problem;
    double weight = objective_weight(p, c);
    if (!allowed(l, c))
        return INFINITY;
    l->bench->rival_s = (l->simulate ? l->estimated * FILTER : rival) / weight;
    double seconds = estimate(l, c, level);
    l->looked = seconds * weight;
    if (seconds < 0 || seconds >= l->bench->rival_s || !allowed(l, c)) /* settle() may have removed members */
        return seconds < 0 ? -1 : INFINITY;
    c->estimate_s = l->looked;
    if (!l->simulate)
        return l->looked;
    if (seen_before(l, c))
        return INFINITY;
    l->spent += SIMULATE_UNITS + candidate_cells(p, c) * l->steps;
    c->estimate_s = candidate_simulate(p, c, l->steps, 0, NULL, l->bench->err);
    if (c->estimate_s == INFINITY && candidate_fit(p, c, l->bench->err) > 0)
        c->estimate_s = candidate_simulate(p, c, l->steps, 0, NULL, l->bench->err);
    return c->estimate_s;
}

/* --- trying moves --- */

/* Returns all moves of a candidate in random order; NULL: ERR_NOMEM. */
static struct move *moves_list(struct local_state *l, const struct candidate *c, uint32_t *count)
{
    enum move_kind last = l->simulate ? MOVE_KINDS : MOVE_WINDOW;
    struct move ranges[MOVE_KINDS];
    *count = 0;
    for (int kind = 0; kind < (int)last; kind++) {
        ranges[kind] = move_range(l->bench->problem, l->kind, c, (enum move_kind)kind);
        *count += ranges[kind].a * ranges[kind].b;
    }
    struct move *moves = malloc((*count + 1) * sizeof(*moves));
    if (!moves)
        return err_set(l->bench->err, ERR_NOMEM, "planner: out of memory"), NULL;
    uint32_t at = 0;
    for (int kind = 0; kind < (int)last; kind++)
        for (uint32_t i = 0; i < ranges[kind].a * ranges[kind].b; i++)
            moves[at++] = (struct move){(enum move_kind)kind, i / ranges[kind].b, i % ranges[kind].b};
    for (uint32_t i = at; i > 1; i--) { /* Fisher-Yates shuffle */
        uint32_t other = rand_stream_below(&l->rand, i);
        struct move held = moves[i - 1];
        moves[i - 1] = moves[other];
        moves[other] = held;
    }
    return moves;
}

/* Writes into the candidate which member works on which micro-batch, as list scheduling chose, so that moves
 * can change it. */
static int owners_say(struct local_state *l, struct candidate *c)
{
    const struct schedule *s = &l->bench->schedule;
    uint32_t count = micro_count(l->bench->problem, c->micro_batch_rows);
    bool groups = l->kind->stage_kind == STAGE_REPLICAS && c->member_count > c->stage_count;
    if (!groups || c->schedule == SCHEDULE_INTERLEAVED || c->owner_count ||
        (uint64_t)count * c->stage_count > OWNED_CELLS)
        return 0;
    struct candidate now = {0};
    int result = candidate_copy(&now, c, l->bench->err);
    l->bench->rival_s = INFINITY;
    if (result == 0 && l->kind->estimate(l->bench, &now) > 0 && s->micro_batches == count) {
        result = candidate_own(c, count, l->bench->err);
        for (uint32_t i = 0; i < c->owner_count && result == 0; i++)
            c->owner[i] = (uint8_t)(s->owner[i] - c->stages[i / count].member_first);
    }
    candidate_fini(&now);
    return result;
}

/* Moves single blocks between stages while that improves the value: the shortest period does not always give
 * the shortest step. */
static int refine(struct local_state *l, struct candidate *c, double *value)
{
    struct candidate trial = {0};
    int result = 0;
    for (bool moved = true; moved && result == 0 && c->stage_count <= REFINED;) {
        moved = false;
        for (uint32_t k = 0; k < c->stage_count * c->stage_count && result == 0; k++) {
            result = candidate_copy(&trial, c, l->bench->err);
            struct move move = {MOVE_BLOCKS, k / c->stage_count, k % c->stage_count};
            int level = result < 0 ? -1 : move_apply(l->bench->problem, l->kind, &trial, move, l->bench->err);
            double now =
                level <= MOVE_VOID ? INFINITY : local_value(l, &trial, (enum move_level)level, *value);
            result = now < 0 || level < 0 ? -1 : 0;
            if (result < 0 || !(now < *value * BETTER))
                continue;
            candidate_swap(c, &trial);
            *value = now;
            moved = true;
        }
    }
    candidate_fini(&trial);
    return result;
}

/* Applies every move that improves the value as soon as it is found, until no move improves it. */
static int descend(struct local_state *l, struct candidate *c, double *value)
{
    struct candidate trial = {0};
    uint32_t count = 0, since = 0;
    int result = 0;
    for (bool moved = true; moved && result == 0 && l->spent < l->budget;) {
        if (l->simulate && (result = owners_say(l, c)) < 0)
            break;
        struct move *moves = moves_list(l, c, &count);
        moved = false;
        for (uint32_t i = 0; moves && i < count && since < count && l->spent < l->budget && result == 0;
             i++, since++) {
            if (candidate_copy(&trial, c, l->bench->err) < 0) {
                result = -1;
                break;
            }
            int level = move_apply(l->bench->problem, l->kind, &trial, moves[i], l->bench->err);
            if (level == MOVE_VOID)
                continue;
            bool structure = level == MOVE_CUT && !l->simulate;
            double now =
                level < 0 ? -1
                          : local_value(l, &trial, (enum move_level)level, *value * (structure ? NEAR : 1));
            if (structure && now >= *value * BETTER && now < INFINITY && refine(l, &trial, &now) < 0)
                now = -1;
            if (now < 0) {
                result = -1;
            } else if (now < *value * BETTER) {
                candidate_swap(c, &trial);
                *value = now;
                l->estimated = l->looked;
                l->even = structure ? l->bench->even : l->even;
                since = 0;
                moved = true;
            }
        }
        result = moves ? result : -1;
        free(moves);
    }
    candidate_fini(&trial);
    return result;
}

/* Applies a few random moves, whatever their value, as long as the candidate fits. */
static int perturb(struct local_state *l, struct candidate *c, double *value)
{
    uint32_t wanted = KICK_LEAST + rand_stream_below(&l->rand, KICK_SPREAD), done = 0;
    struct candidate trial = {0};
    *value = l->estimated = INFINITY;
    for (uint32_t tries = 0; tries < 16 * wanted && done < wanted; tries++) {
        struct move move = move_range(
            l->bench->problem, l->kind, c,
            (enum move_kind)rand_stream_below(&l->rand, l->simulate ? MOVE_KINDS : MOVE_MICRO + 1));
        if (move.a == 0 || move.b == 0)
            continue;
        if (candidate_copy(&trial, c, l->bench->err) < 0)
            break;
        move.b = rand_stream_below(&l->rand, move.b);
        move.a = rand_stream_below(&l->rand, move.a);
        int level = move_apply(l->bench->problem, l->kind, &trial, move, l->bench->err);
        if (level == MOVE_VOID || level < 0)
            continue;
        bool last = done + 1 == wanted, simulate = l->simulate;
        l->simulate = simulate && last;
        double now = local_value(l, &trial, (enum move_level)level, INFINITY);
        l->simulate = simulate;
        if (now < 0) {
            candidate_fini(&trial);
            return -1;
        }
        if (now == INFINITY)
            continue;
        *value = last ? now : INFINITY; /* only the last move's result is simulated */
        l->estimated = last ? l->looked : INFINITY;
        done++;
        candidate_swap(c, &trial);
    }
    candidate_fini(&trial);
    return 0;
}

int local_search(struct local_state *l, struct candidate *c, double *value, uint32_t rounds)
{
    struct candidate now = {0};
    l->estimated = INFINITY;
    int result = descend(l, c, value);
    if (result == 0 && l->found)
        result = candidate_list_add(l->found, c, l->bench->err);
    for (uint32_t vain = 0; vain < rounds && result == 0 && l->spent < l->budget; vain++) {
        double other = INFINITY;
        result = candidate_copy(&now, c, l->bench->err);
        if (result == 0)
            result = perturb(l, &now, &other);
        if (result < 0 || other == INFINITY)
            continue;
        result = descend(l, &now, &other);
        if (result == 0 && l->found)
            result = candidate_list_add(l->found, &now, l->bench->err);
        if (result == 0 && other < *value * BETTER) {
            candidate_swap(c, &now);
            *value = other;
            vain = 0;
        }
    }
    candidate_fini(&now);
    return result;
}
