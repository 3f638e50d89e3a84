/* A shard: trained values, gradients and AdamW's moments of some ranges of blocks, updated on their own.
 *
 * When training state is sharded (ZeRO), a rank keeps of each block a range of the trained area, bounded by
 * cuts of stage_area_cuts. Others gather these values before they run the block, and its gradients are
 * scattered here afterwards. Separately updated ranges hold, bit for bit, what an unsharded state would hold
 * after the same steps, also with 8-bit moments. A stage's own state is a shard whose ranges are whole
 * blocks.
 *
 * Options are those of the stage that runs the gathered blocks. Used are the model, method, seed, block_begin
 * and block_end (a tied head that shares block 0's table has no matrix), moments8 and moments_on_host. With
 * moments_on_host the moments are in host memory; during shard_update they pass range by range through a
 * device buffer as large as the largest range's moments.
 *
 * Threads: those of the device. Errors as in engine/stage/stage.h.
 */
#ifndef MOTLEY_ENGINE_STAGE_SHARD_H
#define MOTLEY_ENGINE_STAGE_SHARD_H

#include "engine/stage/stage.h"

struct shard;

/* Bytes [begin, end) of a block's trained area. Cutting there must be allowed (model/shape/flat.h). */
struct shard_range {
    uint32_t block;
    uint64_t begin, end;
};

/* The exact number of bytes that shard_create will allocate. Pure. */
int shard_memory_predict(const struct stage_options *options, uint32_t range_count,
                         const struct shard_range *ranges, struct stage_memory *out, struct err *err);
/* Make a shard with values from the file, or as adapters start; gradients and moments are zero.
 * ranges[range_count] is copied. ERR_INVALID for a range of a block outside the options' blocks, or with ends
 * that are no cuts. */
int shard_create(struct device *device, const struct weight_source *source,
                 const struct stage_options *options, uint32_t range_count, const struct shard_range *ranges,
                 struct shard **out, struct err *err);
void shard_destroy(struct shard *shard);

/* Where a range's values and gradients are, end - begin bytes each; borrowed until shard_destroy. The view
 * has no buffer if the range is empty, or for gradients in STAGE_INFER. */
struct area_view shard_values(const struct shard *shard, uint32_t range);
struct area_view shard_gradients(const struct shard *shard, uint32_t range);

/* Tell the loss scale by which the gradients scattered here were multiplied (stage_loss_scale_set). A stage
 * sets it on its own shard itself. */
int shard_loss_scale_set(struct shard *shard, double scale, struct err *err);
/* Start a step: the gradients become zero. */
int shard_step_begin(struct shard *shard, struct err *err);
/* Sum of squares of the gradients without the loss scale, in double, in the order of pieces. Waits for the
 * device. ERR_NOT_FINITE names the first parameter whose gradient is not finite; *sum is NaN then. */
int shard_grad_square_sum(struct shard *shard, double *sum, struct err *err);
/* Like shard_grad_square_sum, without the parameters of blocks before `from` that every member of the group
 * holds whole (struct parameter, `alike`). */
int shard_grad_square_sum_from(struct shard *shard, uint32_t from, double *sum, struct err *err);
int shard_update(struct shard *shard, const struct step_update *update, struct err *err);
uint64_t shard_update_count(const struct shard *shard);
void shard_update_count_set(struct shard *shard, uint64_t count);

/* A piece: the part of one parameter that the shard holds. Pieces are ordered by range, then by the block's
 * parameters. */
struct shard_piece {
    struct parameter of;   /* its name is borrowed until shard_destroy */
    uint64_t first, count; /* values of the parameter, in the order of its rows */
};
uint32_t shard_piece_count(const struct shard *shard);
struct shard_piece shard_piece_at(const struct shard *shard, uint32_t index);
/* Where a piece's values or gradients are. */
int shard_state_view(const struct shard *shard, uint32_t index, enum stage_state state, struct area_view *out,
                     struct err *err);
/* Copy `count` floats of a piece from or to the host; both calls wait. Values are only written if all are
 * finite, else ERR_NOT_FINITE. */
int shard_state_read(struct shard *shard, uint32_t index, enum stage_state state, float *dst,
                     struct err *err);
int shard_state_write(struct shard *shard, uint32_t index, enum stage_state state, const float *src,
                      struct err *err);
/* Copy a part of a piece from or to the host, so that no memory for all of a large tensor is needed. */
int shard_part_read(struct shard *shard, const struct shard_part *part, float *dst, struct err *err);
int shard_part_write(struct shard *shard, const struct shard_part *part, const float *src, struct err *err);

#endif
