#include "worker/program/stages.h"

#include <stdlib.h>

#include "worker/program/experts.h"

/* --- how the programs use a range of blocks --- */

struct range_use {
    struct plan_range range;
    uint32_t kept; /* most micro-batches in flight at once, from FORWARD to the end of the backward
                      (BACKWARD_WEIGHT if it is split) */
    bool recompute, split;
    /* dtypes of the boundary tensors that enter the range and that leave it */
    enum dtype boundary_in, boundary_out;
    /* enter_last: highest block at which a micro-batch enters the range; leave_first: lowest block_end at
     * which one leaves it */
    int32_t enter_last, leave_first;
};

/* The blocks of a range that this rank runs for a micro-batch. */
struct passed {
    int32_t begin, end;
};

static bool is_in_range(const struct instr *x, const struct plan_range *range)
{
    return x->block_begin >= range->begin && x->block_end <= range->end && x->block_begin < x->block_end;
}

static bool saves_activations(const struct plan_rank *rank, const struct instr *x)
{
    return x->slot_save >= 0 && (uint32_t)x->slot_save < rank->slot_count &&
           rank->slots[x->slot_save].kind == SLOT_SAVED;
}

enum dtype stages_dtype(enum plan_dtype dtype)
{
    static const enum dtype dtypes[PLAN_DTYPES] = {
        [PLAN_F32] = DTYPE_F32, [PLAN_BF16] = DTYPE_BF16, [PLAN_F16] = DTYPE_F16};
    return dtypes[dtype];
}

static enum dtype boundary_of(const struct plan_rank *rank, int32_t slot)
{
    bool boundary = slot >= 0 && (uint32_t)slot < rank->slot_count &&
                    (rank->slots[slot].kind == SLOT_ACTIVATION || rank->slots[slot].kind == SLOT_GRADIENT);
    return boundary ? stages_dtype((enum plan_dtype)rank->slots[slot].dtype) : DTYPE_F32;
}

/* Takes the dtypes of boundary tensors, and where they enter and leave, from the training program's FORWARDs.
 * ops_check.c refuses other instructions that differ. */
static void use_boundaries(const struct plan_rank *rank, const struct passed *passed, struct range_use *use)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    use->enter_last = use->range.begin;
    use->leave_first = use->range.end;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (x->op != INSTR_FORWARD || !is_in_range(x, &use->range) || x->micro_batch < 0)
            continue;
        if (x->block_begin == passed[x->micro_batch].begin) {
            use->boundary_in = boundary_of(rank, x->slot_in);
            use->enter_last = x->block_begin > use->enter_last ? x->block_begin : use->enter_last;
        }
        if (x->block_end == passed[x->micro_batch].end) {
            use->boundary_out = boundary_of(rank, x->slot_out);
            use->leave_first = x->block_end < use->leave_first ? x->block_end : use->leave_first;
        }
    }
}

/* Finds for each micro-batch which blocks of the range this rank runs; of a layer that two stages share,
 * either may run it. */
static void passed_find(const struct plan_rank *rank, const struct range_use *use, struct passed *passed)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    for (int turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < train->instr_count; i++) {
            const struct instr *x = &train->instrs[i];
            struct passed *own = x->micro_batch < 0 ? NULL : &passed[x->micro_batch];
            if (x->op != INSTR_FORWARD || !is_in_range(x, &use->range) || !own)
                continue;
            own->begin = turn == 0 || x->block_begin < own->begin ? x->block_begin : own->begin;
            own->end = turn == 0 || x->block_end > own->end ? x->block_end : own->end;
        }
}

/* Finds the in-flight micro-batches, recomputation and dtypes that the training program needs in a range of
 * blocks. A micro-batch occupies memory from its first FORWARD in the range until the last backward of the
 * same block; the compute queue runs in list order. `passed`: scratch, one entry for each micro-batch. */
static int use_find(const struct plan_rank *rank, struct passed *passed, struct range_use *use,
                    struct err *err)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0, forwards = 0, again = 0;
    passed_find(rank, use, passed);
    for (uint32_t i = 0; i < train->instr_count; i++)
        use->split |=
            train->instrs[i].op == INSTR_BACKWARD_WEIGHT && is_in_range(&train->instrs[i], &use->range);
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (!is_in_range(x, &use->range) || !saves_activations(rank, x) || x->micro_batch < 0)
            continue;
        bool first = x->block_begin == passed[x->micro_batch].begin && !(x->flags & FLAG_SECOND_HALF);
        if (x->op == INSTR_FORWARD) {
            forwards++;
            again += (x->flags & FLAG_RECOMPUTE) != 0;
            live += first;
            use->kept = live > use->kept ? live : use->kept;
        } else if (first && live > 0 && x->op != INSTR_BACKWARD_INPUT) {
            live--;
        }
    }
    use_boundaries(rank, passed, use);
    use->recompute = again > 0;
    if (again > 0 && again < forwards)
        return err_set(err, ERR_UNSUPPORTED,
                       "RECOMPUTE: of %u FORWARDs in blocks %d..%d %u have it, and this worker keeps all of "
                       "them alike",
                       forwards, (int)use->range.begin, (int)use->range.end, again);
    return 0;
}

/* --- making and freeing --- */

static struct stage_options options_for(const struct stage_options *options, const struct range_use *use)
{
    struct stage_options own = *options;
    own.block_begin = (uint32_t)use->range.begin;
    own.block_end = (uint32_t)use->range.end;
    own.micro_batches_in_flight = use->kept ? use->kept : 1;
    own.recompute = use->recompute;
    own.split = use->split;
    own.boundary_in = use->boundary_in;
    own.boundary_out = use->boundary_out;
    own.enter_last = (uint32_t)use->enter_last;
    own.leave_first = (uint32_t)use->leave_first;
    return own;
}

static int workspace_make(struct device *device, const struct stage_options *all, uint32_t count,
                          struct stages *stages, struct err *err)
{
    uint64_t most = 0, bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (stage_workspace_bytes(&all[i], &bytes, err) < 0)
            return -1;
        most = bytes > most ? bytes : most;
    }
    if (count < 2)
        return 0;
    return buffer_create(device, most, MEM_BUFFERS, "the stages' workspace", &stages->workspace, err);
}

/* Returns the part of each layer that a member of a tensor group has; a stage of one member has whole
 * layers. */
static struct layer_part stages_part_of(const struct model_config *config, const struct plan_tensor *t)
{
    if (t->kv_head_end == 0 || (t->kv_head_begin == 0 && t->kv_head_end == config->kv_heads))
        return (struct layer_part){0};
    return (struct layer_part){.kv_head_begin = t->kv_head_begin,
                               .kv_head_end = t->kv_head_end,
                               .column_begin = t->column_begin,
                               .column_end = t->column_end,
                               .follows = t->kv_head_begin > 0};
}

/* Makes the stage allocate no memory for sharded areas, because it uses the buffers into which they are
 * gathered. */
static void leave_outside(const struct state_shares *shares, struct stage_options *own)
{
    if (!shares)
        return;
    own->outside.block_begin = own->block_begin;
    own->outside.block_end = own->block_end;
    own->outside.frozen = shares->area == AREA_FROZEN;
    own->outside.trained = shares->area == AREA_TRAINED;
}

/* Fills the options of a rank's stages, one for each range of its blocks. */
static int ranges_options(const struct plan *plan, const struct plan_rank *me,
                          const struct stage_options *options, struct stage_options *all, uint32_t count,
                          struct err *err)
{
    struct passed *passed = calloc((size_t)plan->micro_batch_count + 1, sizeof(*passed));
    int result = passed ? 0 : err_set(err, ERR_NOMEM, "no memory for %u stages", count);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        struct range_use use = {
            .range = me->range_count ? me->ranges[i] : (struct plan_range){me->block_begin, me->block_end}};
        result = use_find(me, passed, &use, err);
        all[i] = options_for(options, &use);
        all[i].part = stages_part_of(options->config, &me->tensor);
        all[i].recompute_end = use.recompute ? (uint32_t)me->recompute_end : 0;
    }
    free(passed);
    return result;
}

int stages_create(struct device *device, const struct weight_source *source,
                  const struct stage_options *options, const struct plan *plan, uint32_t rank,
                  struct stages *stages, struct err *err)
{
    const struct plan_rank *me = &plan->ranks[rank];
    bool apart = plan->placement == PLACE_EXPERT;
    uint32_t count = apart ? experts_stage_count(me) : me->range_count ? me->range_count : 1;
    struct stage_options *all = calloc((size_t)count + 1, sizeof(*all));
    stages->list = calloc((size_t)count + 1, sizeof(struct stage *));
    int result = all && stages->list ? 0 : err_set(err, ERR_NOMEM, "no memory for %u stages", count);
    if (result == 0)
        result = apart ? experts_options(plan, rank, options, all, err)
                       : ranges_options(plan, me, options, all, count, err);
    if (result == 0)
        result = shares_create(device, source, options, plan, rank, &stages->shares, err);
    if (stages->shares && !stages->shares->computes)
        count = 0;
    if (result == 0)
        result = workspace_make(device, all, count, stages, err);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        all[i].workspace = stages->workspace;
        all[i].moments_on_host = me->moments_host_bytes > 0;
        leave_outside(stages->shares, &all[i]);
        result = stage_create_from(device, source, &all[i], &stages->list[i], err);
        stages->count += result == 0;
    }
    free(all);
    return result;
}

void stages_fini(struct stages *stages)
{
    for (uint32_t i = 0; i < stages->count; i++)
        stage_destroy(stages->list[i]);
    shares_destroy(stages->shares);
    buffer_destroy(stages->workspace);
    free(stages->list);
    *stages = (struct stages){0};
}

int stages_find(const struct stages *stages, int32_t begin, int32_t end)
{
    for (uint32_t i = 0; i < stages->count; i++) {
        struct stage_options has;
        stage_options_get(stages->list[i], &has);
        if (begin >= (int32_t)has.block_begin && end <= (int32_t)has.block_end && begin < end &&
            has.part.holds != HOLDS_EXPERTS)
            return (int)i;
    }
    return -1;
}

int stages_find_experts(const struct stages *stages, int32_t block)
{
    for (uint32_t i = 0; i < stages->count; i++) {
        struct stage_options has;
        stage_options_get(stages->list[i], &has);
        if (block == (int32_t)has.block_begin && has.part.holds == HOLDS_EXPERTS)
            return (int)i;
    }
    return -1;
}

/* --- calls of all stages --- */

/* Returns the shard of trained state that this rank keeps beside its stages, or NULL. */
static struct shard *shard_of(const struct stages *stages)
{
    return stages->shares ? stages->shares->shard : NULL;
}

int stages_loss_scale_set(struct stages *stages, double scale, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_loss_scale_set(stages->list[i], scale, err) < 0)
            return -1;
    return shard_of(stages) ? shard_loss_scale_set(shard_of(stages), scale, err) : 0;
}

int stages_step_begin(struct stages *stages, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_step_begin(stages->list[i], err) < 0)
            return -1;
    return shard_of(stages) ? shard_step_begin(shard_of(stages), err) : 0;
}

int stages_loss(struct stages *stages, double *loss_sum, uint64_t *labelled, struct err *err)
{
    *loss_sum = 0;
    *labelled = 0;
    for (uint32_t i = 0; i < stages->count; i++) {
        double loss;
        uint64_t tokens;
        if (stage_loss(stages->list[i], &loss, &tokens, err) < 0)
            return -1;
        *loss_sum += loss;
        *labelled += tokens;
    }
    return 0;
}

/* Adds up a value of all stages, in their order. */
static int sum_over_stages(struct stages *stages, int (*of)(struct stage *, double *, struct err *),
                           double *sum, struct err *err)
{
    *sum = 0;
    for (uint32_t i = 0; i < stages->count; i++) {
        double own;
        if (of(stages->list[i], &own, err) < 0)
            return -1;
        *sum += own;
    }
    return 0;
}

int stages_router_loss(struct stages *stages, double *sum, struct err *err)
{
    return sum_over_stages(stages, stage_router_loss, sum, err);
}

int stages_grad_square_sum(struct stages *stages, const struct plan *plan, uint32_t rank, double *sum,
                           struct err *err)
{
    *sum = 0;
    for (uint32_t i = 0; i < stages->count; i++) {
        struct stage_options has;
        double own;
        stage_options_get(stages->list[i], &has);
        /* The stage's first blocks are left out while another rank counts their shared parameters. */
        uint32_t from = has.block_begin;
        while (from < has.block_end && !plan_counts_alike(plan, rank, (int32_t)from))
            from++;
        if (stage_grad_square_sum_from(stages->list[i], from, &own, err) < 0)
            return -1;
        *sum += own;
    }
    double shared = 0;
    if (shard_of(stages) && shard_grad_square_sum(shard_of(stages), &shared, err) < 0)
        return -1;
    *sum += shared;
    return 0;
}

int stages_update(struct stages *stages, const struct step_update *update, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_update(stages->list[i], update, err) < 0)
            return -1;
    return shard_of(stages) ? shard_update(shard_of(stages), update, err) : 0;
}

uint32_t stages_parameter_count(const struct stages *stages)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < stages->count; i++)
        count += stage_parameter_count(stages->list[i]);
    return count;
}

/* Returns the stage of parameter *index and changes *index to the number within that stage. A number beyond
 * all parameters gives the last stage. */
static struct stage *stage_with(const struct stages *stages, uint32_t *index)
{
    uint32_t i = 0;
    for (; i + 1 < stages->count && *index >= stage_parameter_count(stages->list[i]); i++)
        *index -= stage_parameter_count(stages->list[i]);
    return stages->list[i];
}

struct parameter stages_parameter_at(const struct stages *stages, uint32_t index)
{
    struct stage *stage = stage_with(stages, &index);
    return stage_parameter_at(stage, index);
}

int stages_state_view(const struct stages *stages, uint32_t index, enum stage_state state,
                      struct area_view *out, struct err *err)
{
    struct stage *stage = stage_with(stages, &index);
    return stage_state_view(stage, index, state, out, err);
}

uint32_t stages_piece_count(const struct stages *stages)
{
    return stages_parameter_count(stages) + (shard_of(stages) ? shard_piece_count(shard_of(stages)) : 0);
}

struct shard_piece stages_piece_at(const struct stages *stages, uint32_t index)
{
    uint32_t whole = stages_parameter_count(stages);
    if (index >= whole)
        return shard_piece_at(shard_of(stages), index - whole);
    struct parameter parameter = stages_parameter_at(stages, index);
    return (struct shard_piece){.of = parameter, .count = (uint64_t)parameter.rows * parameter.columns};
}

int stages_piece_read(struct stages *stages, const struct shard_part *part, float *dst, struct err *err)
{
    struct shard_part own = *part;
    uint32_t whole = stages_parameter_count(stages);
    if (own.piece >= whole) {
        own.piece -= whole;
        return shard_part_read(shard_of(stages), &own, dst, err);
    }
    struct stage *stage = stage_with(stages, &own.piece);
    return stage_part_read(stage, &own, dst, err);
}

int stages_piece_write(struct stages *stages, const struct shard_part *part, const float *src,
                       struct err *err)
{
    struct shard_part own = *part;
    uint32_t whole = stages_parameter_count(stages);
    if (own.piece >= whole) {
        own.piece -= whole;
        return shard_part_write(shard_of(stages), &own, src, err);
    }
    struct stage *stage = stage_with(stages, &own.piece);
    return stage_part_write(stage, &own, src, err);
}

struct stage *stages_table(const struct stages *stages)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_table_values(stages->list[i]) > 0)
            return stages->list[i];
    return NULL;
}

uint64_t stages_update_count(const struct stages *stages)
{
    if (shard_of(stages))
        return shard_update_count(shard_of(stages));
    return stages->count ? stage_update_count(stages->list[0]) : 0;
}

void stages_update_count_set(struct stages *stages, uint64_t count)
{
    for (uint32_t i = 0; i < stages->count; i++)
        stage_update_count_set(stages->list[i], count);
    if (shard_of(stages))
        shard_update_count_set(shard_of(stages), count);
}
