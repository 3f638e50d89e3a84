/* Linear steps of a layer, and products with one matrix in any stored form. */
#ifndef MOTLEY_ENGINE_STAGE_LINEAR_H
#define MOTLEY_ENGINE_STAGE_LINEAR_H

#include "engine/stage/layer.h"

/* Run a linear step (base matrices, biases, adapters). Forward saves the adapters' z = scale * A drop(x) for
 * backward; with only_z it computes nothing else. */
void linear_forward(struct layer_run *run, const struct layer_step *step, bool only_z);
void linear_backward(struct layer_run *run, const struct layer_step *step, const struct tape_entry *entry,
                     bool need_input);

/* c = alpha x M^T + beta c, or with `back` c = alpha x M + beta c, where M is a matrix of the block in any
 * stored form.
 */
struct matrix_product {
    const struct block_state *block;
    const struct layer_tensor *matrix;
    bool back;
    uint32_t rows; /* rows of x and c */
    float alpha;   /* 0 stands for 1 */
    float beta;
    struct matrix_at x, c;
};
void matrix_multiply(struct stage_pass *pass, const struct matrix_product *product);

#endif
