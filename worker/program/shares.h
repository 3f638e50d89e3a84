/* A rank's shard of parameters and optimiser state (Rajbhandari et al. 2020, ZeRO; Li et al. 2014, parameter
 * server). Each block's memory is two areas (model/shape/flat.h), trained and frozen. One of them is sharded:
 * the trained area under full fine-tuning and with a parameter server, the frozen one under LoRA. Each member
 * of the sharding group keeps a range of it, by the group's shares; a parameter server keeps all of it. A
 * rank that computes but does not keep whole areas gathers them block by block into buffers of its plan's
 * slots (gather.c). Threads: shares_create and shares_destroy run on the device's thread; the rest is
 * constant. */
#ifndef MOTLEY_WORKER_PROGRAM_SHARES_H
#define MOTLEY_WORKER_PROGRAM_SHARES_H

#include "engine/stage/shard.h"
#include "program/sharing.h"

struct state_shares {
    enum plan_sharing role; /* not SHARES_NONE */
    enum block_area area;
    int32_t group;            /* the group that shards the state (role MEMBER); else PLAN_NONE */
    uint32_t count, position; /* number of the group's members and this rank's position; 1 and 0 with a
                                 parameter server */
    uint32_t block_begin, block_end;
    bool computes;       /* the rank runs blocks; else it only keeps state */
    uint64_t *cuts;      /* [blocks][count + 1] byte offsets in each block's area at which the members' shards
                            begin; the last is its end */
    struct shard *shard; /* trained values, gradients and moments that this rank keeps; NULL: none */
    /* frozen weights that this rank keeps; each block's range begins at a multiple of 64 bytes; NULL: none */
    struct buffer *frozen;
    uint64_t *frozen_at; /* [blocks] byte offset of each block's range in `frozen` */
};

/* Makes the rank's shard with values from `source`. `options` must be the options of the stage that runs the
 * rank's blocks. *out is NULL if the rank's state is not sharded. ERR_INVALID, ERR_NOFIT, ERR_NOMEM. */
int shares_create(struct device *device, const struct weight_source *source,
                  const struct stage_options *options, const struct plan *plan, uint32_t rank,
                  struct state_shares **out, struct err *err);
void shares_destroy(struct state_shares *shares);

/* Returns the byte offsets at which the members' shards of a block's area begin: [count + 1]; the last one is
 * the area's size. */
static inline const uint64_t *shares_cuts(const struct state_shares *shares, uint32_t block)
{
    return &shares->cuts[(size_t)(block - shares->block_begin) * (shares->count + 1)];
}
/* Return the memory of this rank's shard of a block's values, or of its gradients; a view without a buffer if
 * the shard is empty. */
struct area_view shares_values(const struct state_shares *shares, uint32_t block);
struct area_view shares_gradients(const struct state_shares *shares, uint32_t block);

#endif
