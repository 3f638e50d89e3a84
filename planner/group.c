/* Emitting groups of replicas. */
#include "planner/group.h"

#include "planner/deal.h"

#include <stdlib.h>
#include <string.h>

struct group_slots {
    int32_t act_in, act_out, grad_in, grad_out, saved, scalars, norm, gradients, cache, token, barrier;
    uint32_t ring_act, ring_grad, ring_out, ring_saved; /* of act_in, grad_in, both outs, saved */
};

struct groups {
    const struct problem *problem;
    const struct place_choice *choice;
    struct plan *plan;
    uint32_t stages, micro_batches;
    struct deal deal;
    int32_t *memory; /* [4 · micro_batches] */
    struct err *err;
};

static uint32_t owner_of(const struct groups *c, uint32_t stage, uint32_t k)
{
    return deal_owner(&c->deal, stage, k);
}

static int32_t slot_add(struct plan_rank *rank, int kind, int lifetime, int place, int purpose, uint32_t ring,
                        double per_token, uint64_t fixed, uint64_t bound, uint64_t total)
{
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = (uint8_t)place,
                             .lifetime = (uint8_t)lifetime,
                             .purpose = (uint8_t)purpose,
                             .ring_micro_batches = ring,
                             .ring_blocks = 1,
                             .block_begin = per_token > 0 ? 0 : rank->block_begin,
                             .block_end = per_token > 0 ? 0 : rank->block_end,
                             .bytes_per_token = per_token,
                             .bytes_fixed = fixed,
                             .bytes_bound = bound,
                             .bytes_total = total};
    return plan_rank_slot(rank, &slot);
}

static int slots_fill(struct groups *c, uint32_t r, const struct memory_need *need, struct group_slots *s)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    bool first = rank->stage == 0, last = (uint32_t)rank->stage + 1 == c->stages;
    double each = c->problem->bytes_per_token;
    uint64_t bound = (uint64_t)(each * c->plan->tokens_bound), scalars = sizeof(struct plan_step_scalars);
    uint64_t trained = need->purpose[PURPOSE_ADAPTERS] / 2; /* the other half are the values */
    s->act_in = s->act_out = s->grad_in = s->grad_out = s->gradients = s->cache = s->token = PLAN_NONE;
    if (!first) {
        s->act_in = slot_add(rank, SLOT_ACTIVATION, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS, s->ring_act,
                             each, 0, bound, bound * s->ring_act);
        s->grad_out = slot_add(rank, SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS, s->ring_out,
                               each, 0, bound, bound * s->ring_out);
    }
    if (!last) {
        s->act_out = slot_add(rank, SLOT_ACTIVATION, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS, s->ring_out,
                              each, 0, bound, bound * s->ring_out);
        s->grad_in = slot_add(rank, SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS, s->ring_grad,
                              each, 0, bound, bound * s->ring_grad);
    }
    s->saved = slot_add(rank, SLOT_SAVED, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_ACTIVATIONS, s->ring_saved, 0,
                        need->saved_bytes, need->saved_bytes, need->saved_bytes * rank->window);
    s->scalars = slot_add(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS, 1, 0,
                          scalars, scalars, scalars);
    s->norm = slot_add(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS, 1, 0, 8, 8, 8);
    s->barrier = slot_add(rank, SLOT_BARRIER, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS, 1, 0, 8, 8, 8);
    s->gradients =
        slot_add(rank, SLOT_GRADIENTS, SLOT_FOR_RUN, 0, PURPOSE_ADAPTERS, 1, 0, trained, trained, trained);
    if (c->problem->workload->sample_tokens) {
        uint64_t cache = need->cache_bytes;
        s->cache = slot_add(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, 0, PURPOSE_BUFFERS, 1, 0, cache, cache, cache);
        s->token = slot_add(rank, SLOT_TOKEN, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS, 1, 0, 4, 4, 4);
    }
    return s->saved < 0 || s->barrier < 0 || s->gradients < 0
               ? err_set(c->err, ERR_NOMEM, "planner: out of memory")
               : 0;
}

/* Last instructions by instance of their rings (act_in, grad_in, and both outs) of the rank whose program is
 * being made; PLAN_NONE: not yet. */
struct history {
    int32_t *forward, *backward, *send_act, *send_grad;
};

static struct history history_new(struct groups *c)
{
    size_t count = c->micro_batches;
    memset(c->memory, 0xff, 4 * count * sizeof(*c->memory));
    return (struct history){c->memory, c->memory + count, c->memory + 2 * count, c->memory + 3 * count};
}

/* Where a micro-batch's instance of a ring stands in a history: what is there used it last. */
static uint32_t place(uint32_t k, uint32_t ring)
{
    return ring ? k % ring : k;
}

static int32_t transfer_add(struct program_builder *b, enum instr_op op, uint32_t peer, int32_t slot,
                            uint32_t tag, int32_t boundary, uint32_t k, int32_t after)
{
    struct instr x = instr_init(op, instr_op_queue(op));
    x.peer = (int32_t)peer;
    x.tag = tag;
    x.micro_batch = (int32_t)k;
    x.block_begin = x.block_end = boundary;
    if (op == OP_SEND) {
        x.slot_in = slot;
        x.flags = INSTR_FREES_IN;
    } else {
        x.slot_out = slot;
    }
    return program_add(b, &x, &after, 1);
}

static int32_t forward_add(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s,
                        struct history *h, uint32_t k, int32_t save)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t stage = (uint32_t)rank->stage;
    bool first = stage == 0, last = stage + 1 == c->stages;
    int32_t got = first ? PLAN_NONE
                        : transfer_add(b, OP_RECV, owner_of(c, stage - 1, k), s->act_in, TAG_ACTIVATION,
                                       rank->block_begin, k, h->forward[place(k, s->ring_act)]);
    struct instr x = instr_init(OP_FORWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = s->act_in;
    x.slot_out = s->act_out;
    x.slot_save = save;
    x.flags = (uint16_t)((first ? 0 : INSTR_FREES_IN) |
                         (rank->recompute && save >= 0 && save == s->saved ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {got, last ? PLAN_NONE : h->send_act[place(k, s->ring_out)]};
    int32_t done = program_add(b, &x, after, 2);
    h->forward[place(k, s->ring_act)] = done;
    if (!last)
        h->send_act[place(k, s->ring_out)] = transfer_add(b, OP_SEND, owner_of(c, stage + 1, k), s->act_out, TAG_ACTIVATION,
                                      rank->block_end, k, done);
    return done;
}

static int32_t backward_add(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s,
                         struct history *h, uint32_t k)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t stage = (uint32_t)rank->stage;
    bool first = stage == 0, last = stage + 1 == c->stages;
    int32_t got = last ? PLAN_NONE
                       : transfer_add(b, OP_RECV, owner_of(c, stage + 1, k), s->grad_in, TAG_GRADIENT,
                                      rank->block_end, k, h->backward[place(k, s->ring_grad)]);
    struct instr x = instr_init(OP_BACKWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = s->grad_in;
    x.slot_out = s->grad_out;
    x.slot_save = s->saved;
    x.flags =
        (uint16_t)(INSTR_FREES_SAVE | (last ? 0 : INSTR_FREES_IN) | (rank->recompute ? INSTR_RECOMPUTE : 0));
    int32_t after[2] = {got, first ? PLAN_NONE : h->send_grad[place(k, s->ring_out)]};
    int32_t done = program_add(b, &x, after, 2);
    h->backward[place(k, s->ring_grad)] = done;
    if (!first)
        h->send_grad[place(k, s->ring_out)] = transfer_add(b, OP_SEND, owner_of(c, stage - 1, k), s->grad_out, TAG_GRADIENT,
                                       rank->block_begin, k, done);
    return done;
}

static int32_t collective_add(struct program_builder *b, enum instr_op op, int32_t group, int32_t root,
                              int32_t slot, uint32_t tag, const int32_t *after, size_t count)
{
    struct instr x = instr_init(op, QUEUE_GROUP);
    x.group = group;
    x.peer = root;
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    return program_add(b, &x, after, count);
}

/* Groups: 0 all, 1 + s the members of stage s, the last one the first member of each stage. */
static void train_build(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct place_stage *stage = &c->choice->stages[rank->stage];
    struct history h = history_new(c);
    int32_t forward = PLAN_NONE, backward = PLAN_NONE, group = 1 + rank->stage;
    for (uint32_t i = c->deal.first[r]; i < c->deal.first[r + 1]; i++) {
        uint32_t k = c->deal.events[i].micro_batch;
        if (c->deal.events[i].backward) {
            backward = backward_add(c, b, r, s, &h, k);
        } else {
            forward = forward_add(c, b, r, s, &h, k, s->saved);
        }
    }
    int32_t scalars =
        collective_add(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->scalars, TAG_STEP_SCALARS, &forward, 1);
    int32_t summed = backward, norm = PLAN_NONE, root = (int32_t)stage->member_first;
    if (stage->member_count > 1)
        summed = collective_add(b, OP_ALL_REDUCE, group, PLAN_NONE, s->gradients, TAG_PARAMETER_GRADIENTS,
                                &backward, 1);
    /* equal gradients on all members: one of them counts for the norm and tells the others */
    if ((int32_t)r == root)
        norm = collective_add(b, OP_ALL_REDUCE, 1 + (int32_t)c->stages, PLAN_NONE, s->norm, TAG_NORM, &summed,
                              1);
    if (stage->member_count > 1) {
        int32_t before[2] = {norm, summed};
        norm = collective_add(b, OP_BROADCAST, group, root, s->norm, TAG_NORM, before, 2);
    }
    struct instr x = instr_init(OP_STEP, QUEUE_COMPUTE);
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    int32_t after[3] = {scalars, norm, summed};
    program_add(b, &x, after, 3);
}

static void evaluate_build(struct groups *c, struct program_builder *b, uint32_t r,
                           const struct group_slots *s)
{
    struct history h = history_new(c);
    int32_t last = PLAN_NONE;
    for (uint32_t k = 0; k < c->micro_batches; k++) {
        if (owner_of(c, (uint32_t)c->plan->ranks[r].stage, k) != r)
            continue;
        last = forward_add(c, b, r, s, &h, k, PLAN_NONE);
    }
    collective_add(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->scalars, TAG_STEP_SCALARS, &last, 1);
}

static void token_build(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s)
{
    struct history h = history_new(c);
    uint32_t stage = (uint32_t)c->plan->ranks[r].stage, chooser = owner_of(c, c->stages - 1, 0);
    int32_t ready = PLAN_NONE;
    if (owner_of(c, stage, 0) == r) {
        ready = forward_add(c, b, r, s, &h, 0, s->cache);
    }
    if (r == chooser) {
        struct instr x = instr_init(OP_SAMPLE, QUEUE_COMPUTE);
        x.micro_batch = 0;
        x.slot_out = s->token;
        ready = program_add(b, &x, &ready, 1);
    }
    collective_add(b, OP_BROADCAST, 0, (int32_t)chooser, s->token, TAG_TOKEN, &ready, 1);
}

/* All save: whoever puts the checkpoint together takes a parameter that several hold once. */
static void save_build(struct program_builder *b, const struct group_slots *s)
{
    struct instr x = instr_init(OP_SAVE, QUEUE_COMPUTE);
    int32_t saved = program_add(b, &x, NULL, 0);
    collective_add(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->barrier, TAG_BARRIER, &saved, 1);
}

static int programs_fill(struct groups *c, uint32_t r, const struct group_slots *s)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct program_builder b = {0};
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && s->cache < 0)
            continue;
        if (kind == PROGRAM_TRAIN)
            train_build(c, &b, r, s);
        else if (kind == PROGRAM_EVALUATE)
            evaluate_build(c, &b, r, s);
        else if (kind == PROGRAM_SAVE)
            save_build(&b, s);
        else
            token_build(c, &b, r, s);
        if (program_builder_take(&b, &rank->programs[kind], c->err) < 0)
            return -1;
    }
    return 0;
}

static void rank_rows(const struct groups *c, struct plan_rank *rank, uint32_t r)
{
    for (uint32_t k = 0; k < c->micro_batches; k++) {
        if (owner_of(c, (uint32_t)rank->stage, k) == r)
            rank->rows += c->plan->micro_batch_start[k + 1] - c->plan->micro_batch_start[k];
    }
    rank->rows_share = (double)rank->rows / c->plan->batch_rows;
}

static int rank_emit(struct groups *c, uint32_t s, uint32_t r, bool programs)
{
    const struct place_stage *stage = &c->choice->stages[s];
    const struct place_member *member = &c->choice->members[r];
    struct plan_rank *rank = &c->plan->ranks[r];
    struct group_slots slots = {0};
    struct memory_need need;
    rank->stage = (int32_t)s;
    rank->block_begin = stage->block_begin;
    rank->block_end = stage->block_end;
    rank->window = deal_window(&c->deal, r, &slots.ring_saved);
    slots.ring_out = 2;
    uint32_t boundary = 0;
    if (s > 0) {
        slots.ring_act = deal_ring_activations(&c->deal, r);
        boundary += slots.ring_act + slots.ring_out;
    }
    if (s + 1 < c->stages) {
        slots.ring_grad = deal_ring_gradients(&c->deal, r);
        boundary += slots.ring_grad + slots.ring_out;
    }
    struct memory_stage m = {.block_begin = stage->block_begin,
                             .block_end = stage->block_end,
                             .window = rank->window,
                             .micro_batch_rows = c->plan->rows_bound,
                             .recompute = member->recompute,
                             .boundary_buffers = boundary,
                             .state_share = 1,
                             .tensor_share = 1};
    memory_stage_need(c->problem, &m, &need);
    rank_rows(c, rank, r);
    if (rank->rows == 0)
        return err_set(c->err, ERR_INVALID, "planner: a member would never have a micro-batch");
    rank->state_share = 1;
    if (plan_rank_fill(rank, c->problem, member, &need, c->err) < 0 || slots_fill(c, r, &need, &slots) < 0)
        return -1;
    return programs ? programs_fill(c, r, &slots) : 0;
}

static int group_fill(struct plan_group *group, uint32_t first, uint32_t count, struct err *err)
{
    group->ranks = calloc(count, sizeof(*group->ranks));
    if (!group->ranks)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    group->rank_count = count;
    for (uint32_t i = 0; i < count; i++)
        group->ranks[i] = first + i;
    return 0;
}

static int groups_fill(struct groups *c)
{
    struct plan_group *firsts = &c->plan->groups[c->stages + 1];
    for (uint32_t s = 0; s < c->stages; s++) {
        if (group_fill(&c->plan->groups[1 + s], c->choice->stages[s].member_first,
                       c->choice->stages[s].member_count, c->err) < 0)
            return -1;
    }
    if (group_fill(firsts, 0, c->stages, c->err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->stages; s++)
        firsts->ranks[s] = c->choice->stages[s].member_first;
    return 0;
}

/* One stage: members' micro-batches one after the other, of unlike sizes. */
int group_starts_fill(struct plan *plan, const struct place_choice *choice, struct err *err)
{
    uint32_t count = 0, row = 0;
    for (uint32_t m = 0; m < choice->member_count; m++)
        count += choice->members[m].micro_count;
    uint32_t *start = calloc((size_t)count + 1, sizeof(*start));
    if (!start)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    free(plan->micro_batch_start);
    plan->micro_batch_start = start;
    plan->micro_batch_count = count;
    for (uint32_t m = 0, k = 0; m < choice->member_count; m++) {
        for (uint32_t n = 0; n < choice->members[m].micro_count; n++) {
            row += choice->members[m].micro_rows;
            start[++k] = row < plan->batch_rows ? row : plan->batch_rows;
        }
    }
    return row == plan->batch_rows
               ? 0
               : err_set(err, ERR_INTERNAL, "planner: members take %u of %u rows", row, plan->batch_rows);
}

struct plan *group_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                        struct err *err)
{
    struct plan *plan = plan_create(choice->member_count, choice->stage_count + 2,
                                    problem->workload->batch_rows, choice->micro_batch_rows, err);
    if (!plan)
        return NULL;
    int result = choice->stage_count == 1 ? group_starts_fill(plan, choice, err) : 0;
    plan_frame_fill(plan, problem, choice);
    struct groups c = {.problem = problem,
                       .choice = choice,
                       .plan = plan,
                       .stages = choice->stage_count,
                       .micro_batches = plan->micro_batch_count,
                       .err = err};
    c.memory = calloc((size_t)c.micro_batches * 4 + 1, sizeof(*c.memory));
    if (result == 0 && !c.memory)
        result = err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = deal_init(&c.deal, problem, choice, c.micro_batches, err);
    if (result == 0)
        result = groups_fill(&c);
    for (uint32_t s = 0; s < c.stages && result == 0; s++) {
        for (uint32_t m = 0; m < choice->stages[s].member_count && result == 0; m++)
            result = rank_emit(&c, s, choice->stages[s].member_first + m, programs);
    }
    deal_fini(&c.deal);
    free(c.memory);
    if (result < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}
