/* A stage's checked options and its memory layout (model/shape/footprint.h). stage_create allocates by this
 * layout, and stage_memory_predict() reports its sums.
 */
#ifndef MOTLEY_ENGINE_STAGE_LAYOUT_H
#define MOTLEY_ENGINE_STAGE_LAYOUT_H

#include "engine/stage/stage.h"
#include "model/shape/footprint.h"

/* Check the options, replace zeroes in them by the defaults that they stand for, and lay everything out.
 * *layout borrows *model. ERR_INVALID and ERR_UNSUPPORTED as in stage_create. */
int stage_layout_init(struct stage_options *options, struct footprint_model *model, struct footprint *layout,
                      struct err *err);
/* A layout in memory of its own (half a megabyte), for callers that only predict memory. owned_layout_create
 * makes one as stage_layout_init does. Returns new in *out, to be freed with free(); NULL with an error. */
struct owned_layout {
    struct stage_options options; /* options.config points to `config` */
    struct model_config config;
    struct footprint_model model;
    struct footprint layout;
};
int owned_layout_create(const struct stage_options *options, struct owned_layout **out, struct err *err);
/* The layer method that the options ask for. */
struct layer_method stage_method(const struct stage_options *options);

#endif
