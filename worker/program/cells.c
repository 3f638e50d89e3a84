/* Boundary tensors: a slot's buffers on the device, and the memory that the mesh sends from and receives
 * into.
 *
 * Copies between the two run in parallel with compute: to the device on the queue DEVICE_IN when the
 * instruction that reads them is submitted, to the host on DEVICE_OUT behind the instruction that wrote.
 * Events order them; the host waits only for data that the mesh is about to send (transfer.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "worker/program/ops_private.h"

/* --- making and freeing --- */

static void find_uses(const struct ops *ops, uint32_t number, struct slot_cells *cells)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &ops->me->programs[kind];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *instr = &program->instrs[i];
            bool sums = instr->op == INSTR_ALL_REDUCE || instr->op == INSTR_BROADCAST;
            bool sent = (instr->op == INSTR_SEND || sums) && instr->slot_in == (int32_t)number;
            bool arrives = (instr->op == INSTR_RECV || sums) && instr->slot_out == (int32_t)number;
            cells->sent_by_mesh |= sent;
            cells->travels |= sent || arrives;
        }
    }
}

/* Makes the buffers of a SLOT_SHARED slot. They are never replaced, because peers are told their addresses
 * only once. */
static int make_shared(struct ops *ops, struct slot_cells *cells, struct err *err)
{
    const struct plan_slot *slot = cells->slot;
    struct err refused = {.code = ERR_NONE};
    for (uint32_t c = 0; c < cells->count; c++) {
        struct slot_cell *cell = &cells->cells[c];
        if (buffer_create_shared(ops->options.device, slot->bytes_bound, MEM_BUFFERS,
                                 "a boundary tensor that others write", &cell->buffer, &refused) < 0) {
            if (refused.code == ERR_UNSUPPORTED && c == 0)
                return 0; /* the device cannot share memory: the slot gets ordinary buffers */
            *err = refused;
            return -1;
        }
        cell->buffer_size = slot->bytes_bound;
        cells->device_size += slot->bytes_bound;
        if (buffer_zero(cell->buffer, 0, slot->bytes_bound, err) < 0)
            return -1;
    }
    cells->shared = true;
    return device_sync(ops->options.device, err);
}

int cells_make(struct ops *ops, uint32_t number, struct err *err)
{
    const struct plan_slot *slot = &ops->me->slots[number];
    struct slot_cells *cells = &ops->slots[number];
    uint64_t count = (uint64_t)slot->ring_micro_batches * slot->ring_blocks;
    if (count == 0 || count > PROGRAM_INSTRS_MAX)
        return err_set(err, ERR_INVALID, "slot %u has a ring of %llu buffers", number,
                       (unsigned long long)count);
    cells->slot = slot;
    cells->cells = calloc(count, sizeof(*cells->cells));
    if (!cells->cells)
        return err_set(err, ERR_NOMEM, "no memory for slot %u", number);
    cells->count = (uint32_t)count;
    find_uses(ops, number, cells);
    for (uint32_t c = 0; c < cells->count && cells->travels && ops_is_boundary(slot); c++)
        if (event_create(ops->options.device, &cells->cells[c].up, err) < 0 ||
            event_create(ops->options.device, &cells->cells[c].down, err) < 0)
            return -1;
    return slot->place == SLOT_SHARED && ops->options.mesh ? make_shared(ops, cells, err) : 0;
}

void cell_forget_caches(struct ops *ops, struct slot_cell *cell)
{
    for (uint32_t i = 0; cell->caches && i < ops->options.stages->count; i++)
        kv_cache_destroy(cell->caches[i]);
    free(cell->caches);
    cell->caches = NULL;
}

int cell_need_cache(struct ops *ops, const struct instr *instr, int stage, struct kv_cache **out,
                    struct err *err)
{
    struct slot_cell *cell = ops_cell(ops, instr->slot_save, instr->micro_batch, instr->block_begin);
    const struct stages *stages = ops->options.stages;
    if (!cell->caches && !(cell->caches = calloc(stages->count, sizeof(struct kv_cache *))))
        return err_set(err, ERR_NOMEM, "no memory for %u KV caches", stages->count);
    if (!cell->caches[stage] && kv_cache_create(stages->list[stage], ops->options.plan->sequence_bound,
                                                &cell->caches[stage], err) < 0)
        return -1;
    *out = cell->caches[stage];
    return 0;
}

void cells_free(struct ops *ops, uint32_t slot)
{
    struct slot_cells *cells = &ops->slots[slot];
    for (uint32_t c = 0; cells->cells && c < cells->count; c++) {
        struct slot_cell *cell = &cells->cells[c];
        cell_forget_caches(ops, cell);
        buffer_destroy(cell->buffer);
        host_memory_destroy(ops->options.device, cell->host, cell->host_size);
        event_destroy(cell->up);
        event_destroy(cell->down);
    }
    free(cells->cells);
}

/* --- sizes --- */

size_t cells_tensor_bytes(const struct ops *ops, int32_t slot, uint32_t tokens)
{
    return (size_t)tokens * ops->options.hidden * plan_dtype_bytes(ops->slots[slot].slot->dtype);
}

/* What passes by the residual stream: a slot is as much wider than the tensor. Only training sends the
 * load-balancing loss's sums behind the tensor. */
size_t cells_tail_bytes(const struct ops *ops, int32_t slot, uint32_t tokens, uint32_t rows)
{
    double beside =
        ops->slots[slot].slot->bytes_per_token * tokens - (double)cells_tensor_bytes(ops, slot, tokens);
    bool balances = ops->kind == PROGRAM_TRAIN && ops->step->router_scale != 0;
    /* A plan may name up to 1e15 bytes a row: what no slot holds (cells_bound) must stay a size. */
    double bytes = (beside > 0 ? beside : 0) + (balances ? ops->slots[slot].slot->bytes_per_row * rows : 0);
    return bytes < 0x1p53 ? (size_t)bytes : (size_t)1 << 53;
}

/* Returns the bytes of a slot's tensor for all rows of a micro-batch. */
static size_t whole_bytes(const struct ops *ops, int32_t slot, int32_t micro_batch)
{
    const struct micro_batch *micro = ops_micro(ops, micro_batch);
    uint32_t tokens = micro->row_start[micro->rows];
    return cells_tensor_bytes(ops, slot, tokens) + cells_tail_bytes(ops, slot, tokens, micro->rows);
}

int cells_bound(const struct ops *ops, int32_t slot, int32_t micro_batch, struct err *err)
{
    uint64_t bytes = whole_bytes(ops, slot, micro_batch), bound = ops->slots[slot].slot->bytes_bound;
    if (bytes <= bound)
        return 0;
    return err_set(err, ERR_TOO_BIG, "micro-batch %d is %llu bytes and slot %d holds %llu", (int)micro_batch,
                   (unsigned long long)bytes, (int)slot, (unsigned long long)bound);
}

/* --- memory --- */

static void drop_buffer(struct slot_cells *cells, struct slot_cell *cell)
{
    buffer_destroy(cell->buffer);
    cells->device_size -= cell->buffer_size;
    cell->buffer = NULL;
    cell->buffer_size = 0;
}

/* Whether the device buffer can be freed without losing data: a tensor sent over the mesh has a copy in host
 * memory. A tensor that this rank broadcasts may still be read from the device buffer alone. */
static bool may_drop(const struct slot_cells *cells, const struct slot_cell *cell)
{
    bool copied = cells->travels && !cells->sent_locally && cells->slot->kind != SLOT_PARTIAL;
    return copied || !cell->in_use;
}

/* Gives the cell a device buffer of at least `bytes`. When the slot would exceed its bytes_total, buffers of
 * other cells that do not hold the only copy of their data are freed. */
static int cell_need_buffer(struct ops *ops, struct slot_cells *cells, struct slot_cell *cell, uint64_t bytes,
                            struct err *err)
{
    char what[48];
    if (cell->buffer && cell->buffer_size >= bytes)
        return 0;
    drop_buffer(cells, cell);
    for (uint32_t c = 0; c < cells->count && cells->device_size + bytes > cells->slot->bytes_total; c++)
        if (may_drop(cells, &cells->cells[c]))
            drop_buffer(cells, &cells->cells[c]);
    snprintf(what, sizeof(what), "a boundary tensor (%s)", slot_kind_name(cells->slot->kind));
    if (buffer_create(ops->options.device, bytes, MEM_BUFFERS, what, &cell->buffer, err) < 0)
        return -1;
    cell->buffer_size = bytes;
    cells->device_size += bytes;
    return 0;
}

/* The memory is as large as the slot's largest tensor and is made once, because page-locking memory is
 * slow. */
int cell_need_host(struct ops *ops, struct slot_cells *cells, struct slot_cell *cell, struct err *err)
{
    void *memory;
    if (cell->host)
        return 0;
    if (host_memory_create(ops->options.device, cells->slot->bytes_bound, "a boundary tensor that travels",
                           &memory, err) < 0)
        return -1;
    cell->host = memory;
    cell->host_size = cells->slot->bytes_bound;
    return 0;
}

/* --- copies in parallel with compute --- */

/* Copies received bytes to the device. The instruction that last read the buffer is complete, because the
 * receive came after it. */
static int copy_to_device(struct slot_cell *cell, struct err *err)
{
    struct transfer *transfer = atomic_exchange(&cell->arrived, NULL);
    if (!transfer)
        return 0;
    for (; transfer; transfer = transfer->next)
        if (buffer_write_on(DEVICE_IN, cell->buffer, transfer->at, cell->host + transfer->at, transfer->size,
                            err) < 0)
            return -1;
    return event_record_on(DEVICE_IN, cell->up, err) < 0 ? -1 : queue_wait(DEVICE_COMPUTE, cell->up, err);
}

int cells_take_in(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err)
{
    *out = NULL;
    if (instr->slot_in == PLAN_NONE || !ops_is_boundary(ops->slots[instr->slot_in].slot))
        return 0;
    struct slot_cells *cells = &ops->slots[instr->slot_in];
    struct slot_cell *cell = ops_cell(ops, instr->slot_in, instr->micro_batch, instr->block_begin);
    uint64_t bytes = whole_bytes(ops, instr->slot_in, instr->micro_batch);
    if (cells_bound(ops, instr->slot_in, instr->micro_batch, err) < 0 ||
        cell_need_buffer(ops, cells, cell, bytes, err) < 0 || copy_to_device(cell, err) < 0)
        return -1;
    *out = cell->buffer;
    return 0;
}

int cells_take_out(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err)
{
    *out = NULL;
    if (instr->slot_out == PLAN_NONE || !ops_is_boundary(ops->slots[instr->slot_out].slot))
        return 0;
    struct slot_cells *cells = &ops->slots[instr->slot_out];
    struct slot_cell *cell = ops_cell(ops, instr->slot_out, instr->micro_batch, instr->block_begin);
    uint64_t bytes = whole_bytes(ops, instr->slot_out, instr->micro_batch);
    if (cells_bound(ops, instr->slot_out, instr->micro_batch, err) < 0 ||
        cell_need_buffer(ops, cells, cell, bytes, err) < 0)
        return -1;
    cell->in_use = true;
    /* Drops the result of an earlier all-reduce that was sent on and never copied into the buffer. */
    atomic_store(&cell->arrived, NULL);
    *out = cell->buffer;
    return 0;
}

int cells_publish(struct ops *ops, const struct instr *instr, struct event *made, struct err *err)
{
    if (ops_micro(ops, instr->micro_batch)->rows == 0)
        return 0;
    if (instr->slot_in != PLAN_NONE && (instr->flags & FLAG_FREES_IN))
        ops_cell(ops, instr->slot_in, instr->micro_batch, instr->block_begin)->in_use = false;
    if (instr->slot_out == PLAN_NONE || !ops->slots[instr->slot_out].sent_by_mesh ||
        !ops_is_boundary(ops->slots[instr->slot_out].slot))
        return 0;
    struct slot_cell *cell = ops_cell(ops, instr->slot_out, instr->micro_batch, instr->block_begin);
    uint64_t bytes = whole_bytes(ops, instr->slot_out, instr->micro_batch);
    if (cell_need_host(ops, &ops->slots[instr->slot_out], cell, err) < 0)
        return -1;
    pthread_mutex_lock(&ops->out_lock);
    int result = queue_wait(DEVICE_OUT, made, err);
    if (result == 0)
        result = buffer_read_on(DEVICE_OUT, cell->buffer, 0, cell->host, bytes, err);
    if (result == 0)
        result = event_record_on(DEVICE_OUT, cell->down, err);
    pthread_mutex_unlock(&ops->out_lock);
    return result;
}

void transfer_end(struct transfer *transfer, const struct err *failure)
{
    if (!failure && transfer->instr->op == INSTR_SEND && (transfer->instr->flags & FLAG_FREES_IN))
        transfer->cell->in_use = false;
    exec_done(transfer->ops->programs[transfer->ops->kind].exec, transfer->number, failure);
}
