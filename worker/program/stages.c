/* Makes a rank's stages as its programs need them, and calls them one after another. */
#include "worker/program/stages.h"

#include <stdlib.h>

/* --- what the programs ask of a range --- */

struct range_use {
    struct plan_range range;
    uint32_t kept; /* most micro-batches that are at once between forward and the last part of backward */
    bool recompute, split;
    enum dtype boundary_in, boundary_out; /* dtype of the tensor that enters the first block and of the one
                                             that leaves the last */
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

/* Takes the dtypes of boundary tensors from the training program's FORWARDs. ops_check.c refuses other
 * instructions that differ. */
static void use_boundaries(const struct plan_rank *rank, struct range_use *use)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (x->op != INSTR_FORWARD || !is_in_range(x, &use->range))
            continue;
        if (x->block_begin == use->range.begin)
            use->boundary_in = boundary_of(rank, x->slot_in);
        if (x->block_end == use->range.end)
            use->boundary_out = boundary_of(rank, x->slot_out);
    }
}

/* Finds what the training program asks of a range. A micro-batch occupies memory from the FORWARD of the
 * range's first block until the last backward of that block; the compute queue runs them in list order. */
static int use_find(const struct plan_rank *rank, struct range_use *use, struct err *err)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0, forwards = 0, again = 0;
    for (uint32_t i = 0; i < train->instr_count; i++)
        use->split |=
            train->instrs[i].op == INSTR_BACKWARD_WEIGHT && is_in_range(&train->instrs[i], &use->range);
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        bool first = x->block_begin == use->range.begin;
        if (!is_in_range(x, &use->range) || !saves_activations(rank, x))
            continue;
        if (x->op == INSTR_FORWARD) {
            forwards++;
            again += (x->flags & FLAG_RECOMPUTE) != 0;
            live += first;
            use->kept = live > use->kept ? live : use->kept;
        } else if (first && live > 0 && x->op != INSTR_BACKWARD_INPUT) {
            live--;
        }
    }
    use_boundaries(rank, use);
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
    return own;
}

static int workspace_make(struct device *device, const struct stage_options *options,
                          const struct range_use *uses, uint32_t count, struct stages *stages,
                          struct err *err)
{
    uint64_t most = 0, bytes;
    for (uint32_t i = 0; i < count; i++) {
        struct stage_options own = options_for(options, &uses[i]);
        if (stage_workspace_bytes(&own, &bytes, err) < 0)
            return -1;
        most = bytes > most ? bytes : most;
    }
    if (count < 2)
        return 0;
    return buffer_create(device, most, MEM_BUFFERS, "the stages' workspace", &stages->workspace, err);
}

int stages_create(struct device *device, struct model *model, const struct stage_options *options,
                  const struct plan_rank *rank, struct stages *stages, struct err *err)
{
    uint32_t count = rank->range_count ? rank->range_count : 1;
    struct range_use *uses = calloc(count, sizeof *uses);
    stages->list = calloc(count, sizeof(struct stage *));
    int result = uses && stages->list ? 0 : err_set(err, ERR_NOMEM, "no memory for %u ranges", count);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        uses[i].range =
            rank->range_count ? rank->ranges[i] : (struct plan_range){rank->block_begin, rank->block_end};
        result = use_find(rank, &uses[i], err);
    }
    if (result == 0)
        result = workspace_make(device, options, uses, count, stages, err);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        struct stage_options own = options_for(options, &uses[i]);
        own.workspace = stages->workspace;
        own.moments_on_host = rank->moments_host_bytes > 0;
        result = stage_create(device, model, &own, &stages->list[i], err);
        stages->count += result == 0;
    }
    free(uses);
    return result;
}

void stages_fini(struct stages *stages)
{
    for (uint32_t i = 0; i < stages->count; i++)
        stage_destroy(stages->list[i]);
    buffer_destroy(stages->workspace);
    free(stages->list);
    *stages = (struct stages){0};
}

int stages_find(const struct stages *stages, int32_t begin, int32_t end)
{
    for (uint32_t i = 0; i < stages->count; i++) {
        struct stage_options has;
        stage_options_get(stages->list[i], &has);
        if (begin >= (int32_t)has.block_begin && end <= (int32_t)has.block_end && begin < end)
            return (int)i;
    }
    return -1;
}

/* --- calls of all stages --- */

int stages_loss_scale_set(struct stages *stages, double scale, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_loss_scale_set(stages->list[i], scale, err) < 0)
            return -1;
    return 0;
}

int stages_step_begin(struct stages *stages, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_step_begin(stages->list[i], err) < 0)
            return -1;
    return 0;
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

int stages_grad_square_sum(struct stages *stages, double *sum, struct err *err)
{
    return sum_over_stages(stages, stage_grad_square_sum, sum, err);
}

int stages_update(struct stages *stages, const struct step_update *update, struct err *err)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stage_update(stages->list[i], update, err) < 0)
            return -1;
    return 0;
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

int stages_state_read(struct stages *stages, uint32_t index, enum stage_state state, float *dst,
                      struct err *err)
{
    struct stage *stage = stage_with(stages, &index);
    return stage_state_read(stage, index, state, dst, err);
}

int stages_state_write(struct stages *stages, uint32_t index, enum stage_state state, const float *src,
                       struct err *err)
{
    struct stage *stage = stage_with(stages, &index);
    return stage_state_write(stage, index, state, src, err);
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
    return stage_update_count(stages->list[0]);
}

void stages_update_count_set(struct stages *stages, uint64_t count)
{
    for (uint32_t i = 0; i < stages->count; i++)
        stage_update_count_set(stages->list[i], count);
}
