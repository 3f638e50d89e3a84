/* Internal to model/shape: the functions by which the steps of a layer add its tensors. */
#ifndef MOTLEY_MODEL_SHAPE_LAYER_TENSORS_H
#define MOTLEY_MODEL_SHAPE_LAYER_TENSORS_H

#include "model/shape/layer.h"

struct tensor_maker {
    const struct model_config *config; /* the config of this rank's part of the layer */
    const struct model_config *whole;  /* the config of the whole layer */
    const struct layer_method *method;
    uint32_t layer; /* number of the layer, from 0 */
    struct layer_tensors *out;
};

/* Adds a vector of `rows` values and returns its index. */
int32_t tensor_vector(struct tensor_maker *maker, enum tensor_role role, uint32_t target, uint32_t rows);
/* Adds the weights of a norm of `rows` values, and behind them its bias where norms have one; returns the
 * weights' index. */
int32_t tensor_norm(struct tensor_maker *maker, enum tensor_role role, uint32_t rows);
/* Adds the convolution of `channels` over `taps` tokens and returns its index. */
int32_t tensor_conv(struct tensor_maker *maker, uint32_t channels, uint32_t taps);
/* Adds a table with a row for each token, of the head, of the embedding, or of the layers' own inputs. */
void tensor_table(struct tensor_maker *maker, enum tensor_role role, bool trained);
/* Adds the adapter on a table, LORA_EMBEDDING or LORA_HEAD, if it has one. */
void tensor_table_adapter(struct tensor_maker *maker, uint32_t target);
/* Adds the number that multiplies the layer's output; returns its index. */
int32_t tensor_layer_scale(struct tensor_maker *maker);
/* Adds the vector that is added to the router's probabilities; returns its index. */
int32_t tensor_router_bias(struct tensor_maker *maker);
/* Adds a linear step's matrices, biases and adapters for `copies` experts. Fills the members' tensor indices
 * and the step's ranks, stacked and trains; the members' targets, outputs and columns are inputs. */
void tensor_linear(struct tensor_maker *maker, uint32_t copies, bool bias, struct layer_step *step);

#endif
