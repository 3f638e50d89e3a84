/* Inside model/layer: tensors put in their places as the steps of a layer ask for them. */
#ifndef MOTLEY_MODEL_SHAPE_LAYER_TENSORS_H
#define MOTLEY_MODEL_SHAPE_LAYER_TENSORS_H

#include "model/shape/layer.h"

struct tensor_maker {
    const struct model_config *config; /* of the part … */
    const struct model_config *whole;  /* … and of all */
    const struct layer_method *method;
    uint32_t layer; /* from 0, of a layer's tensors */
    struct layer_tensors *out;
};

/* A vector of `rows` values; returns its number. */
int32_t tensor_vector(struct tensor_maker *maker, enum tensor_role role, uint32_t target, uint32_t rows);
/* A linear step's matrices, biases and adapters for `copies` experts; fills the members' tensors and the
 * step's ranks, stacked and trains. The members' targets, outputs and columns are given. */
void tensor_linear(struct tensor_maker *maker, uint32_t copies, bool bias, struct layer_step *step);

#endif
