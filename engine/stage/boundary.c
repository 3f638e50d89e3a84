/* Reads, writes and checks boundary tensors, whose values may have 16 bits. */
#include "engine/stage/boundary.h"

struct boundary_tensor boundary_in(const struct stage *stage, uint32_t block_begin, struct buffer *buffer)
{
    bool end = block_begin == stage->options.block_begin || block_begin <= stage->options.enter_last;
    return (struct boundary_tensor){.buffer = buffer, .dtype = end ? stage->options.boundary_in : DTYPE_F32};
}

struct boundary_tensor boundary_out(const struct stage *stage, uint32_t block_end, struct buffer *buffer)
{
    uint32_t first = stage->options.leave_first ? stage->options.leave_first : stage->options.block_end;
    bool end = block_end >= first;
    return (struct boundary_tensor){.buffer = buffer, .dtype = end ? stage->options.boundary_out : DTYPE_F32};
}

uint64_t boundary_bytes(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens)
{
    return (uint64_t)dtype_bytes(boundary->dtype) * tokens * stage->config.hidden;
}

static struct operand boundary_at(const struct boundary_tensor *boundary)
{
    return (struct operand){.buffer = boundary->buffer, .dtype = boundary->dtype};
}

/* y = x [tokens, hidden]; one of the two is a boundary tensor of `dtype`. */
static void boundary_move(struct stage_pass *pass, enum dtype dtype, struct operand x, struct operand y)
{
    uint32_t hidden = pass->stage->config.hidden;
    if (dtype == DTYPE_F32)
        queue_copy(&pass->queue, pass->tokens, hidden, x, hidden, y, hidden);
    else
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_CAST,
                              .cast = {.count = (uint64_t)pass->tokens * hidden, .x = x, .y = y}});
}

void boundary_read(struct stage_pass *pass, const struct boundary_tensor *boundary, struct operand x)
{
    boundary_move(pass, boundary->dtype, boundary_at(boundary), x);
}

void boundary_write(struct stage_pass *pass, struct operand x, const struct boundary_tensor *boundary)
{
    boundary_move(pass, boundary->dtype, x, boundary_at(boundary));
}

struct operand boundary_end(const struct stage_pass *pass, uint32_t block_end,
                            const struct boundary_tensor *out)
{
    bool head = stage_has_head(pass->stage, block_end);
    return head || pass->padded || out->dtype != DTYPE_F32
               ? pass_workspace(pass, pass->stage->layout.workspace.d)
               : boundary_at(out);
}

int boundary_check(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens,
                   uint64_t tail, bool wanted, const char *what, struct err *err)
{
    const struct buffer *buffer = boundary->buffer;
    if (!wanted)
        return 0;
    if (!buffer)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: no buffer for %s",
                       stage->options.block_begin, stage->options.block_end, what);
    if (buffer_bytes(buffer) < boundary_bytes(stage, boundary, tokens) + 4 * tail ||
        buffer_device(buffer) != stage->device)
        return err_set(err, ERR_INVALID,
                       "stage of blocks %u..%u: the buffer for %s is too small or elsewhere",
                       stage->options.block_begin, stage->options.block_end, what);
    return 0;
}
