/* Stages in shards: shares, slots, and what comes and goes in a step. */
#include "planner/hybrid/group_state.h"

#include <math.h>
#include <stdlib.h>

#include "planner/sharded/sharded.h"

#define ROUNDING_BYTES 8192 /* a member's needs are rounded up to granules */
#define MOVES_MEMBERS 64u   /* of two stages, beyond which group_state_moves knows nothing */

static bool full_of(const struct problem *p)
{
    return p->workload->method == METHOD_FULL;
}

/* Is the table of one stage used by another? */
static bool table_apart(const struct problem *p, const struct place_choice *choice)
{
    return full_of(p) && p->blocks.tied && choice->stage_count > 1;
}

void group_need(const struct problem *p, const struct group_stage *stage, double share,
                struct memory_need *need)
{
    bool full = full_of(p);
    struct memory_stage m = {.block_begin = stage->block_begin,
                             .block_end = stage->block_end,
                             .window = stage->window,
                             .micro_batch_rows = stage->micro_batch_rows,
                             .recompute = stage->recompute,
                             .boundary_buffers = stage->boundary_buffers,
                             .state_share = full ? share : 1,
                             .tensor_share = 1,
                             .sharded = full};
    bool copies = p->blocks.tied && stage->block_begin > 0 && stage->block_end == p->block_count;
    if (full && stage->members > 1)
        m.buffer_bytes = memory_gathered_bytes(p, stage->block_begin, stage->block_end) +
                         memory_gradient_bytes(p, stage->block_begin, stage->block_end);
    if (full && copies)
        m.buffer_bytes += memory_gathered_bytes(p, 0, 1) + memory_gradient_bytes(p, 0, 1);
    memory_stage_need(p, &m, need);
}

double group_state_bytes(const struct problem *p, int32_t begin, int32_t end)
{
    return memory_state_bytes(p) * (double)memory_trained(p, begin, end);
}

uint32_t group_state_groups(const struct problem *problem, const struct place_choice *choice)
{
    return table_apart(problem, choice);
}

static void links_fill(const struct problem *p, const uint32_t *devices, uint32_t count,
                       struct share_member *members, double *latency_s)
{
    *latency_s = 0;
    for (uint32_t i = 0; i < count; i++)
        members[i].bytes_per_s = INFINITY;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, devices[i], devices[next], &latency, &rate, &emulated);
        *latency_s = fmax(*latency_s, latency);
        members[i].bytes_per_s = fmin(members[i].bytes_per_s, rate);
        members[next].bytes_per_s = fmin(members[next].bytes_per_s, rate);
    }
}

double group_state_sync(const struct problem *p, const uint32_t *devices, uint32_t count, int32_t begin,
                        int32_t end)
{
    double worst = 0, delay = 0;
    double bytes =
        (double)memory_gathered_bytes(p, begin, end) + (double)memory_gradient_bytes(p, begin, end);
    for (uint32_t i = 0; i < count && count > 1; i++) {
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, devices[i], devices[(i + 1) % count], &latency, &rate, &emulated);
        worst = fmax(worst, 1 / rate);
        delay = fmax(delay, latency);
    }
    return count > 1 ? bytes * worst * (count - 1) / count + 2 * (count - 1) * delay : 0;
}

/* Blocks over a ring of `count` members, the first `owners` of which have even shards. */
static void ring_moves(const struct problem *p, const uint32_t *devices, uint32_t count, uint32_t owners,
                       int32_t begin, int32_t end, double *before_s, double *after_s)
{
    double gather = 0, scatter = 0, delay = 0;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, devices[i], devices[next], &latency, &rate, &emulated);
        gather = fmax(gather, (next < owners ? 1 - 1.0 / owners : 1) / rate);
        scatter = fmax(scatter, (i < owners ? 1 - 1.0 / owners : 1) / rate);
        delay = fmax(delay, latency);
    }
    if (count < 2)
        return;
    *before_s += gather * (double)memory_gathered_bytes(p, begin, end) + (count - 1) * delay;
    *after_s += scatter * (double)memory_gradient_bytes(p, begin, end) + (count - 1) * delay;
}

void group_state_moves(const struct problem *p, const struct place_choice *choice, uint32_t s,
                       double *before_s, double *after_s)
{
    const struct place_stage *stage = &choice->stages[s], *head = &choice->stages[0];
    const struct place_stage *tail = &choice->stages[choice->stage_count - 1];
    bool apart = table_apart(p, choice), first = s == 0, last = s + 1 == choice->stage_count;
    uint32_t devices[MOVES_MEMBERS], count = 0;
    *before_s = *after_s = 0;
    if (!full_of(p) || head->member_count + tail->member_count > MOVES_MEMBERS ||
        stage->member_count > MOVES_MEMBERS)
        return;
    for (uint32_t m = 0; m < head->member_count; m++)
        devices[count++] = choice->members[head->member_first + m].device;
    for (uint32_t m = 0; m < tail->member_count && apart; m++)
        devices[count++] = choice->members[tail->member_first + m].device;
    if (apart && (first || last))
        ring_moves(p, devices, count, head->member_count, 0, 1, before_s, after_s);
    for (uint32_t m = 0; m < stage->member_count; m++)
        devices[m] = choice->members[stage->member_first + m].device;
    ring_moves(p, devices, stage->member_count, stage->member_count, apart && first ? 1 : stage->block_begin,
               stage->block_end, before_s, after_s);
}

int group_state_share(struct plan *plan, const struct problem *p, const struct place_choice *choice,
                      uint32_t s, const double *room, struct err *err)
{
    const struct place_stage *stage = &choice->stages[s];
    struct plan_group *group = &plan->groups[1 + s];
    uint32_t count = stage->member_count;
    struct share_member *members = calloc(count, sizeof(*members));
    uint32_t *devices = calloc(count, sizeof(*devices));
    double latency, state = group_state_bytes(p, stage->block_begin, stage->block_end);
    group->shares = calloc(count, sizeof(*group->shares));
    int result = members && devices && group->shares ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && result == 0; i++) {
        devices[i] = choice->members[stage->member_first + i].device;
        members[i].room = (room[i] - ROUNDING_BYTES) / state;
        members[i].step_s = problem_step_seconds(p, devices[i], stage->block_begin, stage->block_end);
    }
    if (result == 0) {
        links_fill(p, devices, count, members, &latency);
        if (!share_state(members, count, SHARE_FOR_LINKS, group->shares))
            result =
                err_set(err, ERR_NOFIT, "the %u members of stage %u have no room for its state of %.0f bytes",
                        count, s, state);
    }
    free(members);
    free(devices);
    return result;
}

int group_state_table(struct plan *plan, const struct problem *p, const struct place_choice *choice,
                      struct err *err)
{
    if (!table_apart(p, choice))
        return 0;
    struct plan_group *group = &plan->groups[choice->stage_count + 2];
    const struct plan_group *owners = &plan->groups[1], *copies = &plan->groups[choice->stage_count];
    group->rank_count = owners->rank_count + copies->rank_count;
    group->ranks = calloc(group->rank_count, sizeof(*group->ranks));
    group->shares = calloc(group->rank_count, sizeof(*group->shares));
    if (!group->ranks || !group->shares)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < group->rank_count; i++) {
        bool owns = i < owners->rank_count;
        group->ranks[i] = owns ? owners->ranks[i] : copies->ranks[i - owners->rank_count];
        group->shares[i] = !owns ? 0 : owners->shares ? owners->shares[i] : 1;
    }
    return 0;
}

static int32_t slot_add(struct plan_rank *rank, int kind, int lifetime, int purpose, int32_t begin,
                        int32_t end, uint64_t bytes)
{
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = SLOT_ON_DEVICE,
                             .lifetime = (uint8_t)lifetime,
                             .purpose = (uint8_t)purpose,
                             .ring_micro_batches = 1,
                             .ring_blocks = 1,
                             .block_begin = begin,
                             .block_end = end,
                             .bytes_fixed = bytes,
                             .bytes_bound = bytes,
                             .bytes_total = bytes};
    return plan_rank_slot(rank, &slot);
}

/* A place for gathered weights and one for the whole gradients of blocks [begin, end). */
static void places_add(struct plan_rank *rank, const struct problem *p, int32_t begin, int32_t end,
                       int32_t *gathered, int32_t *whole)
{
    *gathered = slot_add(rank, SLOT_GATHERED, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, begin, end,
                         memory_gathered_bytes(p, begin, end));
    *whole = slot_add(rank, SLOT_GRADIENTS, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, begin, end,
                      memory_gradient_bytes(p, begin, end));
}

int group_state_init(struct group_state *st, struct plan *plan, const struct problem *p,
                     const struct place_choice *choice, uint32_t r, const struct memory_need *need,
                     int32_t gradients, struct err *err)
{
    struct plan_rank *rank = &plan->ranks[r];
    uint32_t s = (uint32_t)rank->stage, before;
    const struct place_stage *stage = &choice->stages[s];
    bool apart = table_apart(p, choice), first = s == 0, last = s + 1 == choice->stage_count;
    *st = (struct group_state){.full = full_of(p),
                               .sharded = stage->member_count > 1,
                               .copies = apart && last,
                               .begin = apart && first ? 1 : rank->block_begin,
                               .end = rank->block_end,
                               .group = 1 + (int32_t)s,
                               .table_group =
                                   apart && (first || last) ? (int32_t)choice->stage_count + 2 : PLAN_NONE,
                               .gradients = gradients,
                               .gathered = PLAN_NONE,
                               .whole = PLAN_NONE,
                               .table = PLAN_NONE,
                               .table_whole = PLAN_NONE};
    if (!st->full)
        return 0;
    uint64_t steps_with = rank->slots[gradients].bytes_bound, kept = need->purpose[PURPOSE_ADAPTERS];
    double share = st->sharded ? plan->groups[1 + s].shares[r - stage->member_first] : 1;
    before = rank->slot_count;
    rank->state_share = share * (double)memory_trained(p, stage->block_begin, stage->block_end) /
                        (double)memory_trained(p, 0, p->block_count);
    rank->owns_tied = apart && first;
    rank->copies_tied = st->copies;
    st->values = slot_add(rank, SLOT_PARAMETERS, SLOT_FOR_RUN, PURPOSE_ADAPTERS, rank->block_begin,
                          rank->block_end, kept > steps_with ? kept - steps_with : 0);
    if (st->sharded && st->begin < st->end)
        places_add(rank, p, st->begin, st->end, &st->gathered, &st->whole);
    if (st->copies || (st->sharded && st->table_group >= 0))
        places_add(rank, p, 0, 1, &st->table, &st->table_whole);
    uint32_t expected = 1 + 2 * (st->gathered >= 0) + 2 * (st->table >= 0);
    return rank->slot_count == before + expected ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
}

static int32_t collective_add(struct program_builder *b, enum instr_op op, int32_t group, uint32_t tag,
                              int32_t begin, int32_t end, int32_t in, int32_t out, bool frees, int32_t after)
{
    struct instr x = instr_init(op, QUEUE_GROUP);
    x.group = group;
    x.tag = tag;
    x.block_begin = begin;
    x.block_end = end;
    x.slot_in = in;
    x.slot_out = out;
    x.flags = frees ? INSTR_FREES_IN : 0;
    return program_add(b, &x, &after, 1);
}

void group_state_fetch(const struct group_state *st, struct program_builder *b, int32_t came[2])
{
    came[0] = came[1] = PLAN_NONE;
    if (!st->full)
        return;
    if (st->table_group >= 0)
        came[0] = collective_add(b, OP_ALL_GATHER, st->table_group, TAG_PARAMETERS, 0, 1, st->values,
                                 st->table, false, PLAN_NONE);
    if (st->gathered >= 0)
        came[1] = collective_add(b, OP_ALL_GATHER, st->group, TAG_PARAMETERS, st->begin, st->end, st->values,
                                 st->gathered, false, PLAN_NONE);
}

static void release_add(struct program_builder *b, int32_t slot, int32_t begin, int32_t end, int32_t after)
{
    struct instr x = instr_init(OP_RELEASE, QUEUE_COMPUTE);
    x.slot_in = slot;
    x.block_begin = begin;
    x.block_end = end;
    program_add(b, &x, &after, 1);
}

void group_state_release(const struct group_state *st, struct program_builder *b, const int32_t came[2])
{
    if (!st->full)
        return;
    if (st->table >= 0)
        release_add(b, st->table, 0, 1, came[0]);
    if (st->gathered >= 0)
        release_add(b, st->gathered, st->begin, st->end, came[1]);
}

void group_state_reduce(const struct group_state *st, struct program_builder *b, int32_t after,
                        int32_t left[2])
{
    left[0] = left[1] = PLAN_NONE;
    if (!st->full)
        return;
    if (st->whole >= 0)
        left[0] = collective_add(b, OP_REDUCE_SCATTER, st->group, TAG_PARAMETER_GRADIENTS, st->begin, st->end,
                                 st->whole, st->gradients, true, after);
    /* after the other: both end where the rank's gradients are. Who keeps the whole table has its own
     * gradients of it in place. */
    if (st->table_group >= 0)
        left[1] = collective_add(b, OP_REDUCE_SCATTER, st->table_group, TAG_PARAMETER_GRADIENTS, 0, 1,
                                 st->table_whole >= 0 ? st->table_whole : st->gradients, st->gradients,
                                 st->table_whole >= 0, left[0] >= 0 ? left[0] : after);
}
