/* Runs one layer forward and backward. */
#ifndef MOTLEY_ENGINE_STAGE_LAYER_H
#define MOTLEY_ENGINE_STAGE_LAYER_H

#include "engine/stage/pass.h"

/* One layer that a pass runs, with the addresses from which the operands of the layer's values follow. */
struct layer_run {
    struct stage_pass *pass;
    const struct layer_plan *plan;
    const struct tape *tape; /* NULL in forward */
    uint32_t layer;          /* the layer's number in the model, from 0 */
    struct block_state *block;
    struct operand x, out;
    struct operand kept;  /* start of the memory for what forward saves */
    struct operand inner; /* start of the workspace that the layer's steps share */
};

static inline const struct footprint_shape *run_shape(const struct layer_run *run)
{
    return &run->pass->stage->layout.model->shape;
}

/* Queues an op of one of the layer's steps. */
static inline void queue_step(const struct layer_run *run, const struct op *op)
{
    queue_op(&run->pass->queue, op);
}

/* The operand of a value of the layer, or of its gradient, in its dtype. */
struct operand run_value(const struct layer_run *run, enum layer_value value);
struct operand run_gradient(const struct layer_run *run, enum layer_value value);
/* Does the device round the sums of a product of 16-bit operands as it writes them, in rows of `width`? */
bool run_rounds_products(const struct layer_run *run, uint32_t width);
/* The operand behind the first `bytes` bytes per token of the steps' workspace (run->inner), or of the memory
 * for what forward saves (run->kept). */
struct operand run_scratch(const struct layer_run *run, uint64_t bytes);
struct operand run_kept(const struct layer_run *run, uint64_t bytes);

/* Which half of a layer to run: HALF_FIRST is attention, HALF_SECOND the FFN. */
enum layer_half { HALF_BOTH, HALF_FIRST, HALF_SECOND };

/* Runs a layer forward from x[tokens,hidden] to out (which may be x). HALF_FIRST leaves its result in
 * VALUE_MID; HALF_SECOND starts from VALUE_MID and leaves its result in out. Where the stage has only a part
 * of the layer, the results are this part's summands. */
void layer_forward(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half,
                   struct operand out);

/* Make the layers' own inputs of the tokens from the embedding x [tokens, hidden], or add to the gradients of
 * block 0, and (if need_input) to that of x in the workspace's `d`, from the gradients of these inputs. */
void embedding_forward(struct stage_pass *pass, struct operand x);
void embedding_backward(struct stage_pass *pass, struct operand x, bool need_input);

/* layer_value_at returns the operand of a layer's value in forward; layer_gradient_at that of the value's
 * gradient, before the first or after the last step of a backward that is not split. */
struct operand layer_value_at(struct stage_pass *pass, uint32_t layer, enum layer_value value);
struct operand layer_gradient_at(struct stage_pass *pass, uint32_t layer, enum layer_value value);

/* With recompute, run again those steps of forward whose results backward needs and forward did not save.
 * HALF_FIRST does not make the FFN's input (VALUE_MID), which is a sum over the group's members: the slot has
 * kept it, and HALF_SECOND starts from it. */
void layer_recompute(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half);

/* Runs a layer backward: replaces the gradient of the output, in the workspace's `d`, by the gradient of x
 * (unless !need_input). It overwrites what forward saved, unless `part` is BACKWARD_OF_INPUT, because
 * BACKWARD_OF_WEIGHT comes later. */
enum backward_part { BACKWARD_ALL, BACKWARD_OF_INPUT, BACKWARD_OF_WEIGHT };
void layer_backward(struct stage_pass *pass, uint32_t layer, struct operand x, bool need_input,
                    enum backward_part part, enum layer_half half);

/* y[rows,width] = norm(x), with tensor number `norm` of the block as the norm's weight. */
void block_norm(struct stage_pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y);
void block_norm_backward(struct stage_pass *pass, const struct block_state *block, int32_t norm,
                         uint32_t rows, struct operand x, struct operand dy, bool accumulate,
                         struct operand dx);

#endif
