/* Collectives: ALL_REDUCE, REDUCE and BROADCAST of scalars, of trained parameters and of their gradients;
 * ALL_GATHER and REDUCE_SCATTER of a tied embedding that one member of the group keeps whole.
 *
 * The ALL_REDUCE of scalars uses the group's binary tree (plan_group_tree). REDUCE and BROADCAST use a star
 * whose centre is the instruction's root, and so do REDUCE_SCATTER and ALL_GATHER, whose root is the keeper.
 * In both shapes a member has at most one parent and some children. It adds its children's contributions and
 * its own in a fixed order, sends the sum to its parent, and receives the result from there. The ALL_REDUCE
 * of parameters goes round a ring: values are cut into one part for each member, summed while a part goes
 * round once, and distributed while it goes round again, so that every link carries 2(k-1)/k of the bytes of
 * k members and is used in both directions. The order of additions is the plan's, so a repeated run is
 * bit-identical.
 *
 * All arithmetic and all device access happen on the executor's thread (exec_post); callbacks of the
 * transport only report arrivals. One operation of a reduce is under way at a time, so it needs no lock.
 */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "worker/program/ops_private.h"

/* A member of the group that this rank exchanges messages with, and the mesh queue that the two use for the
 * group. */
struct neighbour {
    uint32_t rank, queue;
};

struct reduce {
    struct ops *ops;
    uint32_t number; /* number of the instruction */
    const struct instr *instr;
    uint8_t kind; /* enum slot_kind */
    int32_t slot; /* the slot that is reduced: slot_in, or slot_out without one */
    bool is_root; /* this rank has no parent */
    struct neighbour parent, *children;
    uint32_t child_count;
    uint32_t own_at; /* number of children whose contributions are added before this rank's own */
    bool up, down;   /* up: contributions are sent to the root; down: the result is sent from the root */
    size_t size;     /* bytes of a contribution */
    uint8_t *own, *sum, *from; /* in ops->collectives; some point to the same memory (reduce_place) */
    uint32_t next;             /* the contribution to be added next, 0 .. child_count */
    bool arrived;              /* `from` holds that contribution */
    uint32_t sent;             /* number of children that have the result */
    struct exec_item start, advance, finish;
    struct {                      /* used by an ALL_REDUCE of parameters */
        uint32_t count, position; /* number of members; this rank's position among them */
        struct neighbour next, previous;
        uint32_t step, open; /* step: of 2(count - 1); open: transfers of that step under way */
        struct exec_item sent, got;
    } ring;
};

static struct exec *executor(const struct reduce *reduce)
{
    return reduce->ops->programs[reduce->ops->kind].exec;
}

/* Whether a message arrived with the expected number of bytes. If not, the instruction fails. */
static bool came_whole(const struct mesh_done *done, size_t bytes)
{
    const struct reduce *reduce = done->arg;
    struct err err = done->err;
    if (done->ok && done->size == bytes)
        return true;
    if (done->ok)
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %zu are due", done->peer, done->size, bytes);
    exec_done(executor(reduce), reduce->number, &err);
    return false;
}

/* --- values --- */

struct wire_scalars { /* little-endian, without padding */
    double loss_sum, aux_sum;
    uint64_t labelled, tokens;
    uint64_t control;
};

/* The block of a parameter by its name: "model.layers.N." is block N + 1. */
static int32_t block_of(const char *name, int32_t block_count)
{
    static const char layers[] = "model.layers.", embedding[] = "model.embed_tokens.";
    if (strncmp(name, layers, sizeof layers - 1) == 0) {
        long layer = strtol(name + sizeof layers - 1, NULL, 10);
        return layer >= 0 && layer < block_count - 2 ? (int32_t)layer + 1 : -1;
    }
    return strncmp(name, embedding, sizeof embedding - 1) == 0 ? 0 : block_count - 1;
}

static bool meant(const struct reduce *reduce, const char *name)
{
    int32_t block = block_of(name, reduce->ops->options.plan->block_count);
    return reduce->instr->block_begin == reduce->instr->block_end ||
           (block >= reduce->instr->block_begin && block < reduce->instr->block_end);
}

/* The stage whose copy of a tied embedding is reduced with the parameters; NULL when there is none. */
static struct stage *table_meant(const struct reduce *reduce)
{
    const struct instr *instr = reduce->instr;
    bool first = instr->block_begin == 0 && instr->block_end > 0;
    return first ? stages_table(reduce->ops->options.stages) : NULL;
}

static size_t parameter_bytes(const struct reduce *reduce)
{
    struct stages *stages = reduce->ops->options.stages;
    size_t bytes = 0;
    for (uint32_t p = 0; p < stages_parameter_count(stages); p++) {
        struct parameter parameter = stages_parameter_at(stages, p);
        if (meant(reduce, parameter.name))
            bytes += (size_t)parameter.rows * parameter.columns * sizeof(float);
    }
    if (table_meant(reduce))
        bytes += stage_table_values(table_meant(reduce)) * sizeof(float);
    return bytes;
}

static bool holds_parameters(const struct reduce *reduce)
{
    return reduce->kind == SLOT_GRADIENTS || reduce->kind == SLOT_PARAMETERS;
}

/* Copies the parameters that are reduced, or their gradients, between the stages and `values`. */
static int move_parameters(struct reduce *reduce, float *values, bool write, struct err *err)
{
    struct stages *stages = reduce->ops->options.stages;
    enum stage_state state = reduce->kind == SLOT_GRADIENTS ? STATE_GRADIENT : STATE_VALUE;
    for (uint32_t p = 0; p < stages_parameter_count(stages); p++) {
        struct parameter parameter = stages_parameter_at(stages, p);
        if (!meant(reduce, parameter.name))
            continue;
        int result = write ? stages_state_write(stages, p, state, values, err)
                           : stages_state_read(stages, p, state, values, err);
        if (result < 0)
            return -1;
        values += (size_t)parameter.rows * parameter.columns;
    }
    struct stage *table = table_meant(reduce);
    if (!table)
        return 0;
    return write ? stage_table_write(table, state, values, err) : stage_table_read(table, state, values, err);
}

static int read_own(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    struct plan_step_scalars scalars;
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        if (ops_own_scalars(ops, &scalars, err) < 0)
            return -1;
        *(struct wire_scalars *)(void *)reduce->own = (struct wire_scalars){
            scalars.loss_sum, scalars.aux_sum, scalars.labelled, scalars.tokens, scalars.control};
        return 0;
    case SLOT_NORM_SCALAR:
        return ops_own_norm(ops, (double *)(void *)reduce->own, err);
    case SLOT_TOKEN:
        memcpy(reduce->own, &ops->step->token, sizeof ops->step->token);
        return 0;
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return move_parameters(reduce, (float *)(void *)reduce->own, false, err);
    default:
        memset(reduce->own, 0, reduce->size);
        return 0;
    }
}

static void add_values(const struct reduce *reduce, const uint8_t *value)
{
    if (reduce->next == 0 || reduce->kind == SLOT_TOKEN) {
        if (value != reduce->sum)
            memcpy(reduce->sum, value, reduce->size);
    } else if (reduce->kind == SLOT_STEP_SCALARS) {
        struct wire_scalars *sum = (struct wire_scalars *)(void *)reduce->sum, more;
        memcpy(&more, value, sizeof more);
        sum->loss_sum += more.loss_sum;
        sum->aux_sum += more.aux_sum;
        sum->labelled += more.labelled;
        sum->tokens += more.tokens;
        sum->control |= more.control;
    } else if (reduce->kind == SLOT_NORM_SCALAR) {
        double more;
        memcpy(&more, value, sizeof more);
        *(double *)(void *)reduce->sum += more;
    } else if (holds_parameters(reduce)) {
        float *sum = (float *)(void *)reduce->sum;
        const float *more = (const float *)(const void *)value;
        for (size_t i = 0; i < reduce->size / sizeof(float); i++)
            sum[i] += more[i];
    }
}

static int write_result(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    const struct wire_scalars *scalars = (const struct wire_scalars *)(const void *)reduce->sum;
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        ops->step->sum = (struct plan_step_scalars){scalars->loss_sum, scalars->aux_sum, scalars->labelled,
                                                    scalars->tokens, (uint32_t)scalars->control};
        ops->scalars_reduced = true;
        return 0;
    case SLOT_NORM_SCALAR:
        memcpy(&ops->norm_square, reduce->sum, sizeof ops->norm_square);
        ops->norm_reduced = true;
        return 0;
    case SLOT_TOKEN:
        memcpy(&ops->step->token, reduce->sum, sizeof ops->step->token);
        return 0;
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return move_parameters(reduce, (float *)(void *)reduce->sum, true, err);
    default:
        return 0;
    }
}

/* --- the ring --- */

/* Sets the byte range [*begin, *end) of a part. `part` counts modulo the number of members. */
static void ring_part(const struct reduce *reduce, uint32_t part, size_t *begin, size_t *end)
{
    size_t values = reduce->size / sizeof(float), n = reduce->ring.count;
    part %= reduce->ring.count;
    *begin = values / n * part + (values % n < part ? values % n : part);
    *end = *begin + values / n + (part < values % n ? 1 : 0);
    *begin *= sizeof(float);
    *end *= sizeof(float);
}

/* The part that a step sends: a part to be summed in the first count - 1 steps, a summed one in the others.
 * The part that it receives is the one before. */
static uint32_t ring_sends(const struct reduce *reduce)
{
    uint32_t n = reduce->ring.count, step = reduce->ring.step;
    return step < n - 1 ? reduce->ring.position + n - step : reduce->ring.position + 1 + n - (step - (n - 1));
}

static void ring_sent(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (!done->ok)
        exec_done(executor(reduce), reduce->number, &done->err);
    else
        exec_post(executor(reduce), &reduce->ring.sent);
}

static void ring_got(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    size_t begin, end;
    ring_part(reduce, ring_sends(reduce) + reduce->ring.count - 1, &begin, &end);
    if (came_whole(done, end - begin))
        exec_post(executor(reduce), &reduce->ring.got);
}

/* Begins both transfers of the step. A part without values needs no transfer. */
static int ring_step(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    struct mesh_meta meta = {.tag = ops_tag(ops, reduce->instr)};
    uint64_t deadline_ns = clock_mono_ns() + ops->wait_ns;
    size_t begin, end;
    for (reduce->ring.open = 0; reduce->ring.step < 2 * (reduce->ring.count - 1); reduce->ring.step++) {
        size_t out_begin, out_end;
        ring_part(reduce, ring_sends(reduce), &out_begin, &out_end);
        ring_part(reduce, ring_sends(reduce) + reduce->ring.count - 1, &begin, &end);
        reduce->ring.open = (out_end > out_begin) + (end > begin);
        if (end > begin &&
            mesh_recv(ops->options.mesh, reduce->ring.previous.rank, reduce->ring.previous.queue, meta.tag,
                      reduce->from, end - begin, deadline_ns, ring_got, reduce, err) < 0)
            return -1;
        if (out_end > out_begin &&
            mesh_send(ops->options.mesh, reduce->ring.next.rank, reduce->ring.next.queue, &meta,
                      reduce->own + out_begin, out_end - out_begin, deadline_ns, ring_sent, reduce, err) < 0)
            return -1;
        if (reduce->ring.open > 0)
            return 0;
    }
    bool wanted = reduce->instr->slot_out !=
                  PLAN_NONE; /* false for a rank that only contributed the gradient of its copy */
    if (wanted && write_result(reduce, err) < 0)
        return -1;
    exec_done(executor(reduce), reduce->number, NULL);
    return 0;
}

static int ring_advance(struct reduce *reduce, struct err *err)
{
    if (--reduce->ring.open > 0)
        return 0;
    reduce->ring.step++;
    return ring_step(reduce, err);
}

static int ring_on_sent(void *arg, struct err *err)
{
    return ring_advance(arg, err);
}

static int ring_on_got(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    size_t begin, end;
    ring_part(reduce, ring_sends(reduce) + reduce->ring.count - 1, &begin, &end);
    if (reduce->ring.step < reduce->ring.count - 1) {
        float *sum = (float *)(void *)(reduce->own + begin);
        const float *more = (const float *)(const void *)reduce->from;
        for (size_t i = 0; i < (end - begin) / sizeof(float); i++)
            sum[i] += more[i];
    } else {
        memcpy(reduce->own + begin, reduce->from, end - begin);
    }
    return ring_advance(reduce, err);
}

/* --- the tree and the star --- */

static void arrived(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (came_whole(done, reduce->size)) {
        reduce->arrived = true;
        exec_post(executor(reduce), &reduce->advance);
    }
}

static void result_arrived(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (came_whole(done, reduce->size))
        exec_post(executor(reduce), &reduce->finish);
}

static int receive(struct reduce *reduce, struct neighbour peer, uint8_t *to, mesh_done_fn *done,
                   struct err *err)
{
    struct ops *ops = reduce->ops;
    return mesh_recv(ops->options.mesh, peer.rank, peer.queue, ops_tag(ops, reduce->instr), to, reduce->size,
                     clock_mono_ns() + ops->wait_ns, done, reduce, err);
}

static int send(struct reduce *reduce, struct neighbour peer, const uint8_t *from, mesh_done_fn *done,
                struct err *err)
{
    struct ops *ops = reduce->ops;
    struct mesh_meta meta = {.tag = ops_tag(ops, reduce->instr)};
    return mesh_send(ops->options.mesh, peer.rank, peer.queue, &meta, from, reduce->size,
                     clock_mono_ns() + ops->wait_ns, done, reduce, err);
}

/* Called when the sum was sent to the parent. */
static void sent_up(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    struct err err;
    if (!done->ok)
        exec_done(executor(reduce), reduce->number, &done->err);
    else if (!reduce->down)
        exec_done(executor(reduce), reduce->number, NULL);
    else if (receive(reduce, reduce->parent, reduce->sum, result_arrived, &err) < 0)
        exec_done(executor(reduce), reduce->number, &err);
}

static void sent_down(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    struct err err;
    if (!done->ok)
        exec_done(executor(reduce), reduce->number, &done->err);
    else if (++reduce->sent == reduce->child_count)
        exec_done(executor(reduce), reduce->number, NULL);
    else if (send(reduce, reduce->children[reduce->sent], reduce->sum, sent_down, &err) < 0)
        exec_done(executor(reduce), reduce->number, &err);
}

/* Writes the result from `sum` to its slot and sends it to the children. */
static int finish(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    bool had =
        reduce->is_root && !reduce->up && holds_parameters(reduce); /* the parameters came from this rank */
    reduce->ops->table_current |= reduce->instr->op == OP_ALL_GATHER;
    if (!had && write_result(reduce, err) < 0)
        return -1;
    reduce->sent = 0;
    if (reduce->down && reduce->child_count > 0)
        return send(reduce, reduce->children[0], reduce->sum, sent_down, err);
    exec_done(executor(reduce), reduce->number, NULL);
    return 0;
}

/* Adds the contributions that have arrived, in order, and receives the next one. After the last one the sum
 * is sent to the parent. */
static int advance(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    while (reduce->next <= reduce->child_count) {
        bool own = reduce->next == reduce->own_at;
        if (!own && !reduce->arrived) {
            uint32_t child = reduce->next > reduce->own_at ? reduce->next - 1 : reduce->next;
            return receive(reduce, reduce->children[child], reduce->from, arrived, err);
        }
        add_values(reduce, own ? reduce->own : reduce->from);
        if (!own)
            reduce->arrived = false;
        reduce->next++;
    }
    if (!reduce->is_root)
        return send(reduce, reduce->parent, reduce->sum, sent_up, err);
    return finish(reduce, err);
}

static int start(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    if (!reduce->up && !reduce->is_root)
        return receive(reduce, reduce->parent, reduce->sum, result_arrived, err);
    if (read_own(reduce, err) < 0)
        return -1;
    reduce->ring.step = 0;
    if (reduce->ring.count > 0)
        return ring_step(reduce, err);
    if (reduce->up)
        return advance(reduce, err);
    if (reduce->sum != reduce->own)
        memcpy(reduce->sum, reduce->own, reduce->size);
    return finish(reduce, err);
}

int reduce_begin(struct reduce *reduce, struct err *err)
{
    (void)err;
    if (reduce->instr->op == OP_ALL_GATHER && reduce->ops->table_current) {
        exec_done(executor(reduce), reduce->number, NULL); /* no parameter changed since the last gather */
        return 0;
    }
    reduce->next = 0;
    reduce->arrived = false;
    exec_post(executor(reduce), &reduce->start);
    return 0;
}

/* --- making and freeing --- */

/* Sets a neighbour. Its queue number is the number of earlier groups that contain both ranks, so each group
 * of a pair has its own queue and both ends count alike. */
static int set_neighbour(struct reduce *reduce, uint32_t rank, struct neighbour *out, struct err *err)
{
    const struct plan *plan = reduce->ops->options.plan;
    uint32_t before = 0;
    for (int32_t g = 0; g < reduce->instr->group; g++)
        before += plan_group_position(&plan->groups[g], rank) >= 0 &&
                  plan_group_position(&plan->groups[g], reduce->ops->options.rank) >= 0;
    if (before >= OPS_QUEUE_GROUP_COUNT)
        return err_set(err, ERR_UNSUPPORTED,
                       "group %d is the %uth that ranks %u and %u share, and this worker keeps apart %d",
                       (int)reduce->instr->group, before + 1, reduce->ops->options.rank, rank,
                       OPS_QUEUE_GROUP_COUNT);
    *out = (struct neighbour){.rank = rank, .queue = OPS_QUEUE_GROUPS + before};
    return 0;
}

static int add_child(struct reduce *reduce, uint32_t rank, struct err *err)
{
    return set_neighbour(reduce, rank, &reduce->children[reduce->child_count++], err);
}

static int set_parent(struct reduce *reduce, uint32_t rank, struct err *err)
{
    reduce->is_root = false;
    return set_neighbour(reduce, rank, &reduce->parent, err);
}

static int find_in_tree(struct reduce *reduce, const struct plan_group *group, uint32_t position,
                        struct err *err)
{
    int32_t parent, children[2];
    plan_group_tree(group, position, &parent, children);
    for (int c = 0; c < 2; c++)
        if (children[c] != PLAN_NONE && add_child(reduce, (uint32_t)children[c], err) < 0)
            return -1;
    return parent == PLAN_NONE ? 0 : set_parent(reduce, (uint32_t)parent, err);
}

static int find_neighbours(struct reduce *reduce, const struct plan_group *group, bool tree, struct err *err)
{
    const struct instr *instr = reduce->instr;
    uint32_t rank = reduce->ops->options.rank, n = group->rank_count;
    int position = plan_group_position(group, rank);
    reduce->is_root = true;
    if (position < 0)
        return err_set(err, ERR_INVALID, "rank %u is no member of group %d", rank, (int)instr->group);
    reduce->children = calloc((size_t)n + 1, sizeof *reduce->children);
    if (!reduce->children)
        return err_set(err, ERR_NOMEM, "no memory for a group of %u", n);
    if (tree)
        return find_in_tree(reduce, group, (uint32_t)position, err);
    if (instr->op == OP_ALL_REDUCE && n > 1) {
        uint32_t next = group->ranks[((uint32_t)position + 1) % n],
                 previous = group->ranks[((uint32_t)position + n - 1) % n];
        reduce->ring.count = n;
        reduce->ring.position = (uint32_t)position;
        if (set_neighbour(reduce, next, &reduce->ring.next, err) < 0)
            return -1;
        return set_neighbour(reduce, previous, &reduce->ring.previous, err);
    }
    bool kept = instr->op == OP_ALL_GATHER || instr->op == OP_REDUCE_SCATTER;
    uint32_t root = instr->op == OP_ALL_REDUCE ? group->ranks[0]
                    : kept                     ? group->ranks[ops_keeper(group)]
                                               : (uint32_t)instr->peer;
    if (plan_group_position(group, root) < 0)
        return err_set(err, ERR_INVALID, "its root %d is no member of group %d", (int)root,
                       (int)instr->group);
    if (rank != root)
        return set_parent(reduce, root, err);
    reduce->own_at = (uint32_t)position;
    for (uint32_t p = 0; p < n; p++)
        if (group->ranks[p] != root && add_child(reduce, group->ranks[p], err) < 0)
            return -1;
    return 0;
}

static size_t contribution_bytes(const struct reduce *reduce)
{
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        return sizeof(struct wire_scalars);
    case SLOT_TOKEN:
        return sizeof(int32_t);
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return parameter_bytes(reduce);
    default:
        return sizeof(double);
    }
}

int reduce_create(struct ops *ops, uint32_t number, const struct instr *instr, struct reduce **out,
                  struct err *err)
{
    int32_t slot = instr->slot_in != PLAN_NONE ? instr->slot_in : instr->slot_out;
    if (slot < 0 || (uint32_t)slot >= ops->me->slot_count || instr->group < 0 ||
        (uint32_t)instr->group >= ops->options.plan->group_count)
        return err_set(err, ERR_INVALID, "%s names no slot or no group", instr_op_name(instr->op));
    struct reduce *reduce = calloc(1, sizeof *reduce);
    if (!reduce)
        return err_set(err, ERR_NOMEM, "no memory for a collective");
    *out = reduce; /* the caller destroys it, also on error */
    reduce->ops = ops;
    reduce->number = number;
    reduce->instr = instr;
    reduce->slot = slot;
    reduce->kind = ops->me->slots[slot].kind;
    reduce->up = instr->op != OP_BROADCAST && instr->op != OP_ALL_GATHER;
    reduce->down = instr->op != OP_REDUCE && instr->op != OP_REDUCE_SCATTER;
    reduce->start = (struct exec_item){.fn = start, .arg = reduce};
    reduce->advance = (struct exec_item){.fn = advance, .arg = reduce};
    reduce->finish = (struct exec_item){.fn = finish, .arg = reduce};
    reduce->ring.sent = (struct exec_item){.fn = ring_on_sent, .arg = reduce};
    reduce->ring.got = (struct exec_item){.fn = ring_on_got, .arg = reduce};
    bool tree = instr->op == OP_ALL_REDUCE && !holds_parameters(reduce);
    if (find_neighbours(reduce, &ops->options.plan->groups[instr->group], tree, err) < 0)
        return -1;
    reduce->size = contribution_bytes(reduce);
    return 0;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Whether `sum` needs memory of its own: it starts as the first contribution, which is this rank's own unless
 * a child comes before it. */
static bool sum_apart(const struct reduce *reduce)
{
    return reduce->up && reduce->ring.count == 0 && reduce->own_at > 0;
}

static size_t from_bytes(const struct reduce *reduce)
{
    size_t begin = 0, end = 0;
    if (reduce->ring.count > 0) /* the first part is the largest */
        ring_part(reduce, 0, &begin, &end);
    else if (reduce->up && reduce->child_count > 0)
        end = reduce->size;
    return end - begin;
}

size_t reduce_bytes(const struct reduce *reduce)
{
    return aligned(reduce->size) * (sum_apart(reduce) ? 2 : 1) + aligned(from_bytes(reduce));
}

void reduce_place(struct reduce *reduce, uint8_t *memory)
{
    reduce->own = memory;
    reduce->sum = sum_apart(reduce) ? memory + aligned(reduce->size) : memory;
    reduce->from = reduce->sum + aligned(reduce->size);
}

void reduce_destroy(struct reduce *reduce)
{
    if (!reduce)
        return;
    free(reduce->children);
    free(reduce);
}
