/* Runs half layers (attention or FFN), and the all-reduces over a tensor group between them. A half layer
 * leaves this rank's partial sum in a slot of kind `partial`. ALL_REDUCE over the group replaces it by the
 * sum, and BROADCAST sends a complete boundary tensor from the group's first member to the others. Both work
 * on the host memory of the slot's buffer (cell) that the mesh sends from: the partial sum is copied there in
 * parallel with compute (cells_publish), the collective replaces it in place (reduce_ring.c, reduce_tree.c),
 * and the instruction that reads the slot copies the result to the device like received data. Between the
 * copies the device computes other micro-batches. */
#include <stdlib.h>

#include "worker/program/reduce_private.h"

bool halves_reduces(const struct reduce *reduce)
{
    return reduce->kind == SLOT_PARTIAL;
}

const char *halves_unsupported(const struct ops *ops, const struct instr *instr)
{
    const struct stages *stages = ops->options.stages;
    int stage = stages_find(stages, instr->block_begin, instr->block_end);
    struct stage_options has;
    if (!ops_is_half(instr))
        return NULL;
    if ((instr->op != INSTR_FORWARD && instr->op != INSTR_BACKWARD) || ops_half(instr) < 0 || stage < 0)
        return "a half";
    stage_options_get(stages->list[stage], &has);
    return layer_part_set(&has.part) && instr->block_end - instr->block_begin == 1
               ? NULL
               : "halves of layers that are here whole";
}

int halves_forward(struct ops *ops, const struct instr *instr, struct stage *stage, struct buffer *in,
                   struct buffer *out, struct err *err)
{
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    int index = stages_find(ops->options.stages, instr->block_begin, instr->block_end);
    struct saved **saved = instr->slot_save != PLAN_NONE ? ops_saved(ops, index, instr->micro_batch) : NULL;
    return stage_half_forward(stage, micro, (uint32_t)instr->block_begin, (enum stage_half)ops_half(instr),
                              in, out, saved, err);
}

int halves_backward(struct ops *ops, const struct instr *instr, struct stage *stage, struct saved **place,
                    struct buffer *in, struct buffer *out, struct err *err)
{
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    struct stage_options has;
    stage_options_get(stage, &has);
    int result = stage_half_backward(stage, micro, *place, (uint32_t)instr->block_begin,
                                     (enum stage_half)ops_half(instr), in, out, err);
    bool last = (instr->flags & FLAG_FIRST_HALF) && instr->block_begin == (int32_t)has.block_begin;
    if (result < 0 || last)
        *place = NULL; /* the stage has released the saved activations, also on error */
    return result;
}

/* --- sums --- */

/* Makes host memory for a partial sum received from another member of the group; the slot's cell holds this
 * rank's own partial sum. Collectives of a group run one at a time and share that memory. */
int halves_make(struct ops *ops, struct err *err)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < ops->me->slot_count; s++)
        if (ops->me->slots[s].kind == SLOT_PARTIAL && ops->me->slots[s].bytes_bound > most)
            most = ops->me->slots[s].bytes_bound;
    ops->parts_bytes = most;
    ops->parts = most > 0 ? malloc(most) : NULL;
    return most == 0 || ops->parts ? 0
                                   : err_set(err, ERR_NOMEM, "no memory of %llu bytes for parts of sums",
                                             (unsigned long long)most);
}

/* Called when the copy of this rank's partial sum to host memory is complete. */
static void published(void *arg, const struct err *failure)
{
    struct reduce *reduce = arg;
    if (failure)
        exec_done(reduce_executor(reduce), reduce->number, failure);
    else
        exec_post(reduce_executor(reduce), &reduce->start);
}

int halves_begin(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    const struct instr *instr = reduce->instr;
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    struct slot_cell *cell = ops_cell(ops, reduce->slot, instr->micro_batch, instr->block_begin);
    if (micro->rows == 0) { /* all members know from the batch that the micro-batch is empty */
        exec_done(reduce_executor(reduce), reduce->number, NULL);
        return 0;
    }
    if (cells_bound(ops, reduce->slot, instr->micro_batch, err) < 0 ||
        cell_need_host(ops, &ops->slots[reduce->slot], cell, err) < 0)
        return -1;
    reduce->size = cells_tensor_bytes(ops, reduce->slot, micro->row_start[micro->rows]);
    reduce->own = cell->host;
    reduce->incoming = ops->parts;
    bool has_own = instr->slot_in != PLAN_NONE;
    if (!has_own || !cell->down || event_done(cell->down)) { /* event_wait tells whether the copy succeeded */
        if (has_own && cell->down && event_wait(cell->down, COPY_TIMEOUT_NS, err) < 0)
            return -1;
        exec_post(reduce_executor(reduce), &reduce->start);
        return 0;
    }
    reduce->published = (struct courier_job){.copied = cell->down, .finish = published, .arg = reduce};
    courier_push(ops->courier, &reduce->published);
    return 0;
}

void halves_arrived(struct reduce *reduce)
{
    struct ops *ops = reduce->ops;
    const struct instr *instr = reduce->instr;
    struct slot_cell *cell = ops_cell(ops, reduce->slot, instr->micro_batch, instr->block_begin);
    if (instr->flags & FLAG_FREES_IN) {
        cell->in_use = false;
        return;
    }
    if (instr->op == INSTR_BROADCAST && instr->slot_in != PLAN_NONE)
        return; /* the root's device has the tensor already */
    reduce->arrived = (struct transfer){.ops = ops, .instr = instr, .cell = cell, .size = reduce->size};
    atomic_store(&cell->arrived, &reduce->arrived);
}
