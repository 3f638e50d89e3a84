/* Runs one layer forward and backward. */
#ifndef MOTLEY_ENGINE_STAGE_LAYER_H
#define MOTLEY_ENGINE_STAGE_LAYER_H

#include "engine/stage/pass.h"

/* One layer of a pass, with the addresses that the operands of its values depend on. */
struct layer_run {
    struct stage_pass *pass;
    const struct layer_plan *plan;
    const struct tape *tape; /* NULL in forward */
    uint32_t layer;          /* counted from 0, over the model */
    struct block_state *block;
    struct operand x, out;
    struct operand kept;  /* start of the memory for what forward saves */
    struct operand inner; /* start of the workspace that the layer's steps share */
};

/* The operand of a value of the layer, or of its gradient, in its dtype. */
struct operand run_value(const struct layer_run *run, enum layer_value value);
struct operand run_gradient(const struct layer_run *run, enum layer_value value);
/* The operand at `bytes` per token into the steps' workspace, or into the saved memory. */
struct operand run_scratch(const struct layer_run *run, uint64_t bytes);
struct operand run_kept(const struct layer_run *run, uint64_t bytes);

/* HALF_FIRST is attention, HALF_SECOND the FFN. */
enum layer_half { HALF_BOTH, HALF_FIRST, HALF_SECOND };

/* Runs a layer forward from x[tokens,hidden] to out (which may be x). HALF_FIRST leaves this part's
 * summand in VALUE_MID; HALF_SECOND starts from VALUE_MID and leaves its summand in out. */
void layer_forward(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half,
                   struct operand out);

/* The operand of a value of a layer in forward; and of its gradient, at the start and end of a whole
 * backward. */
struct operand layer_value_at(struct stage_pass *pass, uint32_t layer, enum layer_value value);
struct operand layer_gradient_at(struct stage_pass *pass, uint32_t layer, enum layer_value value);

/* With recompute, run again what backward needs and forward did not save. HALF_SECOND starts from the FFN's
 * input; HALF_FIRST leaves out the sum with the other parts. */
void layer_recompute(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half);

/* Runs a layer backward: replaces the gradient of the output, in the workspace's `d`, by the gradient of x
 * (unless !need_input). It overwrites what forward saved, unless `part` is BACKWARD_OF_INPUT, because
 * BACKWARD_OF_WEIGHT comes later. */
enum backward_part { BACKWARD_ALL, BACKWARD_OF_INPUT, BACKWARD_OF_WEIGHT };
void layer_backward(struct stage_pass *pass, uint32_t layer, struct operand x, bool need_input,
                    enum backward_part part, enum layer_half half);

/* y[rows,width] = norm(x), with tensor number `norm` of the block as its weight. */
void block_norm(struct stage_pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y);
void block_norm_backward(struct stage_pass *pass, const struct block_state *block, int32_t norm,
                         uint32_t rows, struct operand x, struct operand dy, bool accumulate,
                         struct operand dx);

#endif
