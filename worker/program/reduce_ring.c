/* Runs the ALL_REDUCE of boundary tensors round a ring. Values are cut into one part for each member. A part
 * goes round once while it is summed, and round again to be distributed. Two members exchange their whole
 * tensors in one step instead, with the same bytes and half the latencies. */
#include <string.h>

#include "worker/program/reduce_private.h"

/* Whether the group has two members, which exchange whole tensors. Each adds the other's; both get equal
 * bits, as the sum of two values does not depend on their order. */
static bool reduce_ring_exchanges(const struct reduce *reduce)
{
    return reduce->ring.count == 2;
}

/* Sets the byte range [*begin, *end) of a part. `part` counts modulo the number of members. */
static void ring_part(const struct reduce *reduce, uint32_t part, size_t *begin, size_t *end)
{
    size_t values = reduce->size / sizeof(float), n = reduce_ring_exchanges(reduce) ? 1 : reduce->ring.count;
    size_t at = part % n;
    *begin = values / n * at + (values % n < at ? values % n : at);
    *end = *begin + values / n + (at < values % n ? 1 : 0);
    *begin *= sizeof(float);
    *end *= sizeof(float);
}

/* Returns the part of the tensor that the current step sends: a partial sum in the first count - 1 steps, a
 * complete sum afterwards. The step receives the part before it. */
static uint32_t ring_sends(const struct reduce *reduce)
{
    uint32_t n = reduce->ring.count, step = reduce->ring.step;
    return step < n - 1 ? reduce->ring.position + n - step : reduce->ring.position + 1 + n - (step - (n - 1));
}

static void ring_sent(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    if (!done->ok)
        exec_done(reduce_executor(reduce), reduce->number, &done->err);
    else
        exec_post(reduce_executor(reduce), &reduce->ring.sent);
}

static void ring_received(const struct mesh_done *done)
{
    struct reduce *reduce = done->arg;
    size_t begin, end;
    ring_part(reduce, ring_sends(reduce) + reduce->ring.count - 1, &begin, &end);
    if (reduce_is_complete(done, end - begin))
        exec_post(reduce_executor(reduce), &reduce->ring.received);
}

/* Begins the send and the receive of the current step, or of the next step whose parts are not empty. */
static int ring_step(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    struct reduce_ring *ring = &reduce->ring;
    struct mesh_meta meta = {.tag = ops_tag(ops, reduce->instr)};
    struct mesh_post to = reduce_post(reduce, ring->next, ring_sent),
                     from = reduce_post(reduce, ring->previous, ring_received);
    uint32_t steps = reduce_ring_exchanges(reduce) ? 1 : 2 * (ring->count - 1);
    for (ring->open = 0; ring->step < steps; ring->step++) {
        size_t begin, end, out_begin, out_end;
        ring_part(reduce, ring_sends(reduce), &out_begin, &out_end);
        ring_part(reduce, ring_sends(reduce) + ring->count - 1, &begin, &end);
        ring->open = (out_end > out_begin ? 1u : 0u) + (end > begin ? 1u : 0u);
        if (end > begin &&
            mesh_recv(ops->options.mesh, &from, meta.tag, reduce->incoming, end - begin, err) < 0)
            return -1;
        if (out_end > out_begin &&
            mesh_send(ops->options.mesh, &to, &meta, reduce->own + out_begin, out_end - out_begin, err) < 0)
            return -1;
        if (ring->open > 0)
            return 0;
    }
    if (reduce->instr->slot_out != PLAN_NONE)
        reduce_write_result(reduce);
    exec_done(reduce_executor(reduce), reduce->number, NULL);
    return 0;
}

static int ring_advance(struct reduce *reduce, struct err *err)
{
    if (--reduce->ring.open > 0)
        return 0;
    if (reduce_ring_exchanges(reduce)) /* the tensor was sent, so adding to it is allowed now */
        reduce_sum(reduce->own, reduce->incoming, reduce->size);
    reduce->ring.step++;
    return ring_step(reduce, err);
}

static int ring_on_sent(void *arg, struct err *err)
{
    return ring_advance(arg, err);
}

static int ring_on_received(void *arg, struct err *err)
{
    struct reduce *reduce = arg;
    size_t begin, end;
    ring_part(reduce, ring_sends(reduce) + reduce->ring.count - 1, &begin, &end);
    if (reduce_ring_exchanges(reduce))
        return ring_advance(reduce, err);
    if (reduce->ring.step < reduce->ring.count - 1)
        reduce_sum(reduce->own + begin, reduce->incoming, end - begin);
    else
        memcpy(reduce->own + begin, reduce->incoming, end - begin);
    return ring_advance(reduce, err);
}

void reduce_ring_init(struct reduce *reduce)
{
    reduce->ring.sent = (struct exec_item){.fn = ring_on_sent, .arg = reduce};
    reduce->ring.received = (struct exec_item){.fn = ring_on_received, .arg = reduce};
}

int reduce_ring_start(struct reduce *reduce, struct err *err)
{
    reduce->ring.step = 0;
    return ring_step(reduce, err);
}
