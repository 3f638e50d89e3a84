/* Emitting chains: 1F1B with a window per stage.
 *
 * Stage s runs forward on window_s micro-batches, then backward and forward in turn, then the backwards that
 * are left. A receive may start as soon as its ring has room; a send holds its buffer until the transport
 * took it. */
#include "planner/chain.h"

#include <stdlib.h>
#include <string.h>

/* Slot numbers of one rank; PLAN_NONE where it has none. */
struct chain_slots {
    int32_t act_in, act_out, grad_in, grad_out, saved, scalars, norm, cache, token, barrier;
    uint32_t ring_act_in, ring_act_out, ring_grad_in, ring_grad_out;
};

struct chain {
    const struct problem *problem;
    struct plan *plan;
    uint32_t stages, micro_batches;
    const uint32_t *windows;
    struct err *err;
};

uint32_t chain_ring(uint32_t w, uint32_t v, uint32_t micro_batches)
{
    uint32_t depth = w > v ? w - v + 1 : 2;
    depth = depth < 2 ? 2 : depth;
    return depth < micro_batches ? depth : micro_batches;
}

static uint32_t ring_out(uint32_t micro_batches)
{
    return micro_batches < 2 ? micro_batches : 2;
}

uint32_t chain_boundary_buffers(uint32_t stage, uint32_t stage_count, const uint32_t *windows,
                                uint32_t micro_batches)
{
    uint32_t buffers = 0;
    if (stage > 0)
        buffers += chain_ring(windows[stage - 1], windows[stage], micro_batches) + ring_out(micro_batches);
    if (stage + 1 < stage_count)
        buffers += chain_ring(windows[stage], windows[stage + 1], micro_batches) + ring_out(micro_batches);
    return buffers;
}

static int32_t boundary_slot(struct chain *c, struct plan_rank *rank, int kind, uint32_t ring)
{
    uint64_t bound = (uint64_t)(c->problem->bytes_per_token * c->plan->tokens_bound);
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = SLOT_ON_DEVICE,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_BUFFERS,
                             .ring_micro_batches = ring,
                             .ring_blocks = 1,
                             .bytes_per_token = c->problem->bytes_per_token,
                             .bytes_bound = bound,
                             .bytes_total = bound * ring};
    return plan_rank_slot(rank, &slot);
}

static int32_t fixed_slot(struct plan_rank *rank, int kind, int lifetime, int place, uint64_t bytes)
{
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = (uint8_t)place,
                             .lifetime = (uint8_t)lifetime,
                             .purpose = PURPOSE_BUFFERS,
                             .ring_micro_batches = 1,
                             .ring_blocks = 1,
                             .block_begin = rank->block_begin,
                             .block_end = rank->block_end,
                             .bytes_fixed = bytes,
                             .bytes_bound = bytes,
                             .bytes_total = bytes};
    return plan_rank_slot(rank, &slot);
}

static int32_t saved_slot(struct plan_rank *rank, uint32_t window, uint64_t bytes)
{
    struct plan_slot slot = {.kind = SLOT_SAVED,
                             .place = SLOT_ON_DEVICE,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_ACTIVATIONS,
                             .ring_micro_batches = window,
                             .ring_blocks = 1,
                             .block_begin = rank->block_begin,
                             .block_end = rank->block_end,
                             .bytes_fixed = bytes,
                             .bytes_bound = bytes,
                             .bytes_total = bytes * window};
    return plan_rank_slot(rank, &slot);
}

static int slots_fill(struct chain *c, uint32_t s, const struct memory_need *need, struct chain_slots *slots)
{
    struct plan_rank *rank = &c->plan->ranks[s];
    bool first = s == 0, last = s + 1 == c->stages;
    uint32_t window = c->windows[s];
    memset(slots, 0xff, sizeof(*slots));
    slots->ring_act_out = slots->ring_grad_out = ring_out(c->micro_batches);
    if (!first) {
        slots->ring_act_in = chain_ring(c->windows[s - 1], window, c->micro_batches);
        slots->act_in = boundary_slot(c, rank, SLOT_ACTIVATION, slots->ring_act_in);
        slots->grad_out = boundary_slot(c, rank, SLOT_GRADIENT, slots->ring_grad_out);
    }
    if (!last) {
        slots->ring_grad_in = chain_ring(window, c->windows[s + 1], c->micro_batches);
        slots->act_out = boundary_slot(c, rank, SLOT_ACTIVATION, slots->ring_act_out);
        slots->grad_in = boundary_slot(c, rank, SLOT_GRADIENT, slots->ring_grad_in);
    }
    slots->saved = saved_slot(rank, window, need->saved_bytes);
    slots->scalars =
        fixed_slot(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, SLOT_ON_HOST, sizeof(struct plan_step_scalars));
    slots->norm = fixed_slot(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, SLOT_ON_HOST, sizeof(double));
    slots->barrier = fixed_slot(rank, SLOT_BARRIER, SLOT_FOR_STEP, SLOT_ON_HOST, sizeof(double));
    bool samples = c->problem->workload->sample_tokens > 0;
    if (samples) { /* a rank without layers has an empty cache: it still takes part */
        slots->cache = fixed_slot(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, SLOT_ON_DEVICE, need->cache_bytes);
        slots->token = fixed_slot(rank, SLOT_TOKEN, SLOT_FOR_STEP, SLOT_ON_HOST, sizeof(int32_t));
    }
    uint32_t expected = 4 + 2 * (uint32_t)!first + 2 * (uint32_t)!last + 2 * (uint32_t)samples;
    return rank->slot_count == expected ? 0 : err_set(c->err, ERR_NOMEM, "planner: out of memory");
}

/* The numbers of the last instructions, by micro-batch, of one rank while its program is made. */
struct chain_history {
    int32_t *forward, *backward, *send_act, *send_grad; /* [micro_batches] */
};

static int32_t past(const int32_t *numbers, int64_t k)
{
    return k >= 0 ? numbers[k] : PLAN_NONE;
}

static int32_t add_recv(struct program_builder *b, uint32_t peer, int32_t slot, uint32_t tag,
                        int32_t boundary, int64_t k, int32_t freed)
{
    struct instr x = instr_init(OP_RECV, QUEUE_RECV);
    x.peer = (int32_t)peer;
    x.slot_out = slot;
    x.tag = tag;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end = boundary;
    return program_add(b, &x, &freed, 1);
}

static int32_t add_send(struct program_builder *b, uint32_t peer, int32_t slot, uint32_t tag,
                        int32_t boundary, int64_t k, int32_t after)
{
    struct instr x = instr_init(OP_SEND, QUEUE_SEND);
    x.peer = (int32_t)peer;
    x.slot_in = slot;
    x.flags = INSTR_FREES_IN;
    x.tag = tag;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end = boundary;
    return program_add(b, &x, &after, 1);
}

/* Receive, forward, send of micro-batch k. `save`: the slot for what backward needs, or the KV cache, or
 * none. */
static void add_forward(struct chain *c, struct program_builder *b, uint32_t s,
                        const struct chain_slots *slots, struct chain_history *h, int64_t k, int32_t save)
{
    const struct plan_rank *rank = &c->plan->ranks[s];
    int32_t received = PLAN_NONE;
    if (s > 0)
        received = add_recv(b, s - 1, slots->act_in, TAG_ACTIVATION, rank->block_begin, k,
                            past(h->forward, k - slots->ring_act_in));
    struct instr x = instr_init(OP_FORWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = slots->act_in;
    x.slot_out = slots->act_out;
    x.slot_save = save;
    x.flags = (uint16_t)((s > 0 ? INSTR_FREES_IN : 0) |
                         (rank->recompute && save == slots->saved && save >= 0 ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {received, s + 1 < c->stages ? past(h->send_act, k - slots->ring_act_out) : PLAN_NONE};
    h->forward[k] = program_add(b, &x, after, 2);
    if (s + 1 < c->stages)
        h->send_act[k] =
            add_send(b, s + 1, slots->act_out, TAG_ACTIVATION, rank->block_end, k, h->forward[k]);
}

static void add_backward(struct chain *c, struct program_builder *b, uint32_t s,
                         const struct chain_slots *slots, struct chain_history *h, int64_t k)
{
    const struct plan_rank *rank = &c->plan->ranks[s];
    int32_t received = PLAN_NONE;
    if (s + 1 < c->stages)
        received = add_recv(b, s + 1, slots->grad_in, TAG_GRADIENT, rank->block_end, k,
                            past(h->backward, k - slots->ring_grad_in));
    struct instr x = instr_init(OP_BACKWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = slots->grad_in;
    x.slot_out = slots->grad_out;
    x.slot_save = slots->saved;
    x.flags = (uint16_t)(INSTR_FREES_SAVE | (s + 1 < c->stages ? INSTR_FREES_IN : 0) |
                         (rank->recompute ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {received, s > 0 ? past(h->send_grad, k - slots->ring_grad_out) : PLAN_NONE};
    h->backward[k] = program_add(b, &x, after, 2);
    if (s > 0)
        h->send_grad[k] =
            add_send(b, s - 1, slots->grad_out, TAG_GRADIENT, rank->block_begin, k, h->backward[k]);
}

static int32_t add_all_reduce(struct program_builder *b, int32_t slot, uint32_t tag, int32_t after)
{
    struct instr x = instr_init(OP_ALL_REDUCE, QUEUE_GROUP);
    x.group = 0;
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    return program_add(b, &x, &after, 1);
}

static void train_build(struct chain *c, struct program_builder *b, uint32_t s,
                        const struct chain_slots *slots, struct chain_history *h)
{
    int64_t count = c->micro_batches, window = c->windows[s] < count ? c->windows[s] : count;
    for (int64_t k = 0; k < window; k++)
        add_forward(c, b, s, slots, h, k, slots->saved);
    for (int64_t k = 0; k < count; k++) {
        add_backward(c, b, s, slots, h, k);
        if (k + window < count)
            add_forward(c, b, s, slots, h, k + window, slots->saved);
    }
    /* the loss is complete when the last forward is; it travels while the backwards drain */
    int32_t scalars = add_all_reduce(b, slots->scalars, TAG_STEP_SCALARS, h->forward[count - 1]);
    int32_t norm = add_all_reduce(b, slots->norm, TAG_NORM, h->backward[count - 1]);
    struct instr x = instr_init(OP_STEP, QUEUE_COMPUTE);
    x.block_begin = c->plan->ranks[s].block_begin;
    x.block_end = c->plan->ranks[s].block_end;
    int32_t after[2] = {scalars, norm};
    program_add(b, &x, after, 2);
}

static void evaluate_build(struct chain *c, struct program_builder *b, uint32_t s,
                           const struct chain_slots *slots, struct chain_history *h)
{
    for (int64_t k = 0; k < c->micro_batches; k++)
        add_forward(c, b, s, slots, h, k, PLAN_NONE);
    add_all_reduce(b, slots->scalars, TAG_STEP_SCALARS, h->forward[c->micro_batches - 1]);
}

/* Prefill and generate look the same: the prompt, or the last token, through all stages; the last one
 * chooses. */
static void token_build(struct chain *c, struct program_builder *b, uint32_t s,
                        const struct chain_slots *slots, struct chain_history *h)
{
    bool last = s + 1 == c->stages;
    add_forward(c, b, s, slots, h, 0, slots->cache);
    int32_t ready = h->forward[0];
    if (last) {
        struct instr x = instr_init(OP_SAMPLE, QUEUE_COMPUTE);
        x.micro_batch = 0;
        x.slot_out = slots->token;
        ready = program_add(b, &x, &ready, 1);
    }
    struct instr x = instr_init(OP_BROADCAST, QUEUE_GROUP);
    x.group = 0;
    x.peer = (int32_t)c->stages - 1;
    x.slot_in = x.slot_out = slots->token;
    x.tag = TAG_TOKEN;
    program_add(b, &x, &ready, 1);
}

static void save_build(struct program_builder *b, const struct chain_slots *slots)
{
    struct instr x = instr_init(OP_SAVE, QUEUE_COMPUTE);
    int32_t saved = program_add(b, &x, NULL, 0);
    add_all_reduce(b, slots->barrier, TAG_BARRIER, saved);
}

static int programs_fill(struct chain *c, uint32_t s, const struct chain_slots *slots, int32_t *memory)
{
    struct plan_rank *rank = &c->plan->ranks[s];
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct program_builder b = {0};
        size_t count = c->micro_batches;
        struct chain_history h = {memory, memory + count, memory + 2 * count, memory + 3 * count};
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && slots->cache < 0)
            continue;
        if (kind == PROGRAM_TRAIN)
            train_build(c, &b, s, slots, &h);
        else if (kind == PROGRAM_EVALUATE)
            evaluate_build(c, &b, s, slots, &h);
        else if (kind == PROGRAM_SAVE)
            save_build(&b, slots);
        else
            token_build(c, &b, s, slots, &h);
        if (program_builder_take(&b, &rank->programs[kind], c->err) < 0)
            return -1;
    }
    return 0;
}

static int rank_emit(struct chain *c, const struct place_choice *choice, uint32_t s, bool programs,
                     int32_t *memory)
{
    const struct place_stage *stage = &choice->stages[s];
    const struct place_member *member = &choice->members[stage->member_first];
    struct plan_rank *rank = &c->plan->ranks[s];
    struct memory_stage m = {.block_begin = stage->block_begin,
                             .block_end = stage->block_end,
                             .window = c->windows[s],
                             .micro_batch_rows = c->plan->rows_bound,
                             .recompute = member->recompute,
                             .boundary_buffers =
                                 chain_boundary_buffers(s, c->stages, c->windows, c->micro_batches),
                             .state_share = 1,
                             .tensor_share = 1};
    struct memory_need need;
    struct chain_slots slots;
    uint64_t blocks = 0;
    memory_stage_need(c->problem, &m, &need);
    rank->stage = (int32_t)s;
    rank->block_begin = stage->block_begin;
    rank->block_end = stage->block_end;
    rank->rows = c->plan->batch_rows;
    rank->rows_share = 1;
    rank->window = c->windows[s];
    bool full = c->problem->workload->method == METHOD_FULL;
    for (int32_t b = stage->block_begin; b < stage->block_end; b++)
        blocks += full ? c->problem->blocks.blocks[b].params : c->problem->blocks.blocks[b].lora_params;
    uint64_t all = full ? c->problem->blocks.params : c->problem->blocks.lora_params;
    rank->state_share = all ? (double)blocks / (double)all : 1.0 / c->stages;
    if (plan_rank_fill(rank, c->problem, member, &need, c->err) < 0 || slots_fill(c, s, &need, &slots) < 0)
        return -1;
    return programs ? programs_fill(c, s, &slots, memory) : 0;
}

struct plan *chain_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                        struct err *err)
{
    struct plan *plan =
        plan_create(choice->stage_count, 1, problem->workload->batch_rows, choice->micro_batch_rows, err);
    if (!plan)
        return NULL;
    struct chain c = {.problem = problem,
                      .plan = plan,
                      .stages = choice->stage_count,
                      .micro_batches = plan->micro_batch_count,
                      .err = err};
    uint32_t *windows = calloc(c.stages, sizeof(*windows));
    int32_t *memory = calloc((size_t)c.micro_batches * 4, sizeof(*memory));
    int result = windows && memory ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    c.windows = windows;
    plan_frame_fill(plan, problem, choice);
    for (uint32_t s = 0; s < c.stages && result == 0; s++) {
        uint32_t window = choice->members[choice->stages[s].member_first].window;
        windows[s] = window < 1 ? 1 : window < c.micro_batches ? window : c.micro_batches;
    }
    for (uint32_t s = 0; s < c.stages && result == 0; s++)
        result = rank_emit(&c, choice, s, programs, memory);
    free(windows);
    free(memory);
    if (result < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}
