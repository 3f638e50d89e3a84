/* Groups of replica stages, their state in shards, and what comes and goes in a step. */
#include <math.h>
#include <stdlib.h>

#include "planner/cost/ring.h"
#include "planner/emit/pipeline_private.h"
#include "planner/emit/share.h"

#define ROUNDING_BYTES 8192 /* a member's needs are rounded up to granules (cost/memory.c) */

bool state_table_apart(const struct problem *p, const struct candidate *candidate)
{
    return p->workload->method == METHOD_FULL && p->blocks.tied && candidate->stage_count > 1;
}

double pipeline_state_bytes(const struct problem *p, const struct stage *stage)
{
    return memory_state_bytes(p) * (double)memory_trained(p, stage->block_begin, stage->block_end);
}

/* --- groups and shares --- */

static int group_fill(struct plan_group *group, uint32_t first, uint32_t count, uint32_t room,
                      struct err *err)
{
    group->ranks = calloc(room, sizeof(*group->ranks));
    if (!group->ranks)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    group->rank_count = room;
    for (uint32_t i = 0; i < count; i++)
        group->ranks[i] = first + i;
    return 0;
}

int state_groups(struct emitter *c)
{
    const struct stage *stages = c->candidate->stages, *head = &stages[0], *tail = &stages[c->stages - 1];
    struct plan_group *groups = c->plan->groups;
    for (uint32_t s = 0; s < c->stages && c->grouped; s++) {
        if (group_fill(&groups[1 + s], stages[s].member_first, stages[s].member_count, stages[s].member_count,
                       c->err) < 0)
            return -1;
    }
    if (c->grouped && group_fill(&groups[1 + c->stages], 0, 0, c->stages, c->err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->stages && c->grouped; s++)
        groups[1 + c->stages].ranks[s] = stages[s].member_first;
    if (c->table_group < 0)
        return 0;
    struct plan_group *table = &groups[c->table_group];
    if (group_fill(table, head->member_first, head->member_count, head->member_count + tail->member_count,
                   c->err) < 0)
        return -1;
    for (uint32_t i = 0; i < tail->member_count; i++)
        table->ranks[head->member_count + i] = tail->member_first + i;
    return 0;
}

double state_share_of(const struct emitter *c, uint32_t r)
{
    const struct stage *stage = stage_of(c, r);
    const double *shares = stage->member_count > 1 ? c->plan->groups[1 + c->first_stage[r]].shares : NULL;
    return shares ? shares[r - stage->member_first] : 1;
}

int state_table_shares(struct emitter *c)
{
    if (c->table_group < 0)
        return 0;
    struct plan_group *table = &c->plan->groups[c->table_group];
    const struct stage *head = &c->candidate->stages[0];
    table->shares = calloc(table->rank_count, sizeof(*table->shares));
    if (!table->shares)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < head->member_count; i++)
        table->shares[i] = state_share_of(c, head->member_first + i);
    return 0;
}

int pipeline_stage_share(const struct problem *p, const struct candidate *candidate, uint32_t s,
                         const double *room, double *shares, struct err *err)
{
    const struct stage *stage = &candidate->stages[s];
    uint32_t count = stage->member_count;
    struct share_member *members = calloc((size_t)count + 1, sizeof(*members));
    uint32_t *devices = calloc((size_t)count + 1, sizeof(*devices));
    double state = pipeline_state_bytes(p, stage);
    int result = members && devices ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && result == 0; i++) {
        devices[i] = candidate->members[stage->member_first + i].device;
        members[i] = (struct share_member){
            .room = (room[i] - ROUNDING_BYTES) / state,
            .bytes_per_s = INFINITY,
            .step_s = problem_step_seconds(p, devices[i], stage->block_begin, stage->block_end)};
    }
    for (uint32_t i = 0; i < count && count > 1 && result == 0; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate = ring_hop(p->cluster, devices, NULL, count, i, &latency);
        members[i].bytes_per_s = fmin(members[i].bytes_per_s, rate);
        members[next].bytes_per_s = fmin(members[next].bytes_per_s, rate);
    }
    if (result == 0 && !share_state(members, count, SHARE_FOR_LINKS, shares))
        result =
            err_set(err, ERR_NOFIT, "the %u members of stage %u have no room for its state of %.0f bytes",
                    count, s, state);
    free(members);
    free(devices);
    return result;
}

/* --- slots and instructions --- */

static int32_t place_add(struct plan_rank *rank, int kind, int32_t begin, int32_t end, uint64_t bytes)
{
    int32_t slot =
        plan_rank_fixed_slot(rank, kind, SLOT_FOR_INSTRUCTIONS, SLOT_ON_DEVICE, PURPOSE_BUFFERS, bytes);
    if (slot >= 0) {
        rank->slots[slot].block_begin = begin;
        rank->slots[slot].block_end = end;
    }
    return slot;
}

/* A place for gathered weights and one for the whole gradients of blocks [begin, end). */
static int places_add(const struct emitter *c, struct plan_rank *rank, int32_t begin, int32_t end,
                      int32_t *gathered, int32_t *whole)
{
    *gathered = place_add(rank, SLOT_GATHERED, begin, end, memory_gathered_bytes(c->problem, begin, end));
    *whole = place_add(rank, SLOT_GRADIENTS, begin, end, memory_gradient_bytes(c->problem, begin, end));
    return *gathered < 0 || *whole < 0 ? -1 : 0;
}

int state_slots(struct emitter *c, uint32_t r, uint64_t kept)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    const struct stage *stage = stage_of(c, r);
    uint64_t steps_with = rank->slots[c->gradients].bytes_bound;
    bool apart = c->table_group >= 0, first = rank->block_begin == 0,
         last = rank->block_end == c->problem->block_count, sharded = stage->member_count > 1;
    struct state *st = &c->state;
    int failed = 0;
    rank->owns_tied = apart && first;
    rank->copies_tied = apart && last;
    *st = (struct state){.begin = apart && first ? 1 : rank->block_begin,
                         .end = rank->block_end,
                         .group = sharded ? 1 + rank->stage : PLAN_NONE,
                         .table_group = first || last ? c->table_group : PLAN_NONE,
                         .gathered = PLAN_NONE,
                         .whole = PLAN_NONE,
                         .table = PLAN_NONE,
                         .table_whole = PLAN_NONE};
    st->values = plan_rank_fixed_slot(rank, SLOT_PARAMETERS, SLOT_FOR_RUN, SLOT_ON_DEVICE, PURPOSE_ADAPTERS,
                                      kept > steps_with ? kept - steps_with : 0);
    if (sharded && st->begin < st->end)
        failed = places_add(c, rank, st->begin, st->end, &st->gathered, &st->whole);
    if (!failed && (rank->copies_tied || (sharded && st->table_group >= 0)))
        failed = places_add(c, rank, 0, 1, &st->table, &st->table_whole);
    return st->values < 0 || failed ? err_set(c->err, ERR_NOMEM, "planner: out of memory") : 0;
}

static int32_t collective_add(struct program_builder *b, enum instr_op op, int32_t group, int32_t begin,
                              int32_t end, int32_t in, int32_t out, bool frees, int32_t after)
{
    struct instr x = instr_init(op, QUEUE_GROUP);
    x.group = group;
    x.tag = op == OP_ALL_GATHER ? TAG_PARAMETERS : TAG_PARAMETER_GRADIENTS;
    x.block_begin = begin;
    x.block_end = end;
    x.slot_in = in;
    x.slot_out = out;
    x.flags = frees ? INSTR_FREES_IN : 0;
    return program_add(b, &x, &after, 1);
}

void state_fetch(const struct emitter *c, struct program_builder *b, int32_t came[2])
{
    const struct state *st = &c->state;
    came[0] = came[1] = PLAN_NONE;
    if (c->full && st->table_group >= 0)
        came[0] =
            collective_add(b, OP_ALL_GATHER, st->table_group, 0, 1, st->values, st->table, false, PLAN_NONE);
    if (c->full && st->gathered >= 0)
        came[1] = collective_add(b, OP_ALL_GATHER, st->group, st->begin, st->end, st->values, st->gathered,
                                 false, PLAN_NONE);
}

static void release_add(struct program_builder *b, int32_t slot, int32_t begin, int32_t end, int32_t after)
{
    struct instr x = instr_init(OP_RELEASE, QUEUE_COMPUTE);
    x.slot_in = slot;
    x.block_begin = begin;
    x.block_end = end;
    program_add(b, &x, &after, 1);
}

void state_release(const struct emitter *c, struct program_builder *b, const int32_t came[2])
{
    const struct state *st = &c->state;
    if (c->full && st->table >= 0)
        release_add(b, st->table, 0, 1, came[0]);
    if (c->full && st->gathered >= 0)
        release_add(b, st->gathered, st->begin, st->end, came[1]);
}

void state_reduce(const struct emitter *c, struct program_builder *b, int32_t after, int32_t left[2])
{
    const struct state *st = &c->state;
    left[0] = left[1] = PLAN_NONE;
    if (st->whole >= 0)
        left[0] = collective_add(b, OP_REDUCE_SCATTER, st->group, st->begin, st->end, st->whole, c->gradients,
                                 true, after);
    /* after the other: both end where the rank's gradients are. Who keeps the whole table has its own
     * gradients of it in place. */
    if (st->table_group >= 0)
        left[1] = collective_add(b, OP_REDUCE_SCATTER, st->table_group, 0, 1,
                                 st->table_whole >= 0 ? st->table_whole : c->gradients, c->gradients,
                                 st->table_whole >= 0, left[0] >= 0 ? left[0] : after);
}

/* --- what that takes --- */

/* A ring of devices with their shares of what is gathered: seconds a byte of gathering, scattering and of its
 * slowest link, and the worst latency. */
struct ring_cost {
    double gather_s, scatter_s, byte_s, latency_s;
};

static struct ring_cost ring_cost(const struct problem *p, const uint32_t *devices, const double *shares,
                                  uint32_t count)
{
    struct ring_cost ring = {0};
    for (uint32_t i = 0; i < count && count > 1; i++) {
        double latency, rate = ring_hop(p->cluster, devices, NULL, count, i, &latency);
        ring.latency_s = fmax(ring.latency_s, latency);
        ring.byte_s = fmax(ring.byte_s, 1 / rate);
        ring.gather_s = fmax(ring.gather_s, (1 - shares[(i + 1) % count]) / rate);
        ring.scatter_s = fmax(ring.scatter_s, (1 - shares[i]) / rate);
    }
    return ring;
}

/* Appends a stage's devices and the shares of its state that they keep. */
static void members_add(const struct candidate *candidate, uint32_t s, bool keeps, uint32_t *devices,
                        double *shares, uint32_t *count)
{
    const struct stage *stage = &candidate->stages[s];
    const struct member *members = &candidate->members[stage->member_first];
    double sum = 0;
    for (uint32_t m = 0; m < stage->member_count; m++)
        sum += members[m].state_share;
    bool said = fabs(sum - 1) < 1e-6;
    for (uint32_t m = 0; m < stage->member_count; m++) {
        devices[*count] = members[m].device;
        shares[(*count)++] = !keeps ? 0 : said ? members[m].state_share : 1.0 / stage->member_count;
    }
}

/* Blocks [begin, end) gathered before and scattered after, over a ring of `count`. */
static void moves_add(const struct problem *p, const struct ring_cost *ring, uint32_t count, int32_t begin,
                      int32_t end, struct pipeline_sync *sync)
{
    double hops = count > 1 ? (count - 1) * ring->latency_s : 0;
    sync->before_s += ring->gather_s * (double)memory_gathered_bytes(p, begin, end) + hops;
    sync->after_s += ring->scatter_s * (double)memory_gradient_bytes(p, begin, end) + hops;
}

/* A stage by itself: `devices` and `shares` of its `count` members. */
static void stage_sync(const struct problem *p, const struct candidate *candidate, uint32_t s,
                       const uint32_t *devices, const double *shares, struct pipeline_sync *sync)
{
    const struct stage *stage = &candidate->stages[s];
    uint32_t count = stage->member_count;
    bool full = p->workload->method == METHOD_FULL, apart = state_table_apart(p, candidate);
    struct ring_cost ring = ring_cost(p, devices, shares, count);
    *sync = (struct pipeline_sync){0};
    for (uint32_t m = 0; m < count; m++)
        sync->update_s = fmax(sync->update_s,
                              (full ? shares[m] : 1) *
                                  problem_step_seconds(p, devices[m], stage->block_begin, stage->block_end));
    if (count > 1 && full) {
        moves_add(p, &ring, count, apart && s == 0 ? 1 : stage->block_begin, stage->block_end, sync);
    } else if (count > 1) {
        double bytes = (double)memory_gradient_bytes(p, stage->block_begin, stage->block_end);
        sync->after_s = 2 * (count - 1) * (bytes * ring.byte_s / count + ring.latency_s);
        sync->update_s += (ceil(log2(count + 1.0)) - 1) * (ring.latency_s + sizeof(double) * ring.byte_s);
    }
}

/* The norm goes up and down a tree over all ranks, or (LoRA in groups) over the stages' first members: a
 * position's way to the root and back. */
static void norm_add(const struct problem *p, const struct candidate *candidate, struct pipeline_sync *syncs)
{
    const struct stage *stages = candidate->stages;
    const struct member *members = candidate->members;
    bool firsts = p->workload->method != METHOD_FULL && candidate->member_count > candidate->stage_count;
    uint32_t count = firsts ? candidate->stage_count : candidate->member_count;
    double worst = 0;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t a = firsts ? stages[i].member_first : i;
        uint32_t b = firsts ? stages[(i + 1) % count].member_first : (i + 1) % count;
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, members[a].device, members[b].device, &latency, &rate, &emulated);
        worst = fmax(worst, latency);
    }
    for (uint32_t s = 0; s < candidate->stage_count; s++) {
        uint32_t position = firsts ? s : stages[s].member_first + stages[s].member_count - 1;
        syncs[s].after_s += 2 * floor(log2(position + 1.0)) * worst;
    }
}

int pipeline_syncs(const struct problem *p, const struct candidate *candidate, struct pipeline_sync *syncs,
                   struct err *err)
{
    uint32_t last = candidate->stage_count - 1, count = 0;
    size_t room = (size_t)candidate->member_count + 1;
    uint32_t *devices = calloc(room, sizeof(*devices));
    double *shares = calloc(room, sizeof(*shares));
    int result = devices && shares ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s <= last && result == 0; s++) {
        count = 0;
        members_add(candidate, s, true, devices, shares, &count);
        stage_sync(p, candidate, s, devices, shares, &syncs[s]);
    }
    if (result == 0 && state_table_apart(p, candidate)) { /* one collective of the first and the last stage */
        count = 0;
        members_add(candidate, 0, true, devices, shares, &count);
        members_add(candidate, last, false, devices, shares, &count);
        struct ring_cost ring = ring_cost(p, devices, shares, count);
        moves_add(p, &ring, count, 0, 1, &syncs[0]);
        moves_add(p, &ring, count, 0, 1, &syncs[last]);
    }
    if (result == 0)
        norm_add(p, candidate, syncs);
    free(devices);
    free(shares);
    return result;
}
