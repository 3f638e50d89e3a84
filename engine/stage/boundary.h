/* Boundary tensors: the activations of a micro-batch's tokens, or their gradients, that a stage receives from
 * its neighbour or passes on to it. */
#ifndef MOTLEY_ENGINE_STAGE_BOUNDARY_H
#define MOTLEY_ENGINE_STAGE_BOUNDARY_H

#include "engine/stage/pass.h"

/* A boundary tensor, which the caller of the stage owns. */
struct boundary_tensor {
    struct buffer *buffer; /* NULL: there is none */
    enum dtype dtype;
};
/* Describe `buffer` as a boundary tensor, with the dtype that the stage's options give it: boundary_in for
 * the input of block `block_begin` or its gradient, boundary_out for the output of the block before
 * `block_end` or its gradient. */
struct boundary_tensor boundary_in(const struct stage *stage, uint32_t block_begin, struct buffer *buffer);
struct boundary_tensor boundary_out(const struct stage *stage, uint32_t block_end, struct buffer *buffer);
uint64_t boundary_bytes(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens);
/* Copy the boundary's [tokens, hidden] to `x` as f32, or x to the boundary. */
void boundary_read(struct stage_pass *pass, const struct boundary_tensor *boundary, struct operand x);
void boundary_write(struct stage_pass *pass, struct operand x, const struct boundary_tensor *boundary);
/* The memory in which the layers before `block_end` leave their output in f32: the boundary buffer itself, or
 * the workspace, if the head follows, the boundary has 16 bits or the pass is padded. */
struct operand boundary_end(const struct stage_pass *pass, uint32_t block_end,
                            const struct boundary_tensor *out);

/* Checks a boundary before a call starts. `tail` counts f32 values behind the tensor's [tokens, hidden]. */
int boundary_check(const struct stage *stage, const struct boundary_tensor *boundary, uint32_t tokens,
                   uint64_t tail, bool wanted, const char *what, struct err *err);

#endif
