/* Fills areas of blocks with initial values, for stages and shards.
 *
 * A loader belongs to its device's thread, has a few helper threads, and holds a few pieces of a tensor at a
 * time (1 MiB each, and the scales of one tensor).
 */
#ifndef MOTLEY_ENGINE_STAGE_LOAD_H
#define MOTLEY_ENGINE_STAGE_LOAD_H

#include "engine/stage/ahead.h"
#include "engine/stage/stage.h"
#include "model/shape/flat.h"

/* Some rows of a tensor: they were read from the file, and are not written to the device yet. */
struct load_piece {
    uint64_t row, end;
    float *values;   /* the piece's rows in fp32 */
    uint8_t *packed; /* the piece's rows in stored form */
};

struct area_loader {
    struct device *device;
    const struct model_config *config;
    uint64_t seed; /* seed of initial adapters */
    const struct weight_source *source;
    const struct area_range *range; /* the range that is being filled */
    uint64_t capacity;              /* most values of one piece */
    struct load_piece pieces[AHEAD_SLOTS_MAX];
    float *absmax;   /* absmax of the NF4 tensor that is being read */
    uint8_t *nested; /* the NF4 tensor's absmax quantised to 8 bits, which double quantisation stores */
    struct err *err;
};

/* Options, source and err are borrowed until loader_fini. */
int loader_init(struct area_loader *loader, struct device *device, const struct stage_options *options,
                const struct weight_source *source, struct err *err);
void loader_fini(struct area_loader *loader);
/* Fill a range of the area of a block with these tensors. In trained areas, gaps between tensors and the B
 * matrices of adapters become zeros. Waits for the device. */
int area_load(struct area_loader *loader, const struct layer_tensors *tensors,
              const struct area_range *range);
/* Fill the model's rotary tables for `positions` positions; does nothing if rope is NULL. Waits for the
 * device. */
int rope_load(struct area_loader *loader, uint32_t positions, struct buffer *rope);

#endif
