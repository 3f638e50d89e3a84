/* Instruction lists of chains: each rank computes in the order of pipe_order.h.
 *
 * A receive may start as soon as its ring has room; a send holds its buffer until the transport took it. A
 * rank receives from a peer in the order in which that one sends, which with two ranks that pass a
 * micro-batch to and fro is not the order in which it computes. */
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/chain_private.h"

/* The numbers of a rank's instructions, by lap and micro-batch; PLAN_NONE: not yet. */
struct history {
    int32_t *forward, *backward, *weight, *send_act, *send_grad, *recv_act, *recv_grad;
    int32_t last_forward, last_backward;
    uint32_t cursor[2]; /* in the lists of the rank before and the rank after */
};

#define HISTORIES 7u

struct writer {
    struct chain *c;
    struct program_builder b;
    const struct pipe_order *order;
    struct history h;
    uint32_t rank;
    bool broken;
};

static void writer_begin(struct writer *w, const struct pipe_order *order)
{
    struct chain *c = w->c;
    size_t each = (size_t)(c->stages / c->ranks) * c->micro_batches;
    uint32_t before = (w->rank + c->ranks - 1) % c->ranks, after = (w->rank + 1) % c->ranks;
    memset(c->memory, 0xff, HISTORIES * each * sizeof(*c->memory));
    w->order = order;
    w->h = (struct history){.forward = c->memory,
                            .backward = c->memory + each,
                            .weight = c->memory + 2 * each,
                            .send_act = c->memory + 3 * each,
                            .send_grad = c->memory + 4 * each,
                            .recv_act = c->memory + 5 * each,
                            .recv_grad = c->memory + 6 * each,
                            .last_forward = PLAN_NONE,
                            .last_backward = PLAN_NONE,
                            .cursor = {order->first[before], order->first[after]}};
}

static size_t cell(const struct writer *w, uint32_t stage, uint32_t k)
{
    return (size_t)(stage / w->c->ranks) * w->c->micro_batches + k;
}

/* Who used the buffer last that micro-batch k takes from a ring. */
static int32_t past(const struct writer *w, const int32_t *numbers, uint32_t stage, uint32_t k, uint32_t ring)
{
    return k >= ring ? numbers[cell(w, stage, k - ring)] : PLAN_NONE;
}

static const struct place_stage *blocks_of(const struct writer *w, uint32_t stage)
{
    return &w->c->choice->stages[stage];
}

static void recv_add(struct writer *w, bool gradient, uint32_t stage, uint32_t k)
{
    struct chain *c = w->c;
    const struct chain_stage *s = &c->stage[stage];
    uint32_t ring = gradient ? s->ring_grad : s->ring_act;
    struct instr x = instr_init(OP_RECV, QUEUE_RECV);
    x.peer = (int32_t)((gradient ? stage + 1 : stage - 1) % c->ranks);
    x.slot_out = gradient ? s->grad_in : s->act_in;
    x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end =
        gradient ? blocks_of(w, stage)->block_end : blocks_of(w, stage)->block_begin;
    int32_t freed = past(w, gradient ? w->h.backward : w->h.forward, stage, k, ring);
    w->broken = w->broken || (k >= ring && freed < 0);
    (gradient ? w->h.recv_grad : w->h.recv_act)[cell(w, stage, k)] = program_add(&w->b, &x, &freed, 1);
}

/* What event e of another rank sends to rank r; false: nothing. */
static bool sends_to(const struct chain *c, const struct order_event *e, uint32_t r, uint32_t *stage,
                     bool *gradient)
{
    *gradient = e->kind != ORDER_FORWARD;
    if (e->kind == ORDER_WEIGHT || (*gradient ? e->stage == 0 : e->stage + 1 == c->stages))
        return false;
    *stage = *gradient ? e->stage - 1 : e->stage + 1;
    return *stage % c->ranks == r;
}

/* The receive of what stage `stage` needs for micro-batch k, after all that its peer sends before it. */
static int32_t received(struct writer *w, bool gradient, uint32_t stage, uint32_t k)
{
    struct chain *c = w->c;
    int32_t *number = &(gradient ? w->h.recv_grad : w->h.recv_act)[cell(w, stage, k)];
    uint32_t peer = (gradient ? stage + 1 : stage - 1) % c->ranks;
    uint32_t *cursor = &w->h.cursor[gradient && c->ranks > 2];
    while (*number < 0 && *cursor < w->order->first[peer + 1]) {
        const struct order_event *e = &w->order->events[(*cursor)++];
        uint32_t to;
        bool back;
        if (sends_to(c, e, w->rank, &to, &back))
            recv_add(w, back, to, e->micro_batch);
    }
    return *number;
}

static int32_t send_add(struct writer *w, bool gradient, uint32_t stage, uint32_t k, int32_t after)
{
    struct chain *c = w->c;
    struct instr x = instr_init(OP_SEND, QUEUE_SEND);
    x.peer = (int32_t)((gradient ? stage - 1 : stage + 1) % c->ranks);
    x.slot_in = gradient ? c->stage[stage].grad_out : c->stage[stage].act_out;
    x.flags = INSTR_FREES_IN;
    x.tag = gradient ? TAG_GRADIENT : TAG_ACTIVATION;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end =
        gradient ? blocks_of(w, stage)->block_begin : blocks_of(w, stage)->block_end;
    return program_add(&w->b, &x, &after, 1);
}

/* Receive, forward, send of micro-batch k. `save`: the slot for what backward needs, or the KV cache, or
 * none. */
static void forward_add(struct writer *w, uint32_t stage, uint32_t k, int32_t save)
{
    struct chain *c = w->c;
    const struct chain_stage *s = &c->stage[stage];
    bool first = stage == 0, last = stage + 1 == c->stages;
    size_t at = cell(w, stage, k);
    int32_t got = first ? PLAN_NONE : received(w, false, stage, k);
    struct instr x = instr_init(OP_FORWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = blocks_of(w, stage)->block_begin;
    x.block_end = blocks_of(w, stage)->block_end;
    x.slot_in = s->act_in;
    x.slot_out = s->act_out;
    x.slot_save = save;
    bool recompute = c->plan->ranks[w->rank].recompute && save >= 0 && save == s->saved;
    x.flags = (uint16_t)((first ? 0 : INSTR_FREES_IN) | (recompute ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {got, last ? PLAN_NONE
                                  : past(w, w->h.send_act, stage, k, chain_ring_out(c->micro_batches))};
    w->h.forward[at] = w->h.last_forward = program_add(&w->b, &x, after, 2);
    if (!last)
        w->h.send_act[at] = send_add(w, false, stage, k, w->h.forward[at]);
}

/* The whole backward, or the half of it that the neighbour waits for. */
static void backward_add(struct writer *w, uint32_t stage, uint32_t k, bool whole)
{
    struct chain *c = w->c;
    const struct chain_stage *s = &c->stage[stage];
    bool first = stage == 0, last = stage + 1 == c->stages;
    size_t at = cell(w, stage, k);
    int32_t got = last ? PLAN_NONE : received(w, true, stage, k);
    struct instr x = instr_init(whole ? OP_BACKWARD : OP_BACKWARD_INPUT, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = blocks_of(w, stage)->block_begin;
    x.block_end = blocks_of(w, stage)->block_end;
    x.slot_in = s->grad_in;
    x.slot_out = s->grad_out;
    x.slot_save = s->saved;
    x.flags = (uint16_t)((whole ? INSTR_FREES_SAVE : 0) | (last ? 0 : INSTR_FREES_IN) |
                         (c->plan->ranks[w->rank].recompute ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {got, first ? PLAN_NONE
                                   : past(w, w->h.send_grad, stage, k, chain_ring_out(c->micro_batches))};
    w->h.backward[at] = w->h.last_backward = program_add(&w->b, &x, after, 2);
    if (!first)
        w->h.send_grad[at] = send_add(w, true, stage, k, w->h.backward[at]);
}

static void weight_add(struct writer *w, uint32_t stage, uint32_t k)
{
    struct instr x = instr_init(OP_BACKWARD_WEIGHT, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = blocks_of(w, stage)->block_begin;
    x.block_end = blocks_of(w, stage)->block_end;
    x.slot_save = w->c->stage[stage].saved;
    x.flags = INSTR_FREES_SAVE;
    w->h.weight[cell(w, stage, k)] = w->h.last_backward = program_add(&w->b, &x, NULL, 0);
}

/* A collective over a tied embedding: the one table, block 0. */
static int32_t tied_add(struct writer *w, enum instr_op op, int32_t slot, uint32_t tag, int32_t after)
{
    struct instr x = instr_init(op, QUEUE_GROUP);
    x.group = w->c->tied_group;
    x.peer = (int32_t)w->c->plan->groups[w->c->tied_group].ranks[0];
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    x.block_end = 1;
    return program_add(&w->b, &x, &after, 1);
}

static void events_add(struct writer *w, int32_t (*save)(const struct writer *, uint32_t stage))
{
    for (uint32_t i = w->order->first[w->rank]; i < w->order->first[w->rank + 1]; i++) {
        const struct order_event *e = &w->order->events[i];
        if (e->kind == ORDER_FORWARD)
            forward_add(w, e->stage, e->micro_batch, save(w, e->stage));
        else if (e->kind == ORDER_WEIGHT)
            weight_add(w, e->stage, e->micro_batch);
        else
            backward_add(w, e->stage, e->micro_batch, e->kind == ORDER_BACKWARD);
    }
}

static int32_t save_saved(const struct writer *w, uint32_t stage)
{
    return w->c->stage[stage].saved;
}

static int32_t save_nothing(const struct writer *w, uint32_t stage)
{
    (void)w;
    (void)stage;
    return PLAN_NONE;
}

static int32_t save_cache(const struct writer *w, uint32_t stage)
{
    (void)stage;
    return w->c->slots.cache;
}

static void train_build(struct writer *w)
{
    struct chain *c = w->c;
    const struct chain_rank *s = &c->slots;
    const struct plan_rank *rank = &c->plan->ranks[w->rank];
    writer_begin(w, &c->train);
    events_add(w, save_saved);
    /* the loss is complete when the last forward is; it travels while the backwards drain */
    int32_t scalars = program_add_collective(&w->b, OP_ALL_REDUCE, 0, PLAN_NONE, s->scalars, TAG_STEP_SCALARS,
                                             &w->h.last_forward, 1);
    int32_t summed = w->h.last_backward;
    if (s->tied_gradients >= 0)
        summed = tied_add(w, OP_REDUCE, s->tied_gradients, TAG_PARAMETER_GRADIENTS, w->h.last_backward);
    int32_t norm = program_add_collective(&w->b, OP_ALL_REDUCE, 0, PLAN_NONE, s->norm, TAG_NORM, &summed, 1);
    struct instr x = instr_init(OP_STEP, QUEUE_COMPUTE);
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    int32_t after[2] = {scalars, norm};
    int32_t step = program_add(&w->b, &x, after, 2);
    if (s->tied_parameters >= 0)
        tied_add(w, OP_BROADCAST, s->tied_parameters, TAG_PARAMETERS, step);
}

static void evaluate_build(struct writer *w)
{
    writer_begin(w, &w->c->forwards);
    events_add(w, save_nothing);
    program_add_collective(&w->b, OP_ALL_REDUCE, 0, PLAN_NONE, w->c->slots.scalars, TAG_STEP_SCALARS,
                           &w->h.last_forward, 1);
}

/* Prefill and generate look the same: the prompt, or the last token, through all stages; the last one
 * chooses. */
static void token_build(struct writer *w)
{
    struct chain *c = w->c;
    uint32_t chooser = (c->stages - 1) % c->ranks;
    writer_begin(w, &c->once);
    events_add(w, save_cache);
    int32_t ready = w->h.last_forward;
    if (w->rank == chooser) {
        struct instr x = instr_init(OP_SAMPLE, QUEUE_COMPUTE);
        x.micro_batch = 0;
        x.slot_out = c->slots.token;
        ready = program_add(&w->b, &x, &ready, 1);
    }
    program_add_collective(&w->b, OP_BROADCAST, 0, (int32_t)chooser, c->slots.token, TAG_TOKEN, &ready, 1);
}

static void save_build(struct writer *w)
{
    struct instr x = instr_init(OP_SAVE, QUEUE_COMPUTE);
    int32_t saved = program_add(&w->b, &x, NULL, 0);
    program_add_collective(&w->b, OP_ALL_REDUCE, 0, PLAN_NONE, w->c->slots.barrier, TAG_BARRIER, &saved, 1);
}

int chain_programs(struct chain *c, uint32_t r)
{
    size_t cells = (size_t)(c->stages / c->ranks) * c->micro_batches;
    if (!c->memory && !(c->memory = calloc(HISTORIES * cells + 1, sizeof(*c->memory))))
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct writer w = {.c = c, .rank = r};
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && c->slots.cache < 0)
            continue;
        if (kind == PROGRAM_TRAIN)
            train_build(&w);
        else if (kind == PROGRAM_EVALUATE)
            evaluate_build(&w);
        else if (kind == PROGRAM_SAVE)
            save_build(&w);
        else
            token_build(&w);
        if (program_builder_take(&w.b, &c->plan->ranks[r].programs[kind], c->err) < 0)
            return -1;
        if (w.broken)
            return err_set(c->err, ERR_INTERNAL, "planner: rank %u has too few buffers for what arrives", r);
    }
    return 0;
}

/* Walks rank r's list as train_build does, counting what is received ahead of its use. */
static void waiting_rank(const struct chain *c, uint32_t r, uint32_t *act, uint32_t *grad, uint32_t *ahead)
{
    const struct pipe_order *o = &c->train;
    uint32_t cursor[2] = {o->first[(r + c->ranks - 1) % c->ranks], o->first[(r + 1) % c->ranks]};
    for (uint32_t i = o->first[r]; i < o->first[r + 1]; i++) {
        const struct order_event *e = &o->events[i];
        bool back = e->kind != ORDER_FORWARD;
        if (e->kind == ORDER_WEIGHT || (back ? e->stage + 1 == c->stages : e->stage == 0))
            continue;
        uint32_t peer = (back ? e->stage + 1 : e->stage - 1) % c->ranks, side = back && c->ranks > 2;
        uint32_t *mine = &ahead[2 * e->stage + back];
        while (*mine == 0 && cursor[side] < o->first[peer + 1]) {
            uint32_t to;
            bool gradient;
            if (!sends_to(c, &o->events[cursor[side]++], r, &to, &gradient))
                continue;
            uint32_t *most = &(gradient ? grad : act)[to], now = ++ahead[2 * to + gradient];
            *most = now > *most ? now : *most;
        }
        *mine -= *mine > 0;
    }
}

int chain_waiting(const struct chain *c, uint32_t *act, uint32_t *grad)
{
    uint32_t *ahead = calloc(2 * (size_t)c->stages, sizeof(*ahead));
    if (!ahead)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < c->stages; s++)
        act[s] = grad[s] = 1;
    for (uint32_t r = 0; r < c->ranks; r++)
        waiting_rank(c, r, act, grad, ahead);
    free(ahead);
    return 0;
}
