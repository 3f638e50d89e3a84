/* A shard: trained values, gradients and AdamW's moments of flat ranges of blocks, stepped by themselves.
 *
 * The state that a rank keeps where it is shared out: of each block a range of the trained area (bytes
 * between cuts of stage_area_cuts), whose values others gather before they run the block and whose gradients
 * are scattered here after it. Ranges stepped apart hold, bit for bit, what the whole would hold after the
 * same steps, moments in 8 bits included. A stage's own state is a shard whose ranges are whole blocks.
 *
 * Options are those of the stage that runs the gathered blocks: model, method, seed, its block_begin and
 * block_end (a tied head that shares block 0's table has no matrix), moments8, moments_on_host; the rest is
 * not looked at. With moments_on_host the moments lie in host memory and pass, range by range during
 * shard_update, through a place on the device that holds those of the largest range.
 *
 * Threads: the device's. Errors as engine/stage.h.
 */
#ifndef MOTLEY_ENGINE_SHARD_H
#define MOTLEY_ENGINE_SHARD_H

#include "engine/stage.h"

struct shard;

/* Bytes [begin, end) of the trained area of a block; both are cuts. */
struct shard_range {
    uint32_t block;
    uint64_t begin, end;
};

/* Bytes that shard_create will allocate, exactly. Pure. */
int shard_memory_predict(const struct stage_options *options, uint32_t range_count,
                         const struct shard_range *ranges, struct stage_memory *out, struct err *err);
/* Values as the file has them or as adapters start, gradients and moments zero. ranges[range_count] is
 * copied; one of a block that is not the options', or not between cuts, is refused with ERR_INVALID. */
int shard_create(struct device *device, const struct weight_source *source,
                 const struct stage_options *options, uint32_t range_count, const struct shard_range *ranges,
                 struct shard **out, struct err *err);
void shard_destroy(struct shard *shard);

/* Where the values and gradients of a range lie, end - begin bytes each; borrowed until shard_destroy. No
 * buffer: the range is empty, or of the gradients of a stage that infers. */
struct area_view shard_values(const struct shard *shard, uint32_t range);
struct area_view shard_gradients(const struct shard *shard, uint32_t range);

/* As stage_loss_scale_set: what the gradients scattered here have been multiplied by. A stage sets that of
 * the shard that it keeps itself. */
int shard_loss_scale_set(struct shard *shard, double scale, struct err *err);
/* Start a step: gradients become zero. */
int shard_step_begin(struct shard *shard, struct err *err);
/* Sum of squares of the gradients without the loss scale, in the order of pieces, in double. Waits.
 * ERR_NOT_FINITE names the first parameter whose gradient is not finite; *sum is NaN then. */
int shard_grad_square_sum(struct shard *shard, double *sum, struct err *err);
int shard_update(struct shard *shard, const struct step_update *update, struct err *err);
uint64_t shard_update_count(const struct shard *shard);
void shard_update_count_set(struct shard *shard, uint64_t count);

/* What it holds of each parameter, in the order of ranges, in a range in that of the block's parameters. */
struct shard_piece {
    struct parameter of;   /* name borrowed until shard_destroy */
    uint64_t first, count; /* values of it, in the order of its rows */
};
uint32_t shard_piece_count(const struct shard *shard);
struct shard_piece shard_piece_at(const struct shard *shard, uint32_t index);
/* `count` floats of a piece; both wait. A value that is not finite is not written: ERR_NOT_FINITE. */
int shard_state_read(struct shard *shard, uint32_t index, enum stage_state state, float *dst,
                     struct err *err);
int shard_state_write(struct shard *shard, uint32_t index, enum stage_state state, const float *src,
                      struct err *err);

#endif
