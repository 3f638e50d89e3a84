/* Adapters on tensors of all experts of a layer: peft's target_parameters, and the two layouts of their
 * values.
 *
 * peft (0.17 to 0.21, lora.ParamWrapper) takes a parameter [experts, in, out] (gpt-oss) or [experts, out, in]
 * (the others of transformers 5) and makes one pair of matrices for all experts: A [experts * rank, in], in
 * which the rows of an expert lie together, and B [out, rank * experts], in which those of a rank do. Expert
 * e multiplies with W + scale * B_e A_e, where A_e are rows e * rank … of A and B_e columns e, experts + e …
 * of B; the scale is alpha / rank, or alpha / sqrt(rank), of one expert. gate_up_proj is one parameter, so
 * gate and up have one A, and the rows of B are those of the parameter: gate's above up's, but in turn in
 * gpt-oss. There is no dropout (peft refuses it), and exclude_modules, layers_to_transform do not count; a
 * name of target_parameters is a parameter's or the end of one, and so are the keys of rank_pattern and
 * alpha_pattern.
 *
 * Keys are those of the module of the experts. Where both of its parameters have adapters, the one that it
 * has first, gate_up_proj, is inside the other: ….mlp.experts.base_layer.lora_A.weight, and down_proj's is
 * ….mlp.experts.lora_A.weight; one alone is always the latter.
 *
 * Motley has an A and a B of each expert (lora_expert_name), of gate_up_proj with gate's rows above up's. The
 * functions below put one form in the other's place. Conversions keep the dtype of values; one tensor of all
 * experts at a time is in memory. */
#ifndef MOTLEY_MODEL_ADAPTERS_PEFT_EXPERTS_H
#define MOTLEY_MODEL_ADAPTERS_PEFT_EXPERTS_H

#include <stdint.h>

#include "common/err.h"
#include "model/files/safetensors.h"
#include "model/shape/blocks.h"

struct peft_experts;

/* Replaces the tensors of each expert among items[*count], which are under peft_name() names, by peft's, and
 * sorts items by name. The result, NULL where no such adapter is among `sites`, must outlive the items.
 * ERR_INVALID: an expert's tensor is missing or has another shape or dtype. */
int peft_experts_join(const struct model_config *model, const struct lora_sites *sites,
                      struct safetensors_item *items, uint32_t *count, struct peft_experts **experts,
                      struct err *err);
/* Replaces *weights, which the result owns then, by the same tensors with those of each expert in the place
 * of peft's; the caller closes both, *weights first. *experts is NULL, and *weights as it was, where no such
 * adapter is among `sites`, and after an error. One thread reads the new *weights. */
int peft_experts_split(const struct model_config *model, const struct lora_sites *sites,
                       struct safetensors **weights, struct peft_experts **experts, struct err *err);
/* Safe on NULL. */
void peft_experts_close(struct peft_experts *experts);

#endif
