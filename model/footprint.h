/* Bytes held: where everything of a stage lies, as one pure function of plain numbers. The engine allocates
 * by it and the planner predicts by it, so that the two cannot differ. engine/README.md states it as
 * formulas.
 *
 * Sizes and offsets are bytes unless the name says otherwise; each array starts on a multiple of 64 bytes. No
 * allocation, no loop over layers. Who calls bounds widths and tokens, so that 64 bits cannot overflow.
 */
#ifndef MOTLEY_MODEL_FOOTPRINT_H
#define MOTLEY_MODEL_FOOTPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

/* The widths of a model, with the names papers use. */
struct footprint_shape {
    uint32_t hidden, q_width, kv_width, qkv_width; /* q_width = heads * head_dim, … */
    uint32_t ffn;    /* with experts: of those that a token passes; where layers differ, the wider kind's */
    uint32_t router; /* scores, and each chosen expert with its weight; 0: dense */
    uint32_t vocab, heads, kv_heads, head_dim, layers;
    bool tied;
};

/* Bytes of one value, by what it is of. Trained values, their gradients, logits, sums and the rotary table
 * are fp32, numbers of tokens 32 bits. */
struct footprint_item {
    uint32_t weight, activation, moment;
};
extern const struct footprint_item footprint_fp32; /* what the engine runs */

/* The matrices that adapters read from, in groups with one input: the A of a group are stacked. */
enum lora_group_kind { GROUP_QKV, GROUP_O, GROUP_GATE_UP, GROUP_DOWN, GROUP_COUNT };

struct lora_member {
    uint32_t target;  /* bit of enum lora_target */
    uint32_t site;    /* number of that bit: keys dropout */
    uint32_t outputs; /* rows of B */
    uint32_t column;  /* where its output begins in the group's output matrix */
    uint64_t b;       /* [outputs, rank], floats into the layer's adapter */
};

struct lora_group {
    uint32_t count, inputs; /* members; columns of A */
    uint64_t a;             /* [count * rank, inputs], floats into the layer's adapter */
    struct lora_member members[3];
};

/* The frozen weights of a layer in its buffer. */
struct footprint_layer {
    uint64_t norm1, qkv, o, norm2, gate_up, down, bytes;
};

/* What holds for every stage of a model under a method. */
struct footprint_model {
    struct footprint_shape shape;
    struct footprint_item item;
    uint32_t rank;           /* of LoRA; 0: no adapters */
    bool dropout;            /* of the adapters' input */
    uint32_t parameters;     /* of one layer's adapter */
    uint64_t adapter_floats; /* of one layer */
    struct lora_group groups[GROUP_COUNT];
    uint32_t group_members, group_inputs; /* most of a group that has members */
    struct footprint_layer layer;
    uint32_t head_rows; /* labelled positions whose logits are held at once, at most */
};

struct footprint_options {
    bool train;     /* else nothing is saved, and there are no gradients and moments */
    bool recompute; /* only each layer's input is saved */
    uint32_t block_begin, block_end;
    uint32_t slots;                  /* micro-batches in flight, ≥ 1 */
    uint32_t tokens, rows, labelled; /* most of a micro-batch */
    uint32_t positions;              /* of the rotary table */
};

/* What forward leaves for backward in one layer, beside its input. */
struct footprint_save {
    uint64_t qkv, att, lse, mid, gate_up, router, z[GROUP_COUNT], bytes;
};

/* One place for a micro-batch: its description, layer inputs, what layers save, the head's gradient. */
struct footprint_slot {
    uint64_t ids, positions, row_ids, row_start, label_index, targets, meta_bytes;
    uint64_t x, x_stride;        /* of inputs[layer] */
    uint64_t saves, save_stride; /* of what each layer saves; stride 0: one for all */
    uint64_t head;               /* [labelled, hidden] */
    uint64_t bytes;
};

struct footprint_workspace {
    uint64_t norm, act, d, datt, dqkv, delta, dz, drop, act2; /* [tokens, …] */
    uint64_t save;                                            /* of one layer when slots hold none */
    uint64_t logits, head_x, head_n;                          /* [head_rows, …] */
    uint64_t bytes;
};

/* A stage. */
struct footprint {
    const struct footprint_model *model; /* borrowed */
    uint32_t layer_begin, layers;        /* transformer layers from 0; how many of them */
    bool has_embedding, has_head, shares_table;
    struct footprint_slot slot;
    uint32_t slots;
    struct footprint_workspace workspace;
    uint32_t head_rows; /* labelled positions whose logits are held at once */
    /* Buffers; the table is embedding's and head's. 0 where absent, but the table's */
    uint64_t table_bytes, head_norm_bytes, rope_bytes, adapter_bytes, scalar_bytes;
    /* Sums of buffers as they are counted, by purpose */
    uint64_t weights, adapters, optimizer, activations, buffers;
};

enum { FOOTPRINT_GRANULE = 4096 };
/* What a buffer of so many bytes is counted as. */
static inline uint64_t footprint_counted(uint64_t bytes)
{
    return (bytes + FOOTPRINT_GRANULE - 1) / FOOTPRINT_GRANULE * FOOTPRINT_GRANULE;
}

/* A config within its bounds (config.h); LoRA on a mask of enum lora_target, none if rank or mask is 0. */
struct footprint_model footprint_model_of(const struct model_config *config, struct footprint_item item,
                                          uint32_t rank, uint32_t targets, bool dropout);
/* Everything of a stage. */
void footprint_of(const struct footprint_model *model, const struct footprint_options *options,
                  struct footprint *footprint);
/* What a layer saves for `tokens` tokens; packed, so a short micro-batch uses the front of its place. */
struct footprint_save footprint_save_of(const struct footprint_model *model, uint32_t tokens);
/* Bytes of a KV cache: [layers, 2, tokens, kv_width]. */
uint64_t footprint_cache_bytes(const struct footprint *footprint, uint32_t tokens);

#endif
