/* Instruction lists of tensor groups.
 *
 * A unit is one micro-batch, or several that are worked on in turns: each half of each block runs for all
 * of them, so that the all-reduce of one overlaps the computing of the next. All members of a group have
 * the same list, except that the first member exchanges boundary tensors with the neighbouring groups and
 * broadcasts them.
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
    bool first, last, leads; /* first, last: of the stages; leads: the rank is the first of its group */
    int32_t group;
    int32_t *ready; /* [micro-batches]: the instruction that the next half must wait for */
    /* [micro-batches]: the instructions that freed the buffers of received and of sent tensors */
    int32_t *used_act, *used_grad, *sent_act, *sent_grad;
    int32_t last_forward, last_backward;
    int saving; /* where the forward saves: -1 nowhere, 0 the KV cache, 1 slots for the backward */
};

static int32_t past(const int32_t *numbers, uint32_t k, uint32_t ring)
{
    return k >= ring ? numbers[k - ring] : PLAN_NONE;
}

static const struct candidate_stage *blocks_of(const struct tensor_writer *w)
{
    return &w->t->candidate->stages[w->stage];
}

static uint32_t leader(const struct tensor_writer *w, uint32_t stage)
{
    return w->t->candidate->stages[stage].member_first;
}

/* All-reduces the parts of micro-batch k in a slot. `frees`: nothing on this rank reads the sum. */
static int32_t sum_add(struct tensor_writer *w, int32_t slot, uint32_t tag, int32_t block, uint32_t k,
                       int32_t after, bool frees)
{
    struct instr x = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
    x.group = w->group;
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    x.micro_batch = (int32_t)k;
    x.block_begin = block;
    x.block_end = block + 1;
    x.flags = frees ? FLAG_FREES_IN : 0;
    return program_add(&w->b, &x, &after, 1);
}

/* Adds the arrival of a boundary tensor from the neighbouring stage: the first member receives and
 * broadcasts it. */
static void arrive_add(struct tensor_writer *w, bool gradient, uint32_t k)
{
    const struct candidate_stage *stage = blocks_of(w);
    int32_t slot = gradient ? w->s->grad_in : w->s->act_in;
    int32_t boundary = gradient ? stage->block_end : stage->block_begin;
    uint32_t ring = gradient ? w->s->ring_grad : w->s->ring_act;
    int32_t number = past(gradient ? w->used_grad : w->used_act, k, ring);
    if (w->leads) {
        struct instr x = instr_init(INSTR_RECV, QUEUE_RECV);
        x.peer = (int32_t)leader(w, gradient ? w->stage + 1 : w->stage - 1);
        x.slot_out = slot;
        x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
        x.micro_batch = (int32_t)k;
        x.block_begin = x.block_end = boundary;
        number = program_add(&w->b, &x, &number, 1);
    }
    if (stage->member_count > 1) {
        struct instr x = instr_init(INSTR_BROADCAST, QUEUE_GROUP);
        x.group = w->group;
        x.peer = (int32_t)stage->member_first;
        x.slot_in = w->leads ? slot : PLAN_NONE;
        x.slot_out = w->leads ? PLAN_NONE : slot;
        x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
        x.micro_batch = (int32_t)k;
        x.block_begin = x.block_end = boundary;
        number = program_add(&w->b, &x, &number, 1);
    }
    w->ready[k] = number;
}

static void leave_add(struct tensor_writer *w, bool gradient, uint32_t k)
{
    int32_t *sent = gradient ? w->sent_grad : w->sent_act;
    sent[k] = w->ready[k]; /* if the tensor is not sent, the sum frees it */
    if (!w->leads)
        return;
    struct instr x = instr_init(INSTR_SEND, QUEUE_SEND);
    x.peer = (int32_t)leader(w, gradient ? w->stage - 1 : w->stage + 1);
    x.slot_in = gradient ? w->s->grad_out : w->s->act_out;
    x.flags = FLAG_FREES_IN;
    x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end = gradient ? blocks_of(w)->block_begin : blocks_of(w)->block_end;
    sent[k] = program_add(&w->b, &x, &w->ready[k], 1);
}

/* Adds one half of a block (or a whole one) and the all-reduce behind it. in, out: slots or PLAN_NONE. */
static void part_add(struct tensor_writer *w, enum instr_op op, uint16_t half, int32_t block, uint32_t k,
                     int32_t in, int32_t out, int32_t save)
{
    struct instr x = instr_init(op, QUEUE_COMPUTE);
    bool backward = op == INSTR_BACKWARD, kept = save >= 0 && w->saving == 1;
    bool boundary = out >= 0 && out == (backward ? w->s->grad_out : w->s->act_out);
    x.micro_batch = (int32_t)k;
    x.block_begin = block;
    x.block_end = block + 1;
    x.slot_in = in;
    x.slot_out = out;
    x.slot_save = save;
    x.flags =
        (uint16_t)(half | (in >= 0 ? FLAG_FREES_IN : 0) | (backward && save >= 0 ? FLAG_FREES_SAVE : 0) |
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
    if (out >= 0)
        w->ready[k] = sum_add(w, out, backward ? TAG_GRADIENT : TAG_ACTIVATION, block, k, number,
                              boundary && !w->leads);
}

static int32_t saved(const struct tensor_writer *w, int32_t slot, bool cache)
{
    return w->saving == 1 ? slot : w->saving == 0 && cache ? w->s->cache : PLAN_NONE;
}

static void forward_part(struct tensor_writer *w, int32_t block, int half, uint32_t k)
{
    const struct tensor_slots *s = w->s;
    const struct candidate_stage *stage = blocks_of(w);
    int32_t in = block == stage->block_begin && !w->first ? s->act_in : s->sum[1];
    int32_t out = block + 1 == stage->block_end && !w->last ? s->act_out : s->sum[1];
    bool head = block + 1 == w->t->plan->block_count;
    if (block == 0)
        part_add(w, INSTR_FORWARD, 0, block, k, PLAN_NONE, out, PLAN_NONE);
    else if (head && half == 0)
        part_add(w, INSTR_FORWARD, FLAG_FIRST_HALF, block, k, in, s->statistics,
                 saved(w, s->saved_head, false));
    else if (head)
        part_add(w, INSTR_FORWARD, FLAG_SECOND_HALF, block, k, s->statistics, PLAN_NONE, PLAN_NONE);
    else if (half == 0)
        part_add(w, INSTR_FORWARD, FLAG_FIRST_HALF, block, k, in, s->sum[0], saved(w, s->saved_first, true));
    else
        part_add(w, INSTR_FORWARD, FLAG_SECOND_HALF, block, k, s->sum[0], out,
                 saved(w, s->saved_second, false));
}

static void backward_part(struct tensor_writer *w, int32_t block, int half, uint32_t k)
{
    const struct tensor_slots *s = w->s;
    const struct candidate_stage *stage = blocks_of(w);
    bool trains = w->t->plan->trains_embedding, head = block + 1 == w->t->plan->block_count;
    int32_t in = block + 1 == stage->block_end && !w->last ? s->grad_in : s->gradient[1];
    int32_t out = block == stage->block_begin && !w->first ? s->grad_out : s->gradient[1];
    if (block == 1 && w->first && !trains) /* nothing below it is trained */
        out = PLAN_NONE;
    if (block == 0 && !trains && block + 1 != stage->block_end)
        in = PLAN_NONE;
    if (block == 0)
        part_add(w, INSTR_BACKWARD, 0, block, k, in, PLAN_NONE, PLAN_NONE);
    else if (head)
        part_add(w, INSTR_BACKWARD, 0, block, k, PLAN_NONE, out, s->saved_head);
    else if (half == 1)
        part_add(w, INSTR_BACKWARD, FLAG_SECOND_HALF, block, k, in, s->gradient[0], s->saved_second);
    else
        part_add(w, INSTR_BACKWARD, FLAG_FIRST_HALF, block, k, s->gradient[0], out, s->saved_first);
}

static void forward_unit(struct tensor_writer *w, uint32_t first, uint32_t end)
{
    const struct candidate_stage *stage = blocks_of(w);
    for (uint32_t k = first; k < end && !w->first; k++)
        arrive_add(w, false, k);
    for (int32_t b = stage->block_begin; b < stage->block_end; b++) {
        for (int half = 0; half < (b == 0 ? 1 : 2); half++) {
            for (uint32_t k = first; k < end; k++)
                forward_part(w, b, half, k);
        }
    }
    for (uint32_t k = first; k < end && !w->last; k++)
        leave_add(w, false, k);
}

static void backward_unit(struct tensor_writer *w, uint32_t first, uint32_t end)
{
    const struct candidate_stage *stage = blocks_of(w);
    for (uint32_t k = first; k < end; k++) {
        w->ready[k] = PLAN_NONE;
        if (!w->last)
            arrive_add(w, true, k);
    }
    for (int32_t b = stage->block_end; b-- > stage->block_begin;) {
        bool whole = b == 0 || b + 1 == w->t->plan->block_count;
        for (int half = whole ? 0 : 1; half >= 0; half--) {
            for (uint32_t k = first; k < end; k++)
                backward_part(w, b, half, k);
        }
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

static void train_build(struct tensor_writer *w)
{
    const struct plan_rank *rank = &w->t->plan->ranks[w->rank];
    w->saving = 1;
    units_add(w, true);
    int32_t scalars = program_add_collective(&w->b, INSTR_ALL_REDUCE, 0, PLAN_NONE, w->s->scalars,
                                             TAG_STEP_SCALARS, &w->last_forward, 1);
    int32_t summed = w->last_backward;
    if (w->s->shared >= 0)
        summed = program_add_collective(&w->b, INSTR_ALL_REDUCE, w->group, PLAN_NONE, w->s->shared,
                                        TAG_PARAMETER_GRADIENTS, &w->last_backward, 1);
    int32_t norm =
        program_add_collective(&w->b, INSTR_ALL_REDUCE, 0, PLAN_NONE, w->s->norm, TAG_NORM, &summed, 1);
    struct instr x = instr_init(INSTR_STEP, QUEUE_COMPUTE);
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    int32_t after[3] = {scalars, norm, summed};
    program_add(&w->b, &x, after, 3);
}

static void evaluate_build(struct tensor_writer *w)
{
    w->saving = -1;
    units_add(w, false);
    program_add_collective(&w->b, INSTR_ALL_REDUCE, 0, PLAN_NONE, w->s->scalars, TAG_STEP_SCALARS,
                           &w->last_forward, 1);
}

/* Adds the prompt, or the last token, through all stages; the first member of the last group chooses the
 * token. */
static void token_build(struct tensor_writer *w)
{
    w->saving = 0;
    forward_unit(w, 0, 1);
    program_add_choice(&w->b, w->rank, leader(w, w->t->candidate->stage_count - 1), w->s->token,
                       w->last_forward);
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
            train_build(&w);
        else if (kind == PROGRAM_EVALUATE)
            evaluate_build(&w);
        else if (kind == PROGRAM_SAVE)
            program_add_save(&w.b, slots->barrier);
        else
            token_build(&w);
        result = program_builder_take(&w.b, &t->plan->ranks[r].programs[kind], t->err);
    }
    free(memory);
    return result;
}
