/* Areas of blocks filled with their first values: for stages and shards.
 *
 * A loader belongs to the thread of its device and holds one piece of a tensor at a time (1 MiB, and the
 * scales of one tensor).
 */
#ifndef MOTLEY_ENGINE_LOAD_H
#define MOTLEY_ENGINE_LOAD_H

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

struct loader {
    struct device *device;
    const struct model_config *config;
    uint64_t seed; /* of adapters */
    const struct weight_source *source;
    const struct area_part *part; /* being filled */
    uint64_t capacity;            /* values of a piece */
    float *piece;                 /* read at once */
    uint8_t *packed;              /* the piece as it is kept */
    float *absmax;                /* of the NF4 tensor being read */
    uint8_t *nested;              /* the same in 8 bits, then their scales */
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
