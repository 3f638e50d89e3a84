/* SEND and RECV, over the mesh or over a link within the node (local.c). */
#include <stdlib.h>

#include "common/clock.h"
#include "worker/program/ops_private.h"

static bool is_transfer(const struct instr *instr)
{
    return instr->op == OP_SEND || instr->op == OP_RECV;
}

int transfer_make(struct ops *ops, int kind, struct err *err)
{
    const struct program *program = &ops->me->programs[kind];
    size_t count = 0, at = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count += is_transfer(&program->instrs[i]);
    ops->programs[kind].calls = calloc((size_t)program->instr_count + 1, sizeof(struct call *));
    ops->programs[kind].transfers = calloc(count + 1, sizeof(struct call));
    if (!ops->programs[kind].calls || !ops->programs[kind].transfers)
        return err_set(err, ERR_NOMEM, "no memory for %zu transfers", count);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        if (!is_transfer(&program->instrs[i]))
            continue;
        struct call *call = &ops->programs[kind].transfers[at++];
        call->ops = ops;
        call->number = i;
        call->instr = &program->instrs[i];
        ops->programs[kind].calls[i] = call;
    }
    return 0;
}

static int32_t slot_of(const struct instr *instr)
{
    return instr->op == OP_SEND ? instr->slot_in : instr->slot_out;
}

/* --- transfers over the mesh --- */

static void sent(const struct mesh_done *done)
{
    call_end(done->arg, done->ok ? NULL : &done->err);
}

static void received(const struct mesh_done *done)
{
    struct call *call = done->arg;
    struct ops *ops = call->ops;
    struct err err;
    if (!done->ok) {
        call_end(call, &done->err);
        return;
    }
    if (done->size != call->size) {
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %zu are due", done->peer, done->size,
                call->size);
        call_end(call, &err);
        return;
    }
    if (ops->slots[slot_of(call->instr)].slot->kind == SLOT_TOKEN) {
        ops->step->token = call->cell->token;
    } else {
        call->next = atomic_load(&call->cell->arrived);
        while (!atomic_compare_exchange_weak(&call->cell->arrived, &call->next, call))
            continue;
    }
    call_end(call, NULL);
}

static int send_now(struct call *call, struct err *err)
{
    const struct ops *ops = call->ops;
    const struct instr *instr = call->instr;
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    bool token = ops->slots[instr->slot_in].slot->kind == SLOT_TOKEN;
    uint32_t before, tokens = batch_tokens(micro, instr->row_begin, instr->row_end, &before);
    uint8_t dtype = ops->slots[instr->slot_in].slot->dtype;
    uint32_t each = token ? sizeof call->cell->token : plan_dtype_bytes(dtype);
    struct mesh_meta meta = {.tag = call->tag,
                             .dtype = (uint8_t)stages_dtype((enum plan_dtype)dtype),
                             .rank = 2,
                             .shape = {tokens, (uint32_t)(call->size / each / tokens)}};
    if (!token && call->size > cells_tensor_bytes(ops, instr->slot_in, tokens)) {
        meta.rank = 1; /* with router sums behind it the tensor is not a rectangle */
        meta.shape[0] = (uint32_t)(call->size / each);
    }
    const void *data = token ? (const void *)&call->cell->token : call->cell->host + call->at;
    struct mesh_post post = call_post(call, instr->tag, sent);
    return mesh_send(ops->options.mesh, &post, &meta, data, call->size, err);
}

/* Called by the courier when the copy to the host is complete. */
static void came_down(void *arg, const struct err *failure)
{
    struct call *call = arg;
    struct err err;
    if (failure)
        call_end(call, failure);
    else if (send_now(call, &err) < 0)
        call_end(call, &err);
}

static int send_by_mesh(struct call *call, struct err *err)
{
    struct event *down = call->cell->down;
    if (!down || event_done(down)) /* event_wait tells whether the copy succeeded */
        return down && event_wait(down, COPY_TIMEOUT_NS, err) < 0 ? -1 : send_now(call, err);
    call->job = (struct courier_job){.copied = down, .finish = came_down, .arg = call};
    courier_push(call->ops->courier, &call->job);
    return 0;
}

static int receive_by_mesh(struct call *call, struct err *err)
{
    struct ops *ops = call->ops;
    bool token = ops->slots[call->instr->slot_out].slot->kind == SLOT_TOKEN;
    void *data = token ? (void *)&call->cell->token : call->cell->host + call->at;
    struct mesh_post post = call_post(call, call->instr->tag, received);
    return mesh_recv(ops->options.mesh, &post, call->tag, data, call->size, err);
}

/* --- all transfers --- */

/* Sets the range of the cell that the instruction's rows occupy. *tokens is 0 for an empty micro-batch. */
static int find_range(struct call *call, uint32_t *tokens, struct err *err)
{
    struct ops *ops = call->ops;
    const struct instr *instr = call->instr;
    int32_t slot = slot_of(instr);
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    uint32_t before;
    *tokens = batch_tokens(micro, instr->row_begin, instr->row_end, &before);
    call->cell = ops_cell(ops, slot, instr->micro_batch, instr->block_begin);
    call->at = 0;
    call->size = *tokens ? sizeof call->cell->token : 0;
    if (ops->slots[slot].slot->kind == SLOT_TOKEN)
        return 0;
    size_t tail = cells_tail_bytes(ops, slot, micro->rows);
    if (tail > 0 && *tokens < micro->row_start[micro->rows])
        return err_set(
            err, ERR_UNSUPPORTED,
            "router_aux: the load-balancing loss does not travel with some of a micro-batch's rows");
    call->at = cells_tensor_bytes(ops, slot, before);
    call->size = cells_tensor_bytes(ops, slot, *tokens) + tail;
    if (cells_bound(ops, slot, instr->micro_batch, err) <
        0) /* parts of a micro-batch are collected in one tensor */
        return -1;
    return call->local.used || *tokens == 0 ? 0 : cell_need_host(ops, &ops->slots[slot], call->cell, err);
}

int transfer_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err)
{
    struct call *call = ops->programs[ops->kind].calls[number];
    uint32_t tokens = 0;
    if (find_range(call, &tokens, err) < 0)
        return -1;
    if (tokens == 0) { /* an empty micro-batch is not sent; both ends know it from the batch */
        exec_done(ops->programs[ops->kind].exec, number, NULL);
        return 0;
    }
    if (!ops->options.mesh)
        return err_set(err, ERR_INTERNAL, "there is no mesh to rank %d", (int)instr->peer);
    call->deadline_ns = clock_mono_ns() + ops->wait_ns;
    call->tag = ops_tag(ops, instr);
    if (call->local.used)
        return instr->op == OP_SEND ? local_send(call, err) : local_receive(call, err);
    return instr->op == OP_SEND ? send_by_mesh(call, err) : receive_by_mesh(call, err);
}
