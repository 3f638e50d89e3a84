/* Checks coverage: every row passes every block once forward and once backward; the step's scalars and the
 * norm come before the one STEP. */
#include <stdlib.h>
#include <string.h>

#include "program/check/check_private.h"

/* A rectangle of blocks × rows that one instruction works on. Half blocks (attention, FFN) count as one,
 * because tensor groups all-reduce between them. */
struct rect {
    int32_t block_begin, block_end;
    uint32_t row_begin, row_end;
    uint32_t rank, instr;
};

enum cover_pass { PASS_FORWARD, PASS_BACKWARD, PASS_WEIGHT };

static bool works(const struct instr *x, enum cover_pass pass)
{
    bool back = x->flags & FLAG_BACKWARD;
    switch (x->op) {
    case INSTR_FORWARD:
        return pass == PASS_FORWARD;
    case INSTR_BACKWARD:
        return pass != PASS_FORWARD;
    case INSTR_BACKWARD_INPUT:
        return pass == PASS_BACKWARD;
    case INSTR_BACKWARD_WEIGHT:
        return pass == PASS_WEIGHT;
    case INSTR_ATTENTION:
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

/* In a tensor placement all members of a stage work on the same blocks × rows; these count once, and each
 * member must have an instruction for them. */
static int rects_merge(const struct plan *plan, int kind, struct rect *rects, uint32_t count, uint32_t micro,
                       struct err *err)
{
    char where[200];
    uint32_t out = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + 1, members = 0;
        while (end < count && rect_same(&rects[i], &rects[end]) && rects[end].rank != rects[end - 1].rank)
            end++;
        for (uint32_t r = 0; r < plan->rank_count; r++)
            members +=
                plan->ranks[r].stage == plan->ranks[rects[i].rank].stage &&
                plan_rank_holds(&plan->ranks[r], rects[i].block_begin / 2, (rects[i].block_end + 1) / 2);
        if (end - i != members)
            return err_set(
                err, ERR_INVALID, "%s: micro-batch %u, blocks %d..%d: %u of %u ranks of stage %d work on it",
                plan_where(plan, rects[i].rank, kind, rects[i].instr, where), micro, rects[i].block_begin / 2,
                (rects[i].block_end + 1) / 2, end - i, members, plan->ranks[rects[i].rank].stage);
        rects[out++] = rects[i];
        i = end;
    }
    return (int)out;
}

static int rects_tile(const struct plan *plan, int kind, enum cover_pass pass, struct rect *rects,
                      uint32_t count, uint32_t micro, uint32_t rows, struct err *err)
{
    uint64_t area = 0, wanted = 2 * (uint64_t)plan->block_count * rows;
    char one[200], two[200];
    qsort(rects, count, sizeof(*rects), rect_compare);
    if (plan->placement == PLACE_TENSOR) {
        int merged = rects_merge(plan, kind, rects, count, micro, err);
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
                               plan_where(plan, b->rank, kind, b->instr, one),
                               plan_where(plan, a->rank, kind, a->instr, two), pass_names[pass]);
        }
    }
    if (area == wanted)
        return 0;
    int32_t reached = 0;
    for (uint32_t i = 0; i < count && rects[i].block_begin <= reached; i++)
        reached = rects[i].block_end > reached ? rects[i].block_end : reached;
    uint32_t near = UINT32_MAX, holder = 0;
    for (uint32_t i = 0; i < count; i++)
        if (reached > 0 && rects[i].block_end == reached)
            near = i;
    for (uint32_t r = plan->rank_count; r-- > 0;)
        if (plan_rank_holds(&plan->ranks[r], reached / 2, reached / 2 + 1))
            holder = r;
    return err_set(
        err, ERR_INVALID,
        "%s: micro-batch %u does not pass every block %s once with all its %u rows; missing from block %d, "
        "which rank %u holds%s%s",
        program_kind_name(kind), micro, pass_names[pass], rows, reached / 2, holder,
        near != UINT32_MAX ? ", behind " : ", before ",
        near != UINT32_MAX ? plan_where(plan, rects[near].rank, kind, rects[near].instr, one)
                           : plan_where_end(plan, holder, kind, false, one));
}

/* Lists the instructions of one pass sorted by micro-batch (CSR). */
static int pass_rects(const struct plan *plan, int kind, enum cover_pass pass, struct rect **out,
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
                    (struct rect){.block_begin = 2 * x->block_begin + !!(x->flags & FLAG_SECOND_HALF),
                                  .block_end = 2 * x->block_end - !!(x->flags & FLAG_FIRST_HALF),
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

static int check_pass(const struct plan *plan, int kind, enum cover_pass pass, struct err *err)
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

bool check_trains(const struct instr *x)
{
    return works(x, PASS_WEIGHT) || (x->op == INSTR_EXPERTS && (x->flags & FLAG_BACKWARD));
}

static int step_before(const struct plan *plan, uint32_t rank, const struct check_order *order, uint32_t a,
                       uint32_t b, const char *why, struct err *err)
{
    char one[200], two[200];
    if (check_order_before(order, a, b))
        return 0;
    return err_set(err, ERR_INVALID, "%s does not wait for %s: %s",
                   plan_where(plan, rank, PROGRAM_TRAIN, b, one),
                   plan_where(plan, rank, PROGRAM_TRAIN, a, two), why);
}

struct step_parts {
    uint32_t steps, scalars, norms; /* how many STEPs, reductions of the step's scalars, and of the norm */
    uint32_t step, scalar, norm;    /* index of the last one of each kind */
};

static struct step_parts step_find(const struct plan *plan, uint32_t rank)
{
    const struct program *program = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    struct step_parts parts = {0};
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        int kind = x->slot_in >= 0 ? plan->ranks[rank].slots[x->slot_in].kind : -1;
        if (x->op == INSTR_STEP) {
            parts.steps++;
            parts.step = i;
        } else if (x->op == INSTR_ALL_REDUCE && x->group == 0 && kind == SLOT_STEP_SCALARS) {
            parts.scalars++;
            parts.scalar = i;
        } else if (kind == SLOT_NORM_SCALAR &&
                   (x->op == INSTR_ALL_REDUCE || (x->op == INSTR_BROADCAST && x->peer != (int32_t)rank))) {
            parts.norms++; /* the clip norm is all-reduced here, or received from a rank that did so */
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
    char where[200];
    if (program->instr_count == 0)
        return err_set(err, ERR_INVALID, "rank %u: it has no train program", rank);
    if (parts.steps > 1 || (parts.steps == 0 && r->state_share > 0))
        return err_set(err, ERR_INVALID, "%s ends with %u STEP instructions; it must be one",
                       plan_where_end(plan, rank, PROGRAM_TRAIN, false, where), parts.steps);
    if (parts.scalars != 1 || parts.norms != 1)
        return err_set(err, ERR_INVALID,
                       "%s comes after step scalars were reduced over all ranks %u times and the norm %u "
                       "times; each must be once",
                       plan_where_end(plan, rank, PROGRAM_TRAIN, false, where), parts.scalars, parts.norms);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        bool gradients = x->queue != QUEUE_COMPUTE && x->tag == TAG_PARAMETER_GRADIENTS;
        bool parameters = x->tag == TAG_PARAMETERS && (x->op == INSTR_PUSH || x->op == INSTR_ALL_GATHER);
        if (works(x, PASS_FORWARD) &&
            step_before(plan, rank, order, i, parts.scalar, "the loss would be incomplete", err) < 0)
            return -1;
        if ((check_trains(x) || gradients) &&
            step_before(plan, rank, order, i, parts.norm, "the norm would be incomplete", err) < 0)
            return -1;
        if (parts.steps && (check_trains(x) || gradients || i == parts.scalar || i == parts.norm) &&
            step_before(plan, rank, order, i, parts.step, "the update would come too early", err) < 0)
            return -1;
        if (parts.steps && parameters &&
            step_before(plan, rank, order, i, parts.step, "others would get parameters half updated", err) <
                0)
            return -1;
        bool tells = x->op == INSTR_BROADCAST && x->tag == TAG_PARAMETERS && x->peer == (int32_t)rank;
        if (parts.steps && tells &&
            step_before(plan, rank, order, parts.step, i, "copies would keep the old values", err) < 0)
            return -1;
    }
    return 0;
}
