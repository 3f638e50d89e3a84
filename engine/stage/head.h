/* The head: the last norm, logits and loss. */
#ifndef MOTLEY_ENGINE_STAGE_HEAD_H
#define MOTLEY_ENGINE_STAGE_HEAD_H

#include "engine/stage/pass.h"

/* Computes the loss from x[tokens,hidden] at the slot's labelled positions, and with `gradient` the
 * gradient of x there, which the slot keeps. */
void head_forward(struct stage_pass *pass, struct operand x, bool gradient);
/* Writes the gradient of x to the workspace's `d`. */
void head_backward(struct stage_pass *pass);
/* Writes the logits of `rows` (at most head_rows) rows of x to the workspace. */
void head_logits(struct stage_pass *pass, struct operand x, uint32_t rows);

#endif
