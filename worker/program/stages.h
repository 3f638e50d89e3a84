/* The stages of a rank, all on one device: one for each range of blocks that the rank holds, in rising order;
 * or, in an expert plan, the stages of experts.h.
 *
 * Functions that concern the rank as a whole (parameters, norm, update, loss) visit all stages in that order,
 * and then the rank's shard of parameters and optimiser state (shares.h). A rank that only keeps such a share
 * has no stage.
 *
 * Only one stage works at a time, so they share one workspace, which has the size of the largest.
 *
 * Threads: only the device's thread calls these functions. Errors are those of engine/stage/stage.h.
 */
#ifndef MOTLEY_WORKER_PROGRAM_STAGES_H
#define MOTLEY_WORKER_PROGRAM_STAGES_H

#include "engine/stage/stage.h"
#include "program/program.h"
#include "worker/program/shares.h"

struct stages {
    struct stage **list; /* [count], owned */
    uint32_t count;
    struct buffer *workspace;    /* owned; NULL when the only stage has a workspace of its own */
    struct state_shares *shares; /* owned; the rank's shard of sharded state; NULL: the stages keep all state
                                    of their blocks */
};

/* Makes the stages of a rank as its programs use them: how many micro-batches are saved at once, whether only
 * the layers' inputs are saved (RECOMPUTE), whether backward runs in halves, and the dtypes of boundary
 * tensors. `options` holds the settings of model and method; the ranges of blocks and these properties are
 * filled in. ERR_UNSUPPORTED when instructions of one range differ in RECOMPUTE. Call stages_fini also after
 * an error. */
int stages_create(struct device *device, const struct weight_source *source,
                  const struct stage_options *options, const struct plan *plan, uint32_t rank,
                  struct stages *stages, struct err *err);
void stages_fini(struct stages *stages);

/* Returns the engine's dtype for the dtype of a slot. */
enum dtype stages_dtype(enum plan_dtype dtype);

/* Returns the index of the stage that holds all blocks [begin, end), perhaps without their experts; -1 when
 * none does. */
int stages_find(const struct stages *stages, int32_t begin, int32_t end);
/* Returns the index of the stage that has experts of a block but not their router (expert plans); -1 when
 * there is none. */
int stages_find_experts(const struct stages *stages, int32_t block);

/* These call the function of engine/stage/stage.h with the same name (stage_ for stages_) on all stages.
 * Parameters are numbered over all stages. */
int stages_loss_scale_set(struct stages *stages, double scale, struct err *err);
int stages_step_begin(struct stages *stages, struct err *err);
int stages_loss(struct stages *stages, double *loss_sum, uint64_t *labelled, struct err *err);
int stages_router_loss(struct stages *stages, double *sum, struct err *err);
/* Computes Σ g² for the clip norm, without parameters that another rank counts (plan_counts_alike). */
int stages_grad_square_sum(struct stages *stages, const struct plan *plan, uint32_t rank, double *sum,
                           struct err *err);
int stages_update(struct stages *stages, const struct step_update *update, struct err *err);
uint32_t stages_parameter_count(const struct stages *stages);
struct parameter stages_parameter_at(const struct stages *stages, uint32_t index);
int stages_state_view(const struct stages *stages, uint32_t index, enum stage_state state,
                      struct area_view *out, struct err *err);
/* Return the trained state that this rank keeps, as pieces: whole parameters, or the part of a parameter that
 * a shard has. Checkpoints are written and read by pieces. Pieces are ordered by block; their names are
 * borrowed until stages_fini. A part's `piece` is the number of one of these pieces; reading and writing is
 * as in shard_part_read. */
uint32_t stages_piece_count(const struct stages *stages);
struct shard_piece stages_piece_at(const struct stages *stages, uint32_t index);
int stages_piece_read(struct stages *stages, const struct shard_part *part, float *dst, struct err *err);
int stages_piece_write(struct stages *stages, const struct shard_part *part, const float *src,
                       struct err *err);
/* Returns the stage whose head uses a copy of a tied embedding (see stage_table_values); NULL when none
 * does. */
struct stage *stages_table(const struct stages *stages);
uint64_t stages_update_count(const struct stages *stages);
void stages_update_count_set(struct stages *stages, uint64_t count);

#endif
