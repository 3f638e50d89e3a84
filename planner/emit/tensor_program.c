/* Instruction lists of tensor groups.
 *
 * A unit is one micro-batch, or several that are worked on in turns: each half of each block runs for all
 * of them, so that the all-reduce of one overlaps the computing of the next. All members of a group have
 * the same list, except that the first member alone has embedding and head, exchanges boundary tensors with
 * the neighbouring groups and broadcasts what it has from them. A stage of one member runs all its blocks at
 * once.
 */
#include <stdlib.h>
#include <string.h>

#include "planner/emit/frame.h"
#include "planner/emit/tensor_program.h"

struct tensor_writer {
    struct tensor_plan *t;
    struct program_builder b;
    const struct tensor_slots *s;
    uint32_t rank, stage;
    struct tensor_writer_blocks layers;
    bool first, last, leads; /* first, last: the rank is in the first, or last, stage; leads: it is the
                                first member of its group */
    int32_t group;
    int32_t *ready; /* [micro-batches]: the instruction that the next half block must wait for */
    /* [micro-batches]: the instructions that freed the buffers of received and of sent tensors */
    int32_t *used_act, *used_grad, *sent_act, *sent_grad;
    int32_t last_forward, last_backward;
    int saving; /* where the forward saves: -1 nowhere, 0 the KV cache, 1 slots for the backward */
};

static int32_t past(const int32_t *numbers, uint32_t k, uint32_t ring)
{
    return k >= ring ? numbers[k - ring] : PLAN_NONE;
}

static const struct candidate_stage *tensor_program_blocks_of(const struct tensor_writer *w)
{
    return &w->t->candidate->stages[w->stage];
}

static uint32_t leader(const struct tensor_writer *w, uint32_t stage)
{
    return w->t->candidate->stages[stage].member_first;
}

/* Adds the ALL_REDUCE of micro-batch k's partial sums in a slot. `frees`: no instruction of this rank reads
 * the result, so the ALL_REDUCE frees the slot. */
static int32_t tensor_program_sum_add(struct tensor_writer *w, int32_t slot, uint32_t tag, int32_t block,
                                      uint32_t k, int32_t after, bool frees)
{
    struct instr x = instr_at(INSTR_ALL_REDUCE, (int32_t)k, block, block + 1);
    x.group = w->group;
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    x.flags = frees ? FLAG_FREES_IN : 0;
    return program_add(&w->b, &x, &after, 1);
}

/* Adds the BROADCAST of a boundary tensor from the group's first member, whose slot contains the tensor
 * already, to the other members, whose slots the BROADCAST writes. */
static void broadcast_add(struct tensor_writer *w, int32_t slot, bool gradient, int32_t boundary, uint32_t k,
                          int32_t after)
{
    struct instr x = instr_at(INSTR_BROADCAST, (int32_t)k, boundary, boundary);
    w->ready[k] = after;
    if (w->layers.alone)
        return;
    x.group = w->group;
    x.peer = (int32_t)leader(w, w->stage);
    x.slot_in = w->leads ? slot : PLAN_NONE;
    x.slot_out = w->leads ? PLAN_NONE : slot;
    x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
    w->ready[k] = program_add(&w->b, &x, &after, 1);
}

/* Adds the transfer of a boundary tensor from the neighbouring stage: the group's first member receives and
 * broadcasts it. */
static void arrive_add(struct tensor_writer *w, bool gradient, uint32_t k)
{
    const struct candidate_stage *stage = tensor_program_blocks_of(w);
    int32_t slot = gradient ? w->s->grad_in : w->s->act_in;
    int32_t boundary = gradient ? stage->block_end : stage->block_begin;
    uint32_t ring = gradient ? w->s->ring_grad : w->s->ring_act;
    int32_t number = past(gradient ? w->used_grad : w->used_act, k, ring);
    if (w->leads) {
        struct instr x = instr_at(INSTR_RECV, (int32_t)k, boundary, boundary);
        x.peer = (int32_t)leader(w, gradient ? w->stage + 1 : w->stage - 1);
        x.slot_out = slot;
        x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
        number = program_add(&w->b, &x, &number, 1);
    }
    broadcast_add(w, slot, gradient, boundary, k, number);
}

static void leave_add(struct tensor_writer *w, bool gradient, uint32_t k)
{
    int32_t *sent = gradient ? w->sent_grad : w->sent_act;
    sent[k] = w->ready[k]; /* On a member that sends nothing, the all-reduce that made the tensor frees it. */
    if (!w->leads)
        return;
    int32_t boundary =
        gradient ? tensor_program_blocks_of(w)->block_begin : tensor_program_blocks_of(w)->block_end;
    struct instr x = instr_at(INSTR_SEND, (int32_t)k, boundary, boundary);
    x.peer = (int32_t)leader(w, gradient ? w->stage - 1 : w->stage + 1);
    x.slot_in = gradient ? w->s->grad_out : w->s->act_out;
    x.flags = FLAG_FREES_IN;
    x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
    sent[k] = program_add(&w->b, &x, &w->ready[k], 1);
}

/* The operands of a FORWARD or BACKWARD: a range of blocks, or one half (attention or FFN) of a block, and
 * its slots. */
struct compute_part {
    uint16_t half;
    int32_t begin, end, in, out, save;
};

/* Adds the FORWARD or BACKWARD of `part`. If that is half a block, the ALL_REDUCE that sums the members'
 * outputs follows. */
static void tensor_program_part_add(struct tensor_writer *w, enum instr_op op,
                                    const struct compute_part *part, uint32_t k)
{
    struct instr x = instr_at(op, (int32_t)k, part->begin, part->end);
    bool backward = op == INSTR_BACKWARD, kept = part->save >= 0 && w->saving == 1;
    int32_t in = part->in, out = part->out, edge = backward ? w->s->grad_out : w->s->act_out;
    bool boundary = out >= 0 && out == edge;
    x.slot_in = in;
    x.slot_out = out;
    x.slot_save = part->save;
    x.flags = (uint16_t)(part->half | (in >= 0 ? FLAG_FREES_IN : 0) |
                         (backward && part->save >= 0 ? FLAG_FREES_SAVE : 0) |
                         (kept && w->t->plan->ranks[w->rank].recompute ? FLAG_RECOMPUTE : 0));
    int32_t after[2] = {w->ready[k], boundary ? past(backward ? w->sent_grad : w->sent_act, k, w->s->ring_out)
                                              : PLAN_NONE};
    int32_t number = program_add(&w->b, &x, after, 2);
    *(backward ? &w->last_backward : &w->last_forward) = number;
    if (in >= 0 && in == w->s->act_in)
        w->used_act[k] = number;
    if (in >= 0 && in == w->s->grad_in)
        w->used_grad[k] = number;
    w->ready[k] = number;
    /* The sum at a stage's end is read on the group's first member alone, which sends it on or has the head
     * or embedding. */
    bool leaves = backward ? part->begin == w->layers.begin && !(part->half & FLAG_SECOND_HALF)
                           : part->end == w->layers.end && !(part->half & FLAG_FIRST_HALF);
    if (out >= 0 && part->half)
        w->ready[k] = tensor_program_sum_add(w, out, backward ? TAG_GRADIENT : TAG_ACTIVATION, part->begin, k,
                                             number, leaves && !w->leads);
}

/* Returns the slot in which a forward saves: `slot` in training, the KV cache when sampling, or none. */
static int32_t tensor_program_saved(const struct tensor_writer *w, int32_t slot)
{
    return w->saving == 1 ? slot : w->saving == 0 ? w->s->cache : PLAN_NONE;
}

/* Return the slots of the input and the output tensor of blocks [begin, end) of the stage. */
static int32_t slot_before(const struct tensor_writer *w, int32_t begin)
{
    return begin > tensor_program_blocks_of(w)->block_begin
               ? w->s->sum[1]
               : w->s->act_in; /* act_in is PLAN_NONE at block 0 */
}

static int32_t slot_behind(const struct tensor_writer *w, int32_t end)
{
    return end < tensor_program_blocks_of(w)->block_end ? w->s->sum[1] : w->s->act_out;
}

static int32_t gradient_behind(const struct tensor_writer *w, int32_t end)
{
    return end < tensor_program_blocks_of(w)->block_end ? w->s->gradient[1] : w->s->grad_in;
}

/* Returns the slot of the gradient that leaves at block `begin`, or PLAN_NONE if nothing below the block is
 * trained. */
static int32_t gradient_before(const struct tensor_writer *w, int32_t begin)
{
    if (begin > tensor_program_blocks_of(w)->block_begin)
        return begin == 1 && !problem_embedding_learns(w->t->problem) ? PLAN_NONE : w->s->gradient[1];
    return w->s->grad_out;
}

static void forward_whole(struct tensor_writer *w, int32_t begin, int32_t end, int32_t save, uint32_t k)
{
    tensor_program_part_add(w, INSTR_FORWARD,
                            &(struct compute_part){.begin = begin,
                                                   .end = end,
                                                   .in = slot_before(w, begin),
                                                   .out = slot_behind(w, end),
                                                   .save = tensor_program_saved(w, save)},
                            k);
}

static void backward_whole(struct tensor_writer *w, int32_t begin, int32_t end, int32_t save, uint32_t k)
{
    int32_t in = gradient_behind(w, end);
    if (end == 1 && end < tensor_program_blocks_of(w)->block_end && !problem_embedding_learns(w->t->problem))
        in = PLAN_NONE;
    tensor_program_part_add(
        w, INSTR_BACKWARD,
        &(struct compute_part){
            .begin = begin, .end = end, .in = in, .out = gradient_before(w, begin), .save = save},
        k);
}

static void half_add(struct tensor_writer *w, enum instr_op op, int32_t block, bool second, uint32_t k)
{
    bool back = op == INSTR_BACKWARD;
    int32_t middle = back ? w->s->gradient[0] : w->s->sum[0];
    struct compute_part part = {.half = second ? FLAG_SECOND_HALF : FLAG_FIRST_HALF,
                                .begin = block,
                                .end = block + 1,
                                .in = middle,
                                .out = middle};
    if (second == back)
        part.in = back ? gradient_behind(w, block + 1) : slot_before(w, block);
    else
        part.out = back ? gradient_before(w, block) : slot_behind(w, block + 1);
    part.save = second ? w->s->saved_second : w->s->saved_first;
    part.save = back ? part.save : tensor_program_saved(w, part.save);
    tensor_program_part_add(w, op, &part, k);
}

static void forward_unit(struct tensor_writer *w, uint32_t first, uint32_t end)
{
    const struct candidate_stage *stage = tensor_program_blocks_of(w);
    struct tensor_writer_blocks layers = w->layers;
    for (uint32_t k = first; k < end && !w->first; k++)
        arrive_add(w, false, k);
    if (layers.alone) {
        for (uint32_t k = first; k < end; k++)
            forward_whole(w, stage->block_begin, stage->block_end, w->s->saved_first, k);
    } else {
        for (uint32_t k = first; k < end && w->first; k++) {
            if (w->leads)
                forward_whole(w, 0, 1, w->s->saved_table, k);
            broadcast_add(w, w->s->sum[1], false, 1, k, w->leads ? w->ready[k] : PLAN_NONE);
        }
        for (int32_t h = 2 * layers.begin; h < 2 * layers.end; h++)
            for (uint32_t k = first; k < end; k++)
                half_add(w, INSTR_FORWARD, h / 2, h % 2, k);
        for (uint32_t k = first; k < end && w->last && w->leads; k++)
            forward_whole(w, layers.end, layers.end + 1, w->s->saved_head, k);
    }
    for (uint32_t k = first; k < end && !w->last; k++)
        leave_add(w, false, k);
}

static void backward_unit(struct tensor_writer *w, uint32_t first, uint32_t end)
{
    const struct candidate_stage *stage = tensor_program_blocks_of(w);
    struct tensor_writer_blocks layers = w->layers;
    for (uint32_t k = first; k < end; k++) {
        w->ready[k] = PLAN_NONE;
        if (!w->last)
            arrive_add(w, true, k);
    }
    if (layers.alone) {
        for (uint32_t k = first; k < end; k++)
            backward_whole(w, stage->block_begin, stage->block_end, w->s->saved_first, k);
    } else {
        for (uint32_t k = first; k < end && w->last; k++) {
            if (w->leads)
                backward_whole(w, layers.end, layers.end + 1, w->s->saved_head, k);
            broadcast_add(w, w->s->gradient[1], true, layers.end, k, w->leads ? w->ready[k] : PLAN_NONE);
        }
        for (int32_t h = 2 * layers.end; h-- > 2 * layers.begin;)
            for (uint32_t k = first; k < end; k++)
                half_add(w, INSTR_BACKWARD, h / 2, h % 2, k);
        for (uint32_t k = first; k < end && w->first && w->leads; k++)
            backward_whole(w, 0, 1, w->s->saved_table, k);
    }
    for (uint32_t k = first; k < end && !w->first; k++)
        leave_add(w, true, k);
}

/* Adds all micro-batches, unit by unit: as many forwards as the window, then one backward and one forward
 * in turn (1F1B); `back` false: forwards alone. */
static void units_add(struct tensor_writer *w, bool back)
{
    uint32_t each = w->t->together, count = w->t->plan->micro_batch_count;
    uint32_t units = (count + each - 1) / each, forwards = 0, backwards = 0;
    uint32_t window = w->t->candidate->members[leader(w, w->stage)].window;
    window = window && back ? window : back ? 1 : units;
    while (forwards < units || (back && backwards < units)) {
        bool forward = forwards < units && forwards < backwards + window;
        uint32_t first = (forward ? forwards++ : backwards++) * each;
        uint32_t end = first + each < count ? first + each : count;
        if (forward)
            forward_unit(w, first, end);
        else
            backward_unit(w, first, end);
    }
}

static void tensor_program_train_build(struct tensor_writer *w)
{
    w->saving = 1;
    units_add(w, true);
    int32_t scalars = program_add_loss(&w->b, w->s->scalars, w->last_forward);
    int32_t summed = w->last_backward;
    if (w->s->shared >= 0) {
        struct instr sum = instr_at(INSTR_ALL_REDUCE, PLAN_NONE, w->layers.begin, w->layers.end);
        sum.group = w->group;
        sum.slot_in = sum.slot_out = w->s->shared;
        sum.tag = TAG_PARAMETER_GRADIENTS;
        summed = program_add(&w->b, &sum, &w->last_backward, 1);
    }
    int32_t norm =
        program_add_collective(&w->b, INSTR_ALL_REDUCE, 0, PLAN_NONE, w->s->norm, TAG_NORM, &summed, 1);
    int32_t after[3] = {scalars, norm, summed};
    program_add_step(&w->b, &w->t->plan->ranks[w->rank], PLAN_NONE, after, 3);
}

static void tensor_program_evaluate_build(struct tensor_writer *w)
{
    w->saving = -1;
    units_add(w, false);
    program_add_loss(&w->b, w->s->scalars, w->last_forward);
}

/* Adds the prompt, or the last token, through all stages; the first member of the last group chooses the
 * token. */
static void tensor_program_token_build(struct tensor_writer *w)
{
    w->saving = 0;
    forward_unit(w, 0, 1);
    program_add_choice(&w->b, w->rank, leader(w, w->t->candidate->stage_count - 1), w->s->token,
                       w->last_forward);
}

struct tensor_writer_blocks tensor_layers(const struct tensor_plan *t, uint32_t stage)
{
    const struct candidate_stage *x = &t->candidate->stages[stage];
    int32_t last = t->plan->block_count - 1;
    return (struct tensor_writer_blocks){.begin = x->block_begin > 1 ? x->block_begin : 1,
                                         .end = x->block_end < last ? x->block_end : last,
                                         .alone = x->member_count == 1};
}

int tensor_programs(struct tensor_plan *t, uint32_t stage, uint32_t r, const struct tensor_slots *slots)
{
    size_t count = t->plan->micro_batch_count;
    int32_t *memory = malloc(5 * count * sizeof(*memory));
    int result = memory ? 0 : err_set(t->err, ERR_NOMEM, "planner: out of memory");
    for (int kind = 0; kind < PROGRAM_KINDS && result == 0; kind++) {
        struct tensor_writer w = {.t = t,
                                  .s = slots,
                                  .rank = r,
                                  .stage = stage,
                                  .layers = tensor_layers(t, stage),
                                  .first = stage == 0,
                                  .last = stage + 1 == t->candidate->stage_count,
                                  .leads = r == t->candidate->stages[stage].member_first,
                                  .group = 1 + (int32_t)stage,
                                  .ready = memory,
                                  .used_act = memory + count,
                                  .used_grad = memory + 2 * count,
                                  .sent_act = memory + 3 * count,
                                  .sent_grad = memory + 4 * count,
                                  .last_forward = PLAN_NONE,
                                  .last_backward = PLAN_NONE};
        memset(memory, 0xff, 5 * count * sizeof(*memory));
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && slots->cache < 0)
            continue;
        if (kind == PROGRAM_TRAIN)
            tensor_program_train_build(&w);
        else if (kind == PROGRAM_EVALUATE)
            tensor_program_evaluate_build(&w);
        else if (kind == PROGRAM_SAVE)
            program_add_save(&w.b, slots->barrier);
        else
            tensor_program_token_build(&w);
        result = program_builder_take(&w.b, &t->plan->ranks[r].programs[kind], t->err);
    }
    free(memory);
    return result;
}
