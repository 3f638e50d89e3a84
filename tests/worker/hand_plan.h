/* Plans written by hand, instruction by instruction: a pipeline of any number of stages that alternates
 * forward and backward. The planner may emit other programs; the worker must run both. */
#ifndef MOTLEY_TESTS_HAND_PLAN_H
#define MOTLEY_TESTS_HAND_PLAN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/shape/config.h"
#include "program/check/check.h"
#include "program/codec.h"
#include "program/program.h"

enum {
    HAND_ACT_IN,
    HAND_ACT_OUT,
    HAND_GRAD_IN,
    HAND_GRAD_OUT,
    HAND_SAVED,
    HAND_SCALARS,
    HAND_NORM,
    HAND_TOKEN,
    HAND_CACHE,
    HAND_SLOTS
};

enum { HAND_RING = 2, HAND_MICRO_MAX = 64 };

struct hand_shape {
    uint32_t stages, batch_rows, micro_rows;
    uint32_t tokens_bound, labelled_bound, rows_bound, sequence_bound;
    bool samples;
    uint64_t memory_limit_bytes;
};

static inline void hand_slot(struct plan_slot *slot, int kind, int lifetime, int purpose, uint32_t ring,
                             uint64_t bytes)
{
    *slot = (struct plan_slot){.kind = (uint8_t)kind,
                               .place = SLOT_ON_DEVICE,
                               .lifetime = (uint8_t)lifetime,
                               .purpose = (uint8_t)purpose,
                               .ring_micro_batches = ring,
                               .ring_blocks = 1,
                               .bytes_fixed = bytes,
                               .bytes_bound = bytes,
                               .bytes_total = bytes * ring};
}

static inline void hand_slots(struct plan_rank *rank, uint32_t window, uint64_t boundary)
{
    rank->slot_count = HAND_SLOTS;
    rank->slots = calloc(HAND_SLOTS, sizeof(*rank->slots));
    for (int s = HAND_ACT_IN; s <= HAND_GRAD_OUT; s++)
        hand_slot(&rank->slots[s], s <= HAND_ACT_OUT ? SLOT_ACTIVATION : SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS,
                  PURPOSE_BUFFERS, HAND_RING, boundary);
    hand_slot(&rank->slots[HAND_SAVED], SLOT_SAVED, SLOT_FOR_INSTRUCTIONS, PURPOSE_ACTIVATIONS, window, 64);
    hand_slot(&rank->slots[HAND_SCALARS], SLOT_STEP_SCALARS, SLOT_FOR_STEP, PURPOSE_BUFFERS, 1, 40);
    hand_slot(&rank->slots[HAND_NORM], SLOT_NORM_SCALAR, SLOT_FOR_STEP, PURPOSE_BUFFERS, 1, 8);
    hand_slot(&rank->slots[HAND_TOKEN], SLOT_TOKEN, SLOT_FOR_STEP, PURPOSE_BUFFERS, 1, 4);
    hand_slot(&rank->slots[HAND_CACHE], SLOT_KV_CACHE, SLOT_FOR_RUN, PURPOSE_ACTIVATIONS, 1, 64);
}

/* Numbers of the instructions for each micro-batch, for `after` lists. */
struct hand_numbers {
    int32_t forward[HAND_MICRO_MAX], backward[HAND_MICRO_MAX], send_act[HAND_MICRO_MAX],
        send_grad[HAND_MICRO_MAX];
    int32_t last;
};

static inline struct instr hand_transfer(int op, uint32_t peer, int tag, uint32_t micro, int32_t boundary,
                                         int slot)
{
    struct instr instr = instr_init((enum instr_op)op, op == INSTR_SEND ? QUEUE_SEND : QUEUE_RECV);
    instr.peer = (int32_t)peer;
    instr.tag = (uint32_t)tag;
    instr.micro_batch = (int32_t)micro;
    instr.block_begin = instr.block_end = boundary;
    if (op == INSTR_SEND) {
        instr.slot_in = slot;
        instr.flags = tag == TAG_TOKEN ? 0 : FLAG_FREES_IN;
    } else {
        instr.slot_out = slot;
    }
    return instr;
}

static inline void hand_forward(struct program_builder *b, const struct plan *plan, uint32_t s,
                                uint32_t micro, int save, struct hand_numbers *n)
{
    const struct plan_rank *rank = &plan->ranks[s];
    int32_t after[4];
    uint32_t afters = 0;
    if (s > 0) {
        struct instr recv =
            hand_transfer(INSTR_RECV, s - 1, TAG_ACTIVATION, micro, rank->block_begin, HAND_ACT_IN);
        int32_t free_by = micro >= HAND_RING ? n->forward[micro - HAND_RING] : -1;
        after[afters++] = program_add(b, &recv, &free_by, 1);
    }
    struct instr forward = instr_init(INSTR_FORWARD, QUEUE_COMPUTE);
    forward.micro_batch = (int32_t)micro;
    forward.block_begin = rank->block_begin;
    forward.block_end = rank->block_end;
    forward.slot_in = s > 0 ? HAND_ACT_IN : PLAN_NONE;
    forward.slot_out = s + 1 < plan->rank_count ? HAND_ACT_OUT : PLAN_NONE;
    forward.slot_save = save;
    forward.flags = s > 0 ? FLAG_FREES_IN : 0;
    if (forward.slot_out != PLAN_NONE && micro >= HAND_RING)
        after[afters++] = n->send_act[micro - HAND_RING];
    n->last = n->forward[micro] = program_add(b, &forward, after, afters);
    if (forward.slot_out != PLAN_NONE) {
        struct instr send =
            hand_transfer(INSTR_SEND, s + 1, TAG_ACTIVATION, micro, rank->block_end, HAND_ACT_OUT);
        n->send_act[micro] = program_add(b, &send, &n->forward[micro], 1);
    }
}

static inline void hand_backward(struct program_builder *b, const struct plan *plan, uint32_t s,
                                 uint32_t micro, struct hand_numbers *n)
{
    const struct plan_rank *rank = &plan->ranks[s];
    int32_t after[4];
    uint32_t afters = 0;
    bool last = s + 1 == plan->rank_count;
    if (!last) {
        struct instr recv =
            hand_transfer(INSTR_RECV, s + 1, TAG_GRADIENT, micro, rank->block_end, HAND_GRAD_IN);
        int32_t free_by = micro >= HAND_RING ? n->backward[micro - HAND_RING] : -1;
        after[afters++] = program_add(b, &recv, &free_by, 1);
    }
    struct instr backward = instr_init(INSTR_BACKWARD, QUEUE_COMPUTE);
    backward.micro_batch = (int32_t)micro;
    backward.block_begin = rank->block_begin;
    backward.block_end = rank->block_end;
    backward.slot_in = last ? PLAN_NONE : HAND_GRAD_IN;
    backward.slot_out = s > 0 ? HAND_GRAD_OUT : PLAN_NONE;
    backward.slot_save = HAND_SAVED;
    backward.flags = (uint16_t)(FLAG_FREES_SAVE | (last ? 0 : FLAG_FREES_IN));
    if (s > 0 && micro >= HAND_RING)
        after[afters++] = n->send_grad[micro - HAND_RING];
    n->last = n->backward[micro] = program_add(b, &backward, after, afters);
    if (s > 0) {
        struct instr send =
            hand_transfer(INSTR_SEND, s - 1, TAG_GRADIENT, micro, rank->block_begin, HAND_GRAD_OUT);
        n->send_grad[micro] = program_add(b, &send, &n->backward[micro], 1);
    }
}

static inline int32_t hand_reduce(struct program_builder *b, int slot, int tag, int32_t after)
{
    struct instr reduce = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
    reduce.group = 0;
    reduce.tag = (uint32_t)tag;
    reduce.slot_in = reduce.slot_out = slot;
    return program_add(b, &reduce, &after, 1);
}

static inline void hand_train(struct plan *plan, uint32_t s, uint32_t window, struct err *err)
{
    struct program_builder b = {0};
    struct hand_numbers n = {0};
    uint32_t micros = plan->micro_batch_count, forwards = 0;
    for (uint32_t backwards = 0; backwards < micros; backwards++) {
        while (forwards < micros && forwards < backwards + window)
            hand_forward(&b, plan, s, forwards++, HAND_SAVED, &n);
        hand_backward(&b, plan, s, backwards, &n);
    }
    int32_t scalars = hand_reduce(&b, HAND_SCALARS, TAG_STEP_SCALARS, n.last);
    int32_t after[2] = {scalars, hand_reduce(&b, HAND_NORM, TAG_NORM, n.last)};
    struct instr step = instr_init(INSTR_STEP, QUEUE_COMPUTE);
    step.block_begin = plan->ranks[s].block_begin;
    step.block_end = plan->ranks[s].block_end;
    program_add(&b, &step, after, 2);
    program_builder_take(&b, &plan->ranks[s].programs[PROGRAM_TRAIN], err);
}

static inline void hand_evaluate(struct plan *plan, uint32_t s, struct err *err)
{
    struct program_builder b = {0};
    struct hand_numbers n = {0};
    for (uint32_t m = 0; m < plan->micro_batch_count; m++)
        hand_forward(&b, plan, s, m, PLAN_NONE, &n);
    hand_reduce(&b, HAND_SCALARS, TAG_STEP_SCALARS, n.last);
    program_builder_take(&b, &plan->ranks[s].programs[PROGRAM_EVALUATE], err);
}

static inline void hand_token(struct plan *plan, uint32_t s, int kind, struct err *err)
{
    struct program_builder b = {0};
    struct hand_numbers n = {0};
    uint32_t last = plan->rank_count - 1;
    hand_forward(&b, plan, s, 0, HAND_CACHE, &n);
    if (s == last) {
        struct instr sample = instr_init(INSTR_SAMPLE, QUEUE_COMPUTE);
        sample.micro_batch = 0;
        sample.slot_out = HAND_TOKEN;
        int32_t chosen = program_add(&b, &sample, &n.last, 1);
        if (last > 0) {
            struct instr send = hand_transfer(INSTR_SEND, 0, TAG_TOKEN, 0, 0, HAND_TOKEN);
            program_add(&b, &send, &chosen, 1);
        }
    } else if (s == 0) {
        struct instr recv = hand_transfer(INSTR_RECV, last, TAG_TOKEN, 0, 0, HAND_TOKEN);
        program_add(&b, &recv, &n.last, 1);
    }
    program_builder_take(&b, &plan->ranks[s].programs[kind], err);
}

/* Makes a plan, sealed and checked; NULL on error. */
static inline struct plan *hand_plan(const struct model_config *config, const struct hand_shape *shape,
                                     struct err *err)
{
    struct plan *plan = plan_create(shape->stages, 1, shape->batch_rows, shape->micro_rows, err);
    if (!plan)
        return NULL;
    plan->placement = shape->stages > 1 ? PLACE_PIPELINE : PLACE_SINGLE;
    plan->block_count = (int32_t)config->layers + 2;
    plan->tokens_bound = shape->tokens_bound;
    plan->labelled_bound = shape->labelled_bound;
    plan->rows_bound = shape->rows_bound;
    plan->sequence_bound = shape->sequence_bound;
    for (uint32_t s = 0; s < shape->stages; s++) {
        struct plan_rank *rank = &plan->ranks[s];
        char name[32];
        snprintf(name, sizeof(name), "node%u/cpu0", s);
        rank->device = strdup(name);
        snprintf(name, sizeof(name), "node%u", s);
        rank->node = strdup(name);
        rank->stage = (int32_t)s;
        rank->block_begin = (int32_t)(s * (config->layers + 2) / shape->stages);
        rank->block_end = (int32_t)((s + 1) * (config->layers + 2) / shape->stages);
        rank->rows = shape->batch_rows;
        rank->rows_share = 1;
        rank->state_share = 1.0 / shape->stages;
        rank->window =
            shape->stages - s < plan->micro_batch_count ? shape->stages - s : plan->micro_batch_count;
        for (int p = 0; p < PURPOSE_COUNT; p++)
            rank->memory_bytes += rank->memory_peak[p] = (uint64_t)1 << 26;
        rank->memory_limit_bytes = shape->memory_limit_bytes;
        hand_slots(rank, rank->window, (uint64_t)shape->tokens_bound * config->hidden * 4);
        hand_train(plan, s, rank->window, err);
        hand_evaluate(plan, s, err);
        if (shape->samples) {
            hand_token(plan, s, PROGRAM_PREFILL, err);
            hand_token(plan, s, PROGRAM_GENERATE, err);
        }
    }
    if (plan_seal(plan, err) < 0 || plan_check(plan, err) < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}

#endif
