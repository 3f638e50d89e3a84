/* How a stage makes the shard that it keeps itself: of whole blocks, with the stage's layout and scalars. */
#ifndef MOTLEY_ENGINE_STAGE_SHARD_PRIVATE_H
#define MOTLEY_ENGINE_STAGE_SHARD_PRIVATE_H

#include "engine/stage/layout.h"
#include "engine/stage/shard.h"

struct shard_plan {
    struct device *device;
    const struct stage_options *options; /* checked; borrowed for the shard's life, as layout is */
    const struct footprint *layout;
    uint32_t range_count;
    const struct shard_range *ranges;
};
/* Creates everything but initial values and the buffer for sums, which shard_load and shard_sums_set provide.
 */
int shard_make(const struct shard_plan *plan, struct shard **out, struct err *err);
/* Load initial values of all ranges, from the file or as adapters start. Waits for the device. */
int shard_load(struct shard *shard, const struct weight_source *source, struct err *err);
/* Tell the shard where to leave its sums of squares: f64 [pieces] in a buffer that outlives the shard's use.
 */
void shard_sums_set(struct shard *shard, struct area_view sums);
/* Finds the name of the first parameter with values that are not finite; NULL if all are finite. Waits for
 * the device. */
int shard_not_finite(struct shard *shard, const char **name, struct err *err);

#endif
