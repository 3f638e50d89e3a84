/* Resolves the positions of LoRA adapters on a model: for each matrix of each layer its rank, and the factor
 * of the product of its B and A.
 *
 * struct lora_sites is in blocks.h. It is made from rules (lora_rules.h) as peft makes its modules from a
 * LoraConfig. Names are those of Hugging Face's modules without ".weight", such as
 * "model.layers.0.self_attn.q_proj". Experts of a layer share one rank and factor. */
#ifndef MOTLEY_MODEL_SHAPE_LORA_SITES_H
#define MOTLEY_MODEL_SHAPE_LORA_SITES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "model/shape/lora_rules.h"

/* The rank and factor where no pattern gives another, and the names that errors use. */
struct lora_defaults {
    uint32_t rank;
    double alpha;
    bool rslora; /* adapters' products are scaled by alpha / sqrt(rank) (Kalajdzievski 2023), not by alpha /
                    rank */
    const char *where;   /* what errors begin with: "method" */
    const char *targets; /* the name of the list of modules in errors: "targets" */
    bool strict;         /* refuse names and patterns that match nothing; peft passes over them */
};

/* Fills *sites. ERR_INVALID: nothing matches (the error lists the model's names). ERR_UNSUPPORTED: experts of
 * one layer, or of two layers, would have different adapters; all-linear of a mixture; layers have more than
 * LORA_WAYS_MAX different sets of ranks and factors. ERR_TOO_BIG: matching a pattern takes too long. */
int lora_sites_of(const struct lora_rules *rules, const struct lora_defaults *defaults,
                  const struct model_config *config, struct lora_sites *sites, struct err *err);
/* Returns sites with the same rank and factor on a mask of enum lora_target in all layers. */
struct lora_sites lora_sites_alike(uint32_t rank, double scale, uint32_t targets);

/* Returns the mask of the targets with an adapter in any layer. */
uint32_t lora_sites_targets(const struct lora_sites *sites);
/* Writes the smallest and largest rank of all adapters; 0 without adapters. */
void lora_sites_ranks(const struct lora_sites *sites, uint32_t *least, uint32_t *most);
/* Writes the mean rank on each target over 'layers' layers, rounded up, for callers that treat all layers
 * alike. */
void lora_sites_mean(const struct lora_sites *sites, uint32_t layers, uint32_t rank[LORA_TARGET_COUNT]);

/* Returns the target that the last part of a module's name gives ("….experts.3.w1": LORA_GATE), or 0. */
uint32_t lora_target_of(const char *module);

#endif
