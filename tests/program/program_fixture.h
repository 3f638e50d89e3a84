/* Makes a two-stage program by hand, with ten instructions for each rank. */
#ifndef TEST_PROGRAM_FIXTURE_H
#define TEST_PROGRAM_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "program/check/check.h"
#include "program/codec.h"
#include "program/program.h"

enum { SLOT_HAND_ACT, SLOT_HAND_GRAD, SLOT_HAND_SAVED, SLOT_HAND_SCALARS, SLOT_HAND_NORM, SLOT_HAND_COUNT };

static inline void hand_slot(struct plan_rank *rank, int number, int kind, int lifetime, int purpose,
                             uint32_t ring)
{
    uint64_t bytes = purpose == PURPOSE_ACTIVATIONS ? 1000 : 100;
    rank->slots[number] = (struct plan_slot){.kind = (uint8_t)kind,
                                             .lifetime = (uint8_t)lifetime,
                                             .purpose = (uint8_t)purpose,
                                             .ring_micro_batches = ring,
                                             .ring_blocks = 1,
                                             .block_begin = rank->block_begin,
                                             .block_end = rank->block_end,
                                             .bytes_fixed = bytes,
                                             .bytes_bound = bytes,
                                             .bytes_total = bytes * ring};
}

static inline int32_t hand_add(struct program_builder *b, int op, int queue, int32_t micro, int32_t begin,
                               int32_t end, int32_t peer, int32_t in, int32_t out, int32_t save, int flags,
                               int32_t after_a, int32_t after_b)
{
    struct instr x = instr_init((enum instr_op)op, (enum queue_kind)queue);
    int32_t after[2] = {after_a, after_b};
    x.micro_batch = micro;
    x.block_begin = begin;
    x.block_end = end;
    x.peer = peer;
    x.group = queue == QUEUE_GROUP ? 0 : PLAN_NONE;
    x.slot_in = in;
    x.slot_out = out;
    x.slot_save = save;
    x.flags = (uint16_t)flags;
    x.tag = queue == QUEUE_GROUP ? (in == SLOT_HAND_SCALARS ? TAG_STEP_SCALARS : TAG_NORM)
            : op == INSTR_SEND || op == INSTR_RECV
                ? (in == SLOT_HAND_ACT || out == SLOT_HAND_ACT ? TAG_ACTIVATION : TAG_GRADIENT)
                : TAG_NONE;
    return program_add(b, &x, after, 2);
}

static inline void hand_tail(struct program_builder *b, int32_t forward, int32_t backward)
{
    int32_t s = hand_add(b, INSTR_ALL_REDUCE, QUEUE_GROUP, -1, 0, 0, -1, SLOT_HAND_SCALARS, SLOT_HAND_SCALARS,
                         -1, 0, forward, -1);
    int32_t n = hand_add(b, INSTR_ALL_REDUCE, QUEUE_GROUP, -1, 0, 0, -1, SLOT_HAND_NORM, SLOT_HAND_NORM, -1,
                         0, backward, -1);
    hand_add(b, INSTR_STEP, QUEUE_COMPUTE, -1, 0, 0, -1, -1, -1, -1, 0, s, n);
}

/* Makes a plan with blocks 0..3 on rank 0 and 3..6 on rank 1, and `count` micro-batches of one row, one after
 * the other. */
static inline struct plan *hand_plan(uint32_t count)
{
    struct err err;
    struct plan *plan = plan_create(2, 1, count, 1, &err);
    assert_non_null(plan);
    plan->placement = PLACE_PIPELINE;
    plan->block_count = 6;
    plan->tokens_bound = plan->sequence_bound = plan->labelled_bound = 10;
    for (uint32_t r = 0; r < 2; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        struct program_builder b = {0};
        int32_t f = -1, w = -1, send = -1;
        rank->device = strdup(r ? "b/0" : "a/0");
        rank->node = strdup(r ? "b" : "a");
        rank->stage = (int32_t)r;
        rank->block_begin = r ? 3 : 0;
        rank->block_end = r ? 6 : 3;
        rank->rows = count;
        rank->rows_share = 1;
        rank->state_share = 0.5;
        rank->window = 1;
        rank->memory_peak[PURPOSE_WEIGHTS] = 5000;
        rank->memory_peak[PURPOSE_ACTIVATIONS] = 1000;
        rank->memory_peak[PURPOSE_BUFFERS] = 400;
        rank->memory_bytes = 6400;
        rank->memory_limit_bytes = 7000;
        rank->slots = calloc(SLOT_HAND_COUNT, sizeof(*rank->slots));
        rank->slot_count = SLOT_HAND_COUNT;
        hand_slot(rank, SLOT_HAND_ACT, SLOT_ACTIVATION, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, 1);
        hand_slot(rank, SLOT_HAND_GRAD, SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, 1);
        hand_slot(rank, SLOT_HAND_SAVED, SLOT_SAVED, SLOT_FOR_INSTRUCTIONS, PURPOSE_ACTIVATIONS, 1);
        hand_slot(rank, SLOT_HAND_SCALARS, SLOT_STEP_SCALARS, SLOT_FOR_STEP, PURPOSE_BUFFERS, 1);
        hand_slot(rank, SLOT_HAND_NORM, SLOT_NORM_SCALAR, SLOT_FOR_STEP, PURPOSE_BUFFERS, 1);
        for (int32_t k = 0; k < (int32_t)count; k++) {
            if (r == 0) {
                f = hand_add(&b, INSTR_FORWARD, QUEUE_COMPUTE, k, 0, 3, -1, -1, SLOT_HAND_ACT,
                             SLOT_HAND_SAVED, 0, send, -1);
                send = hand_add(&b, INSTR_SEND, QUEUE_SEND, k, 3, 3, 1, SLOT_HAND_ACT, -1, -1, FLAG_FREES_IN,
                                f, -1);
                int32_t got =
                    hand_add(&b, INSTR_RECV, QUEUE_RECV, k, 3, 3, 1, -1, SLOT_HAND_GRAD, -1, 0, w, -1);
                w = hand_add(&b, INSTR_BACKWARD, QUEUE_COMPUTE, k, 0, 3, -1, SLOT_HAND_GRAD, -1,
                             SLOT_HAND_SAVED, FLAG_FREES_IN | FLAG_FREES_SAVE, got, -1);
            } else {
                int32_t got =
                    hand_add(&b, INSTR_RECV, QUEUE_RECV, k, 3, 3, 0, -1, SLOT_HAND_ACT, -1, 0, f, -1);
                f = hand_add(&b, INSTR_FORWARD, QUEUE_COMPUTE, k, 3, 6, -1, SLOT_HAND_ACT, -1,
                             SLOT_HAND_SAVED, FLAG_FREES_IN, got, -1);
                w = hand_add(&b, INSTR_BACKWARD, QUEUE_COMPUTE, k, 3, 6, -1, -1, SLOT_HAND_GRAD,
                             SLOT_HAND_SAVED, FLAG_FREES_SAVE, send, -1);
                send = hand_add(&b, INSTR_SEND, QUEUE_SEND, k, 3, 3, 0, SLOT_HAND_GRAD, -1, -1, FLAG_FREES_IN,
                                w, -1);
            }
        }
        hand_tail(&b, f, w);
        assert_int_equal(program_builder_take(&b, &rank->programs[PROGRAM_TRAIN], &err), 0);
    }
    return plan;
}

#endif
