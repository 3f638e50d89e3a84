/* A stage's options, checked, and where everything of it lies (model/footprint.h): the stage allocates by
 * that, and stage_memory_predict() tells its sums.
 */
#ifndef MOTLEY_ENGINE_LAYOUT_H
#define MOTLEY_ENGINE_LAYOUT_H

#include "engine/stage.h"
#include "model/footprint.h"

/* Check the options, replace zeroes in them by what they stand for, and lay everything out; *layout borrows
 * *model. ERR_INVALID, ERR_UNSUPPORTED as stage_create. */
int stage_layout_init(struct stage_options *options, struct footprint_model *model, struct footprint *layout,
                      struct err *err);
/* The same for who only looks; half a megabyte. Returns new in *out (free), NULL with the error. */
struct laid_out {
    struct stage_options options;
    struct footprint_model model;
    struct footprint layout;
};
int laid_out_create(const struct stage_options *options, struct laid_out **out, struct err *err);
/* The method that the options say. */
struct layer_method stage_method(const struct stage_options *options);

#endif
