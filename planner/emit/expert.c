/* Makes plans with attention and experts on different ranks, in zebra order: layer by layer, and within a
 * layer micro-batch by micro-batch.
 *
 * Two groups contain all ranks. Transfers to the experts (DISPATCH, and the backward of COMBINE) use the
 * queue of one group, transfers back (COMBINE, and the backward of DISPATCH) the queue of the other, so that
 * both directions overlap. At the last layer a micro-batch begins its backward as soon as its loss is known.
 *
 * A rank with attention and experts runs the experts of one micro-batch after the attention of the next
 * (`lag`), which hides the transfers. The residual stream of a micro-batch is in one of two slots. It changes
 * to the other slot at each block that cannot write into the slot that it reads.
 */
#include "planner/emit/expert.h"

#include <stdlib.h>
#include <string.h>

#include "planner/emit/expert_program.h"
#include "planner/emit/frame.h"

/* A slot for routed tokens has up to three matrices, each from a multiple of 64 bytes on. */
static int32_t stream_slot(struct expert_plan *c, struct plan_rank *rank, int kind, double per_token,
                           uint64_t bound)
{
    bool routed = kind == SLOT_ROUTED || kind == SLOT_ROUTED_GRADIENT;
    return plan_rank_slot(rank, &(struct plan_slot){.kind = (uint8_t)kind,
                                                    .purpose = PURPOSE_BUFFERS,
                                                    .ring_micro_batches = c->wave,
                                                    .bytes_fixed = routed ? 3 * 63 : 0,
                                                    .bytes_per_token = per_token,
                                                    .bytes_bound = bound});
}

static int32_t expert_saved_slot(struct expert_plan *c, struct plan_rank *rank, uint64_t bound,
                                 uint64_t total)
{
    return plan_rank_slot(rank,
                          &(struct plan_slot){.kind = SLOT_SAVED,
                                              .purpose = PURPOSE_ACTIVATIONS,
                                              .ring_micro_batches = c->wave,
                                              .ring_blocks = (uint32_t)c->plan->block_count,
                                              .block_end = c->plan->block_count,
                                              .bytes_fixed = bound,
                                              .bytes_total = (bound > total ? bound : total) * c->wave});
}

static int32_t scalar_slot(struct plan_rank *rank, int kind, uint64_t bytes)
{
    return plan_rank_slot(rank, &(struct plan_slot){.kind = (uint8_t)kind,
                                                    .place = SLOT_ON_HOST,
                                                    .lifetime = SLOT_FOR_STEP,
                                                    .purpose = PURPOSE_BUFFERS,
                                                    .bytes_fixed = bytes});
}

static int32_t run_slot(struct expert_plan *c, struct plan_rank *rank, int kind, int purpose, uint64_t bytes)
{
    return plan_rank_slot(rank, &(struct plan_slot){.kind = (uint8_t)kind,
                                                    .lifetime = SLOT_FOR_RUN,
                                                    .purpose = (uint8_t)purpose,
                                                    .block_end = c->plan->block_count,
                                                    .bytes_fixed = bytes});
}

static int expert_slots_fill(struct expert_plan *c, uint32_t r, const struct expert_need *need,
                             struct expert_slots *s)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    const struct member *m = &c->candidate->members[r];
    uint64_t boundary = need->boundary_bytes;
    double each = 4.0 * c->model.hidden, weights = 4.0 * c->model.active;
    memset(s, 0xff, sizeof(*s));
    s->scalars = scalar_slot(rank, SLOT_STEP_SCALARS, sizeof(struct plan_step_scalars));
    s->norm = scalar_slot(rank, SLOT_NORM_SCALAR, sizeof(double));
    s->barrier = scalar_slot(rank, SLOT_BARRIER, sizeof(double));
    if (m->rows) {
        for (int i = 0; i < 2; i++) {
            s->stream[i] = stream_slot(c, rank, SLOT_ACTIVATION, each, boundary);
            s->gradient[i] = stream_slot(c, rank, SLOT_GRADIENT, each, boundary);
        }
        s->routed = stream_slot(c, rank, SLOT_ROUTED, each + 2 * weights, need->routed_own_bytes);
        s->saved = expert_saved_slot(c, rank, need->saved_dense_bytes, need->saved_dense_bytes);
        s->saved_attention = expert_saved_slot(c, rank, need->saved_layer_bytes, need->saved_layers_total);
        s->saved_router =
            expert_saved_slot(c, rank, 0, 0); /* size 0: the bytes are counted in attention's slot */
        s->gradients = run_slot(c, rank, SLOT_GRADIENTS, PURPOSE_ADAPTERS, need->gradient_bytes);
    }
    if (m->expert_share > 0) {
        s->routed_in = stream_slot(c, rank, SLOT_ROUTED, each + 2 * weights, need->routed_in_bytes);
        s->routed_out = stream_slot(c, rank, SLOT_ROUTED, each, need->routed_out_bytes);
        s->back_in = stream_slot(c, rank, SLOT_ROUTED_GRADIENT, each, need->routed_out_bytes);
        s->back_out = stream_slot(c, rank, SLOT_ROUTED_GRADIENT, each + weights, need->routed_back_bytes);
        s->saved_experts = expert_saved_slot(c, rank, need->saved_experts_bytes, need->saved_experts_total);
        s->expert_gradients =
            run_slot(c, rank, SLOT_GRADIENTS, PURPOSE_ADAPTERS, need->expert_gradient_bytes);
    }
    if (c->problem->workload->sample_tokens) {
        s->cache = run_slot(c, rank, SLOT_KV_CACHE, PURPOSE_BUFFERS, need->all.cache_bytes);
        s->token = scalar_slot(rank, SLOT_TOKEN, sizeof(int32_t));
    }
    return plan_rank_slots_made(rank, c->err);
}

/* Lists the runs of consecutive experts that rank r holds in each layer. */
static int experts_list(struct expert_plan *c, uint32_t r)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    const struct expert_split *split = &c->split;
    double total = 0;
    for (uint32_t l = 0; l < split->sparse_count; l++)
        total += split->layers[(size_t)r * split->sparse_count + l].count;
    rank->experts = calloc((size_t)total + 1, sizeof(*rank->experts));
    if (!rank->experts)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t l = 0; l < split->sparse_count; l++) {
        const uint16_t *owner = &split->owner[(size_t)l * split->experts];
        for (uint32_t e = 0; e < split->experts; e++) {
            if (owner[e] != r)
                continue;
            struct plan_experts *run = &rank->experts[rank->expert_count++];
            *run = (struct plan_experts){.block = c->model.sparse[l], .begin = (int32_t)e};
            while (e + 1 < split->experts && owner[e + 1] == r)
                e++;
            run->end = (int32_t)e + 1;
        }
    }
    return 0;
}

static void rank_share(const struct expert_plan *c, uint32_t r, const struct expert_need *need)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    const struct workload *w = c->problem->workload;
    double all =
        w->method == METHOD_FULL ? (double)c->problem->blocks.params : (double)c->problem->blocks.lora_params;
    rank->state_share = all > 0 ? need->trained / all : 0;
    for (uint32_t k = 0; k < c->micro_batches; k++) {
        uint32_t rows = c->plan->micro_batch_start[k + 1] - c->plan->micro_batch_start[k];
        uint32_t end = c->row_first[r + 1] < rows ? c->row_first[r + 1] : rows;
        rank->rows += end > c->row_first[r] ? end - c->row_first[r] : 0;
    }
    rank->rows_share = (double)rank->rows / c->plan->batch_rows;
}

int expert_member_need(const struct problem *problem, struct expert_model *model,
                       const struct candidate *candidate, const struct expert_split *split, uint32_t member,
                       struct expert_need *need, struct err *err)
{
    const struct member *m = &candidate->members[member];
    struct expert_role role = {.rows = m->rows,
                               .all_rows = candidate->micro_batch_rows,
                               .wave = m->window,
                               .recompute = m->recompute,
                               .samples = member == 0};
    for (uint32_t i = 0; i < candidate->member_count; i++)
        if (candidate->members[i].rows)
            role.routed_bytes += expert_routed_bytes(
                model, problem_tokens_bound(problem, candidate->members[i].rows), ROUTED_TOKENS);
    if (m->expert_share > 0)
        role.layers = &split->layers[(size_t)member * split->sparse_count];
    return expert_need_fill(problem, model, &role, need, err);
}

static int expert_rank_emit(struct expert_plan *c, uint32_t r, bool programs)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    const struct member *m = &c->candidate->members[r];
    struct expert_slots slots;
    struct expert_need need;
    if (expert_member_need(c->problem, &c->model, c->candidate, &c->split, r, &need, c->err) < 0)
        return -1;
    rank->block_begin = m->rows ? 0 : c->model.sparse[0];
    rank->block_end = m->rows ? c->plan->block_count : c->model.sparse[c->model.sparse_count - 1] + 1;
    rank->window = c->wave;
    rank_share(c, r, &need);
    if (plan_rank_fill(rank, c->problem, m, &need.all, c->err) < 0 || experts_list(c, r) < 0 ||
        expert_slots_fill(c, r, &need, &slots) < 0)
        return -1;
    return programs ? expert_programs(c, r, &slots) : 0;
}

/* Fills the groups of enum expert_group: those of all ranks; the group of the ranks with attention; the
 * groups of the first rank with attention and all ranks with experts. */
static int groups_fill(struct expert_plan *c)
{
    for (uint32_t g = 0; g < c->plan->group_count; g++) {
        struct plan_group *group = &c->plan->groups[g];
        if (g == EXPERT_GROUP_ALL)
            continue;
        if (plan_group_fill(group, 0, c->candidate->member_count, c->err) < 0)
            return -1;
        group->rank_count = 0;
        for (uint32_t m = 0; m < c->candidate->member_count; m++) {
            const struct member *x = &c->candidate->members[m];
            if (g < EXPERT_GROUP_ATTENTION || (g == EXPERT_GROUP_ATTENTION && x->rows) ||
                (g > EXPERT_GROUP_ATTENTION && (m == 0 || x->expert_share > 0)))
                group->ranks[group->rank_count++] = m;
        }
    }
    return 0;
}

/* Makes the segments. Every layer with experts is one; all blocks between two such layers are one. */
static int segments_fill(struct expert_plan *c)
{
    ARENA_ARRAY(&c->arena, c->segments, (size_t)c->plan->block_count);
    if (!c->segments)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (int32_t b = 0; b < c->plan->block_count;) {
        struct expert_segment *s = &c->segments[c->segment_count++];
        s->begin = b;
        s->sparse = cost_class_of(&c->problem->blocks.blocks[b]) == COST_LAYER_SPARSE;
        for (b++; b < c->plan->block_count && !s->sparse; b++)
            if (cost_class_of(&c->problem->blocks.blocks[b]) == COST_LAYER_SPARSE)
                break;
        s->end = b;
    }
    /* The residual stream of a micro-batch moves to its other slot at every dense segment, and the stream's
     * gradient at every segment; forward and backward begin with the first slot. */
    for (uint32_t i = 1; i < c->segment_count; i++)
        c->segments[i].stream = c->segments[i - 1].stream ^ (i > 1 && !c->segments[i - 1].sparse);
    for (uint32_t i = c->segment_count - 1; i-- > 0;)
        c->segments[i].gradient = c->segments[i + 1].gradient ^ (i + 2 < c->segment_count);
    return 0;
}

static int rows_fill(struct expert_plan *c)
{
    ARENA_ARRAY(&c->arena, c->row_first, (size_t)c->candidate->member_count + 1);
    ARENA_ARRAY(&c->arena, c->last, (size_t)c->micro_batches * EXPERT_LASTS);
    if (c->arena.failed)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t m = 0; m < c->candidate->member_count; m++)
        c->row_first[m + 1] = c->row_first[m] + c->candidate->members[m].rows;
    if (c->row_first[c->candidate->member_count] != c->candidate->micro_batch_rows ||
        c->candidate->members[0].rows == 0)
        return err_set(c->err, ERR_INVALID, "planner: attention takes %u of a micro-batch's %u rows",
                       c->row_first[c->candidate->member_count], c->candidate->micro_batch_rows);
    return 0;
}

struct plan *expert_emit(const struct problem *problem, const struct candidate *candidate,
                         enum emit_programs programs, struct err *err)
{
    struct expert_plan c = {.problem = problem, .candidate = candidate, .err = err};
    for (uint32_t m = 0; m < candidate->member_count; m++)
        c.attending += candidate->members[m].rows > 0;
    uint32_t groups = c.attending < 2                    ? EXPERT_GROUP_ATTENTION
                      : problem->workload->sample_tokens ? EXPERT_GROUP_COUNT
                                                         : EXPERT_GROUP_ATTENTION + 1;
    if (expert_model_init(&c.model, problem, err) < 0)
        return NULL;
    c.plan = plan_create(candidate->member_count, groups, problem->workload->batch_rows,
                         candidate->micro_batch_rows, err);
    int result = c.plan ? 0 : -1;
    if (result == 0) {
        plan_frame_fill(c.plan, problem, candidate);
        c.micro_batches = c.plan->micro_batch_count;
        c.wave = candidate->members[0].window ? candidate->members[0].window : c.micro_batches;
        c.wave = c.wave < c.micro_batches ? c.wave : c.micro_batches;
        result = rows_fill(&c);
    }
    if (result == 0)
        result = expert_split_init(&c.split, &c.model, problem->workload->expert_share, candidate->members,
                                   candidate->member_count, err);
    if (result == 0)
        result = segments_fill(&c) < 0 ? -1 : groups_fill(&c);
    for (uint32_t r = 0; r < candidate->member_count && result == 0; r++)
        result = expert_rank_emit(&c, r, programs);
    expert_split_fini(&c.split);
    expert_model_fini(&c.model);
    arena_fini(&c.arena);
    return plan_emitted(c.plan, result);
}
