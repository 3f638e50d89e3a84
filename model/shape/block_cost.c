/* FLOPs and bytes of parts and blocks, by method, dtype, length and recomputation. */
#include <string.h>

#include "model/shape/blocks.h"
#include "model/files/pack.h"
#include "model/shape/packing.h"

static double block_cost_kept_bytes(const struct block_part *part, const struct block_use *use)
{
    double params = (double)part->params, packed = (double)part->matrix_params;
    if (use->full)
        return params * (use->base == BLOCK_BASE_FP32 ? 4 : 2);
    if (use->base == BLOCK_BASE_NF4)
        return packed * BLOCK_NF4_BYTES + (params - packed) * 2;
    return params * (use->base == BLOCK_BASE_FP32 ? 4 : 2);
}

void block_part_cost(const struct block_list *list, const struct block *block, uint32_t part,
                     const struct block_use *use, struct block_cost *cost)
{
    const struct block_part *p = &block->parts[part];
    double matrices = p->flops_per_token * use->tokens, adapters = p->lora_flops_per_token * use->tokens;
    double squares = p->flops_per_square * use->sum_sq, value = use->compute_bf16 ? 2 : 4;
    bool half = use->full && use->base != BLOCK_BASE_FP32;
    *cost = (struct block_cost){.forward_flops = matrices + adapters + squares,
                                .input_flops = matrices + adapters + 2 * squares,
                                .weight_flops = use->full ? matrices : adapters,
                                .weight_bytes = block_cost_kept_bytes(p, use)};
    if (use->full) {
        cost->gradient_bytes = (double)p->params * (half ? 2 : 4);
        cost->optimizer_bytes = (double)p->params * (half ? 12 : 8);
    } else {
        cost->adapter_bytes = 4 * (double)p->lora_params;
        cost->gradient_bytes = 4 * (double)p->lora_params;
        cost->optimizer_bytes = 8 * (double)p->lora_params;
    }
    /* no trained parameter lies before the embedding, so its input needs no gradient */
    if (p->kind == PART_EMBEDDING)
        cost->input_flops = 0;
    cost->recompute_flops = use->recompute ? cost->forward_flops : 0;
    cost->boundary_bytes = (double)list->boundary_per_token * use->tokens * value;
    if (!use->recompute)
        cost->saved_bytes = (double)p->saved_per_token * use->tokens * value;
    else if (part == 0 && p->kind != PART_EMBEDDING)
        cost->saved_bytes = cost->boundary_bytes;
}

void block_cost(const struct block_list *list, uint32_t number, const struct block_use *use,
                struct block_cost *cost)
{
    const struct block *block = &list->blocks[number];
    memset(cost, 0, sizeof(*cost));
    for (uint32_t i = 0; i < block->part_count; i++) {
        struct block_cost one;
        double active = block->parts[i].active, copies = block->parts[i].copies;
        block_part_cost(list, block, i, use, &one);
        cost->forward_flops += active * one.forward_flops;
        cost->input_flops += active * one.input_flops;
        cost->weight_flops += active * one.weight_flops;
        cost->recompute_flops += active * one.recompute_flops;
        cost->weight_bytes += copies * one.weight_bytes;
        cost->adapter_bytes += copies * one.adapter_bytes;
        cost->gradient_bytes += copies * one.gradient_bytes;
        cost->optimizer_bytes += copies * one.optimizer_bytes;
        cost->saved_bytes += active * one.saved_bytes;
        cost->boundary_bytes = one.boundary_bytes;
    }
}

/* Returns the mean bytes of a value in this storage kind (enum pack_kind): a block's bytes divided by its
 * number of values. */
static double value_bytes(uint8_t kind)
{
    uint32_t block = pack_block((enum pack_kind)kind);
    return (double)pack_bytes((enum pack_kind)kind, block) / block;
}

void model_packed_bytes(const struct model_config *config, double *matrices, double *tables)
{
    const struct model_packing *packing = &config->packing;
    *matrices = *tables = 0;
    if (packing_is_nf4(packing))
        return;
    struct model_config wide = *config; /* in a mixture, ffn is an expert's width */
    double bytes = 0, values = 0;
    wide.ffn = config->experts > 0 ? config->expert_ffn : config->ffn;
    for (uint32_t i = 0; i < config->layers && packing->ways > 0; i++)
        for (uint32_t site = 0; site < MODEL_MATRICES; site++) {
            uint32_t rows, columns;
            if (!(model_layer_targets(config, i) >> site & 1))
                continue;
            lora_target_shape(&wide, i, 1u << site, &rows, &columns);
            double copies =
                model_layer_is_sparse(config, i) && !(1u << site & LORA_ATTENTION) ? config->experts : 1;
            bytes += copies * rows * columns * value_bytes(packing->matrix[packing->layer[i]][site]);
            values += copies * rows * columns;
        }
    *matrices = values > 0 ? bytes / values : 0;
    double embedding = value_bytes(packing->embedding), head = value_bytes(packing->head);
    *tables = packing->ways == 0 ? 0 : config->tied ? embedding : (embedding + head) / 2;
}
