/* Emitting groups of replicas. */
#include "planner/hybrid/group.h"

#include "planner/hybrid/deal.h"
#include "planner/hybrid/group_state.h"

#include <stdlib.h>
#include <string.h>

struct group_slots {
    int32_t act_in, act_out, grad_in, grad_out, saved, scalars, norm, gradients, cache, token, barrier;
    struct deal_rings rings; /* of act_in, grad_in, act_out, grad_out */
    uint32_t ring_saved;
};

struct groups {
    const struct problem *problem;
    const struct place_choice *choice;
    struct plan *plan;
    uint32_t stages, micro_batches;
    struct deal deal;
    int32_t *memory; /* [8 · micro_batches] */
    struct err *err;
    struct group_state state; /* of the rank being made */
    int32_t came[2];          /* gathered weights that the next forward waits for */
};

static uint32_t owner_of(const struct groups *c, uint32_t stage, uint32_t k)
{
    return deal_owner(&c->deal, stage, k);
}

/* Of the stage's state that the rank keeps. */
static double share_of(const struct groups *c, uint32_t r)
{
    uint32_t s = (uint32_t)c->plan->ranks[r].stage;
    const double *shares = c->plan->groups[1 + s].shares;
    return shares ? shares[r - c->choice->stages[s].member_first] : 1;
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

/* Of the gradients that the rank steps with: those of its shard, or as much as the values take. */
static uint64_t gradient_bytes(const struct groups *c, uint32_t r, const struct memory_need *need)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    if (c->problem->workload->method != METHOD_FULL)
        return need->purpose[PURPOSE_ADAPTERS] / 2;
    uint64_t bytes = (uint64_t)(share_of(c, r) * (double)memory_gradient_bytes(c->problem, rank->block_begin,
                                                                               rank->block_end));
    return bytes < need->purpose[PURPOSE_ADAPTERS] ? bytes : need->purpose[PURPOSE_ADAPTERS];
}

static int slots_fill(struct groups *c, uint32_t r, const struct memory_need *need, struct group_slots *s)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    bool first = rank->stage == 0, last = (uint32_t)rank->stage + 1 == c->stages;
    double each = c->problem->bytes_per_token;
    uint64_t bound = (uint64_t)(each * c->plan->tokens_bound), scalars = sizeof(struct plan_step_scalars);
    uint64_t trained = gradient_bytes(c, r, need);
    s->act_in = s->act_out = s->grad_in = s->grad_out = s->gradients = s->cache = s->token = PLAN_NONE;
    if (!first) {
        s->act_in = slot_add(rank, SLOT_ACTIVATION, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS,
                             s->rings.activations.ring, each, 0, bound, bound * s->rings.activations.held);
        s->grad_out = slot_add(rank, SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS,
                               s->rings.returning.ring, each, 0, bound, bound * s->rings.returning.held);
    }
    if (!last) {
        s->act_out = slot_add(rank, SLOT_ACTIVATION, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS,
                              s->rings.leaving.ring, each, 0, bound, bound * s->rings.leaving.held);
        s->grad_in = slot_add(rank, SLOT_GRADIENT, SLOT_FOR_INSTRUCTIONS, 0, PURPOSE_BUFFERS,
                              s->rings.gradients.ring, each, 0, bound, bound * s->rings.gradients.held);
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

/* Who must be done before the next user of a ring: whoever had the same instance, and whoever is as many
 * turns back as instances may be held at once. PLAN_NONE: nobody yet. */
struct track {
    int32_t *by_instance, *by_turn; /* [micro_batches] */
    uint32_t ring, held, turns;
};

/* Of the rank whose program is being made: forwards free act_in, backwards grad_in, sends the outs. */
struct history {
    struct track act_in, grad_in, act_out, grad_out;
};

static struct track track_new(struct groups *c, uint32_t number, const struct deal_ring *ring)
{
    int32_t *memory = &c->memory[2 * (size_t)number * c->micro_batches];
    return (struct track){.by_instance = memory,
                          .by_turn = memory + c->micro_batches,
                          .ring = ring->ring ? ring->ring : c->micro_batches,
                          .held = ring->held ? ring->held : c->micro_batches};
}

static struct history history_new(struct groups *c, const struct group_slots *s)
{
    memset(c->memory, 0xff, 8 * (size_t)c->micro_batches * sizeof(*c->memory));
    return (struct history){.act_in = track_new(c, 0, &s->rings.activations),
                            .grad_in = track_new(c, 1, &s->rings.gradients),
                            .act_out = track_new(c, 2, &s->rings.leaving),
                            .grad_out = track_new(c, 3, &s->rings.returning)};
}

static void track_before(const struct track *t, uint32_t k, int32_t after[2])
{
    after[0] = t->by_instance[k % t->ring];
    after[1] = t->by_turn[t->turns % t->held];
}

static void track_put(struct track *t, uint32_t k, int32_t number)
{
    t->by_instance[k % t->ring] = number;
    t->by_turn[t->turns++ % t->held] = number;
}

static int32_t transfer_add(struct program_builder *b, enum instr_op op, uint32_t peer, int32_t slot,
                            uint32_t tag, int32_t boundary, uint32_t k, const int32_t *after, size_t count)
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
    return program_add(b, &x, after, count);
}

static int32_t forward_add(struct groups *c, struct program_builder *b, uint32_t r,
                           const struct group_slots *s, struct history *h, uint32_t k, int32_t save)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t stage = (uint32_t)rank->stage;
    bool first = stage == 0, last = stage + 1 == c->stages;
    int32_t after[3] = {PLAN_NONE, PLAN_NONE, PLAN_NONE};
    track_before(&h->act_in, k, after);
    int32_t got = first ? PLAN_NONE
                        : transfer_add(b, OP_RECV, owner_of(c, stage - 1, k), s->act_in, TAG_ACTIVATION,
                                       rank->block_begin, k, after, 2);
    struct instr x = instr_init(OP_FORWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = s->act_in;
    x.slot_out = s->act_out;
    x.slot_save = save;
    x.flags = (uint16_t)((first ? 0 : INSTR_FREES_IN) |
                         (rank->recompute && save >= 0 && save == s->saved ? INSTR_RECOMPUTE : 0));
    track_before(&h->act_out, k, after);
    int32_t waits[5] = {after[0], after[1], got, c->came[0], c->came[1]};
    int32_t done = program_add(b, &x, waits, 5);
    c->came[0] = c->came[1] = PLAN_NONE;
    track_put(&h->act_in, k, done);
    if (!last)
        track_put(&h->act_out, k,
                  transfer_add(b, OP_SEND, owner_of(c, stage + 1, k), s->act_out, TAG_ACTIVATION,
                               rank->block_end, k, &done, 1));
    return done;
}

static int32_t backward_add(struct groups *c, struct program_builder *b, uint32_t r,
                            const struct group_slots *s, struct history *h, uint32_t k)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t stage = (uint32_t)rank->stage;
    bool first = stage == 0, last = stage + 1 == c->stages;
    int32_t after[3] = {PLAN_NONE, PLAN_NONE, PLAN_NONE};
    track_before(&h->grad_in, k, after);
    int32_t got = last ? PLAN_NONE
                       : transfer_add(b, OP_RECV, owner_of(c, stage + 1, k), s->grad_in, TAG_GRADIENT,
                                      rank->block_end, k, after, 2);
    struct instr x = instr_init(OP_BACKWARD, QUEUE_COMPUTE);
    x.micro_batch = (int32_t)k;
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.slot_in = s->grad_in;
    x.slot_out = s->grad_out;
    x.slot_save = s->saved;
    x.flags =
        (uint16_t)(INSTR_FREES_SAVE | (last ? 0 : INSTR_FREES_IN) | (rank->recompute ? INSTR_RECOMPUTE : 0));
    track_before(&h->grad_out, k, after);
    after[2] = got;
    int32_t done = program_add(b, &x, after, 3);
    track_put(&h->grad_in, k, done);
    if (!first)
        track_put(&h->grad_out, k,
                  transfer_add(b, OP_SEND, owner_of(c, stage - 1, k), s->grad_out, TAG_GRADIENT,
                               rank->block_begin, k, &done, 1));
    return done;
}

/* Full fine-tuning: sums go to shards, every rank counts its own for the norm and steps it. */
static void full_tail(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s,
                      int32_t scalars, int32_t backward)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    int32_t left[2];
    group_state_release(&c->state, b, c->came);
    group_state_reduce(&c->state, b, backward, left);
    int32_t before[4] = {backward, left[0], left[1], PLAN_NONE};
    int32_t norm = program_add_collective(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->norm, TAG_NORM, before, 3);
    struct instr x = instr_init(OP_STEP, QUEUE_COMPUTE);
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    x.group = c->state.sharded ? c->state.group : PLAN_NONE;
    before[0] = scalars;
    before[3] = norm;
    program_add(b, &x, before, 4);
}

#define PROGRAM_ENDING 16u /* instructions behind all events, and numbers in their `after`, or a few less */

/* Room for what so many forwards and backwards make: on each side of a stage each has a transfer, which waits
 * for two others or for itself, and what it waits for itself. */
static void events_expect(const struct groups *c, struct program_builder *b, uint32_t r, uint32_t events)
{
    uint32_t stage = (uint32_t)c->plan->ranks[r].stage, sides = (stage > 0) + (stage + 1 < c->stages);
    program_builder_expect(b, (uint64_t)(1 + sides) * events + PROGRAM_ENDING,
                           (uint64_t)3 * sides * events + PROGRAM_ENDING);
}

/* Groups: 0 all, 1 + s the members of stage s, then the first member of each stage, then (group_state.h) a
 * tied embedding's. */
static void train_build(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct place_stage *stage = &c->choice->stages[rank->stage];
    struct history h = history_new(c, s);
    int32_t forward = PLAN_NONE, backward = PLAN_NONE, group = 1 + rank->stage;
    events_expect(c, b, r, c->deal.first[r + 1] - c->deal.first[r]);
    group_state_fetch(&c->state, b, c->came);
    for (uint32_t i = c->deal.first[r]; i < c->deal.first[r + 1]; i++) {
        uint32_t k = c->deal.events[i].micro_batch;
        if (c->deal.events[i].backward) {
            backward = backward_add(c, b, r, s, &h, k);
        } else {
            forward = forward_add(c, b, r, s, &h, k, s->saved);
        }
    }
    int32_t scalars =
        program_add_collective(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->scalars, TAG_STEP_SCALARS, &forward, 1);
    if (c->state.full) {
        full_tail(c, b, r, s, scalars, backward);
        return;
    }
    int32_t summed = backward, norm = PLAN_NONE, root = (int32_t)stage->member_first;
    if (stage->member_count > 1)
        summed = program_add_collective(b, OP_ALL_REDUCE, group, PLAN_NONE, s->gradients,
                                        TAG_PARAMETER_GRADIENTS, &backward, 1);
    /* equal gradients on all members: one of them counts for the norm and tells the others */
    if ((int32_t)r == root)
        norm = program_add_collective(b, OP_ALL_REDUCE, 1 + (int32_t)c->stages, PLAN_NONE, s->norm, TAG_NORM,
                                      &summed, 1);
    if (stage->member_count > 1) {
        int32_t before[2] = {norm, summed};
        norm = program_add_collective(b, OP_BROADCAST, group, root, s->norm, TAG_NORM, before, 2);
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
    struct history h = history_new(c, s);
    int32_t last = PLAN_NONE;
    events_expect(c, b, r, (c->deal.first[r + 1] - c->deal.first[r]) / 2);
    group_state_fetch(&c->state, b, c->came);
    for (uint32_t k = 0; k < c->micro_batches; k++) {
        if (owner_of(c, (uint32_t)c->plan->ranks[r].stage, k) != r)
            continue;
        last = forward_add(c, b, r, s, &h, k, PLAN_NONE);
    }
    group_state_release(&c->state, b, c->came);
    program_add_collective(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->scalars, TAG_STEP_SCALARS, &last, 1);
}

static void token_build(struct groups *c, struct program_builder *b, uint32_t r, const struct group_slots *s)
{
    struct history h = history_new(c, s);
    uint32_t stage = (uint32_t)c->plan->ranks[r].stage, chooser = owner_of(c, c->stages - 1, 0);
    int32_t ready = PLAN_NONE;
    group_state_fetch(&c->state, b, c->came);
    if (owner_of(c, stage, 0) == r) {
        ready = forward_add(c, b, r, s, &h, 0, s->cache);
    }
    group_state_release(&c->state, b, c->came);
    if (r == chooser) {
        struct instr x = instr_init(OP_SAMPLE, QUEUE_COMPUTE);
        x.micro_batch = 0;
        x.slot_out = s->token;
        ready = program_add(b, &x, &ready, 1);
    }
    program_add_collective(b, OP_BROADCAST, 0, (int32_t)chooser, s->token, TAG_TOKEN, &ready, 1);
}

/* All save: whoever puts the checkpoint together takes a parameter that several hold once. */
static void save_build(struct program_builder *b, const struct group_slots *s)
{
    struct instr x = instr_init(OP_SAVE, QUEUE_COMPUTE);
    int32_t saved = program_add(b, &x, NULL, 0);
    program_add_collective(b, OP_ALL_REDUCE, 0, PLAN_NONE, s->barrier, TAG_BARRIER, &saved, 1);
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

/* Fills what a rank is, and what it needs with that share of its stage's state. */
static void rank_look(struct groups *c, uint32_t s, uint32_t r, double share, struct group_slots *slots,
                      struct memory_need *need)
{
    const struct place_stage *stage = &c->choice->stages[s];
    struct plan_rank *rank = &c->plan->ranks[r];
    rank->stage = (int32_t)s;
    rank->block_begin = stage->block_begin;
    rank->block_end = stage->block_end;
    rank->window = deal_window(&c->deal, r, &slots->ring_saved);
    struct group_stage m = {.block_begin = stage->block_begin,
                            .block_end = stage->block_end,
                            .members = stage->member_count,
                            .window = rank->window,
                            .micro_batch_rows = c->plan->rows_bound,
                            .boundary_buffers = deal_boundaries(&c->deal, r, &slots->rings),
                            .recompute = c->choice->members[r].recompute};
    group_need(c->problem, &m, share, need);
}

/* Shares each stage's state out by the room of its members. */
static int shares_fill(struct groups *c)
{
    double *room = calloc((size_t)c->choice->member_count + 1, sizeof(*room));
    int result = room ? 0 : err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < c->stages && result == 0; s++) {
        const struct place_stage *stage = &c->choice->stages[s];
        for (uint32_t m = 0; m < stage->member_count; m++) {
            uint32_t r = stage->member_first + m;
            struct group_slots slots = {0};
            struct memory_need need;
            rank_look(c, s, r, 0, &slots, &need);
            const struct device *device = &c->problem->cluster->devices[c->choice->members[r].device];
            room[m] = (double)device->memory_limit_bytes - (double)need.total;
        }
        if (stage->member_count > 1)
            result = group_state_share(c->plan, c->problem, c->choice, s, room, c->err);
    }
    free(room);
    return result < 0 ? -1 : group_state_table(c->plan, c->problem, c->choice, c->err);
}

static int rank_emit(struct groups *c, uint32_t s, uint32_t r, bool programs)
{
    const struct place_member *member = &c->choice->members[r];
    struct plan_rank *rank = &c->plan->ranks[r];
    struct group_slots slots = {0};
    struct memory_need need;
    rank->stage = (int32_t)s;
    rank_look(c, s, r, share_of(c, r), &slots, &need);
    rank_rows(c, rank, r);
    if (rank->rows == 0)
        return err_set(c->err, ERR_INVALID, "planner: a member would never have a micro-batch");
    rank->state_share = 1;
    if (plan_rank_fill(rank, c->problem, member, &need, c->err) < 0 || slots_fill(c, r, &need, &slots) < 0)
        return -1;
    if (group_state_init(&c->state, c->plan, c->problem, c->choice, r, &need, slots.gradients, c->err) < 0)
        return -1;
    c->came[0] = c->came[1] = PLAN_NONE;
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
    struct plan *plan =
        plan_create(choice->member_count, choice->stage_count + 2 + group_state_groups(problem, choice),
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
    c.memory = calloc((size_t)c.micro_batches * 8 + 1, sizeof(*c.memory));
    if (result == 0 && !c.memory)
        result = err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = deal_init(&c.deal, problem, choice, c.micro_batches, err);
    if (result == 0)
        result = groups_fill(&c);
    if (result == 0 && problem->workload->method == METHOD_FULL)
        result = shares_fill(&c);
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
