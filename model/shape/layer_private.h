/* Internal to model/shape: the functions by which a layer's steps are added in the order of forward. */
#ifndef MOTLEY_MODEL_SHAPE_LAYER_PRIVATE_H
#define MOTLEY_MODEL_SHAPE_LAYER_PRIVATE_H

#include "model/shape/layer_tensors.h"

struct maker {
    struct tensor_maker tensors;
    struct layer_plan *plan;
};

/* One matrix of a linear step: its LoRA target and its number of outputs. */
struct target_matrix {
    uint32_t target, outputs;
};

/* The product of every token, or of the tokens of each expert, with 'count' matrices of 'inputs' columns
 * each, whose outputs lie side by side. */
struct product_shape {
    enum layer_value in, out, add; /* add: the value that is added to the product, or VALUE_NONE */
    uint32_t inputs, count;
    const struct target_matrix *matrices;
    bool bias, experts;
};

/* The values where the output of attention or FFN joins the residual stream. */
struct join {
    enum layer_value in, raw, post, stream, out; /* raw, post: the output before and after its own norm, in
                                                    families that have one (config.post_norms) */
    uint32_t inputs;
    struct target_matrix matrix;
    bool bias;
    enum tensor_role norm;
};

/* Adds a step with neither tensors nor members, and returns it. */
struct layer_step *step_add(struct maker *maker, enum layer_step_kind kind, enum layer_value in,
                            enum layer_value out, enum layer_value add);
/* Adds a norm as wide as the residual stream. */
void norm_step(struct maker *maker, enum tensor_role role, enum layer_value in, enum layer_value out);
/* Adds a product, with its matrices, biases and adapters. */
void linear_step(struct maker *maker, const struct product_shape *shape);
/* Adds the steps that multiply the output of attention or FFN with its last matrix and add the product to the
 * residual stream, after a norm where config.post_norms is set, and times config.branch_scale. */
void join_steps(struct maker *maker, const struct join *join);

/* Adds the steps from q, k and v in `qkv` to VALUE_ATT. */
void scores_steps(struct maker *maker, enum layer_value qkv);
/* Add the first half of a layer: latent attention, and without attention a gated delta net, a state
 * space, a short convolution. */
void latent_steps(struct maker *maker);
void delta_steps(struct maker *maker);
void scan_steps(struct maker *maker);
void conv_steps(struct maker *maker);

#endif
