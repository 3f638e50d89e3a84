/* Compares the memory that a plan states for a rank with what the engine and the worker allocate, by the
 * engine's own predictions. */
#ifndef MOTLEY_TESTS_PLANNER_ENGINE_MEMORY_H
#define MOTLEY_TESTS_PLANNER_ENGINE_MEMORY_H

#include "planner/plan_fixture.h"

#include "engine/stage/shard.h"
#include "model/shape/footprint.h"

struct engine_case {
    const struct workload *workload;
    const struct plan *plan;
    uint64_t seed;
};

struct engine_bytes {
    uint64_t purpose[PURPOSE_COUNT], host, workspace;
};

/* Fills the engine's options for a rank's stages from the model, the method and the rank's bounds on tokens
 * and rows. */
static inline struct stage_options engine_options(const struct engine_case *c, uint32_t rank)
{
    static const enum layer_base bases[] = {[BASE_FP32] = LAYER_BASE_F32,
                                            [BASE_BF16] = LAYER_BASE_BF16,
                                            [BASE_FP16] = LAYER_BASE_F16,
                                            [BASE_NF4] = LAYER_BASE_NF4};
    static const enum dtype computes[] = {
        [COMPUTE_FP32] = DTYPE_F32, [COMPUTE_BF16] = DTYPE_BF16, [COMPUTE_FP16] = DTYPE_F16};
    const struct workload *w = c->workload;
    struct plan_bounds bounds = plan_rank_bounds(c->plan, rank);
    bool full = w->method == METHOD_FULL;
    struct stage_options o = {
        .config = w->config,
        .mode = STAGE_TRAIN,
        .full = full,
        .base = full ? LAYER_BASE_F32 : bases[w->base],
        .compute = computes[w->compute],
        .double_quant = !w->single_quant,
        .moments8 = w->moments8,
        .train_embedding = !full && w->saves_embedding,
        .train_head = !full && w->saves_head,
        .tokens_max = bounds.tokens,
        .rows_max = bounds.rows,
        .labelled_max = bounds.labelled,
        .row_tokens_max = c->plan->sequence_bound < bounds.tokens ? c->plan->sequence_bound : bounds.tokens,
        .positions_max = c->plan->sequence_bound,
        .micro_batches_in_flight = 1,
        .moments_on_host = w->moments_on_host};
    if (!full)
        o.lora = (struct lora_options){.rank = w->lora_rank, .alpha = 16, .dropout = w->lora_dropout};
    const struct plan_tensor *t =
        &c->plan->ranks[rank].tensor; /* A tensor group of one member computes whole layers. */
    if (t->kv_head_end > 0 && t->kv_head_end - t->kv_head_begin < w->config->kv_heads)
        o.part = (struct layer_part){.kv_head_begin = t->kv_head_begin,
                                     .kv_head_end = t->kv_head_end,
                                     .column_begin = t->column_begin,
                                     .column_end = t->column_end,
                                     .follows = t->kv_head_begin > 0};
    for (uint32_t i = 0; i < w->target_count && !full; i++)
        o.lora.targets |= lora_target_from_name(w->targets[i]);
    return o;
}

static inline void engine_must(const struct engine_case *c, int result, const struct err *err)
{
    if (result < 0)
        fail_msg("seed %llu: the engine refuses: %s", (unsigned long long)c->seed, err->text);
}

static inline void engine_add(struct engine_bytes *sum, const struct stage_memory *more)
{
    static const int purpose[MEM_PURPOSES] = {[MEM_WEIGHTS] = PURPOSE_WEIGHTS,
                                              [MEM_ADAPTERS] = PURPOSE_ADAPTERS,
                                              [MEM_OPTIMIZER] = PURPOSE_OPTIMIZER,
                                              [MEM_ACTIVATIONS] = PURPOSE_ACTIVATIONS,
                                              [MEM_BUFFERS] = PURPOSE_BUFFERS};
    for (int p = 0; p < MEM_PURPOSES; p++)
        sum->purpose[purpose[p]] += more->bytes[p];
    sum->host += more->host;
}

/* Returns the first block of the stage through which a micro-batch passes; -1: it passes through none. */
static inline int32_t engine_entry(const struct program *train, const struct stage_options *o, int32_t micro)
{
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (x->op == INSTR_FORWARD && x->micro_batch == micro && x->block_begin >= (int32_t)o->block_begin &&
            x->block_end <= (int32_t)o->block_end)
            return x->block_begin;
    }
    return -1;
}

/* Finds which passes the rank's training program runs on a range of blocks. Returns whether it computes there
 * at all. */
static inline bool engine_use(const struct plan_rank *rank, struct stage_options *o)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0;
    bool computes = false;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        bool first = x->micro_batch >= 0 && x->block_begin == engine_entry(train, o, x->micro_batch) &&
                     !(x->flags & FLAG_SECOND_HALF);
        if (x->block_begin < (int32_t)o->block_begin || x->block_end > (int32_t)o->block_end)
            continue;
        o->split |= x->op == INSTR_BACKWARD_WEIGHT;
        if (x->op == INSTR_FORWARD) {
            computes = true;
            o->recompute |= (x->flags & FLAG_RECOMPUTE) != 0;
            live += first;
            o->micro_batches_in_flight =
                live > o->micro_batches_in_flight ? live : o->micro_batches_in_flight;
        } else if (first && (x->op == INSTR_BACKWARD || x->op == INSTR_BACKWARD_WEIGHT)) {
            live--;
        }
    }
    return computes;
}

/* --- state that is shared out --- */

struct engine_shared {
    bool shared;
    enum block_area area;
    const double *shares; /* [count] */
    uint32_t count, position;
    bool keeps;
};

static inline struct engine_shared engine_shared_of(const struct engine_case *c, uint32_t r)
{
    static const double whole = 1;
    const struct plan *plan = c->plan;
    bool full = c->workload->method == METHOD_FULL, data = plan->placement == PLACE_DATA;
    struct engine_shared s = {.area = full || plan->placement == PLACE_SERVER ? AREA_TRAINED : AREA_FROZEN,
                              .shares = &whole,
                              .count = 1,
                              .keeps = true};
    if (plan->placement == PLACE_SERVER) {
        s.shared = true;
        s.keeps = r == 0;
    } else if ((data || plan->placement == PLACE_HYBRID) && plan->group_count > 1) {
        const struct plan_group *group = &plan->groups[1 + plan->ranks[r].stage];
        s.shared = group->shares != NULL && group->rank_count > 1;
        if (s.shared) {
            s.shares = group->shares;
            s.count = group->rank_count;
            s.position = (uint32_t)plan_group_position(group, r);
        }
    }
    return s;
}

static inline uint64_t engine_area(const struct engine_case *c, const struct stage_options *o, uint32_t block,
                                   enum block_area area)
{
    struct err err = {0};
    uint64_t bytes = 0;
    engine_must(c, stage_area_bytes(o, block, area, &bytes, &err), &err);
    return bytes;
}

/* Computes the sizes of the rank's shards of the parameter areas of its blocks, which are those of its
 * ranges. */
static inline void engine_kept(const struct engine_case *c, uint32_t r, const struct stage_options *o,
                               const struct engine_shared *shared, struct engine_bytes *sum)
{
    struct err err = {0};
    uint32_t blocks = o->block_end - o->block_begin, held = 0;
    uint64_t *cuts = calloc(shared->count + 1, sizeof(*cuts)), frozen = 0;
    struct shard_range *ranges = calloc(blocks, sizeof(*ranges));
    for (uint32_t i = 0; i < blocks; i++) {
        int32_t block = (int32_t)(o->block_begin + i);
        if (!plan_rank_holds(&c->plan->ranks[r], block, block + 1))
            continue;
        engine_must(
            c,
            stage_area_cuts(o, o->block_begin + i, shared->area, shared->count, shared->shares, cuts, &err),
            &err);
        uint64_t begin = cuts[shared->position], end = cuts[shared->position + 1];
        ranges[held++] = (struct shard_range){o->block_begin + i, begin, end};
        frozen += (end - begin + 63) / 64 * 64;
    }
    struct stage_memory memory = {.bytes = {[MEM_WEIGHTS] = footprint_counted(frozen)}};
    if (shared->area == AREA_TRAINED)
        engine_must(c, shard_memory_predict(o, held, ranges, &memory, &err), &err);
    engine_add(sum, &memory);
    free(cuts);
    free(ranges);
}

/* --- slots --- */

/* Returns the bytes of the largest group of blocks that one transfer moves into or out of the slot. */
static inline uint64_t engine_unit(const struct engine_case *c, const struct stage_options *o,
                                   const struct plan_rank *rank, int32_t slot, enum block_area area)
{
    uint64_t most = 0;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < rank->programs[kind].instr_count; i++) {
            const struct instr *x = &rank->programs[kind].instrs[i];
            bool fills = (x->op == INSTR_ALL_GATHER || x->op == INSTR_PULL) && x->slot_out == slot,
                 empties = (x->op == INSTR_REDUCE_SCATTER || x->op == INSTR_PUSH) && x->slot_in == slot;
            uint64_t bytes = 0;
            for (int32_t b = x->block_begin; b < x->block_end && (fills || empties); b++)
                bytes += (engine_area(c, o, (uint32_t)b, area) + 63) / 64 * 64;
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Adds up the bytes of the rank's buffers outside its stages, and checks that each slot has the size of the
 * tensors that use it. */
static inline uint64_t engine_slots(const struct engine_case *c, uint32_t r, const struct stage_options *o,
                                    const struct engine_shared *shared)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct plan_bounds bounds = plan_rank_bounds(c->plan, r);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < rank->slot_count; s++) {
        const struct plan_slot *slot = &rank->slots[s];
        uint64_t ring = slot->bytes_bound ? slot->bytes_total / slot->bytes_bound : 0;
        bool unreduced = slot->kind == SLOT_GRADIENTS && slot->lifetime == SLOT_FOR_INSTRUCTIONS,
             copy = slot->block_begin == 0 && slot->block_end == 1 && rank->block_begin > 0;
        if (slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT || slot->kind == SLOT_PARTIAL) {
            uint64_t tail = c->workload->router_loss
                                ? (slot->kind == SLOT_ACTIVATION ? 8ull : 4ull) * c->workload->config->experts
                                : 0;
            uint64_t bytes =
                (uint64_t)c->workload->config->hidden * plan_dtype_bytes(slot->dtype) * bounds.tokens +
                tail * bounds.rows;
            if (slot->bytes_bound != bytes)
                fail_msg("seed %llu: rank %u, slot %u: %llu bytes of a boundary tensor of %llu",
                         (unsigned long long)c->seed, r, s, (unsigned long long)slot->bytes_bound,
                         (unsigned long long)bytes);
            sum += ring * footprint_counted(bytes);
        } else if (slot->kind == SLOT_GATHERED || unreduced) {
            struct stage_options table = *o;
            table.block_begin = copy ? 0 : o->block_begin;
            table.block_end = copy ? 1 : o->block_end;
            uint64_t bytes = engine_unit(c, &table, rank, (int32_t)s, copy ? AREA_TRAINED : shared->area);
            if (copy && unreduced) /* The gradients are summed over the ranks that hold the block, or moved to
                                      them. */
                bytes = engine_area(c, &table, 0, AREA_TRAINED);
            if (slot->bytes_fixed != bytes)
                fail_msg("seed %llu: rank %u, slot %u (%s): %llu bytes, its blocks take %llu",
                         (unsigned long long)c->seed, r, s, slot_kind_name(slot->kind),
                         (unsigned long long)slot->bytes_fixed, (unsigned long long)bytes);
            sum += copy ? 0 : ring * footprint_counted(bytes); /* A copy lies in the stage's own memory. */
        } else if (slot->kind == SLOT_KV_CACHE) {
            sum += footprint_counted(slot->bytes_bound);
        }
    }
    return sum;
}

/* --- a rank --- */

/* Adds a stage. A rank's stages share one workspace, the largest. */
static inline void engine_stage(const struct engine_case *c, const struct stage_options *o,
                                struct engine_bytes *sum)
{
    struct stage_memory memory;
    struct err err = {0};
    uint64_t workspace;
    engine_must(c, stage_memory_predict(o, &memory, &err), &err);
    engine_must(c, stage_workspace_bytes(o, &workspace, &err), &err);
    workspace = footprint_counted(workspace);
    engine_add(sum, &memory);
    sum->purpose[PURPOSE_BUFFERS] -= workspace < sum->workspace ? workspace : sum->workspace;
    sum->workspace = workspace > sum->workspace ? workspace : sum->workspace;
}

/* Finds the first instruction of the training program with an op and a direction; NULL: there is none. */
static inline const struct instr *engine_find(const struct plan_rank *rank, int op, bool back)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < train->instr_count; i++)
        if (train->instrs[i].op == op && ((train->instrs[i].flags & FLAG_BACKWARD) != 0) == back)
            return &train->instrs[i];
    return NULL;
}

/* Returns the most tokens of the rows whose attention the rank computes; 0: it computes none. */
static inline uint64_t engine_own_tokens(const struct engine_case *c, uint32_t r)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct instr *attends = engine_find(rank, INSTR_ATTENTION, false);
    return attends ? rank->slots[attends->slot_in].bytes_bound / sizeof(float) / c->workload->config->hidden
                   : 0;
}

/* Returns the bytes of tokens with `entries` numbers for each expert that they go to, each matrix from a
 * multiple of 64 bytes on. */
static inline uint64_t engine_routed(const struct engine_case *c, uint64_t tokens, uint32_t entries)
{
    uint64_t x = tokens * c->workload->config->hidden * sizeof(float),
             entry = (tokens * c->workload->config->experts_active * sizeof(float) + 63) / 64 * 64;
    return entries ? (x + 63) / 64 * 64 + entries * entry : x;
}

/* Returns the bytes of a slot's tensor in a plan that has attention and experts on different ranks. */
static inline uint64_t engine_apart_slot(const struct engine_case *c, uint32_t r, int32_t s)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    const struct instr *routes = engine_find(rank, INSTR_ROUTE, false),
                       *forward = engine_find(rank, INSTR_EXPERTS, false),
                       *back = engine_find(rank, INSTR_EXPERTS, true);
    uint64_t came = 0, all = c->plan->tokens_bound, own = engine_own_tokens(c, r);
    uint8_t kind = rank->slots[s].kind;
    if (kind == SLOT_KV_CACHE)
        return rank->slots[s].bytes_bound;
    if (kind == SLOT_ACTIVATION || kind == SLOT_GRADIENT)
        return engine_routed(c, own, 0);
    if (routes && routes->slot_out == s)
        return engine_routed(c, own, 2);
    if ((forward && forward->slot_out == s) || (back && back->slot_in == s))
        return engine_routed(c, all, 0);
    if (kind == SLOT_ROUTED_GRADIENT)
        return engine_routed(c, all, 1);
    for (uint32_t i = 0; i < c->plan->rank_count; i++) /* every rank may send all of its tokens */
        came += engine_own_tokens(c, i) ? engine_routed(c, engine_own_tokens(c, i), 2) : 0;
    return came;
}

/* Returns the most micro-batches at once between their forward and their backward of a block. */
static inline uint32_t engine_live(const struct plan_rank *rank, int32_t block, bool experts)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0, most = 1;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        bool back = experts ? (x->flags & FLAG_BACKWARD) != 0 : x->op == INSTR_BACKWARD;
        if (x->block_begin != block ||
            (experts ? x->op != INSTR_EXPERTS : x->op != INSTR_FORWARD && x->op != INSTR_BACKWARD))
            continue;
        live += back ? -1u : 1u;
        most = live > most ? live : most;
    }
    return most;
}

/* Fills the options of the stage with attention; `own`: most tokens of the rank's rows. */
static inline void engine_attention(const struct plan_rank *rank, uint64_t own, struct stage_options *o)
{
    const struct instr *first = engine_find(rank, INSTR_ATTENTION, false);
    uint32_t rows = first->row_end < o->rows_max ? first->row_end : o->rows_max;
    o->part.holds = HOLDS_NO_EXPERTS;
    o->block_begin = (uint32_t)rank->block_begin;
    o->block_end = (uint32_t)rank->block_end;
    o->rows_max = rows - first->row_begin;
    o->tokens_max = (uint32_t)own;
    o->row_tokens_max = o->row_tokens_max < own ? o->row_tokens_max : (uint32_t)own;
    o->labelled_max = o->labelled_max < own ? o->labelled_max : (uint32_t)own;
    o->recompute = (first->flags & FLAG_RECOMPUTE) != 0;
    o->micro_batches_in_flight = engine_live(rank, rank->block_begin, false);
}

static inline void engine_apart(const struct engine_case *c, uint32_t r, struct engine_bytes *sum)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    uint64_t own = engine_own_tokens(c, r);
    if (own > 0) {
        struct stage_options o = engine_options(c, r);
        engine_attention(rank, own, &o);
        engine_stage(c, &o, sum);
    }
    for (uint32_t i = 0; i < rank->expert_count; i++) {
        const struct plan_experts *held = &rank->experts[i];
        struct stage_options o = engine_options(c, r);
        o.block_begin = (uint32_t)held->block;
        o.block_end = o.block_begin + 1;
        o.part = (struct layer_part){
            .holds = HOLDS_EXPERTS, .expert_begin = (uint32_t)held->begin, .expert_end = (uint32_t)held->end};
        o.labelled_max = 1;
        o.micro_batches_in_flight = engine_live(rank, held->block, true);
        engine_stage(c, &o, sum);
    }
    for (uint32_t s = 0; s < rank->slot_count; s++) {
        const struct plan_slot *slot = &rank->slots[s];
        bool cache = slot->kind == SLOT_KV_CACHE;
        if (!cache && slot->kind != SLOT_ACTIVATION && slot->kind != SLOT_GRADIENT &&
            slot->kind != SLOT_ROUTED && slot->kind != SLOT_ROUTED_GRADIENT)
            continue;
        uint64_t bytes = engine_apart_slot(c, r, (int32_t)s);
        if (slot->bytes_bound != bytes)
            fail_msg("seed %llu: rank %u, slot %u (%s): %llu bytes, its tokens take %llu",
                     (unsigned long long)c->seed, r, s, slot_kind_name(slot->kind),
                     (unsigned long long)slot->bytes_bound, (unsigned long long)bytes);
        sum->purpose[PURPOSE_BUFFERS] += (cache ? 1 : slot->ring_micro_batches) * footprint_counted(bytes);
    }
}

static inline void engine_rank(const struct engine_case *c, uint32_t r, struct engine_bytes *sum)
{
    const struct plan_rank *rank = &c->plan->ranks[r];
    struct engine_shared shared = engine_shared_of(c, r);
    struct stage_options o = engine_options(c, r);
    uint32_t ranges = rank->range_count ? rank->range_count : 1;
    for (uint32_t i = 0; i < ranges; i++) {
        struct plan_range range =
            rank->range_count ? rank->ranges[i] : (struct plan_range){rank->block_begin, rank->block_end};
        struct stage_options own = o;
        own.block_begin = (uint32_t)range.begin;
        own.block_end = (uint32_t)range.end;
        if (shared.shared) {
            own.outside.block_begin = own.block_begin;
            own.outside.block_end = own.block_end;
            own.outside.frozen = shared.area == AREA_FROZEN;
            own.outside.trained = shared.area == AREA_TRAINED;
        }
        bool computes = engine_use(rank, &own);
        own.recompute_end = own.recompute ? (uint32_t)rank->recompute_end : 0;
        if (computes || !shared.shared)
            engine_stage(c, &own, sum);
    }
    o.block_begin = (uint32_t)rank->block_begin;
    o.block_end = (uint32_t)rank->block_end;
    if (shared.shared && shared.keeps)
        engine_kept(c, r, &o, &shared, sum);
    sum->purpose[PURPOSE_BUFFERS] += engine_slots(c, r, &o, &shared);
}

/* Checks that every rank's slots and memory peaks equal the engine's to the byte. */
static inline void engine_compare(const struct engine_case *c)
{
    for (uint32_t r = 0; r < c->plan->rank_count; r++) {
        const struct plan_rank *rank = &c->plan->ranks[r];
        struct engine_bytes sum = {0};
        uint64_t total = 0;
        (c->plan->placement == PLACE_EXPERT ? engine_apart : engine_rank)(c, r, &sum);
        for (int p = 0; p < PURPOSE_COUNT; p++) {
            total += sum.purpose[p];
            if (rank->memory_peak[p] != sum.purpose[p])
                fail_msg("seed %llu: %s, rank %u: %llu bytes of %s planned, the engine takes %llu",
                         (unsigned long long)c->seed, plan_placement_name((int)c->plan->placement), r,
                         (unsigned long long)rank->memory_peak[p], plan_purpose_name(p),
                         (unsigned long long)sum.purpose[p]);
        }
        if (rank->memory_bytes != total || rank->moments_host_bytes != sum.host)
            fail_msg("seed %llu: rank %u: %llu bytes and %llu on the host, the engine takes %llu and %llu",
                     (unsigned long long)c->seed, r, (unsigned long long)rank->memory_bytes,
                     (unsigned long long)rank->moments_host_bytes, (unsigned long long)total,
                     (unsigned long long)sum.host);
    }
}

#endif
