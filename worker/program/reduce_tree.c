/* Runs collectives over the group's binary tree or over a star: a member adds its children's contributions to
 * its own in a fixed order, sends the sum to its parent, and hands the result from there to its children. */
#include "worker/program/reduce_private.h"

static void reduce_tree_arrived(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (reduce_is_complete(done, reduce->size)) {
        reduce->tree.arrived = true;
        exec_post(reduce_executor(reduce), &reduce->tree.advance);
    }
}

static void result_arrived(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (reduce_is_complete(done, reduce->size))
        exec_post(reduce_executor(reduce), &reduce->tree.finish);
}

static int reduce_tree_receive(struct reduce *reduce, struct neighbour peer, uint8_t *to, mesh_done_fn *done,
                               struct err *err)
{
    struct mesh_post post = reduce_post(reduce, peer, done);
    return mesh_recv(reduce->ops->options.mesh, &post, ops_tag(reduce->ops, reduce->instr), to, reduce->size,
                     err);
}

static int reduce_tree_send(struct reduce *reduce, struct neighbour peer, const uint8_t *from,
                            mesh_done_fn *done, struct err *err)
{
    struct mesh_post post = reduce_post(reduce, peer, done);
    struct mesh_meta meta = {.tag = ops_tag(reduce->ops, reduce->instr)};
    return mesh_send(reduce->ops->options.mesh, &post, &meta, from, reduce->size, err);
}

static void sent_up(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    struct err err;
    if (!done->ok)
        exec_done(reduce_executor(reduce), reduce->number, &done->err);
    else if (reduce_tree_receive(reduce, reduce->tree.parent, reduce->own, result_arrived, &err) < 0)
        exec_done(reduce_executor(reduce), reduce->number, &err);
}

static void sent_down(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    struct err err;
    if (!done->ok)
        exec_done(reduce_executor(reduce), reduce->number, &done->err);
    else if (++reduce->tree.sent == reduce->tree.child_count)
        exec_done(reduce_executor(reduce), reduce->number, NULL);
    else if (reduce_tree_send(reduce, reduce->tree.children[reduce->tree.sent], reduce->own, sent_down,
                              &err) < 0)
        exec_done(reduce_executor(reduce), reduce->number, &err);
}

/* Writes the result to its slot and sends it to the children. */
static int reduce_tree_finish(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    reduce_write_result(reduce);
    reduce->tree.sent = 0;
    if (reduce->tree.child_count > 0)
        return reduce_tree_send(reduce, reduce->tree.children[0], reduce->own, sent_down, err);
    exec_done(reduce_executor(reduce), reduce->number, NULL);
    return 0;
}

/* Adds the contributions that have arrived, in order, and receives the next one. After the last one the sum
 * is sent to the parent. */
static int reduce_tree_advance(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    while (reduce->tree.next < reduce->tree.child_count) {
        if (!reduce->tree.arrived)
            return reduce_tree_receive(reduce, reduce->tree.children[reduce->tree.next], reduce->incoming,
                                       reduce_tree_arrived, err);
        reduce_add(reduce, reduce->incoming);
        reduce->tree.arrived = false;
        reduce->tree.next++;
    }
    if (!reduce->tree.is_root)
        return reduce_tree_send(reduce, reduce->tree.parent, reduce->own, sent_up, err);
    return reduce_tree_finish(reduce, err);
}

int reduce_tree_receive_result(struct reduce *reduce, struct err *err)
{
    return reduce_tree_receive(reduce, reduce->tree.parent, reduce->own, result_arrived, err);
}

int reduce_tree_start(struct reduce *reduce, struct err *err)
{
    return reduce->tree.up ? reduce_tree_advance(reduce, err) : reduce_tree_finish(reduce, err);
}

void reduce_tree_init(struct reduce *reduce)
{
    reduce->tree.advance = (struct exec_item){.fn = reduce_tree_advance, .arg = reduce};
    reduce->tree.finish = (struct exec_item){.fn = reduce_tree_finish, .arg = reduce};
}
