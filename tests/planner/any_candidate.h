/* Makes random candidates of every placement kind that fit into memory, including poor ones that a search
 * would never choose. */
#ifndef MOTLEY_TESTS_PLANNER_ANY_CANDIDATE_H
#define MOTLEY_TESTS_PLANNER_ANY_CANDIDATE_H

#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/emit/pipeline.h"
#include "planner/kind/cut.h"
#include "planner/search/moves.h"

#define ANY_DEVICES 32u
#define ANY_MOVES 6u /* The number of random moves is drawn from 0 to this. */

/* Settles the candidate again as far as the last move's level demands. Returns 1 when it fits into memory. */
static inline int any_settle(struct workbench *bench, const struct placement_kind *kind, struct candidate *c,
                             int level)
{
    int result = 1;
    bench->rival_s = INFINITY;
    if (level == MOVE_CUT && kind->look)
        result = cut_blocks(bench, kind, c);
    if (result > 0)
        result = level == MOVE_AS_IS ? kind->estimate(bench, c) : kind->settle(bench, c);
    assert_true(result >= 0);
    return result;
}

/* Distributes random devices over random stages, within the numbers that the kind allows. */
static inline bool any_shape(const struct problem *p, const struct placement_kind *kind,
                             struct rand_stream *r, struct candidate *c)
{
    struct err err = {0};
    uint32_t order[ANY_DEVICES], n = p->device_count, at = 0, widest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = rand_stream_below(r, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    uint32_t stages = kind->stages_most == 1 ? 1 : kind->stages_least + rand_stream_below(r, n);
    uint32_t most = kind->stages_most == 1 ? n : 1 + n / stages;
    c->placement = kind->placement;
    c->gathered_layers =
        kind->stage_kind == STAGE_SHARDED || kind->stage_kind == STAGE_SERVER ? rand_stream_below(r, 6) : 0;
    c->gathered_layers = c->gathered_layers == 1 ? 2 : c->gathered_layers;
    c->micro_batch_rows = 1 + rand_stream_below(r, p->workload->batch_rows);
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t wide = 1 + rand_stream_below(r, most);
        wide = wide < kind->members_most ? wide : kind->members_most;
        if (at + wide > n || stages > (uint32_t)p->block_count)
            return false;
        assert_int_equal(move_append(c, kind, &order[at], wide, &err), 0);
        c->stages[s].block_begin = (int32_t)((uint32_t)p->block_count * s / stages);
        c->stages[s].block_end = (int32_t)((uint32_t)p->block_count * (s + 1) / stages);
        widest = wide > widest ? wide : widest;
        at += wide;
    }
    return widest >= kind->members_least;
}

/* Assigns each stage's micro-batches to its members in turn, if they then fit into memory. */
static inline void any_owners(const struct problem *p, struct workbench *bench,
                              const struct placement_kind *kind, struct candidate *c)
{
    struct err err = {0};
    uint32_t count = micro_count(p, c->micro_batch_rows);
    assert_int_equal(candidate_own(c, count, &err), 0);
    for (uint32_t i = 0; i < c->owner_count; i++)
        c->owner[i] = (uint8_t)(i % count % c->stages[i / count].member_count);
    if (any_settle(bench, kind, c, MOVE_AS_IS) <= 0)
        c->owner_count = 0;
}

/* Lets members of chains recompute some of their blocks. */
static inline void any_recompute(const struct problem *p, struct rand_stream *r, struct candidate *c)
{
    uint32_t groups = candidate_groups(c);
    bool allowed = micro_recompute_allowed(p, true) && micro_recompute_allowed(p, false);
    for (uint32_t s = 0; s < groups && allowed && c->schedule != SCHEDULE_SPLIT; s++) {
        int32_t begin = c->stages[s].block_begin, end = c->stages[c->stage_count - groups + s].block_end;
        for (uint32_t m = 0; m < c->stages[s].member_count && end - begin > 1; m++) {
            struct member *x = &c->members[c->stages[s].member_first + m];
            x->recompute = true;
            x->recompute_end = begin + 1 + (int32_t)rand_stream_below(r, (uint32_t)(end - begin - 1));
        }
    }
}

/* Makes a candidate that fits and changes it by random moves. The caller releases *c whatever is returned.
 * Returns false when no candidate fits. */
static inline bool any_candidate(const struct problem *p, const struct placement_kind *kind,
                                 struct rand_stream *r, struct candidate *c)
{
    struct err err = {0};
    struct workbench bench;
    struct candidate trial = {0};
    bool found = false;
    if (!kind_supports(kind, p, &err))
        return false;
    workbench_init(&bench, p, &err);
    for (uint32_t tries = 0; tries < 24 && !found; tries++) {
        candidate_fini(c);
        found = any_shape(p, kind, r, c) && any_settle(&bench, kind, c, MOVE_CUT) > 0;
    }
    if (found && kind == kinds[PLACE_HYBRID] && c->member_count > c->stage_count && rand_stream_below(r, 2))
        any_owners(p, &bench, kind, c);
    if (found && kind == kinds[PLACE_HYBRID] && rand_stream_below(r, 3) == 0) {
        assert_int_equal(candidate_copy(&trial, c, &err), 0);
        if (move_apply(p, kind, &trial, (struct move){MOVE_SCHEDULE, 3 + rand_stream_below(r, 3), 0}, &err) >
            MOVE_VOID) /* interleaved groups */
            assert_int_equal(candidate_copy(c, &trial, &err), 0);
    }
    for (uint32_t moves = found ? rand_stream_below(r, ANY_MOVES + 1) : 0; moves > 0; moves--) {
        struct move move = move_range(p, kind, c, (enum move_kind)rand_stream_below(r, MOVE_KINDS));
        if (move.a == 0 || move.b == 0)
            continue;
        move.b = rand_stream_below(r, move.b);
        move.a = rand_stream_below(r, move.a);
        assert_int_equal(candidate_copy(&trial, c, &err), 0);
        int level = move_apply(p, kind, &trial, move, &err);
        if (level != MOVE_VOID && any_settle(&bench, kind, &trial, level) > 0)
            assert_int_equal(candidate_copy(c, &trial, &err), 0);
    }
    if (found && kind->emit == pipeline_emit && rand_stream_below(r, 3) == 0) {
        any_recompute(p, r, c);
        found = kind->estimate(&bench, c) > 0; /* estimates again with the blocks that are recomputed now */
    }
    candidate_fini(&trial);
    workbench_fini(&bench);
    return found;
}

/* Returns the sealed plan of a random candidate, or NULL when no candidate fits. */
static inline struct plan *any_plan(const struct workload *workload, const struct cluster *cluster, int place,
                                    struct rand_stream *r, uint64_t seed)
{
    struct err err = {0};
    struct problem problem;
    struct candidate c = {0};
    struct plan *plan = NULL;
    if (problem_init(&problem, workload, cluster, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    if (any_candidate(&problem, kinds[place], r, &c))
        plan = kinds[place]->emit(&problem, &c, true, &err);
    if (plan && plan_seal(plan, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    if (!plan && err.code != ERR_NOFIT && err.code != ERR_INVALID && err.code != 0 &&
        err.code != ERR_UNSUPPORTED)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    candidate_fini(&c);
    problem_fini(&problem);
    return plan;
}

#endif
