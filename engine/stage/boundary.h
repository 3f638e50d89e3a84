/* Boundary tensors, by which a stage receives and passes on what a micro-batch's tokens have become. */
#ifndef MOTLEY_ENGINE_STAGE_BOUNDARY_H
#define MOTLEY_ENGINE_STAGE_BOUNDARY_H

#include "engine/stage/pass.h"

/* A boundary tensor of a caller. */
struct boundary_tensor {
    struct buffer *buffer; /* NULL: there is none */
    enum dtype dtype;
};
/* The boundary through which a block's input (or the gradient of its input) passes, and the one through which
 * the output of the block before `block_end` passes. */
struct boundary_tensor boundary_in(const struct stage *stage, uint32_t block_begin, struct buffer *buffer);
struct boundary_tensor boundary_out(const struct stage *stage, uint32_t block_end, struct buffer *buffer);
uint64_t boundary_bytes(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens);
/* Copy the boundary's [tokens, hidden] to `x` as f32, or x to the boundary. */
void boundary_read(struct stage_pass *pass, const struct boundary_tensor *boundary, struct operand x);
void boundary_write(struct stage_pass *pass, struct operand x, const struct boundary_tensor *boundary);
/* Where the blocks before `block_end` leave their output in f32: in the boundary buffer itself, or in the
 * workspace, if the head follows or the boundary has 16 bits. */
struct operand boundary_end(const struct stage_pass *pass, uint32_t block_end,
                            const struct boundary_tensor *out);

/* Checks a boundary before a call starts. `tail` counts f32 values behind the tensor's [tokens, hidden]. */
int boundary_check(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens,
                   uint64_t tail, bool wanted, const char *what, struct err *err);

#endif
