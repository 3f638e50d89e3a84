/* Where LoRA adapters are on a model: for each matrix of each layer its rank, and what the product of its B
 * and A is multiplied by.
 *
 * struct lora_sites is in blocks.h. Made from rules (lora_rules.h) as peft
 * makes its modules from a LoraConfig; names are those of Hugging Face's modules without ".weight", such as
 * "model.layers.0.self_attn.q_proj". Experts of a layer share one rank and factor.
 */
#ifndef MOTLEY_MODEL_SHAPE_LORA_SITES_H
#define MOTLEY_MODEL_SHAPE_LORA_SITES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "model/shape/lora_rules.h"

/* What holds where no pattern says otherwise, and how errors name things. */
struct lora_defaults {
    uint32_t rank;
    double alpha;
    bool rslora;         /* scaled by alpha / sqrt(rank) (Kalajdzievski 2023) */
    const char *where;   /* "method": what errors begin with, */
    const char *targets; /* "targets": and what the list of modules is called there */
    bool strict;         /* refuse names and patterns that match nothing; peft passes over them */
};

/* ERR_INVALID: nothing matches (the error lists what there is). ERR_UNSUPPORTED: experts of a layer, or of
 * several, would have adapters that differ; all-linear of a mixture; layers differ in more than LORA_WAYS_MAX
 * ways. ERR_TOO_BIG: a pattern that takes too long. */
int lora_sites_of(const struct lora_rules *rules, const struct lora_defaults *defaults,
                  const struct model_config *config, struct lora_sites *sites, struct err *err);
/* The same rank and factor on a mask of enum lora_target, in all layers. */
struct lora_sites lora_sites_alike(uint32_t rank, double scale, uint32_t targets);

/* Mask of the targets with an adapter in any layer. */
uint32_t lora_sites_targets(const struct lora_sites *sites);
/* Smallest and largest rank of all; 0 without adapters. */
void lora_sites_ranks(const struct lora_sites *sites, uint32_t *least, uint32_t *most);
/* Mean rank on each target over 'layers' layers, rounded up, for those who want one layer for all. */
void lora_sites_mean(const struct lora_sites *sites, uint32_t layers, uint32_t rank[LORA_TARGET_COUNT]);

/* The target that a module's last name says ("….experts.3.w1": LORA_GATE), or 0. */
uint32_t lora_target_of(const char *module);

#endif
