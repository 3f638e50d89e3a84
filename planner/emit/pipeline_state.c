/* Groups of replica stages, their sharded state, and its gathers and reductions in a step. */
#include <math.h>
#include <stdlib.h>

#include "planner/cost/ring.h"
#include "planner/emit/pipeline_private.h"
#include "planner/emit/pipeline_state.h"
#include "planner/emit/share.h"

#define ROUNDING_BYTES 8192 /* a member's memory is rounded up to granules (cost/memory.c) */

bool state_whole(const struct problem *p, const struct candidate *candidate)
{
    return p->workload->method == METHOD_LORA || candidate->whole || candidate->placement == PLACE_DATA;
}

bool state_table_apart(const struct problem *p, const struct candidate *candidate)
{
    return memory_trains_table(p) && p->blocks.tied && candidate->stage_count > 1;
}

double pipeline_state_bytes(const struct problem *p, const struct candidate_stage *stage)
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

/* A group of the first `count` members of one stage and all of another. */
static int ends_fill(struct plan_group *group, const struct candidate_stage *head, uint32_t count,
                     const struct candidate_stage *tail, struct err *err)
{
    if (group_fill(group, head->member_first, count, count + tail->member_count, err) < 0)
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
    uint32_t keepers = c->shards ? head->member_count : 1; /* of replicas one sends the table */
    if (ends_fill(&groups[c->table_group], head, keepers, tail, c->err) < 0)
        return -1;
    return c->table_sum < 0 ? 0 : ends_fill(&groups[c->table_sum], head, head->member_count, tail, c->err);
}

double state_share_of(const struct pipeline_emitter *c, uint32_t r)
{
    const struct candidate_stage *stage = stage_of(c, r);
    const double *shares = stage->member_count > 1 ? c->plan->groups[1 + c->first_stage[r]].shares : NULL;
    return shares ? shares[r - stage->member_first] : 1;
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
        table->shares[i] = state_share_of(c, head->member_first + i);
    return 0;
}

int state_share_out(struct pipeline_emitter *c, uint32_t s, const double *room)
{
    const struct problem *p = c->problem;
    const struct candidate_stage *stage = &c->candidate->stages[s];
    uint32_t count = stage->member_count;
    double *shares = c->plan->groups[1 + s].shares = calloc(count, sizeof(*shares));
    struct share_member *members = calloc((size_t)count + 1, sizeof(*members));
    uint32_t *devices = calloc((size_t)count + 1, sizeof(*devices));
    double state = pipeline_state_bytes(p, stage);
    int result = members && devices && shares ? 0 : err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && result == 0; i++) {
        devices[i] = c->candidate->members[stage->member_first + i].device;
        members[i] = (struct share_member){
            .room = (room[i] - ROUNDING_BYTES) / state,
            .bytes_per_s = INFINITY,
            .step_s = problem_step_seconds(p, devices[i], stage->block_begin, stage->block_end)};
    }
    for (uint32_t i = 0; i < count && result == 0; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate = ring_hop(p->cluster, devices, NULL, count, i, &latency);
        members[i].bytes_per_s = fmin(members[i].bytes_per_s, rate);
        members[next].bytes_per_s = fmin(members[next].bytes_per_s, rate);
    }
    if (result == 0 && !share_state(members, count, SHARE_FOR_LINKS, shares))
        result =
            err_set(c->err, ERR_NOFIT, "the %u members of stage %u have no room for its state of %.0f bytes",
                    count, s, state);
    free(members);
    free(devices);
    return result;
}

/* --- slots and instructions --- */

static int32_t place_add(struct plan_rank *rank, int kind, const struct state_exchange *x, uint64_t bytes)
{
    int32_t slot =
        plan_rank_fixed_slot(rank, kind, SLOT_FOR_INSTRUCTIONS, SLOT_ON_DEVICE, PURPOSE_BUFFERS, bytes);
    if (slot >= 0) {
        rank->slots[slot].block_begin = x->begin;
        rank->slots[slot].block_end = x->end;
    }
    return slot;
}

/* Adds a slot for gathered weights and one for unreduced gradients. */
static int places_add(const struct pipeline_emitter *c, struct plan_rank *rank, struct state_exchange *x)
{
    bool table = x == &c->exchange[0];
    x->gathered = place_add(rank, SLOT_GATHERED, x,
                            table ? memory_table_bytes(c->problem)
                                  : memory_gathered_bytes(c->problem, x->begin, x->end));
    x->whole = place_add(rank, SLOT_GRADIENTS, x, memory_gradient_bytes(c->problem, x->begin, x->end));
    return x->gathered < 0 || x->whole < 0 ? -1 : 0;
}

int state_slots(struct pipeline_emitter *c, uint32_t r, uint64_t kept)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    bool first = rank->block_begin == 0, last = rank->block_end == c->problem->block_count;
    bool apart = c->table_group >= 0, sharded = c->shards && stage_of(c, r)->member_count > 1;
    struct state_exchange *table = &c->exchange[0], *own = &c->exchange[1];
    *table = *own = (struct state_exchange){PLAN_NONE, 0, 1, PLAN_NONE, PLAN_NONE};
    if (!c->full && !apart)
        return 0;
    uint64_t steps_with = rank->slots[c->gradients].bytes_bound;
    int failed = 0;
    c->values = plan_rank_fixed_slot(rank, SLOT_PARAMETERS, SLOT_FOR_RUN, SLOT_ON_DEVICE, PURPOSE_ADAPTERS,
                                     kept > steps_with ? kept - steps_with : 0);
    rank->owns_tied = apart && first;
    rank->copies_tied = apart && last;
    own->begin = rank->owns_tied ? 1 : rank->block_begin;
    own->end = rank->block_end;
    if (sharded && own->begin < own->end) {
        own->group = 1 + rank->stage;
        failed = places_add(c, rank, own);
    }
    if (last || (first && (c->shards || r == stage_of(c, r)->member_first)))
        table->group = c->table_group;
    if (!failed && (rank->copies_tied || (sharded && rank->owns_tied)))
        failed = places_add(c, rank, table);
    return c->values < 0 || failed ? err_set(c->err, ERR_NOMEM, "planner: out of memory") : 0;
}

static int32_t exchange_add(struct program_builder *b, enum instr_op op, const struct state_exchange *x,
                            int32_t in, int32_t out, int32_t after)
{
    struct instr instr = instr_init(op, instr_op_queue(op));
    instr.group = op == INSTR_RELEASE ? PLAN_NONE : x->group;
    instr.tag = op == INSTR_ALL_GATHER       ? TAG_PARAMETERS
                : op == INSTR_REDUCE_SCATTER ? TAG_PARAMETER_GRADIENTS
                                             : TAG_NONE;
    instr.block_begin = x->begin;
    instr.block_end = x->end;
    instr.slot_in = in;
    instr.slot_out = out;
    instr.flags = op == INSTR_REDUCE_SCATTER && in != out ? FLAG_FREES_IN : 0;
    return program_add(b, &instr, &after, 1);
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
    for (int i = 0; i < 2; i++) {
        if (c->exchange[i].gathered >= 0)
            exchange_add(b, INSTR_RELEASE, &c->exchange[i], c->exchange[i].gathered, PLAN_NONE, came[i]);
    }
}

/* Replicas: all-reduces the gradients of the blocks over a group. If `whole` is a buffer for unreduced
 * gradients (of a copy), the rank needs no result. */
static int32_t sum_add(const struct pipeline_emitter *c, struct program_builder *b, int32_t group,
                       int32_t whole, int32_t begin, int32_t end, int32_t after)
{
    struct instr x = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
    x.group = group;
    x.tag = TAG_PARAMETER_GRADIENTS;
    x.block_begin = begin;
    x.block_end = end;
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
    int32_t group = 1 + rank->stage, begin = 0, after_last = 0; /* naming no blocks means all blocks */
    if (c->table_sum >= 0 && end)
        after = sum_add(c, b, c->table_sum, table->whole, 0, 1, after);
    else if (table->group >= 0)
        after = exchange_add(b, INSTR_REDUCE_SCATTER, table, table->whole >= 0 ? table->whole : c->gradients,
                             c->gradients, after);
    if (c->table_sum >= 0 && rank->owns_tied) {
        begin = 1;
        after_last = rank->block_end;
        shared = shared && begin < after_last;
    }
    return shared ? sum_add(c, b, group, PLAN_NONE, begin, after_last, after) : after;
}

int32_t state_reduce(const struct pipeline_emitter *c, struct program_builder *b, uint32_t r, int32_t after)
{
    if (!c->shards)
        return replicas_reduce(c, b, r, after);
    /* The table comes second, because both reductions end where the rank's gradients are. A rank that
     * keeps the whole table has its own gradients of it in place. */
    for (int i = 2; i-- > 0;) {
        const struct state_exchange *x = &c->exchange[i];
        if (x->group >= 0)
            after = exchange_add(b, INSTR_REDUCE_SCATTER, x, x->whole >= 0 ? x->whole : c->gradients,
                                 c->gradients, after);
    }
    return after;
}

/* --- seconds of the exchanges --- */

/* A ring of devices with their shares of what is gathered: seconds per byte of a gather, of a scatter and
 * of the ring's slowest link, and the largest latency. */
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
 * over a ring of `count`. */
static void moves_add(const struct problem *p, const struct ring_cost *ring, uint32_t count, int32_t begin,
                      int32_t end, struct pipeline_sync *sync)
{
    double hops = count > 1 ? (count - 1) * ring->latency_s : 0;
    sync->before_s += ring->gather_s * (double)memory_gathered_bytes(p, begin, end) + hops;
    sync->after_s += ring->scatter_s * (double)memory_gradient_bytes(p, begin, end) + hops;
}

/* Adds the collectives of a trained tied embedding over the first and the last stage; devices and shares
 * have room for all devices. */
static void table_syncs(const struct problem *p, const struct candidate *candidate, uint32_t *devices,
                        double *shares, struct pipeline_sync *syncs)
{
    uint32_t last = candidate->stage_count - 1, count = 0, keepers = candidate->stages[0].member_count;
    bool replicas = state_whole(p, candidate) && candidate->member_count > candidate->stage_count;
    double sum_s = 0;
    members_add(candidate, 0, true, devices, shares, &count);
    members_add(candidate, last, false, devices, shares, &count);
    struct ring_cost ring = ring_cost(p, devices, shares, count);
    if (replicas) { /* all sum their gradients; one sends the values */
        sum_s =
            2 * (count - 1) * ((double)memory_gradient_bytes(p, 0, 1) * ring.byte_s / count + ring.latency_s);
        devices += keepers - 1;
        shares += keepers - 1;
        count -= keepers - 1;
        devices[0] = candidate->members[candidate->stages[0].member_first].device;
        shares[0] = 1;
        ring = ring_cost(p, devices, shares, count);
    }
    double hops = count > 1 ? (count - 1) * ring.latency_s : 0;
    double before_s = ring.gather_s * (double)memory_table_bytes(p) + hops;
    double after_s = replicas ? sum_s : ring.scatter_s * (double)memory_gradient_bytes(p, 0, 1) + hops;
    bool shards = !state_whole(p, candidate) && keepers > 1; /* a rank that keeps everything does not wait */
    syncs[0].before_s += shards ? before_s : 0;
    syncs[last].before_s += before_s;
    syncs[0].after_s += after_s;
    syncs[last].after_s += after_s;
}

/* Adds the exchanges inside one stage: `devices` and `shares` of its `count` members. */
static void stage_sync(const struct problem *p, const struct candidate *candidate, uint32_t s,
                       const uint32_t *devices, const double *shares, struct pipeline_sync *sync)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    uint32_t count = stage->member_count;
    bool shards = !state_whole(p, candidate), apart = state_table_apart(p, candidate);
    struct ring_cost ring = ring_cost(p, devices, shares, count);
    *sync = (struct pipeline_sync){0};
    for (uint32_t m = 0; m < count; m++)
        sync->update_s = fmax(sync->update_s,
                              (shards ? shares[m] : 1) *
                                  problem_step_seconds(p, devices[m], stage->block_begin, stage->block_end));
    if (count > 1 && shards) {
        moves_add(p, &ring, count, apart && s == 0 ? 1 : stage->block_begin, stage->block_end, sync);
    } else if (count > 1) {
        int32_t begin = apart && s == 0 ? 1 : stage->block_begin; /* the table has collectives of its own */
        double bytes = (double)memory_gradient_bytes(p, begin, stage->block_end);
        if (begin < stage->block_end)
            sync->after_s = 2 * (count - 1) * (bytes * ring.byte_s / count + ring.latency_s);
        sync->update_s += (ceil(log2(count + 1.0)) - 1) * (ring.latency_s + sizeof(double) * ring.byte_s);
    }
}

/* Adds the seconds of the norm, which goes up and down a tree over all ranks, or (LoRA in groups) over the
 * stages' first members: a rank's path to the root and back. */
static void norm_add(const struct problem *p, const struct candidate *candidate, struct pipeline_sync *syncs)
{
    const struct candidate_stage *stages = candidate->stages;
    const struct member *members = candidate->members;
    bool firsts = state_whole(p, candidate) && candidate->member_count > candidate->stage_count;
    uint32_t count = firsts ? candidate->stage_count : candidate->member_count;
    double worst = 0;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t a = firsts ? stages[i].member_first : i;
        uint32_t b = firsts ? stages[(i + 1) % count].member_first : (i + 1) % count;
        worst = fmax(worst, problem_link(p, members[a].device, members[b].device).latency_s);
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
    if (result == 0 && state_table_apart(p, candidate))
        table_syncs(p, candidate, devices, shares, syncs);
    if (result == 0)
        norm_add(p, candidate, syncs);
    free(devices);
    free(shares);
    return result;
}
