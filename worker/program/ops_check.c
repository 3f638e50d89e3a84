/* Refuses, by name and before the first instruction runs, everything in a plan that this worker does not
 * support. */
#include "worker/program/exchange_private.h"
#include "worker/program/gather_private.h"

static int check_slot(const struct ops *ops, uint32_t number, int32_t slot, uint32_t kinds, struct err *err)
{
    if (slot == PLAN_NONE)
        return 0;
    if (slot < 0 || (uint32_t)slot >= ops->me->slot_count)
        return err_set(err, ERR_INVALID, "instruction %u uses slot %d, which rank %u does not have", number,
                       (int)slot, ops->options.rank);
    uint8_t kind = ops->me->slots[slot].kind;
    if (!(kinds & (1u << kind)))
        return err_set(err, ERR_INVALID, "instruction %u cannot use slot %d, which holds %s", number,
                       (int)slot, slot_kind_name(kind));
    return 0;
}

#define KIND(name) (1u << (name))
#define BOUNDARY (KIND(SLOT_ACTIVATION) | KIND(SLOT_GRADIENT) | KIND(SLOT_PARTIAL))
#define ROUTED (KIND(SLOT_ROUTED) | KIND(SLOT_ROUTED_GRADIENT))
#define STATE (KIND(SLOT_GRADIENTS) | KIND(SLOT_PARAMETERS))
#define SCALARS (KIND(SLOT_STEP_SCALARS) | KIND(SLOT_NORM_SCALAR) | KIND(SLOT_TOKEN) | KIND(SLOT_BARRIER))

/* The slot kinds that each op accepts as in, out and save; ops that are not listed are refused. */
static const struct {
    uint32_t in, out, save;
    bool known;
} op_slots[INSTR_COUNT] = {
    [INSTR_FORWARD] = {BOUNDARY | KIND(SLOT_TOKEN), BOUNDARY | KIND(SLOT_TOKEN) | KIND(SLOT_STEP_SCALARS),
                       KIND(SLOT_SAVED) | KIND(SLOT_KV_CACHE), true},
    [INSTR_BACKWARD] = {BOUNDARY, BOUNDARY, KIND(SLOT_SAVED), true},
    [INSTR_BACKWARD_INPUT] = {BOUNDARY, BOUNDARY, KIND(SLOT_SAVED), true},
    [INSTR_BACKWARD_WEIGHT] = {0, 0, KIND(SLOT_SAVED), true},
    [INSTR_SAMPLE] = {KIND(SLOT_TOKEN), KIND(SLOT_TOKEN), KIND(SLOT_KV_CACHE), true},
    [INSTR_SEND] = {BOUNDARY | KIND(SLOT_TOKEN), 0, 0, true},
    [INSTR_RECV] = {0, BOUNDARY | KIND(SLOT_TOKEN), 0, true},
    [INSTR_ALL_REDUCE] = {SCALARS | STATE | KIND(SLOT_PARTIAL), SCALARS | STATE | KIND(SLOT_PARTIAL), 0,
                          true},
    [INSTR_BROADCAST] = {SCALARS | KIND(SLOT_PARTIAL), SCALARS | KIND(SLOT_PARTIAL), 0, true},
    [INSTR_PULL] = {0, KIND(SLOT_GATHERED) | KIND(SLOT_GRADIENTS), 0, true},
    [INSTR_PUSH] = {KIND(SLOT_PARAMETERS) | KIND(SLOT_GRADIENTS), 0, 0, true},
    [INSTR_ALL_GATHER] = {KIND(SLOT_PARAMETERS), KIND(SLOT_GATHERED), 0, true},
    [INSTR_REDUCE_SCATTER] = {KIND(SLOT_GRADIENTS), KIND(SLOT_GRADIENTS), 0, true},
    [INSTR_ATTENTION] = {BOUNDARY, BOUNDARY, KIND(SLOT_SAVED) | KIND(SLOT_KV_CACHE), true},
    [INSTR_ROUTE] = {BOUNDARY | ROUTED, BOUNDARY | ROUTED, KIND(SLOT_SAVED), true},
    [INSTR_DISPATCH] = {ROUTED, ROUTED, 0, true},
    [INSTR_EXPERTS] = {ROUTED, ROUTED, KIND(SLOT_SAVED), true},
    [INSTR_COMBINE] = {ROUTED | KIND(SLOT_GRADIENT), ROUTED | KIND(SLOT_ACTIVATION), KIND(SLOT_ACTIVATION),
                       true},
    [INSTR_STEP] = {SCALARS | STATE, SCALARS | STATE, SCALARS | STATE, true},
    [INSTR_RELEASE] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, true},
    [INSTR_SAVE] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, true},
};

static bool releases_saved(const struct ops *ops, const struct instr *instr)
{
    return instr->slot_in >= 0 && (uint32_t)instr->slot_in < ops->me->slot_count &&
           ops->me->slots[instr->slot_in].kind == SLOT_SAVED;
}

int ops_whole_owner(const struct plan_group *group)
{
    int keeper = -1;
    for (uint32_t p = 0; group->shares && p < group->rank_count; p++) {
        if (group->shares[p] > 0 && group->shares[p] < 1)
            return -1;
        keeper = group->shares[p] > 0 ? (int)p : keeper;
    }
    return keeper;
}

/* Returns why an ALL_GATHER of weights of which this rank keeps no shard is not supported, or NULL. It is
 * supported for a tied embedding alone, which the ranks that keep it send to the ranks with the head. */
static const char *unsupported_gather(const struct ops *ops, const struct instr *instr)
{
    const struct plan *plan = ops->options.plan;
    if (instr->group < 0 || (uint32_t)instr->group >= plan->group_count)
        return "shards of the state";
    const struct plan_group *group = &plan->groups[instr->group];
    int position = plan_group_position(group, ops->options.rank);
    bool keeps = position >= 0 && position == ops_whole_owner(group);
    if (ops_whole_owner(group) < 0 && (!group->shares || position < 0 || group->shares[position] > 0))
        return "shards of the state";
    if (instr->block_begin != 0 || instr->block_end != 1 || (!keeps && !stages_table(ops->options.stages)))
        return "blocks other than a tied embedding that the head here shares";
    return NULL;
}

/* Returns the feature of an instruction that this worker does not support, or NULL. */
static const char *unsupported_feature(const struct ops *ops, int kind, const struct instr *instr)
{
    static const struct {
        uint16_t flag;
        const char *name;
    } flags[] = {{FLAG_ACCUMULATE, "ACCUMULATE"}, {FLAG_BACKWARD, "BACKWARD"}};
    bool transfer = instr->op == INSTR_SEND || instr->op == INSTR_RECV;
    bool moved = gather_moves(ops, instr);
    if (ops->exchange && (apart_has(instr) || instr->op == INSTR_FORWARD || instr->op == INSTR_BACKWARD))
        return apart_lacks(ops, kind, instr);
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
        if ((instr->flags & flags[i].flag) && !(moved && flags[i].flag == FLAG_ACCUMULATE))
            return flags[i].name;
    if (halves_unsupported(ops, instr))
        return halves_unsupported(ops, instr);
    if (!transfer && (instr->row_begin != 0 || instr->row_end != PLAN_ROWS_ALL))
        return "some of the rows";
    if ((instr->op == INSTR_PULL || instr->op == INSTR_PUSH) && !moved)
        return "blocks that are not this rank's";
    if ((instr->op == INSTR_ALL_GATHER || instr->op == INSTR_REDUCE_SCATTER) && !moved)
        return unsupported_gather(ops, instr);
    if (instr->op == INSTR_STEP && instr->group != PLAN_NONE &&
        (!ops->options.stages->shares || ops->options.stages->shares->group != instr->group))
        return "a group's shares";
    if (instr->op == INSTR_STEP && instr->block_begin < instr->block_end &&
        (instr->block_begin > ops->me->block_begin || instr->block_end < ops->me->block_end))
        return "some of the blocks";
    if (instr->op == INSTR_RELEASE && releases_saved(ops, instr) &&
        (instr->micro_batch < 0 || (uint32_t)instr->micro_batch >= ops->options.plan->micro_batch_count ||
         stages_find(ops->options.stages, instr->block_begin, instr->block_end) < 0))
        return "a saved slot of no micro-batch or no range";
    return NULL;
}

static bool passes_blocks(const struct instr *instr)
{
    return instr->op == INSTR_FORWARD || instr->op == INSTR_BACKWARD || instr->op == INSTR_BACKWARD_INPUT ||
           instr->op == INSTR_BACKWARD_WEIGHT;
}

/* Checks that a stage holds the instruction's blocks. */
static int check_blocks(const struct ops *ops, const struct instr *instr, struct err *err)
{
    const struct stages *stages = ops->options.stages;
    if (stages_find(stages, instr->block_begin, instr->block_end) < 0)
        return err_set(err, ERR_UNSUPPORTED, "rank %u has no range of blocks with %d..%d", ops->options.rank,
                       (int)instr->block_begin, (int)instr->block_end);
    if (instr->op != INSTR_FORWARD && instr->slot_save == PLAN_NONE)
        return err_set(err, ERR_INVALID, "it names no slot of what forward saved");
    return 0;
}

/* Whether a slot holds boundary tensors of another dtype than `dtype`. */
static bool slot_differs(const struct ops *ops, int32_t slot, enum dtype dtype)
{
    const struct plan_slot *has = slot == PLAN_NONE ? NULL : &ops->me->slots[slot];
    return has && (KIND(has->kind) & BOUNDARY) && stages_dtype((enum plan_dtype)has->dtype) != dtype;
}

/* Checks that boundary tensors have the stage's dtype at both ends of its range of blocks, in every program.
 * Between instructions for parts of the range the tensors stay on the rank and are fp32. */
static int check_dtypes(const struct ops *ops, const struct instr *instr, struct err *err)
{
    struct stage_options has;
    int stage = stages_find(ops->options.stages, instr->block_begin, instr->block_end);
    stage_options_get(ops->options.stages->list[stage], &has);
    uint32_t leaves = has.leave_first ? has.leave_first : has.block_end;
    bool enters =
        instr->block_begin == (int32_t)has.block_begin || instr->block_begin <= (int32_t)has.enter_last;
    enum dtype first = enters ? has.boundary_in : DTYPE_F32,
               last = instr->block_end >= (int32_t)leaves ? has.boundary_out : DTYPE_F32;
    bool forward = instr->op == INSTR_FORWARD;
    bool in = slot_differs(ops, instr->slot_in, forward ? first : last),
         out = slot_differs(ops, instr->slot_out, forward ? last : first);
    int32_t slot = in ? instr->slot_in : instr->slot_out;
    if (!in && !out)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "slot %d is in %s, and %s of blocks %d..%d has another dtype there: one for each end of a "
                   "range, fp32 within it",
                   (int)slot, plan_dtype_name(ops->me->slots[slot].dtype), instr_op_name(instr->op),
                   (int)instr->block_begin, (int)instr->block_end);
}

/* Whether a collective reduces or broadcasts a boundary tensor, and so belongs to a micro-batch. */
static bool sums_parts(const struct ops *ops, const struct instr *instr)
{
    int32_t slot = instr->slot_in != PLAN_NONE ? instr->slot_in : instr->slot_out;
    return (instr->op == INSTR_ALL_REDUCE || instr->op == INSTR_BROADCAST) && slot >= 0 &&
           (uint32_t)slot < ops->me->slot_count && ops->me->slots[slot].kind == SLOT_PARTIAL;
}

/* Checks an instruction; the caller adds the name of the program to an error. */
static int check_use(const struct ops *ops, int kind, uint32_t number, const struct instr *instr,
                     struct err *err)
{
    const char *feature = unsupported_feature(ops, kind, instr);
    bool transfer = instr->op == INSTR_SEND || instr->op == INSTR_RECV;
    if (feature)
        return err_set(err, ERR_UNSUPPORTED, "instruction %u: this worker does not do %s with %s", number,
                       instr_op_name(instr->op), feature);
    if ((passes_blocks(instr) || transfer || sums_parts(ops, instr)) &&
        (instr->micro_batch < 0 || (uint32_t)instr->micro_batch >= ops->options.plan->micro_batch_count))
        return err_set(err, ERR_INVALID, "instruction %u: there is no micro-batch %d", number,
                       (int)instr->micro_batch);
    if (transfer && (instr->op == INSTR_SEND ? instr->slot_in : instr->slot_out) == PLAN_NONE)
        return err_set(err, ERR_INVALID, "instruction %u names no slot", number);
    if (check_slot(ops, number, instr->slot_in, op_slots[instr->op].in, err) < 0 ||
        check_slot(ops, number, instr->slot_out, op_slots[instr->op].out, err) < 0 ||
        check_slot(ops, number, instr->slot_save, op_slots[instr->op].save, err) < 0)
        return -1;
    if (passes_blocks(instr) && (check_blocks(ops, instr, err) < 0 || check_dtypes(ops, instr, err) < 0))
        return err_wrap(err, "instruction %u", number);
    return 0;
}

int ops_check_instr(const struct ops *ops, int kind, uint32_t number, const struct instr *instr,
                    struct err *err)
{
    if (instr->op >= INSTR_COUNT || !op_slots[instr->op].known)
        return err_set(err, ERR_UNSUPPORTED, "%s, instruction %u: this worker does not do %s",
                       program_kind_name(kind), number,
                       instr->op < INSTR_COUNT ? instr_op_name(instr->op) : "that");
    return check_use(ops, kind, number, instr, err) < 0 ? err_wrap(err, "%s", program_kind_name(kind)) : 0;
}
