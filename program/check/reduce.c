/* Checks reductions: every gradient ends exactly once in the sum that STEP uses, and counts once in the norm.
 *
 * There is a tally for each rank and block: does the rank compute gradients of the block, and which
 * instruction reduces them (ALL_REDUCE, REDUCE_SCATTER, PUSH). Both the embedding and the head compute
 * gradients of a tied embedding, so a rank that only copies it (copies_tied) has a tally of block 0, too. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/check/check_private.h"

#define TALLIES_MAX ((size_t)1 << 28)
#define SHARES_SLACK 1e-6 /* rounding that is allowed in Σ of a group's shares = 1 */

struct gradient_tally {
    bool trains;
    bool gathers;     /* an instruction gathers or pulls the block's weights */
    bool arrives;     /* the rank only keeps state: it receives the sum of other ranks' gradients and computes
                         none */
    uint8_t reduced;  /* how often the block's gradients are reduced, up to 255 */
    uint32_t reducer; /* the last instruction that reduces the block's gradients */
    uint32_t pulled;  /* number of PULLs that add another rank's gradients to this rank's */
    int32_t gather_group;
};

struct reduce_state {
    const struct plan *plan;
    struct gradient_tally *
        *of; /* [rank]: tallies of blocks [first[rank], first[rank] + width[rank]); NULL: none */
    struct gradient_tally *tied; /* [rank]: the tally of block 0, on ranks that copy the tied embedding */
    bool *steps;                 /* [rank]: the rank has a STEP */
    int32_t *position;           /* [rank]: position in position_group, or -1 */
    int32_t position_group;
    struct err *err;
};

static struct gradient_tally *tally_at(const struct reduce_state *s, uint32_t rank, int32_t block)
{
    const struct plan_rank *r = &s->plan->ranks[rank];
    if (plan_rank_holds(r, block, block + 1))
        return &s->of[rank][block - r->block_begin];
    return block == 0 && r->copies_tied ? &s->tied[rank] : NULL;
}

static bool trains_at(const struct reduce_state *s, uint32_t rank, int32_t block)
{
    const struct gradient_tally *t = tally_at(s, rank, block);
    return t && t->trains;
}

static bool slot_is(const struct plan_rank *rank, int32_t slot, int kind)
{
    return slot >= 0 && rank->slots[slot].kind == kind;
}

static bool reduces(const struct plan_rank *rank, const struct instr *x)
{
    return x->tag == TAG_PARAMETER_GRADIENTS && slot_is(rank, x->slot_in, SLOT_GRADIENTS) &&
           (x->op == INSTR_ALL_REDUCE || x->op == INSTR_REDUCE_SCATTER || x->op == INSTR_PUSH);
}

/* Records in the rank's tallies what an instruction does with the gradients or weights of its blocks. */
static void tally_instr(struct reduce_state *s, uint32_t rank, uint32_t i)
{
    const struct plan_rank *r = &s->plan->ranks[rank];
    const struct instr *x = &r->programs[PROGRAM_TRAIN].instrs[i];
    bool trains = check_trains(x), reduced = reduces(r, x);
    bool pulled = x->op == INSTR_PULL && x->tag == TAG_PARAMETER_GRADIENTS;
    /* A REDUCE_SCATTER without input is of a rank that keeps state but computes no gradients. */
    bool arrives = x->op == INSTR_REDUCE_SCATTER && x->slot_in < 0 && slot_is(r, x->slot_out, SLOT_GRADIENTS);
    bool gathers =
        (x->op == INSTR_ALL_GATHER || x->op == INSTR_PULL) && slot_is(r, x->slot_out, SLOT_GATHERED);
    bool named = x->block_end > x->block_begin;
    int32_t begin = x->block_begin, end = x->block_end;
    if (!trains && !reduced && !pulled && !gathers && !arrives)
        return;
    if (!named && reduced) {
        begin = r->slots[x->slot_in].block_begin;
        end = r->slots[x->slot_in].block_end;
    }
    for (int32_t b = begin; b < end; b++) {
        struct gradient_tally *t = tally_at(s, rank, b);
        if (!t)
            continue;
        t->trains |= trains;
        t->pulled += pulled;
        if (arrives) {
            t->arrives = true;
            t->reducer = i;
        }
        if (reduced) {
            t->reduced = (uint8_t)(t->reduced + (t->reduced < 255));
            t->reducer = i;
        }
        if (gathers) {
            t->gathers = true;
            t->gather_group = x->op == INSTR_ALL_GATHER ? x->group : PLAN_NONE;
        }
    }
    bool head = end == s->plan->block_count && begin > 0;
    if (trains && head && r->copies_tied && s->plan->trains_embedding && tally_at(s, rank, 0))
        tally_at(s, rank, 0)->trains = true;
}

static int reduce_state_init(struct reduce_state *s)
{
    const struct plan *plan = s->plan;
    size_t total = 0;
    s->of = calloc(plan->rank_count, sizeof(*s->of));
    s->tied = calloc(plan->rank_count, sizeof(*s->tied));
    s->steps = calloc(plan->rank_count, sizeof(*s->steps));
    s->position = calloc(plan->rank_count, sizeof(*s->position));
    s->position_group = PLAN_NONE;
    for (uint32_t r = 0; s->of && s->tied && s->steps && s->position && r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        size_t width = (size_t)(rank->block_end - rank->block_begin);
        total += width;
        s->of[r] = total > TALLIES_MAX ? NULL : calloc(width + 1, sizeof(**s->of));
        if (!s->of[r])
            break;
        const struct program *program = &rank->programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            tally_instr(s, r, i);
            s->steps[r] |= program->instrs[i].op == INSTR_STEP;
        }
    }
    if (!s->of || !s->tied || !s->steps || !s->position || !s->of[plan->rank_count - 1])
        return err_set(s->err, ERR_NOMEM, "plan: out of memory while checking reductions");
    return 0;
}

static int reduce_refuse(const struct reduce_state *s, uint32_t rank, uint32_t instr, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int reduce_refuse(const struct reduce_state *s, uint32_t rank, uint32_t instr, const char *format, ...)
{
    char where[200], text[240];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return err_set(s->err, ERR_INVALID, "%s: %s", plan_where(s->plan, rank, PROGRAM_TRAIN, instr, where),
                   text);
}

/* Fills s->position for a group, unless it is filled already. */
static void position_fill(struct reduce_state *s, int32_t group)
{
    if (s->position_group == group)
        return;
    for (uint32_t r = 0; r < s->plan->rank_count; r++)
        s->position[r] = -1;
    for (uint32_t p = 0; p < s->plan->groups[group].rank_count; p++)
        s->position[s->plan->groups[group].ranks[p]] = (int32_t)p;
    s->position_group = group;
}

/* Checks that the pushes of a block end at one rank, which adds each once and steps. */
static int check_push(const struct reduce_state *s, uint32_t rank, int32_t block)
{
    const struct gradient_tally *t = tally_at(s, rank, block);
    const struct instr *x = &s->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[t->reducer];
    uint32_t owner = (uint32_t)x->peer, pushes = 0;
    if (!s->steps[owner])
        return reduce_refuse(s, rank, t->reducer, "gradients of block %d go to rank %u, which never steps",
                             block, owner);
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct gradient_tally *o = tally_at(s, r, block);
        if (!o || !o->reduced)
            continue;
        const struct instr *y = &s->plan->ranks[r].programs[PROGRAM_TRAIN].instrs[o->reducer];
        if (y->op != INSTR_PUSH || (uint32_t)y->peer != owner)
            return reduce_refuse(s, rank, t->reducer,
                                 "gradients of block %d do not all go where those of rank %u do", block, r);
        pushes++;
    }
    const struct gradient_tally *own = tally_at(s, owner, block);
    if (!own || own->pulled != pushes)
        return reduce_refuse(s, rank, t->reducer, "gradients of block %d are not added once each by rank %u",
                             block, owner);
    return 0;
}

/* True if the rank has the sum of a block's gradients, or a shard of it, when STEP runs. */
static bool owns(const struct reduce_state *s, uint32_t rank, int32_t block)
{
    const struct gradient_tally *t = tally_at(s, rank, block);
    if (!t || (!t->trains && !t->reduced && !t->pulled && !t->arrives))
        return false;
    if (t->reduced == 0 && !t->arrives)
        return true;
    const struct instr *x = &s->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[t->reducer];
    if (x->op == INSTR_PUSH)
        return false;
    if (x->op == INSTR_ALL_REDUCE &&
        block < s->plan->ranks[rank].block_begin) /* STEP does not update a copy of the tied embedding */
        return false;
    if (x->op != INSTR_REDUCE_SCATTER || !s->plan->groups[x->group].shares)
        return true;
    int position = plan_group_position(&s->plan->groups[x->group], rank);
    return position < 0 || s->plan->groups[x->group].shares[position] > 0;
}

static int check_group(struct reduce_state *s, uint32_t rank, int32_t block)
{
    const struct plan *plan = s->plan;
    const struct gradient_tally *t = tally_at(s, rank, block);
    const struct instr *x = &plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[t->reducer];
    const struct plan_group *group = &plan->groups[x->group];
    position_fill(s, x->group);
    for (uint32_t other = 0; other < plan->rank_count; other++)
        if (s->position[other] < 0 && trains_at(s, other, block))
            return reduce_refuse(s, rank, t->reducer,
                                 "rank %u also has gradients of block %d and is not in the group", other,
                                 block);
    if (x->op != INSTR_REDUCE_SCATTER)
        return 0;
    double share = group->shares ? group->shares[s->position[rank]] : 1.0 / group->rank_count;
    if (share < 1 && t->trains && !t->gathers)
        return reduce_refuse(s, rank, t->reducer,
                             "only a shard of block %d stays here, and its weights are never gathered",
                             block);
    if (t->gathers && t->gather_group != x->group)
        return reduce_refuse(s, rank, t->reducer,
                             "block %d is gathered over another group than it is reduced over", block);
    if (share > 0 && !s->steps[rank])
        return reduce_refuse(s, rank, t->reducer,
                             "it leaves a shard of block %d here that is never stepped with", block);
    return 0;
}

static int check_tally(struct reduce_state *s, uint32_t rank, int32_t block, uint32_t holders)
{
    const struct plan *plan = s->plan;
    const struct plan_rank *r = &plan->ranks[rank];
    const struct gradient_tally *t = tally_at(s, rank, block);
    bool tied = block == 0 && (r->owns_tied || r->copies_tied);
    bool edge = (block == 0 || block == plan->block_count - 1) && !plan->trains_embedding;
    char where[200];
    int op = t->reduced ? r->programs[PROGRAM_TRAIN].instrs[t->reducer].op : INSTR_COUNT;
    bool leaves = op == INSTR_PUSH || op == INSTR_REDUCE_SCATTER;
    if (t->reduced > 1)
        return reduce_refuse(s, rank, t->reducer, "the gradients of block %d are reduced more than once",
                             block);
    if (t->reduced == 1 && holders == 1 && !tied && !leaves)
        return reduce_refuse(s, rank, t->reducer,
                             "the gradients of block %d are reduced although only this rank has them", block);
    if (t->reduced == 0 && holders > 1 && !edge && t->pulled == 0)
        return err_set(s->err, ERR_INVALID,
                       "%s: the gradients of block %d, which %u ranks take, are never reduced before it",
                       plan_where_end(plan, rank, PROGRAM_TRAIN, false, where), block, holders);
    if (t->reduced == 0 && !edge && !s->steps[rank])
        return err_set(s->err, ERR_INVALID,
                       "%s: the gradients of block %d stay here and are never stepped with",
                       plan_where_end(plan, rank, PROGRAM_TRAIN, false, where), block);
    if (t->reduced == 0)
        return 0;
    if (op == INSTR_PUSH)
        return check_push(s, rank, block);
    return check_group(s, rank, block);
}

/* Checks that the ranks over which the clip norm is summed count every gradient once: all shards of a sharded
 * gradient, or one replica of an equal one. */
static int norm_counts(struct reduce_state *s, uint32_t rank, uint32_t norm, int32_t block, uint32_t holders)
{
    const struct plan *plan = s->plan;
    uint32_t members = 0, owners = 0;
    bool shards = plan->placement == PLACE_TENSOR;
    for (uint32_t o = 0; o < plan->rank_count; o++) {
        const struct gradient_tally *t = tally_at(s, o, block);
        if (!owns(s, o, block))
            continue;
        owners++;
        members += s->position[o] >= 0 && (shards || plan_counts_alike(plan, o, block));
        shards |= (t->reduced || t->arrives) &&
                  plan->ranks[o].programs[PROGRAM_TRAIN].instrs[t->reducer].op == INSTR_REDUCE_SCATTER;
    }
    if (members == (shards ? owners : 1))
        return 0;
    char where[200];
    return err_set(
        s->err, ERR_INVALID, "%s: %u of the %u ranks with gradients of block %d count for the norm",
        plan_where(plan, rank, PROGRAM_TRAIN, norm, where), members, shards ? owners : holders, block);
}

static int check_norms(struct reduce_state *s, const uint32_t *holders)
{
    const struct plan *plan = s->plan;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op != INSTR_ALL_REDUCE || x->tag != TAG_NORM || plan->groups[x->group].ranks[0] != r)
                continue;
            position_fill(s, x->group);
            for (int32_t block = 0; block < plan->block_count; block++) {
                bool edge = (block == 0 || block == plan->block_count - 1) && !plan->trains_embedding;
                if (holders[block] && !edge && norm_counts(s, r, i, block, holders[block]) < 0)
                    return -1;
            }
        }
    }
    return 0;
}

/* Checks that every copy of a trained embedding gets the new value: after the step, or by gathering it
 * every step. */
static int check_copies(const struct reduce_state *s)
{
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct plan_rank *rank = &s->plan->ranks[r];
        const struct program *program = &rank->programs[PROGRAM_TRAIN];
        bool told = !rank->copies_tied || !s->plan->trains_embedding;
        for (uint32_t i = 0; i < program->instr_count && !told; i++) {
            const struct instr *x = &program->instrs[i];
            bool brings = (x->op == INSTR_ALL_GATHER || x->op == INSTR_PULL) && x->block_begin == 0 &&
                          slot_is(rank, x->slot_out, SLOT_GATHERED);
            told = x->tag == TAG_PARAMETERS && (brings || x->op == INSTR_BROADCAST);
        }
        if (!told)
            return err_set(
                s->err, ERR_INVALID,
                "rank %u train: its copy of the tied embedding never gets the value that was stepped", r);
    }
    return 0;
}

static int check_shares(const struct plan *plan, struct err *err)
{
    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_group *group = &plan->groups[g];
        double sum = 0;
        for (uint32_t p = 0; group->shares && p < group->rank_count; p++) {
            if (!(group->shares[p] >= 0 && group->shares[p] <= 1 + SHARES_SLACK))
                return err_set(err, ERR_INVALID, "group %u: the share of rank %u is %g", g, group->ranks[p],
                               group->shares[p]);
            sum += group->shares[p];
        }
        if (group->shares && !(fabs(sum - 1) <= SHARES_SLACK))
            return err_set(err, ERR_INVALID, "group %u: the shares of its ranks sum to %.9g, not to 1", g,
                           sum);
    }
    return 0;
}

int check_reductions(const struct plan *plan, struct err *err)
{
    struct reduce_state s = {.plan = plan, .err = err};
    uint32_t *holders = calloc((size_t)plan->block_count + 1, sizeof(*holders));
    int result = check_shares(plan, err);
    if (result == 0 && !holders)
        result = err_set(err, ERR_NOMEM, "plan: out of memory while checking reductions");
    if (result == 0)
        result = reduce_state_init(&s);
    for (int32_t block = 0; block < plan->block_count && result == 0; block++) {
        for (uint32_t r = 0; r < plan->rank_count; r++)
            holders[block] += trains_at(&s, r, block);
        for (uint32_t r = 0; r < plan->rank_count && result == 0; r++)
            if (trains_at(&s, r, block))
                result = check_tally(&s, r, block, holders[block]);
    }
    if (result == 0)
        result = check_norms(&s, holders);
    if (result == 0)
        result = check_copies(&s);
    for (uint32_t r = 0; s.of && r < plan->rank_count; r++)
        free(s.of[r]);
    free(s.of);
    free(s.tied);
    free(s.steps);
    free(s.position);
    free(holders);
    return result;
}
