/* The trained tensors of a run, by name; the writers of this room read a few rows at a time.
 *
 * Names are those of Hugging Face files without peft's prefix: "model.layers.0.mlp.down_proj.weight" (full
 * fine-tuning, saved modules), "model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in] and
 * "….lora_B.weight" [out, rank]. A vector has one column.
 */
#ifndef MOTLEY_RESULT_STATE_H
#define MOTLEY_RESULT_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/lora_sites.h"

/* The thread that writes calls all three functions; 'arg' is borrowed. */
struct result_state {
    void *arg;
    /* The shape of the trained tensor of this name; false when none was trained. */
    bool (*find)(void *arg, const char *name, uint64_t *rows, uint64_t *columns);
    /* Reads rows [row_begin, row_end) as fp32 into dst [row_end - row_begin, columns]. */
    int (*read)(void *arg, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                struct err *err);
    /* The factor on the product B A of the adapter on a matrix, by its module's name
     * ("model.layers.0.self_attn.q_proj").
     */
    double (*scale)(void *arg, const char *module);
};

/* Returns the factor on the product B A of the adapter on a matrix, by its module's name; 0: no adapter. */
double result_lora_scale(const struct lora_sites *sites, const char *module);

#endif
