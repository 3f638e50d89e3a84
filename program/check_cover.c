/* Coverage: every row passes every block once forward and once backward; each gradient is reduced once; the
 * step's scalars and the norm come before the one STEP. */
#include <stdlib.h>
#include <string.h>

#include "program/check_private.h"

/* A rectangle of blocks × rows that one instruction works on. */
struct rect {
    int32_t block_begin, block_end;
    uint32_t row_begin, row_end;
    uint32_t rank, instr;
};

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_WEIGHT };

static bool works(const struct instr *x, enum pass pass)
{
    bool back = x->flags & INSTR_BACKWARD;
    switch (x->op) {
    case OP_FORWARD:
        return pass == PASS_FORWARD;
    case OP_BACKWARD:
        return pass != PASS_FORWARD;
    case OP_BACKWARD_INPUT:
        return pass == PASS_BACKWARD;
    case OP_BACKWARD_WEIGHT:
        return pass == PASS_WEIGHT;
    case OP_ATTENTION:
        return back == (pass != PASS_FORWARD);
    default:
        return false;
    }
}

static int rect_compare(const void *left, const void *right)
{
    const struct rect *a = left, *b = right;
    if (a->block_begin != b->block_begin)
        return a->block_begin < b->block_begin ? -1 : 1;
    if (a->row_begin != b->row_begin)
        return a->row_begin < b->row_begin ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static const char *const pass_names[] = {"forward", "backward", "backward (weights)"};

static bool rect_same(const struct rect *a, const struct rect *b)
{
    return a->block_begin == b->block_begin && a->block_end == b->block_end && a->row_begin == b->row_begin &&
           a->row_end == b->row_end;
}

/* In a tensor placement the members of a stage share a rectangle: count it once, and all members must be
 * there. */
static int rects_merge(const struct plan *plan, struct rect *rects, uint32_t count, uint32_t micro,
                       struct err *err)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + 1, members = 0;
        while (end < count && rect_same(&rects[i], &rects[end]) && rects[end].rank != rects[end - 1].rank)
            end++;
        for (uint32_t r = 0; r < plan->rank_count; r++)
            members += plan->ranks[r].stage == plan->ranks[rects[i].rank].stage;
        if (end - i != members)
            return err_set(err, ERR_INVALID,
                           "micro-batch %u, blocks %d..%d: %u of %u ranks of stage %d work on it", micro,
                           rects[i].block_begin, rects[i].block_end, end - i, members,
                           plan->ranks[rects[i].rank].stage);
        rects[out++] = rects[i];
        i = end;
    }
    return (int)out;
}

static int rects_tile(const struct plan *plan, int kind, enum pass pass, struct rect *rects, uint32_t count,
                      uint32_t micro, uint32_t rows, struct err *err)
{
    uint64_t area = 0, wanted = (uint64_t)plan->block_count * rows;
    char one[200], two[200];
    qsort(rects, count, sizeof(*rects), rect_compare);
    if (plan->placement == PLACE_TENSOR) {
        int merged = rects_merge(plan, rects, count, micro, err);
        if (merged < 0)
            return -1;
        count = (uint32_t)merged;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct rect *a = &rects[i];
        area += (uint64_t)(a->block_end - a->block_begin) * (a->row_end - a->row_begin);
        for (uint32_t j = i + 1; j < count && rects[j].block_begin < a->block_end; j++) {
            const struct rect *b = &rects[j];
            if (b->row_begin < a->row_end && a->row_begin < b->row_end)
                return err_set(err, ERR_INVALID, "%s repeats what %s does: rows pass a block twice %s",
                               check_where(plan, b->rank, kind, b->instr, one),
                               check_where(plan, a->rank, kind, a->instr, two), pass_names[pass]);
        }
    }
    if (area == wanted)
        return 0;
    int32_t reached = 0;
    for (uint32_t i = 0; i < count && rects[i].block_begin <= reached; i++)
        reached = rects[i].block_end > reached ? rects[i].block_end : reached;
    uint32_t near = UINT32_MAX, holder = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (reached > 0 && rects[i].block_end == reached)
            near = i;
    }
    for (uint32_t r = plan->rank_count; r-- > 0;) {
        if (plan->ranks[r].block_begin <= reached && reached < plan->ranks[r].block_end)
            holder = r;
    }
    return err_set(
        err, ERR_INVALID,
        "%s: micro-batch %u does not pass every block %s once with all its %u rows; missing from block %d, "
        "which rank %u holds%s%s",
        program_kind_name(kind), micro, pass_names[pass], rows, reached, holder,
        near != UINT32_MAX ? ", behind " : "",
        near != UINT32_MAX ? check_where(plan, rects[near].rank, kind, rects[near].instr, one) : "");
}

/* Instructions of one pass, sorted into micro-batches (CSR). */
static int pass_rects(const struct plan *plan, int kind, enum pass pass, struct rect **out,
                      uint32_t **first_out, struct err *err)
{
    uint32_t micro_batches = plan->micro_batch_count, count = 0;
    uint32_t *first = calloc((size_t)micro_batches + 2, sizeof(*first));
    if (!first)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking rows");
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1) {
            for (uint32_t k = 0; k < micro_batches; k++)
                first[k + 2] += first[k + 1];
            *out = calloc((size_t)count + 1, sizeof(**out));
            if (!*out) {
                free(first);
                return err_set(err, ERR_NOMEM, "plan: out of memory while checking rows");
            }
        }
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            const struct program *program = &plan->ranks[r].programs[kind];
            for (uint32_t i = 0; i < program->instr_count; i++) {
                const struct instr *x = &program->instrs[i];
                if (!works(x, pass))
                    continue;
                uint32_t micro = (uint32_t)x->micro_batch;
                if (turn == 0) {
                    first[micro + 2]++;
                    count++;
                    continue;
                }
                uint32_t rows = plan->micro_batch_start[micro + 1] - plan->micro_batch_start[micro];
                (*out)[first[micro + 1]++] =
                    (struct rect){.block_begin = x->block_begin,
                                  .block_end = x->block_end,
                                  .row_begin = x->row_begin < rows ? x->row_begin : rows,
                                  .row_end = x->row_end < rows ? x->row_end : rows,
                                  .rank = r,
                                  .instr = i};
            }
        }
    }
    *first_out = first;
    return 0;
}

static int check_pass(const struct plan *plan, int kind, enum pass pass, struct err *err)
{
    struct rect *rects = NULL;
    uint32_t *first = NULL;
    if (pass_rects(plan, kind, pass, &rects, &first, err) < 0)
        return -1;
    bool one_row = kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE;
    uint32_t micro_batches = one_row ? 1 : plan->micro_batch_count;
    int result = 0;
    for (uint32_t k = 0; k < micro_batches && result == 0; k++) {
        uint32_t rows = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
        if (rows > 0)
            result = rects_tile(plan, kind, pass, &rects[first[k]], first[k + 1] - first[k], k, rows, err);
    }
    free(rects);
    free(first);
    return result;
}

int check_rows(const struct plan *plan, int kind, struct err *err)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        total += plan->ranks[r].programs[kind].instr_count;
    if (total == 0)
        return kind == PROGRAM_TRAIN ? err_set(err, ERR_INVALID, "plan: it has no train program") : 0;
    if (kind == PROGRAM_SAVE)
        return 0;
    if (check_pass(plan, kind, PASS_FORWARD, err) < 0)
        return -1;
    if (kind != PROGRAM_TRAIN)
        return 0;
    if (check_pass(plan, kind, PASS_BACKWARD, err) < 0)
        return -1;
    return check_pass(plan, kind, PASS_WEIGHT, err);
}

static bool backward_weight(const struct instr *x)
{
    return works(x, PASS_WEIGHT) || (x->op == OP_EXPERTS && (x->flags & INSTR_BACKWARD));
}

static int step_before(const struct plan *plan, uint32_t rank, const struct check_order *order, uint32_t a,
                       uint32_t b, const char *why, struct err *err)
{
    char one[200], two[200];
    if (check_order_before(order, a, b))
        return 0;
    return err_set(err, ERR_INVALID, "%s does not wait for %s: %s",
                   check_where(plan, rank, PROGRAM_TRAIN, b, one),
                   check_where(plan, rank, PROGRAM_TRAIN, a, two), why);
}

struct step_parts {
    uint32_t steps, scalars, norms; /* how many */
    uint32_t step, scalar, norm;    /* where the last is */
};

static struct step_parts step_find(const struct plan *plan, uint32_t rank)
{
    const struct program *program = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    struct step_parts parts = {0};
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        int kind = x->slot_in >= 0 ? plan->ranks[rank].slots[x->slot_in].kind : -1;
        if (x->op == OP_STEP) {
            parts.steps++;
            parts.step = i;
        } else if (x->op == OP_ALL_REDUCE && x->group == 0 && kind == SLOT_STEP_SCALARS) {
            parts.scalars++;
            parts.scalar = i;
        } else if (kind == SLOT_NORM_SCALAR &&
                   (x->op == OP_ALL_REDUCE || (x->op == OP_BROADCAST && x->peer != (int32_t)rank))) {
            parts.norms++; /* summed here, or told by the one that summed */
            parts.norm = i;
        }
    }
    return parts;
}

int check_step(const struct plan *plan, uint32_t rank, const struct check_order *order, struct err *err)
{
    const struct plan_rank *r = &plan->ranks[rank];
    const struct program *program = &r->programs[PROGRAM_TRAIN];
    struct step_parts parts = step_find(plan, rank);
    if (program->instr_count == 0)
        return err_set(err, ERR_INVALID, "rank %u: it has no train program", rank);
    if (parts.steps > 1 || (parts.steps == 0 && r->state_share > 0))
        return err_set(err, ERR_INVALID, "rank %u train: %u STEP instructions; it must be one", rank,
                       parts.steps);
    if (parts.scalars != 1 || parts.norms != 1)
        return err_set(err, ERR_INVALID,
                       "rank %u train: step scalars are reduced over all ranks %u times and the norm %u "
                       "times; each must be once",
                       rank, parts.scalars, parts.norms);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        bool gradients = x->queue == QUEUE_GROUP && x->tag == TAG_PARAMETER_GRADIENTS;
        if (works(x, PASS_FORWARD) &&
            step_before(plan, rank, order, i, parts.scalar, "the loss would be incomplete", err) < 0)
            return -1;
        if ((backward_weight(x) || gradients) &&
            step_before(plan, rank, order, i, parts.norm, "the norm would be incomplete", err) < 0)
            return -1;
        if (parts.steps && (backward_weight(x) || gradients || i == parts.scalar || i == parts.norm) &&
            step_before(plan, rank, order, i, parts.step, "the update would come too early", err) < 0)
            return -1;
    }
    return 0;
}

/* Which ranks take gradients of a block. */
static bool rank_trains(const struct plan *plan, uint32_t rank, int32_t block)
{
    const struct program *program = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    if (block < plan->ranks[rank].block_begin || block >= plan->ranks[rank].block_end)
        return false;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (backward_weight(x) && x->block_begin <= block && block < x->block_end)
            return true;
    }
    return false;
}

static bool reduces(const struct plan_rank *rank, const struct instr *x, int32_t block)
{
    if (x->tag != TAG_PARAMETER_GRADIENTS || x->slot_in < 0 || rank->slots[x->slot_in].kind != SLOT_GRADIENTS)
        return false;
    if (x->op != OP_ALL_REDUCE && x->op != OP_REDUCE && x->op != OP_REDUCE_SCATTER && x->op != OP_PUSH)
        return false;
    const struct plan_slot *slot = &rank->slots[x->slot_in];
    bool own = x->block_end > x->block_begin;
    return (own ? x->block_begin : slot->block_begin) <= block &&
           block < (own ? x->block_end : slot->block_end);
}

static int reductions_of(const struct plan *plan, uint32_t rank, int32_t block, uint32_t holders,
                         const bool *trains, struct err *err)
{
    const struct plan_rank *r = &plan->ranks[rank];
    const struct program *program = &r->programs[PROGRAM_TRAIN];
    uint32_t count = 0, last = 0;
    char where[200];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        if (reduces(r, &program->instrs[i], block)) {
            count++;
            last = i;
        }
    }
    bool tied = block == 0 && (r->owns_tied || r->copies_tied);
    bool edge = (block == 0 || block == plan->block_count - 1) && !plan->trains_embedding;
    if (count > 1 || (count == 1 && holders == 1 && !tied && program->instrs[last].op != OP_PUSH))
        return err_set(err, ERR_INVALID, "%s: the gradients of block %d are reduced %s",
                       check_where(plan, rank, PROGRAM_TRAIN, last, where), block,
                       count > 1 ? "more than once" : "although only this rank has them");
    if (count == 0 && holders > 1 && !edge && plan->placement != PLACE_TENSOR)
        return err_set(err, ERR_INVALID,
                       "rank %u train: the gradients of block %d, which %u ranks take, are never reduced",
                       rank, block, holders);
    if (count == 0 || program->instrs[last].op == OP_PUSH || tied)
        return 0;
    const struct plan_group *group = &plan->groups[program->instrs[last].group];
    for (uint32_t other = 0; other < plan->rank_count; other++) {
        if (trains[other] && plan_group_position(group, other) < 0)
            return err_set(err, ERR_INVALID,
                           "%s: rank %u also has gradients of block %d and is not in the group",
                           check_where(plan, rank, PROGRAM_TRAIN, last, where), other, block);
    }
    return 0;
}

/* Does this rank's gradient of the block end up as a shard of the sum, rather than as the whole sum? */
static bool rank_shards(const struct plan *plan, uint32_t rank, int32_t block)
{
    const struct plan_rank *r = &plan->ranks[rank];
    const struct program *program = &r->programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        if (reduces(r, &program->instrs[i], block))
            return program->instrs[i].op == OP_REDUCE_SCATTER;
    }
    return false;
}

/* The ranks that sum the norm count every gradient once: all shards, or one of the replicas. */
static int norm_counts(const struct plan *plan, int32_t block, const bool *trains, struct err *err)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op != OP_ALL_REDUCE || x->tag != TAG_NORM || plan->groups[x->group].ranks[0] != r)
                continue;
            const struct plan_group *group = &plan->groups[x->group];
            uint32_t members = 0, holders = 0;
            bool shards = false;
            char where[200];
            for (uint32_t o = 0; o < plan->rank_count; o++) {
                holders += trains[o];
                members += trains[o] && plan_group_position(group, o) >= 0;
                shards |= trains[o] && rank_shards(plan, o, block);
            }
            if (members != (shards || plan->placement == PLACE_TENSOR ? holders : 1))
                return err_set(err, ERR_INVALID,
                               "%s: %u of the %u ranks with gradients of block %d count for the norm",
                               check_where(plan, r, PROGRAM_TRAIN, i, where), members, holders, block);
        }
    }
    return 0;
}

int check_reductions(const struct plan *plan, struct err *err)
{
    bool *trains = calloc(plan->rank_count, sizeof(*trains));
    if (!trains)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking reductions");
    int result = 0;
    for (int32_t block = 0; block < plan->block_count && result == 0; block++) {
        uint32_t holders = 0;
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            trains[r] = rank_trains(plan, r, block);
            holders += trains[r];
        }
        for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
            if (trains[r])
                result = reductions_of(plan, r, block, holders, trains, err);
        }
        bool edge = (block == 0 || block == plan->block_count - 1) && !plan->trains_embedding;
        if (result == 0 && holders > 0 && !edge)
            result = norm_counts(plan, block, trains, err);
    }
    free(trains);
    return result;
}
