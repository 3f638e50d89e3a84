/* Creates, releases and names plans, and computes with their numbers.
 *
 * Invariants: counts and arrays agree; group 0 contains every rank; micro_batch_start rises and ends at
 * batch_rows.
 */
#include "program/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const plan_placement_names[PLACE_COUNT + 1] = {
    [PLACE_SINGLE] = "single", [PLACE_PIPELINE] = "pipeline", [PLACE_DATA] = "data",
    [PLACE_HYBRID] = "hybrid", [PLACE_EXPERT] = "expert",     [PLACE_TENSOR] = "tensor",
    [PLACE_SERVER] = "server"};
const char *const plan_schedule_names[SCHEDULE_COUNT + 1] = {"1f1b", "gpipe", "interleaved",
                                                             "split backward"};
static const char *const program_names[PROGRAM_KINDS] = {"train", "evaluate", "prefill", "generate", "save"};
const char *const plan_purpose_names[PURPOSE_COUNT + 1] = {"weights", "adapters", "optimizer", "activations",
                                                           "buffers"};
const char *const instr_op_names[INSTR_COUNT + 1] = {
    "FORWARD",    "BACKWARD",       "BACKWARD_INPUT", "BACKWARD_WEIGHT", "SAMPLE", "SEND",    "RECV",
    "ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE",     "BROADCAST",       "PULL",   "PUSH",    "ATTENTION",
    "ROUTE",      "DISPATCH",       "EXPERTS",        "COMBINE",         "STEP",   "RELEASE", "SAVE"};
const char *const slot_kind_names[SLOT_KINDS + 1] = {
    "activation", "gradient", "saved",  "step_scalars",    "norm",    "gradients", "parameters", "kv_cache",
    "token",      "gathered", "routed", "routed_gradient", "barrier", "partial"};
const char *const plan_dtype_names[PLAN_DTYPES + 1] = {"fp32", "bf16", "fp16"};
static const char *const tag_names[TAG_COUNT] = {
    "none",       "activation", "gradient", "step_scalars", "norm", "parameter_gradients",
    "parameters", "token",      "routed",   "barrier"};

static const char *program_name_of(const char *const *names, int count, int number)
{
    return number >= 0 && number < count ? names[number] : NULL;
}

static int program_number_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

const char *plan_placement_name(int placement)
{
    return program_name_of(plan_placement_names, PLACE_COUNT, placement);
}

const char *plan_schedule_name(int schedule)
{
    return program_name_of(plan_schedule_names, SCHEDULE_COUNT, schedule);
}

const char *program_kind_name(int kind)
{
    return program_name_of(program_names, PROGRAM_KINDS, kind);
}

const char *plan_purpose_name(int purpose)
{
    return program_name_of(plan_purpose_names, PURPOSE_COUNT, purpose);
}

const char *instr_op_name(int op)
{
    return program_name_of(instr_op_names, INSTR_COUNT, op);
}

const char *slot_kind_name(int kind)
{
    return program_name_of(slot_kind_names, SLOT_KINDS, kind);
}

const char *plan_dtype_name(int dtype)
{
    return program_name_of(plan_dtype_names, PLAN_DTYPES, dtype);
}

uint32_t plan_dtype_bytes(int dtype)
{
    return dtype == PLAN_F32 ? 4 : 2;
}

const char *instr_tag_name(int tag)
{
    return program_name_of(tag_names, TAG_COUNT, tag);
}

int plan_placement_from_name(const char *name)
{
    return program_number_of(plan_placement_names, PLACE_COUNT, name);
}

int program_kind_from_name(const char *name)
{
    return program_number_of(program_names, PROGRAM_KINDS, name);
}

static int program_plan_fill(struct plan *plan, uint32_t batch_rows, uint32_t micro_batch_rows)
{
    plan->micro_batch_start = calloc((size_t)plan->micro_batch_count + 1, sizeof(*plan->micro_batch_start));
    plan->ranks = calloc(plan->rank_count, sizeof(*plan->ranks));
    plan->groups = calloc(plan->group_count, sizeof(*plan->groups));
    if (!plan->micro_batch_start || !plan->ranks || !plan->groups)
        return -1;
    for (uint32_t k = 1; k <= plan->micro_batch_count; k++) {
        uint64_t end = (uint64_t)k * micro_batch_rows;
        plan->micro_batch_start[k] = end < batch_rows ? (uint32_t)end : batch_rows;
    }
    plan->groups[0].ranks = calloc(plan->rank_count, sizeof(uint32_t));
    if (!plan->groups[0].ranks)
        return -1;
    plan->groups[0].rank_count = plan->rank_count;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        plan->groups[0].ranks[r] = r;
    return 0;
}

struct plan *plan_create(uint32_t rank_count, uint32_t group_count, uint32_t batch_rows,
                         uint32_t micro_batch_rows, struct err *err)
{
    if (rank_count == 0 || group_count == 0 || batch_rows == 0 || micro_batch_rows == 0) {
        err_set(err, ERR_INVALID, "plan: ranks, groups, batch rows and micro-batch rows must be at least 1");
        return NULL;
    }
    uint32_t micro_batches = (batch_rows - 1) / micro_batch_rows + 1;
    if (rank_count > PLAN_RANKS_MAX || group_count > PLAN_GROUPS_MAX ||
        micro_batches > PLAN_MICRO_BATCHES_MAX) {
        err_set(err, ERR_TOO_BIG, "plan: %u ranks, %u groups, %u micro-batches; at most %u, %u, %u",
                rank_count, group_count, micro_batches, PLAN_RANKS_MAX, PLAN_GROUPS_MAX,
                PLAN_MICRO_BATCHES_MAX);
        return NULL;
    }
    struct plan *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        err_set(err, ERR_NOMEM, "plan: out of memory");
        return NULL;
    }
    plan->slice_rank = PLAN_NONE;
    plan->batch_rows = batch_rows;
    plan->rank_count = rank_count;
    plan->group_count = group_count;
    plan->micro_batch_count = micro_batches;
    plan->rows_bound = micro_batch_rows < batch_rows ? micro_batch_rows : batch_rows;
    if (program_plan_fill(plan, batch_rows, micro_batch_rows) < 0) {
        plan_destroy(plan);
        err_set(err, ERR_NOMEM, "plan: out of memory");
        return NULL;
    }
    return plan;
}

void program_fini(struct program *program)
{
    free(program->instrs);
    free(program->after);
    *program = (struct program){0};
}

void plan_destroy(struct plan *plan)
{
    if (!plan)
        return;
    for (uint32_t r = 0; plan->ranks && r < plan->rank_count; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        free(rank->device);
        free(rank->node);
        free(rank->experts);
        free(rank->ranges);
        free(rank->updates);
        free(rank->slots);
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            program_fini(&rank->programs[kind]);
    }
    for (uint32_t g = 0; plan->groups && g < plan->group_count; g++) {
        free(plan->groups[g].ranks);
        free(plan->groups[g].shares);
    }
    free(plan->ranks);
    free(plan->groups);
    free(plan->micro_batch_start);
    free(plan->costs.text);
    free(plan);
}

void plan_micro_batch_rows(const struct plan *plan, uint32_t k, uint32_t step_rows, uint32_t *begin,
                           uint32_t *end)
{
    if (k >= plan->micro_batch_count) {
        *begin = *end = 0;
        return;
    }
    uint32_t first = plan->micro_batch_start[k], last = plan->micro_batch_start[k + 1];
    *begin = first < step_rows ? first : step_rows;
    *end = last < step_rows ? last : step_rows;
}

uint32_t slot_instance(const struct plan_slot *slot, int32_t micro_batch, int32_t block_begin)
{
    uint32_t micro = micro_batch > 0 ? (uint32_t)micro_batch % slot->ring_micro_batches : 0;
    uint32_t block = block_begin > slot->block_begin ? (uint32_t)(block_begin - slot->block_begin) : 0;
    return micro + slot->ring_micro_batches * (block % slot->ring_blocks);
}

uint64_t slot_bytes(const struct plan_slot *slot, uint64_t tokens, uint64_t rows)
{
    double bytes = slot->bytes_per_token * (double)tokens + slot->bytes_per_row * (double)rows;
    double bound = (double)slot->bytes_bound;
    double total = (double)slot->bytes_fixed + bytes;
    return total >= bound ? slot->bytes_bound : (uint64_t)total;
}

uint32_t plan_queue_count(const struct plan *plan)
{
    return 2 + 2 * plan->rank_count + plan->group_count;
}

uint32_t instr_queue_index(const struct plan *plan, const struct instr *instr)
{
    switch (instr->queue) {
    case QUEUE_SEND:
        return 2 + 2 * (uint32_t)instr->peer;
    case QUEUE_RECV:
        return 3 + 2 * (uint32_t)instr->peer;
    case QUEUE_GROUP:
        return 2 + 2 * plan->rank_count + (uint32_t)instr->group;
    default:
        return 0;
    }
}

struct plan_bounds plan_rank_bounds(const struct plan *plan, uint32_t rank)
{
    struct plan_bounds own = plan->ranks[rank].bounds;
    return own.tokens > 0 ? own
                          : (struct plan_bounds){plan->tokens_bound, plan->rows_bound, plan->labelled_bound};
}

bool plan_rank_holds(const struct plan_rank *rank, int32_t begin, int32_t end)
{
    if (rank->range_count == 0)
        return begin >= rank->block_begin && end <= rank->block_end;
    for (uint32_t i = 0; i < rank->range_count; i++)
        if (begin >= rank->ranges[i].begin && end <= rank->ranges[i].end)
            return true;
    return false;
}

/* Whether a rank keeps the block's parameters of which all ranks with a part of the block have equal copies
 * (norms, routers). In an expert plan the ranks with attention have them, which are those with rows. */
static bool keeps_alike(const struct plan *plan, uint32_t rank, int32_t block)
{
    const struct plan_rank *r = &plan->ranks[rank];
    return plan_rank_holds(r, block, block + 1) && (plan->placement != PLACE_EXPERT || r->rows > 0);
}

bool plan_counts_alike(const struct plan *plan, uint32_t rank, int32_t block)
{
    bool once = plan->placement == PLACE_TENSOR || plan->placement == PLACE_EXPERT ||
                plan->placement == PLACE_PIPELINE;
    for (uint32_t r = 0; once && r < rank; r++)
        if (keeps_alike(plan, r, block))
            return false;
    return keeps_alike(plan, rank, block);
}

int plan_group_position(const struct plan_group *group, uint32_t rank)
{
    for (uint32_t p = 0; p < group->rank_count; p++)
        if (group->ranks[p] == rank)
            return (int)p;
    return -1;
}

void plan_group_tree(const struct plan_group *group, uint32_t position, int32_t *parent, int32_t children[2])
{
    *parent = position == 0 ? PLAN_NONE : (int32_t)group->ranks[(position - 1) / 2];
    for (uint32_t c = 0; c < 2; c++) {
        uint64_t child = 2 * (uint64_t)position + 1 + c;
        children[c] = child < group->rank_count ? (int32_t)group->ranks[child] : PLAN_NONE;
    }
}

bool slot_holds_scalars(int kind)
{
    return kind == SLOT_STEP_SCALARS || kind == SLOT_NORM_SCALAR || kind == SLOT_BARRIER ||
           kind == SLOT_TOKEN;
}

static bool kind_is_scalar(const struct plan_rank *rank, int32_t slot)
{
    return slot >= 0 && (uint32_t)slot < rank->slot_count && slot_holds_scalars(rank->slots[slot].kind);
}

static bool is_over_tree(const struct plan_rank *rank, const struct instr *instr)
{
    return instr->op == INSTR_ALL_REDUCE &&
           kind_is_scalar(rank, instr->slot_in >= 0 ? instr->slot_in : instr->slot_out);
}

/* Marks the rank's neighbours in the group's tree, or all members. */
static void group_peers(const struct plan_group *group, uint32_t rank, bool tree, bool *peers)
{
    int position = plan_group_position(group, rank);
    if (position < 0)
        return;
    int32_t parent, children[2];
    plan_group_tree(group, (uint32_t)position, &parent, children);
    for (uint32_t p = 0; p < group->rank_count; p++) {
        uint32_t other = group->ranks[p];
        bool neighbour =
            (int32_t)other == parent || (int32_t)other == children[0] || (int32_t)other == children[1];
        if (other != rank && (!tree || neighbour))
            peers[other] = true;
    }
}

void plan_rank_peers(const struct plan *plan, uint32_t rank, bool *peers)
{
    memset(peers, 0, plan->rank_count * sizeof(*peers));
    if (plan->group_count > 0)
        group_peers(&plan->groups[0], rank, true, peers);
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &plan->ranks[rank].programs[kind];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *instr = &program->instrs[i];
            if (instr->queue == QUEUE_GROUP)
                group_peers(&plan->groups[instr->group], rank, is_over_tree(&plan->ranks[rank], instr),
                            peers);
            else if (instr->queue == QUEUE_SEND || instr->queue == QUEUE_RECV)
                peers[instr->peer] = true;
        }
    }
}

struct instr instr_init(enum instr_op op, enum queue_kind queue)
{
    return (struct instr){.op = (uint8_t)op,
                          .queue = (uint8_t)queue,
                          .micro_batch = PLAN_NONE,
                          .peer = PLAN_NONE,
                          .group = PLAN_NONE,
                          .slot_in = PLAN_NONE,
                          .slot_out = PLAN_NONE,
                          .slot_save = PLAN_NONE,
                          .row_end = PLAN_ROWS_ALL};
}

void program_builder_expect(struct program_builder *builder, uint64_t instructions, uint64_t after)
{
    struct program *program = &builder->program;
    if (instructions > PROGRAM_INSTRS_MAX || after > PROGRAM_AFTER_MAX)
        return; /* a number that is too large is reported when it is reached */
    struct instr *instrs = instructions > builder->instr_capacity
                               ? realloc(program->instrs, instructions * sizeof(*instrs))
                               : NULL;
    if (instrs) {
        program->instrs = instrs;
        builder->instr_capacity = (uint32_t)instructions;
    }
    uint32_t *numbers =
        after > builder->after_capacity ? realloc(program->after, after * sizeof(*numbers)) : NULL;
    if (numbers) {
        program->after = numbers;
        builder->after_capacity = (uint32_t)after;
    }
}

static int builder_reserve(struct program_builder *builder, size_t after)
{
    struct program *program = &builder->program;
    if (program->instr_count == builder->instr_capacity) {
        uint32_t capacity = builder->instr_capacity ? builder->instr_capacity * 2 : 64;
        if (program->instr_count >= PROGRAM_INSTRS_MAX)
            return -1;
        struct instr *grown = realloc(program->instrs, capacity * sizeof(*grown));
        if (!grown)
            return -1;
        program->instrs = grown;
        builder->instr_capacity = capacity;
    }
    if (program->after_total + after > builder->after_capacity) {
        size_t capacity = builder->after_capacity ? (size_t)builder->after_capacity * 2 : 64;
        while (capacity < program->after_total + after)
            capacity *= 2;
        if (after > PROGRAM_AFTER_MAX || capacity > 2 * (size_t)PROGRAM_AFTER_MAX)
            return -1;
        uint32_t *grown = realloc(program->after, capacity * sizeof(*grown));
        if (!grown)
            return -1;
        program->after = grown;
        builder->after_capacity = (uint32_t)capacity;
    }
    return 0;
}

int32_t program_add(struct program_builder *builder, const struct instr *instr, const int32_t *after,
                    size_t count)
{
    struct program *program = &builder->program;
    if (builder->failed || builder_reserve(builder, count) < 0) {
        builder->failed = true;
        return 0;
    }
    struct instr *added = &program->instrs[program->instr_count];
    *added = *instr;
    added->after_first = program->after_total;
    added->after_count = 0;
    for (size_t i = 0; i < count; i++) {
        bool known = after[i] < 0;
        for (uint32_t k = 0; k < added->after_count && !known; k++)
            known = program->after[added->after_first + k] == (uint32_t)after[i];
        if (known)
            continue;
        program->after[program->after_total++] = (uint32_t)after[i];
        added->after_count++;
    }
    return (int32_t)program->instr_count++;
}

int32_t program_add_collective(struct program_builder *builder, enum instr_op op, int32_t group, int32_t root,
                               int32_t slot, uint32_t tag, const int32_t *after, size_t count)
{
    struct instr x = instr_init(op, QUEUE_GROUP);
    x.group = group;
    x.peer = root;
    x.slot_in = x.slot_out = slot;
    x.tag = tag;
    return program_add(builder, &x, after, count);
}

int program_builder_take(struct program_builder *builder, struct program *out, struct err *err)
{
    bool failed = builder->failed;
    if (!failed) {
        program_fini(out);
        *out = builder->program;
        builder->program = (struct program){0};
    }
    program_builder_fini(builder);
    if (failed)
        return err_set(err, ERR_TOO_BIG, "program: out of memory, or more than %u instructions",
                       PROGRAM_INSTRS_MAX);
    return 0;
}

void program_builder_fini(struct program_builder *builder)
{
    program_fini(&builder->program);
    *builder = (struct program_builder){0};
}

enum queue_kind instr_op_queue(int op)
{
    switch (op) {
    case INSTR_SEND:
    case INSTR_PUSH:
        return QUEUE_SEND;
    case INSTR_RECV:
    case INSTR_PULL:
        return QUEUE_RECV;
    case INSTR_ALL_GATHER:
    case INSTR_REDUCE_SCATTER:
    case INSTR_ALL_REDUCE:
    case INSTR_BROADCAST:
    case INSTR_DISPATCH:
    case INSTR_COMBINE:
        return QUEUE_GROUP;
    default:
        return QUEUE_COMPUTE;
    }
}

void instr_describe(const struct instr *instr, char *text, size_t size)
{
    char micro[24] = "", blocks[40] = "", peer[40] = "";
    if (instr->micro_batch >= 0)
        snprintf(micro, sizeof(micro), " mb%d", instr->micro_batch);
    if (instr->block_end > instr->block_begin)
        snprintf(blocks, sizeof(blocks), " blocks %d..%d", instr->block_begin, instr->block_end);
    if (instr->queue == QUEUE_SEND)
        snprintf(peer, sizeof(peer), " to %d", instr->peer);
    else if (instr->queue == QUEUE_RECV)
        snprintf(peer, sizeof(peer), " from %d", instr->peer);
    else if (instr->queue == QUEUE_GROUP)
        snprintf(peer, sizeof(peer), " group %d", instr->group);
    const char *name = instr_op_name(instr->op);
    const char *tag = instr->tag > TAG_GRADIENT ? instr_tag_name((int)instr->tag) : NULL;
    const char *half = instr->flags & FLAG_FIRST_HALF    ? " first half"
                       : instr->flags & FLAG_SECOND_HALF ? " second half"
                                                         : "";
    snprintf(text, size, "%-8s%s%s%s%s%s%s%s", name ? name : "?", micro, blocks, half, peer, tag ? " " : "",
             tag ? tag : "", instr->flags & FLAG_RECOMPUTE ? " recompute" : "");
}
