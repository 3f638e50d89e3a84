/* Makes the groups of replica stages, the shards of their state, and a step's gathers and reductions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/ring.h"
#include "planner/emit/pipeline_private.h"
#include "planner/emit/pipeline_state.h"
#include "planner/emit/share.h"

bool state_whole(const struct problem *p, const struct candidate *candidate)
{
    return p->workload->method == METHOD_LORA || candidate->whole || candidate->placement == PLACE_DATA;
}

bool state_table_apart(const struct problem *p, const struct candidate *candidate)
{
    return memory_trains_table(p) && p->blocks.tied && candidate->stage_count > 1;
}

enum memory_outside state_outside(const struct problem *p, const struct candidate *candidate, uint32_t stage)
{
    if (candidate->stages[stage].member_count < 2)
        return OUTSIDE_NONE;
    if (!state_whole(p, candidate))
        return OUTSIDE_TRAINED;
    return p->workload->method == METHOD_LORA && candidate_gathers(candidate) ? OUTSIDE_FROZEN : OUTSIDE_NONE;
}

double pipeline_state_bytes(const struct problem *p, const struct candidate *candidate, uint32_t stage)
{
    enum memory_outside outside = state_outside(p, candidate, stage);
    uint32_t groups = candidate_groups(candidate);
    double bytes = 0;
    for (uint32_t s = stage % groups; s < candidate->stage_count && outside != OUTSIDE_NONE; s += groups)
        bytes +=
            memory_shared_bytes(p, outside, candidate->stages[s].block_begin, candidate->stages[s].block_end);
    bool head = stage % groups + 1 == groups && groups > 1;
    return bytes + (head && outside == OUTSIDE_FROZEN ? (double)memory_head_table_bytes(p) : 0);
}

uint64_t state_rings(const struct problem *p, const struct candidate *candidate, uint32_t stage,
                     struct state_ring rings[RINGS])
{
    enum memory_outside outside = state_outside(p, candidate, stage);
    uint32_t groups = candidate_groups(candidate), least = candidate->gathered_layers;
    bool apart = outside == OUTSIDE_TRAINED && state_table_apart(p, candidate);
    uint64_t total = 0;
    for (int i = 0; i < RINGS; i++)
        rings[i] = (struct state_ring){.gathered = PLAN_NONE, .whole = PLAN_NONE};
    for (uint32_t s = stage % groups;
         s < candidate->stage_count && outside != OUTSIDE_NONE && candidate_gathers(candidate); s += groups) {
        const struct candidate_stage *x = &candidate->stages[s];
        uint32_t blocks = (uint32_t)(x->block_end - x->block_begin);
        least = blocks > least ? blocks : least; /* all blocks of a range are gathered at the same time */
        for (int32_t b = x->block_begin; b < x->block_end; b++) {
            struct state_ring *ring = &rings[b == 0 || b + 1 == p->block_count ? RING_EDGE : RING_LAYERS];
            uint64_t bytes = memory_gathered_bytes(p, b, b + 1);
            if (outside == OUTSIDE_FROZEN && b + 1 == p->block_count)
                bytes += memory_head_table_bytes(p); /* a head on another rank has a copy of the table */
            if (bytes == 0 || (b == 0 && apart))
                continue;
            ring->begin = ring->end == 0 ? b : ring->begin;
            ring->end = b + 1;
            ring->bytes = bytes > ring->bytes ? bytes : ring->bytes;
        }
    }
    for (int i = 0; i < RINGS; i++) {
        uint32_t blocks = (uint32_t)(rings[i].end - rings[i].begin);
        rings[i].places = blocks < least ? blocks : least;
        total += rings[i].places * footprint_counted(rings[i].bytes) * (outside == OUTSIDE_TRAINED ? 2 : 1);
    }
    return total;
}

/* --- groups and shares --- */

/* Fills a group with the first `count` members of one stage and all of another. */
static int ends_fill(struct plan_group *group, const struct candidate_stage *head, uint32_t count,
                     const struct candidate_stage *tail, struct err *err)
{
    if (plan_group_fill(group, head->member_first, count + tail->member_count, err) < 0)
        return -1;
    for (uint32_t i = 0; i < tail->member_count; i++)
        group->ranks[count + i] = tail->member_first + i;
    return 0;
}

int state_groups(struct pipeline_emitter *c)
{
    const struct candidate_stage *stages = c->candidate->stages, *head = &stages[0],
                                 *tail = &stages[c->stages - 1];
    struct plan_group *groups = c->plan->groups;
    for (uint32_t s = 0; s < c->groups && c->grouped; s++)
        if (plan_group_fill(&groups[1 + s], stages[s].member_first, stages[s].member_count, c->err) < 0)
            return -1;
    if (c->grouped && plan_group_fill(&groups[1 + c->groups], 0, c->groups, c->err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->groups && c->grouped; s++)
        groups[1 + c->groups].ranks[s] = stages[s].member_first;
    for (uint32_t s = 0; s < c->stages; s++) {
        int32_t group = state_layer_group(c, (int32_t)s);
        if (group >= 0 && plan_group_fill(&groups[group], stages[s].member_first, 2, c->err) < 0)
            return -1;
    }
    if (c->table_group < 0)
        return 0;
    uint32_t keepers =
        c->shards ? head->member_count : 1; /* if members keep whole state, one member sends the table */
    if (ends_fill(&groups[c->table_group], head, keepers, tail, c->err) < 0)
        return -1;
    return c->table_sum < 0 ? 0 : ends_fill(&groups[c->table_sum], head, head->member_count, tail, c->err);
}

int32_t state_layer_group(const struct pipeline_emitter *c, int32_t s)
{
    int32_t group = c->layer_groups;
    if (candidate_next_count(c->candidate, s) == 0)
        return PLAN_NONE;
    for (int32_t before = 0; before < s; before++)
        group += candidate_next_count(c->candidate, before) > 0;
    return group;
}

double state_share_of(const struct pipeline_emitter *c, uint32_t r)
{
    const struct candidate_stage *stage = stage_of(c, r);
    const double *shares = stage->member_count > 1 ? c->plan->groups[1 + c->first_stage[r]].shares : NULL;
    return shares ? shares[r - stage->member_first] : 1;
}

struct flat_share state_part_of(const struct pipeline_emitter *c, uint32_t r)
{
    const struct candidate_stage *stage = stage_of(c, r);
    const double *shares = stage->member_count > 1 ? c->plan->groups[1 + c->first_stage[r]].shares : NULL;
    return shares ? flat_share_of(stage->member_count, shares, r - stage->member_first)
                  : (struct flat_share){0, 1};
}

int state_table_shares(struct pipeline_emitter *c)
{
    if (c->table_group < 0)
        return 0;
    struct plan_group *table = &c->plan->groups[c->table_group];
    const struct candidate_stage *head = &c->candidate->stages[0];
    table->shares = calloc(table->rank_count, sizeof(*table->shares));
    if (!table->shares)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < head->member_count && (c->shards || i == 0); i++)
        table->shares[i] = c->shards ? state_share_of(c, head->member_first + i) : 1;
    return 0;
}

int state_share_out(struct pipeline_emitter *c, uint32_t s, const double *room)
{
    const struct problem *p = c->problem;
    const struct candidate_stage *stage = &c->candidate->stages[s];
    uint32_t count = stage->member_count;
    double *shares = c->plan->groups[1 + s].shares = calloc(count, sizeof(*shares));
    struct share_member *members = arena_get(&c->arena, count, sizeof(*members));
    uint32_t *devices = arena_get(&c->arena, count, sizeof(*devices));
    double state = pipeline_state_bytes(p, c->candidate, s), slack = 0;
    if (!shares || c->arena.failed)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t lap = s; lap < c->stages; lap += c->groups)
        slack += (double)memory_share_slack(p, c->candidate->stages[lap].block_begin,
                                            c->candidate->stages[lap].block_end);
    for (uint32_t i = 0; i < count; i++) {
        devices[i] = c->candidate->members[stage->member_first + i].device;
        members[i] = (struct share_member){.room = (room[i] - slack) / state, .bytes_per_s = INFINITY};
        for (uint32_t lap = s; lap < c->stages; lap += c->groups)
            members[i].step_s += problem_step_seconds(p, devices[i], c->candidate->stages[lap].block_begin,
                                                      c->candidate->stages[lap].block_end);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate = ring_hop(p->cluster, devices, NULL, count, i, &latency);
        members[i].bytes_per_s = fmin(members[i].bytes_per_s, rate);
        members[next].bytes_per_s = fmin(members[next].bytes_per_s, rate);
    }
    return share_state(members, count, SHARE_FOR_LINKS, shares)
               ? 0
               : err_set(c->err, ERR_NOFIT,
                         "the %u members of stage %u have no room for its state of %.0f bytes", count, s,
                         state);
}

/* --- slots and instructions --- */

static int32_t place_add(struct plan_rank *rank, int kind, const struct state_exchange *x, uint64_t bytes)
{
    int32_t slot = plan_rank_fixed_slot(rank, kind, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, bytes);
    if (slot >= 0) {
        rank->slots[slot].block_begin = x->begin;
        rank->slots[slot].block_end = x->end;
    }
    return slot;
}

/* Adds a slot for gathered weights and one for unreduced gradients. */
static void places_add(const struct pipeline_emitter *c, struct plan_rank *rank, struct state_exchange *x)
{
    bool table = x == &c->exchange[0];
    x->gathered = place_add(rank, SLOT_GATHERED, x,
                            table ? memory_table_bytes(c->problem)
                                  : memory_gathered_bytes(c->problem, x->begin, x->end));
    x->whole = place_add(rank, SLOT_GRADIENTS, x, memory_trained_bytes(c->problem, x->begin, x->end));
}

/* Adds the slots for blocks that are gathered one by one. */
static void rings_add(struct pipeline_emitter *c, struct plan_rank *rank, uint64_t frozen_bytes)
{
    int32_t *freed = c->freed;
    state_rings(c->problem, c->candidate, (uint32_t)rank->stage, c->rings);
    c->base = c->values;
    if (!c->shards)
        c->base = plan_rank_fixed_slot(rank, SLOT_PARAMETERS, SLOT_FOR_RUN, PURPOSE_WEIGHTS, frozen_bytes);
    for (int i = 0; i < RINGS; i++) {
        struct state_ring *ring = &c->rings[i];
        struct plan_slot slot = {.kind = SLOT_GATHERED,
                                 .purpose = PURPOSE_BUFFERS,
                                 .ring_blocks = ring->places,
                                 .block_begin = ring->begin,
                                 .block_end = ring->end,
                                 .bytes_fixed = ring->bytes};
        ring->freed = freed;
        freed += 2 * ring->places;
        if (ring->places == 0)
            continue;
        ring->gathered = plan_rank_slot(rank, &slot);
        slot.kind = SLOT_GRADIENTS;
        ring->whole = c->shards ? plan_rank_slot(rank, &slot) : PLAN_NONE;
    }
}

int state_slots(struct pipeline_emitter *c, uint32_t r, const struct memory_need *need)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    bool first = rank->block_begin == 0, last = rank->block_end == c->problem->block_count;
    bool apart = c->table_group >= 0, sharded = c->shards && stage_of(c, r)->member_count > 1;
    uint64_t kept = need->purpose[PURPOSE_ADAPTERS];
    struct state_exchange *table = &c->exchange[0], *own = &c->exchange[1];
    *table = *own = (struct state_exchange){PLAN_NONE, 0, 1, PLAN_NONE, PLAN_NONE};
    memset(c->rings, 0, sizeof(c->rings));
    if (!c->full && !apart) {
        if (rank_gathers(c, r))
            rings_add(c, rank, need->kept_values);
        return plan_rank_slots_made(rank, c->err);
    }
    uint64_t steps_with = rank->slots[c->gradients].bytes_bound;
    c->values = plan_rank_fixed_slot(rank, SLOT_PARAMETERS, SLOT_FOR_RUN, PURPOSE_ADAPTERS,
                                     kept > steps_with ? kept - steps_with : 0);
    rank->owns_tied = apart && first;
    rank->copies_tied = apart && last;
    own->begin = rank->owns_tied ? 1 : rank->block_begin;
    own->end = rank->block_end;
    if (sharded && own->begin < own->end && !rank_gathers(c, r)) {
        own->group = 1 + rank->stage;
        places_add(c, rank, own);
    }
    if (last || (first && (c->shards || r == stage_of(c, r)->member_first)))
        table->group = c->table_group;
    if (rank->copies_tied || (sharded && rank->owns_tied))
        places_add(c, rank, table);
    if (rank_gathers(c, r))
        rings_add(c, rank, need->kept_values);
    return plan_rank_slots_made(rank, c->err);
}

static int32_t exchange_add_after(struct program_builder *b, enum instr_op op, const struct state_exchange *x,
                                  int32_t in, int32_t out, const int32_t after[2])
{
    struct instr instr = instr_at(op, PLAN_NONE, x->begin, x->end);
    instr.group = op == INSTR_RELEASE ? PLAN_NONE : x->group;
    instr.tag = op == INSTR_ALL_GATHER       ? TAG_PARAMETERS
                : op == INSTR_REDUCE_SCATTER ? TAG_PARAMETER_GRADIENTS
                                             : TAG_NONE;
    instr.slot_in = in;
    instr.slot_out = out;
    instr.flags = op == INSTR_REDUCE_SCATTER && in != out ? FLAG_FREES_IN : 0;
    return program_add(b, &instr, after, 2);
}

static int32_t exchange_add(struct program_builder *b, enum instr_op op, const struct state_exchange *x,
                            int32_t in, int32_t out, int32_t after)
{
    const int32_t waits[2] = {after, PLAN_NONE};
    return exchange_add_after(b, op, x, in, out, waits);
}

void state_fetch(const struct pipeline_emitter *c, struct program_builder *b, int32_t came[2], int32_t *gave)
{
    *gave = PLAN_NONE;
    for (int i = 0; i < 2; i++) {
        const struct state_exchange *x = &c->exchange[i];
        int32_t done = x->group < 0 ? PLAN_NONE
                                    : exchange_add(b, INSTR_ALL_GATHER, x, c->values, x->gathered, PLAN_NONE);
        came[i] = x->gathered < 0 ? PLAN_NONE : done;
        *gave = x->gathered < 0 && done >= 0 ? done : *gave;
    }
}

void state_release(const struct pipeline_emitter *c, struct program_builder *b, const int32_t came[2])
{
    for (int i = 0; i < 2; i++)
        if (c->exchange[i].gathered >= 0)
            exchange_add(b, INSTR_RELEASE, &c->exchange[i], c->exchange[i].gathered, PLAN_NONE, came[i]);
}

size_t state_freed_count(const struct pipeline_emitter *c)
{
    return 2 * ((size_t)c->problem->block_count + 1);
}

static struct state_ring *ring_of_block(struct pipeline_emitter *c, int32_t block)
{
    for (int i = 0; i < RINGS; i++)
        if (c->rings[i].places > 0 && block >= c->rings[i].begin && block < c->rings[i].end)
            return &c->rings[i];
    return NULL;
}

/* Returns the entry for the instruction that last freed the block's buffer of weights, or (`sums`) of
 * gradients. */
static int32_t *freed_of(const struct state_ring *ring, int32_t block, bool sums)
{
    return &ring->freed[sums * ring->places + (uint32_t)(block - ring->begin) % ring->places];
}

static struct state_exchange block_exchange(const struct pipeline_emitter *c, uint32_t stage, int32_t block)
{
    return (struct state_exchange){1 + (int32_t)(stage % c->groups), block, block + 1, PLAN_NONE, PLAN_NONE};
}

int32_t state_ring_fetch(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage)
{
    const struct candidate_stage *range = &c->candidate->stages[stage];
    int32_t last = PLAN_NONE;
    for (int32_t block = range->block_begin; block < range->block_end; block++) {
        struct state_ring *ring = ring_of_block(c, block);
        struct state_exchange x = block_exchange(c, stage, block);
        if (ring)
            last =
                exchange_add(b, INSTR_ALL_GATHER, &x, c->base, ring->gathered, *freed_of(ring, block, false));
    }
    return last;
}

void state_ring_release(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage, int32_t came)
{
    const struct candidate_stage *range = &c->candidate->stages[stage];
    for (int32_t block = range->block_begin; block < range->block_end; block++) {
        struct state_ring *ring = ring_of_block(c, block);
        struct state_exchange x = block_exchange(c, stage, block);
        if (ring)
            *freed_of(ring, block, false) =
                exchange_add(b, INSTR_RELEASE, &x, ring->gathered, PLAN_NONE, came);
    }
}

int32_t state_ring_reduce(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage,
                          int32_t after)
{
    const struct candidate_stage *range = &c->candidate->stages[stage];
    int32_t last = PLAN_NONE;
    for (int32_t block = range->block_begin; block < range->block_end && c->shards; block++) {
        struct state_ring *ring = ring_of_block(c, block);
        struct state_exchange x = block_exchange(c, stage, block);
        if (ring)
            last = *freed_of(ring, block, true) =
                exchange_add(b, INSTR_REDUCE_SCATTER, &x, ring->whole, c->gradients, after);
    }
    return last;
}

int32_t state_ring_room(struct pipeline_emitter *c, uint32_t stage)
{
    const struct candidate_stage *range = &c->candidate->stages[stage];
    int32_t last = PLAN_NONE;
    for (int32_t block = range->block_begin; block < range->block_end; block++) {
        struct state_ring *ring = ring_of_block(c, block);
        int32_t freed = ring ? *freed_of(ring, block, true) : PLAN_NONE;
        last = freed > last ? freed : last;
    }
    return last;
}

/* For replicas: adds the all-reduce of the blocks' gradients over a group. If `whole` is not PLAN_NONE, it is
 * the slot of unreduced gradients of a copied table, whose sum this rank does not need. */
static int32_t pipeline_state_sum_add(const struct pipeline_emitter *c, struct program_builder *b,
                                      int32_t group, int32_t whole, int32_t begin, int32_t end, int32_t after)
{
    struct instr x = instr_at(INSTR_ALL_REDUCE, PLAN_NONE, begin, end);
    x.group = group;
    x.tag = TAG_PARAMETER_GRADIENTS;
    x.slot_in = whole >= 0 ? whole : c->gradients;
    x.slot_out = whole >= 0 ? PLAN_NONE : c->gradients;
    x.flags = whole >= 0 ? FLAG_FREES_IN : 0;
    return program_add(b, &x, &after, 1);
}

static int32_t replicas_reduce(const struct pipeline_emitter *c, struct program_builder *b, uint32_t r,
                               int32_t after)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct state_exchange *table = &c->exchange[0];
    bool shared = stage_of(c, r)->member_count > 1, end = rank->owns_tied || rank->copies_tied;
    int32_t group = 1 + rank->stage, begin = 0,
            after_last = 0; /* 0: such an instruction names no blocks, which means all blocks of the rank */
    if (c->table_sum >= 0 && end)
        after = pipeline_state_sum_add(c, b, c->table_sum, table->whole, 0, 1, after);
    else if (table->group >= 0)
        after = exchange_add(b, INSTR_REDUCE_SCATTER, table, table->whole >= 0 ? table->whole : c->gradients,
                             c->gradients, after);
    if (c->table_sum >= 0 && rank->owns_tied) {
        begin = 1;
        after_last = rank->block_end;
        shared = shared && begin < after_last;
    }
    for (int32_t s = rank->stage - 1; s <= rank->stage; s++) { /* layers that two stages share */
        int32_t two = state_layer_group(c, s), layer = two >= 0 ? c->candidate->stages[s].block_end : 0;
        after = two >= 0 ? pipeline_state_sum_add(c, b, two, PLAN_NONE, layer, layer + 1, after) : after;
    }
    return shared ? pipeline_state_sum_add(c, b, group, PLAN_NONE, begin, after_last, after) : after;
}

void state_reduce(const struct pipeline_emitter *c, struct program_builder *b, uint32_t r, int32_t after[2])
{
    if (!c->shards)
        after[0] = replicas_reduce(c, b, r, after[0]);
    /* Reduces the blocks' gradients first and then the tied table's, because both reductions write to the
     * buffer of the rank's own gradients. A rank that keeps the whole table already has its own gradients of
     * the table in that buffer. */
    for (int i = 2; i-- > 0 && c->shards;) {
        const struct state_exchange *x = &c->exchange[i];
        if (x->group < 0)
            continue;
        after[0] = exchange_add_after(b, INSTR_REDUCE_SCATTER, x, x->whole >= 0 ? x->whole : c->gradients,
                                      c->gradients, after);
        after[1] = PLAN_NONE;
    }
}

/* --- seconds of the exchanges --- */

/* Appends a stage's devices and their shares of its state. */
static void members_add(const struct candidate *candidate, uint32_t s, bool keeps, uint32_t *devices,
                        double *shares, uint32_t *count)
{
    const struct candidate_stage *stage = &candidate->stages[s];
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

/* Adds the seconds of gathering blocks [begin, end) before a step and scattering their gradients after it,
 * over a ring of `count` devices. */
static void moves_add(const struct problem *p, const struct ring_figures *ring, uint32_t count, int32_t begin,
                      int32_t end, struct pipeline_sync *sync)
{
    double hops = count > 1 ? (count - 1) * ring->latency_s : 0;
    sync->before_s += ring->gather_s * (double)memory_gathered_bytes(p, begin, end) + hops;
    sync->after_s += ring->scatter_s * (double)memory_trained_bytes(p, begin, end) + hops;
}

/* Adds the collectives of a trained tied embedding over the first and the last stage; devices and shares
 * have room for all devices. */
static void table_syncs(const struct problem *p, const struct candidate *candidate, uint32_t *devices,
                        double *shares, struct pipeline_sync *syncs)
{
    uint32_t last = candidate->stage_count - 1, count = 0, keepers = candidate->stages[0].member_count;
    bool replicas = state_whole(p, candidate) && candidate->member_count > candidate_groups(candidate);
    double sum_s = 0;
    members_add(candidate, 0, true, devices, shares, &count);
    members_add(candidate, last, false, devices, shares, &count);
    struct ring_figures ring = ring_figures(p->cluster, devices, NULL, shares, count);
    if (replicas) { /* all-reduce of the gradients over all ranks with the table; broadcast of the values from
                       one */
        sum_s = 2 * ring_pass_seconds(&ring, count, (double)memory_gradient_bytes(p, 0, 1));
        devices += keepers - 1;
        shares += keepers - 1;
        count -= keepers - 1;
        devices[0] = candidate->members[candidate->stages[0].member_first].device;
        shares[0] = 1;
        ring = ring_figures(p->cluster, devices, NULL, shares, count);
    }
    double hops = count > 1 ? (count - 1) * ring.latency_s : 0;
    double before_s = ring.gather_s * (double)memory_table_bytes(p) + hops;
    double after_s = replicas ? sum_s : ring.scatter_s * (double)memory_gradient_bytes(p, 0, 1) + hops;
    /* The first stage gathers the embedding table only if its members keep parts of it. */
    bool shards = !state_whole(p, candidate) && keepers > 1;
    syncs[0].before_s += shards ? before_s : 0;
    syncs[last].before_s += before_s;
    syncs[0].after_s += after_s;
    syncs[last].after_s += after_s;
}

/* Adds the seconds of gathers and reductions among the members of one stage, with their `devices` and
 * `shares`. */
static void stage_sync(const struct problem *p, const struct candidate *candidate, uint32_t s,
                       const uint32_t *devices, const double *shares, struct pipeline_sync *sync)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    uint32_t count = stage->member_count;
    bool shards = !state_whole(p, candidate), apart = state_table_apart(p, candidate);
    struct ring_figures ring = ring_figures(p->cluster, devices, NULL, shares, count);
    *sync = (struct pipeline_sync){0};
    for (uint32_t m = 0; m < count; m++)
        sync->update_s = fmax(sync->update_s, (shards ? shares[m] : 1) *
                                                  problem_step_seconds(p, devices[m], stage->block_begin,
                                                                       candidate_stage_end(candidate, s)));
    if (count > 1 && shards) {
        moves_add(p, &ring, count, apart && s == 0 ? 1 : stage->block_begin, stage->block_end, sync);
    } else if (count > 1) {
        int32_t begin = apart && s == 0 ? 1 : stage->block_begin; /* table_syncs has the table's seconds */
        double bytes = (double)memory_gradient_bytes(p, begin, stage->block_end);
        if (begin < stage->block_end)
            sync->after_s = 2 * ring_pass_seconds(&ring, count, bytes);
        sync->update_s +=
            (ceil(log2(count + 1.0)) - 1) * (ring.latency_s + sizeof(double) / ring.bytes_per_s);
    }
}

/* Adds the all-reduce of the layer that stages s and s + 1 share. */
static void layer_sync(const struct problem *p, const struct candidate *candidate, uint32_t s,
                       struct pipeline_sync *syncs)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    const uint32_t devices[] = {candidate->members[stage[0].member_first].device,
                                candidate->members[stage[1].member_first].device};
    const double shares[] = {1, 1};
    struct ring_figures ring = ring_figures(p->cluster, devices, NULL, shares, 2);
    double bytes = (double)memory_gradient_bytes(p, stage->block_end, stage->block_end + 1);
    for (uint32_t i = s; i <= s + 1; i++)
        syncs[i].after_s += 2 * ring_pass_seconds(&ring, 2, bytes);
}

/* Adds the seconds of all-reducing the clip norm over a tree of all ranks, or (LoRA in groups) of the stages'
 * first members: a rank's path to the root and back. */
static void norm_add(const struct problem *p, const struct candidate *candidate, struct pipeline_sync *syncs)
{
    const struct candidate_stage *stages = candidate->stages;
    const struct member *members = candidate->members;
    uint32_t groups = candidate_groups(candidate);
    bool firsts = state_whole(p, candidate) && candidate->member_count > groups;
    uint32_t count = firsts ? groups : candidate->member_count;
    double worst = 0;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t a = firsts ? stages[i].member_first : i;
        uint32_t b = firsts ? stages[(i + 1) % count].member_first : (i + 1) % count;
        worst = fmax(worst, problem_link(p, members[a].device, members[b].device).latency_s);
    }
    for (uint32_t s = 0; s < candidate->stage_count; s++) {
        uint32_t position = firsts ? s % groups : stages[s].member_first + stages[s].member_count - 1;
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
    for (uint32_t s = 0; s < last && result == 0; s++)
        if (candidate_next_count(candidate, (int32_t)s) > 0)
            layer_sync(p, candidate, s, syncs);
    if (result == 0 && state_table_apart(p, candidate))
        table_syncs(p, candidate, devices, shares, syncs);
    if (result == 0)
        norm_add(p, candidate, syncs);
    free(devices);
    free(shares);
    return result;
}
