/* Collectives on the executor's thread: ALL_REDUCE and BROADCAST of scalars and of boundary tensors
 * (halves.c). Parameters and their gradients travel as in stream.c.
 *
 * The ALL_REDUCE of scalars uses the group's binary tree (plan_group_tree), a BROADCAST a star whose centre
 * is the instruction's root. In both shapes a member has at most one parent and some children. It adds its
 * children's contributions to its own in a fixed order, sends the sum to its parent, and receives the result
 * from there. The ALL_REDUCE of boundary tensors goes round a ring: values are cut into one part for each
 * member, summed while a part goes round once, and distributed while it goes round again, so that every link
 * carries 2(k-1)/k of the bytes of k members and is used in both directions. The order of additions is the
 * plan's, so a repeated run is bit-identical.
 *
 * All arithmetic and all device access happen on the executor's thread (exec_post); callbacks of the
 * transport only report arrivals. One operation of a reduce is under way at a time, so it needs no lock.
 */
#include <stdlib.h>

#include "worker/program/reduce_private.h"

static int reduce_start(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    bool ring = reduce->shape == REDUCE_RING;
    if (!ring && !reduce->tree.up && !reduce->tree.is_root)
        return reduce_tree_receive_result(reduce, err);
    if (reduce_read_own(reduce, err) < 0)
        return -1;
    return ring ? reduce_ring_start(reduce, err) : reduce_tree_start(reduce, err);
}

int reduce_begin(struct reduce *reduce, struct err *err)
{
    if (reduce->shape == REDUCE_TREE) {
        reduce->tree.next = 0;
        reduce->tree.arrived = false;
    }
    if (halves_reduces(reduce))
        return halves_begin(reduce, err);
    exec_post(reduce_executor(reduce), &reduce->start);
    return 0;
}

/* --- making and freeing --- */

static int set_neighbour(struct reduce *reduce, uint32_t rank, struct neighbour *out, struct err *err)
{
    out->rank = rank;
    return ops_group_queue(reduce->ops, reduce->instr->group, rank, &out->queue, err);
}

static int add_child(struct reduce *reduce, uint32_t rank, struct err *err)
{
    return set_neighbour(reduce, rank, &reduce->tree.children[reduce->tree.child_count++], err);
}

static int set_parent(struct reduce *reduce, uint32_t rank, struct err *err)
{
    reduce->tree.is_root = false;
    return set_neighbour(reduce, rank, &reduce->tree.parent, err);
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

static int find_in_star(struct reduce *reduce, const struct plan_group *group, struct err *err)
{
    const struct instr *instr = reduce->instr;
    uint32_t rank = reduce->ops->options.rank, root = (uint32_t)instr->peer;
    if (plan_group_position(group, root) < 0)
        return err_set(err, ERR_INVALID, "its root %d is no member of group %d", (int)root,
                       (int)instr->group);
    if (rank != root)
        return set_parent(reduce, root, err);
    for (uint32_t p = 0; p < group->rank_count; p++)
        if (group->ranks[p] != root && add_child(reduce, group->ranks[p], err) < 0)
            return -1;
    return 0;
}

static int tree_make(struct reduce *reduce, const struct plan_group *group, uint32_t position,
                     struct err *err)
{
    reduce->shape = REDUCE_TREE;
    reduce->tree.is_root = true;
    reduce->tree.up = reduce->instr->op == INSTR_ALL_REDUCE;
    reduce->tree.children = calloc((size_t)group->rank_count + 1, sizeof(*reduce->tree.children));
    if (!reduce->tree.children)
        return err_set(err, ERR_NOMEM, "no memory for a group of %u", group->rank_count);
    reduce_tree_init(reduce);
    return reduce->tree.up ? find_in_tree(reduce, group, position, err) : find_in_star(reduce, group, err);
}

static int ring_make(struct reduce *reduce, const struct plan_group *group, uint32_t position,
                     struct err *err)
{
    uint32_t n = group->rank_count;
    reduce->shape = REDUCE_RING;
    reduce->ring.count = n;
    reduce->ring.position = position;
    reduce_ring_init(reduce);
    if (set_neighbour(reduce, group->ranks[(position + 1) % n], &reduce->ring.next, err) < 0)
        return -1;
    return set_neighbour(reduce, group->ranks[(position + n - 1) % n], &reduce->ring.previous, err);
}

int reduce_create(struct ops *ops, uint32_t number, const struct instr *instr, struct reduce **out,
                  struct err *err)
{
    int32_t slot = instr->slot_in != PLAN_NONE ? instr->slot_in : instr->slot_out;
    if (slot < 0 || (uint32_t)slot >= ops->me->slot_count || instr->group < 0 ||
        (uint32_t)instr->group >= ops->options.plan->group_count)
        return err_set(err, ERR_INVALID, "%s names no slot or no group", instr_op_name(instr->op));
    struct reduce *reduce = calloc(1, sizeof(*reduce));
    if (!reduce)
        return err_set(err, ERR_NOMEM, "no memory for a collective");
    *out = reduce; /* the caller destroys it, also on error */
    reduce->ops = ops;
    reduce->number = number;
    reduce->instr = instr;
    reduce->slot = slot;
    reduce->kind = ops->me->slots[slot].kind;
    reduce->start = (struct exec_item){.fn = reduce_start, .arg = reduce};
    const struct plan_group *group = &ops->options.plan->groups[instr->group];
    int position = plan_group_position(group, ops->options.rank);
    if (position < 0)
        return err_set(err, ERR_INVALID, "rank %u is no member of group %d", ops->options.rank,
                       (int)instr->group);
    bool ring = instr->op == INSTR_ALL_REDUCE && group->rank_count > 1 && halves_reduces(reduce);
    if ((ring ? ring_make : tree_make)(reduce, group, (uint32_t)position, err) < 0)
        return -1;
    reduce->size = reduce_value_bytes(reduce);
    return 0;
}

static size_t reduce_aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t reduce_bytes(const struct reduce *reduce)
{
    return halves_reduces(reduce) ? 0 : 2 * reduce_aligned(reduce->size);
}

void reduce_place(struct reduce *reduce, uint8_t *memory)
{
    reduce->own = memory;
    reduce->incoming = memory + reduce_aligned(reduce->size);
}

void reduce_destroy(struct reduce *reduce)
{
    if (!reduce)
        return;
    if (reduce->shape == REDUCE_TREE)
        free(reduce->tree.children);
    free(reduce);
}
