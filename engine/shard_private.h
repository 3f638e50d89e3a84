/* A shard as a stage makes it: of whole blocks, in the stage's layout and among its scalars. */
#ifndef MOTLEY_ENGINE_SHARD_PRIVATE_H
#define MOTLEY_ENGINE_SHARD_PRIVATE_H

#include "engine/layout.h"
#include "engine/shard.h"

struct shard_plan {
    struct device *device;
    const struct stage_options *options; /* checked; borrowed for the shard's life, as layout is */
    const struct footprint *layout;
    uint32_t range_count;
    const struct shard_range *ranges;
};
/* Everything but values and the place of sums, which shard_load and shard_sums_set give. */
int shard_make(const struct shard_plan *plan, struct shard **out, struct err *err);
/* First values of all its ranges, from the file or as adapters start. Waits. */
int shard_load(struct shard *shard, const struct weight_source *source, struct err *err);
/* f64 [pieces] in a buffer that outlives the shard's use. */
void shard_sums_set(struct shard *shard, struct area_view sums);
/* The name of the first parameter whose values are not finite, NULL: all are. Waits. */
int shard_not_finite(struct shard *shard, const char **name, struct err *err);

#endif
