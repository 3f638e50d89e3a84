/* The stages of a rank: one for each range of blocks that the rank holds, in rising order, on one device.
 * Functions that concern the rank as a whole (parameters, norm, update, loss) visit all stages in that order.
 *
 * Only one stage works at a time, so they share one workspace, as large as the largest that any of them
 * needs.
 *
 * Threads: the device's. Errors: those of engine/stage/stage.h.
 */
#ifndef MOTLEY_WORKER_PROGRAM_STAGES_H
#define MOTLEY_WORKER_PROGRAM_STAGES_H

#include "engine/stage/stage.h"
#include "program/program.h"

struct stages {
    struct stage **list; /* [count], owned */
    uint32_t count;
    struct buffer *workspace; /* owned; NULL when the only stage has a workspace of its own */
};

/* Makes the stages of `rank` as its programs use them: how many micro-batches are saved at once, whether only
 * the layers' inputs are saved (RECOMPUTE), whether backward runs in halves, and the dtypes of boundary
 * tensors. `options` holds the settings of model and method; the ranges of blocks and these properties are
 * filled in. ERR_UNSUPPORTED when instructions of one range differ in RECOMPUTE. Call stages_fini also after
 * an error. */
int stages_create(struct device *device, struct model *model, const struct stage_options *options,
                  const struct plan_rank *rank, struct stages *stages, struct err *err);
void stages_fini(struct stages *stages);

/* The engine's dtype for the dtype of a slot. */
enum dtype stages_dtype(enum plan_dtype dtype);

/* The index of the stage that holds all blocks [begin, end); -1 when none does. */
int stages_find(const struct stages *stages, int32_t begin, int32_t end);

/* These do what the functions of engine/stage/stage.h of the same name do, for all stages. Parameters are
 * numbered over all stages. */
int stages_loss_scale_set(struct stages *stages, double scale, struct err *err);
int stages_step_begin(struct stages *stages, struct err *err);
int stages_loss(struct stages *stages, double *loss_sum, uint64_t *labelled, struct err *err);
int stages_router_loss(struct stages *stages, double *sum, struct err *err);
int stages_grad_square_sum(struct stages *stages, double *sum, struct err *err);
int stages_update(struct stages *stages, const struct step_update *update, struct err *err);
uint32_t stages_parameter_count(const struct stages *stages);
struct parameter stages_parameter_at(const struct stages *stages, uint32_t index);
int stages_state_read(struct stages *stages, uint32_t index, enum stage_state state, float *dst,
                      struct err *err);
int stages_state_write(struct stages *stages, uint32_t index, enum stage_state state, const float *src,
                       struct err *err);
/* The stage that has a copy of a tied embedding for its head (see stage_table_values); NULL when none has. */
struct stage *stages_table(const struct stages *stages);
uint64_t stages_update_count(const struct stages *stages);
void stages_update_count_set(struct stages *stages, uint64_t count);

#endif
