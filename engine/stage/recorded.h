/* Passes that a device records and replays. */
#ifndef MOTLEY_ENGINE_STAGE_RECORDED_H
#define MOTLEY_ENGINE_STAGE_RECORDED_H

#include "engine/stage/pass.h"

/* A range of blocks whose ops a pass queues after its micro-batch was described. Devices that
 * record passes replay them as a whole when the same range comes again. */
struct pass_range {
    enum { PASS_FORWARD, PASS_HEAD, PASS_BACKWARD, PASS_BACKWARD_WEIGHTS } kind;
    uint32_t begin, end;     /* the range of blocks, half-open */
    struct buffer *in, *out; /* boundary tensors that enter and leave the range; in backward, gradients */
};
/* Calls queue_all, which queues ops on the pass's queue and changes nothing else. It is called twice if the
 * device could not record the ops. */
void pass_run(struct stage_pass *pass, const struct pass_range *range,
              void (*queue_all)(struct stage_pass *pass, const struct pass_range *range));
/* Like pass_run, for the ops that fill a shard's buffer of sums of squares. Equal `sums` must always stand
 * for equal ops. */
void sums_run(struct op_queue *queue, struct area_view sums, bool of_gradients,
              void (*queue_all)(void *context), void *context);

#endif
