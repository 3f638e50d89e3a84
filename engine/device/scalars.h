/* Scalars that kernels need and ops do not carry directly. The host works them out once, so that all devices
 * compute with the same bits.
 */
#ifndef MOTLEY_ENGINE_DEVICE_SCALARS_H
#define MOTLEY_ENGINE_DEVICE_SCALARS_H

#include <math.h>
#include <stdint.h>

#include "engine/device/op.h"

/* The parts of Philox's key and counter that select the dropout mask of one row of features (struct
 * op_dropout). */
struct dropout_key {
    uint32_t key[2];
    uint32_t position, row_id, step, site; /* feature / 8 is added to the site */
    uint16_t keep_last;                    /* a feature is kept when its 16 bits are at most this */
    float scale;                           /* 1 / (1 - p) */
};

/* Fills everything except step, position and row_id. */
static inline struct dropout_key dropout_key_of(const struct op_dropout *op)
{
    double kept = floor((1.0 - (double)op->p) * 65536.0 + 0.5);
    return (struct dropout_key){
        .key = {(uint32_t)op->seed, (uint32_t)(op->seed >> 32)},
        .site = (op->layer << 20 | (op->target & 15) << 16 | op->target >> 4 << 15) + op->first / 8,
        .keep_last = (uint16_t)(kept < 1 ? 0 : kept - 1),
        .scale = 1.0f / (1.0f - op->p),
    };
}

struct adamw_scalars {
    float decay; /* 1 - lr * weight_decay */
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float inverse_root_correction2; /* 1 / sqrt(1 - beta2^t) */
    float eps, step_size;           /* step_size: lr / (1 - beta1^t) */
    float grad_scale;
};

/* The scalars of AdamW's kernels. */
static inline struct adamw_scalars adamw_scalars_of(const struct adamw_rule *rule)
{
    return (struct adamw_scalars){
        .decay = (float)(1.0 - rule->learning_rate * rule->weight_decay),
        .beta1 = (float)rule->beta1,
        .beta2 = (float)rule->beta2,
        .one_minus_beta1 = (float)(1.0 - rule->beta1),
        .one_minus_beta2 = (float)(1.0 - rule->beta2),
        .inverse_root_correction2 = (float)(1.0 / sqrt(rule->bias_correction2)),
        .eps = (float)rule->eps,
        .step_size = (float)(rule->learning_rate / rule->bias_correction1),
        .grad_scale = (float)rule->grad_scale,
    };
}

#endif
