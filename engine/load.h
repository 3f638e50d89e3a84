/* Areas of blocks filled with their first values: for stages and shards.
 *
 * A loader belongs to the thread of its device, has a few helpers, and holds a few pieces of a tensor at a
 * time (1 MiB each, and the scales of one tensor).
 */
#ifndef MOTLEY_ENGINE_LOAD_H
#define MOTLEY_ENGINE_LOAD_H

#include "engine/ahead.h"
#include "engine/stage.h"
#include "model/flat.h"

/* Bytes [begin, end) of an area of a block; the byte `begin` lies at the view's. */
struct area_part {
    uint32_t block;
    const struct layer_tensors *tensors;
    enum block_area area;
    struct area_view view;
    uint64_t begin, end;
};

/* Rows of a file's tensor on their way. */
struct load_piece {
    uint64_t row, end;
    float *values;   /* whole rows, in fp32 */
    uint8_t *packed; /* the same as they are kept */
};

struct loader {
    struct device *device;
    const struct model_config *config;
    uint64_t seed; /* of adapters */
    const struct weight_source *source;
    const struct area_part *part; /* being filled */
    uint64_t capacity;            /* values of a piece */
    struct load_piece pieces[AHEAD_SLOTS_MAX];
    float *absmax;   /* of the NF4 tensor being read */
    uint8_t *nested; /* the same in 8 bits, then their scales */
    struct err *err;
};

/* Options, source and err are borrowed until loader_fini. */
int loader_init(struct loader *loader, struct device *device, const struct stage_options *options,
                const struct weight_source *source, struct err *err);
void loader_fini(struct loader *loader);
/* Trained areas begin as zeros: what lies between tensors, and the B of adapters. Waits. */
int area_load(struct loader *loader, const struct area_part *part);
/* The rotary tables of the model, for so many positions; NULL: nothing is done. Waits. */
int rope_load(struct loader *loader, uint32_t positions, struct buffer *rope);

#endif
