/* SEND and RECV, over the mesh or over a link within the node (local.c). */
#include <stdlib.h>

#include "common/clock.h"
#include "worker/program/ops_private.h"

static bool is_transfer(const struct instr *instr)
{
    return instr->op == INSTR_SEND || instr->op == INSTR_RECV;
}

int transfer_make(struct ops *ops, int kind, struct err *err)
{
    const struct program *program = &ops->me->programs[kind];
    size_t count = 0, at = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count += is_transfer(&program->instrs[i]);
    ops->programs[kind].transfer_at = calloc((size_t)program->instr_count + 1, sizeof(struct transfer *));
    ops->programs[kind].transfers = calloc(count + 1, sizeof(struct transfer));
    if (!ops->programs[kind].transfer_at || !ops->programs[kind].transfers)
        return err_set(err, ERR_NOMEM, "no memory for %zu transfers", count);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        if (!is_transfer(&program->instrs[i]))
            continue;
        struct transfer *transfer = &ops->programs[kind].transfers[at++];
        transfer->ops = ops;
        transfer->number = i;
        transfer->instr = &program->instrs[i];
        ops->programs[kind].transfer_at[i] = transfer;
    }
    return 0;
}

static int32_t transfer_slot_of(const struct instr *instr)
{
    return instr->op == INSTR_SEND ? instr->slot_in : instr->slot_out;
}

/* --- transfers over the mesh --- */

static void send_done(const struct mesh_done *done)
{
    transfer_end(done->arg, done->ok ? NULL : &done->err);
}

static void receive_done(const struct mesh_done *done)
{
    struct transfer *transfer = done->arg;
    struct ops *ops = transfer->ops;
    struct err err;
    if (!done->ok) {
        transfer_end(transfer, &done->err);
        return;
    }
    if (done->size != transfer->size) {
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %zu are due", done->peer, done->size,
                transfer->size);
        transfer_end(transfer, &err);
        return;
    }
    if (ops->slots[transfer_slot_of(transfer->instr)].slot->kind == SLOT_TOKEN) {
        ops->step->token = transfer->cell->token;
    } else {
        transfer->next = atomic_load(&transfer->cell->arrived);
        while (!atomic_compare_exchange_weak(&transfer->cell->arrived, &transfer->next, transfer))
            continue;
    }
    transfer_end(transfer, NULL);
}

static int mesh_send_now(struct transfer *transfer, struct err *err)
{
    const struct ops *ops = transfer->ops;
    const struct instr *instr = transfer->instr;
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    bool token = ops->slots[instr->slot_in].slot->kind == SLOT_TOKEN;
    uint32_t before, tokens = batch_tokens(micro, instr->row_begin, instr->row_end, &before);
    uint8_t dtype = ops->slots[instr->slot_in].slot->dtype;
    uint32_t each = token ? sizeof(transfer->cell->token) : plan_dtype_bytes(dtype);
    struct mesh_meta meta = {.tag = transfer->tag,
                             .dtype = (uint8_t)stages_dtype((enum plan_dtype)dtype),
                             .rank = 2,
                             .shape = {tokens, (uint32_t)(transfer->size / each / tokens)}};
    if (!token && transfer->size > cells_tensor_bytes(ops, instr->slot_in, tokens)) {
        /* More values follow the tensor, so the message is one row of them. */
        meta.rank = 1;
        meta.shape[0] = (uint32_t)(transfer->size / each);
    }
    const void *data = token ? (const void *)&transfer->cell->token : transfer->cell->host + transfer->at;
    struct mesh_post post = transfer_post(transfer, instr->tag, send_done);
    return mesh_send(ops->options.mesh, &post, &meta, data, transfer->size, err);
}

/* Called by the courier when the copy to the host is complete. */
static void transfer_copy_done(void *arg, const struct err *failure)
{
    struct transfer *transfer = arg;
    struct err err;
    if (failure)
        transfer_end(transfer, failure);
    else if (mesh_send_now(transfer, &err) < 0)
        transfer_end(transfer, &err);
}

static int send_by_mesh(struct transfer *transfer, struct err *err)
{
    struct event *down = transfer->cell->down;
    if (!down || event_done(down)) /* event_wait tells whether the copy succeeded */
        return down && event_wait(down, COPY_TIMEOUT_NS, err) < 0 ? -1 : mesh_send_now(transfer, err);
    transfer->job = (struct courier_job){.copied = down, .finish = transfer_copy_done, .arg = transfer};
    courier_push(transfer->ops->courier, &transfer->job);
    return 0;
}

static int receive_by_mesh(struct transfer *transfer, struct err *err)
{
    struct ops *ops = transfer->ops;
    bool token = ops->slots[transfer->instr->slot_out].slot->kind == SLOT_TOKEN;
    void *data = token ? (void *)&transfer->cell->token : transfer->cell->host + transfer->at;
    struct mesh_post post = transfer_post(transfer, transfer->instr->tag, receive_done);
    return mesh_recv(ops->options.mesh, &post, transfer->tag, data, transfer->size, err);
}

/* --- all transfers --- */

/* Sets the byte range of the slot's buffer that the instruction's rows occupy. *tokens is 0 for an empty
 * micro-batch. */
static int find_range(struct transfer *transfer, uint32_t *tokens, struct err *err)
{
    struct ops *ops = transfer->ops;
    const struct instr *instr = transfer->instr;
    int32_t slot = transfer_slot_of(instr);
    const struct micro_batch *micro = &ops->batch->micro[instr->micro_batch];
    uint32_t before;
    *tokens = batch_tokens(micro, instr->row_begin, instr->row_end, &before);
    transfer->cell = ops_cell(ops, slot, instr->micro_batch, instr->block_begin);
    transfer->at = 0;
    transfer->size = *tokens ? sizeof(transfer->cell->token) : 0;
    if (ops->slots[slot].slot->kind == SLOT_TOKEN)
        return 0;
    size_t tail = cells_tail_bytes(ops, slot, *tokens, micro->rows);
    if (tail > 0 && *tokens < micro->row_start[micro->rows])
        return err_set(
            err, ERR_UNSUPPORTED,
            "what passes by the residual stream, or router_aux, does not travel with some of a micro-batch's "
            "rows");
    transfer->at = cells_tensor_bytes(ops, slot, before);
    transfer->size = cells_tensor_bytes(ops, slot, *tokens) + tail;
    /* Several transfers may fill rows of one tensor, so its whole size is checked here. */
    if (cells_bound(ops, slot, instr->micro_batch, err) < 0)
        return -1;
    return transfer->local.used || *tokens == 0 ? 0
                                                : cell_need_host(ops, &ops->slots[slot], transfer->cell, err);
}

int transfer_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err)
{
    struct transfer *transfer = ops->programs[ops->kind].transfer_at[number];
    uint32_t tokens = 0;
    if (find_range(transfer, &tokens, err) < 0)
        return -1;
    if (tokens == 0) { /* an empty micro-batch is not sent; both ends know it from the batch */
        exec_done(ops->programs[ops->kind].exec, number, NULL);
        return 0;
    }
    if (!ops->options.mesh)
        return err_set(err, ERR_INTERNAL, "there is no mesh to rank %d", (int)instr->peer);
    transfer->deadline_ns = clock_mono_ns() + ops->wait_ns;
    transfer->tag = ops_tag(ops, instr);
    if (transfer->local.used)
        return instr->op == INSTR_SEND ? local_send(transfer, err) : local_receive(transfer, err);
    return instr->op == INSTR_SEND ? send_by_mesh(transfer, err) : receive_by_mesh(transfer, err);
}
