/* Adapters on the tables: out += B z, of a labelled position with z = scale * A drop(x), x the head's normed
 * input and `out` its logits (Hu et al. 2021, section 4.1); of a token with z = scale * the token's column of
 * A, and `out` its embedding (peft's lora.Embedding, which drops nothing out). The scale is that of adapters
 * times that of logits or embedding. All functions do nothing where the table has no adapter. */
#ifndef MOTLEY_ENGINE_STAGE_TABLE_ADAPTER_H
#define MOTLEY_ENGINE_STAGE_TABLE_ADAPTER_H

#include "engine/stage/pass.h"

/* Adds to the tokens' embeddings, or from the gradient of these to the gradients of A and B. */
void embed_adapter_forward(struct stage_pass *pass, struct operand out);
void embed_adapter_backward(struct stage_pass *pass, struct operand dout);

/* Adds to the logits in the workspace, of the slot's labelled position `at` and those behind it (which
 * matters in training alone). Then from the logits' gradient to the gradients of A and B, while head_n holds
 * the input still, and last to head_n, which holds the gradient of the input. */
void head_adapter_forward(struct stage_pass *pass, uint32_t at, uint32_t rows);
void head_adapter_backward(struct stage_pass *pass, uint32_t at, uint32_t rows);
void head_adapter_input(struct stage_pass *pass, uint32_t at, uint32_t rows);

#endif
