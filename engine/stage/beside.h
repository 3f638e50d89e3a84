/* What passes by the residual stream from one layer to later ones: keys and values that a layer lends, and
 * each layer's own input of a token, which block 0 makes (Gemma 4 E2B and E4B). Both lie in the micro-batch's
 * slot, and travel behind a boundary tensor. */
#ifndef MOTLEY_ENGINE_STAGE_BESIDE_H
#define MOTLEY_ENGINE_STAGE_BESIDE_H

#include "engine/stage/boundary.h"
#include "engine/stage/layer.h"

/* STEP_LEND, and the sum of the borrowers' gradients, which is added to that of k and v. */
void lend_forward(const struct layer_run *run, const struct layer_step *step);
void lend_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_PAIR. */
void pair_forward(const struct layer_run *run, const struct layer_step *step);
void pair_backward(const struct layer_run *run, const struct layer_step *step);
/* Copies q, and k and v that were lent, to qkv; or the gradient of q back, adding those of k and v. */
void borrowed_copy(const struct layer_run *run, struct operand mixed, struct operand qkv, bool back);
/* Make the layers' inputs in the slot from block 0's VALUE_PER_LAYER_NORM and table; and from the inputs'
 * gradients those of VALUE_PER_LAYER_NORM and of the table. */
void own_inputs(const struct layer_run *run);
void own_inputs_backward(const struct layer_run *run);

/* Number of f32 values behind the boundary tensor in front of block `block`. */
uint64_t beside_values(const struct stage *stage, uint32_t block, uint32_t tokens, bool gradient);
/* Copies them, one matrix with a row a token, between the boundary's buffer and the slot. When gradients
 * arrive, those of k and v that nothing behind the boundary reads become zero; at the head, those of all
 * (there is no buffer then). */
void beside_move(struct stage_pass *pass, const struct boundary_tensor *boundary, uint32_t block,
                 bool gradient, bool arrives);
/* Sets the rows of the slot's padding tokens to zero, in what passes forward or in its gradients. */
void beside_pad(struct stage_pass *pass, bool gradient);

#endif
