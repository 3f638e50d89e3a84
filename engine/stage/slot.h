/* Slots for micro-batches. A slot keeps the description of a micro-batch (ids, rows, labels) on the device,
 * and what its forward saves for its backward. */
#ifndef MOTLEY_ENGINE_STAGE_SLOT_H
#define MOTLEY_ENGINE_STAGE_SLOT_H

#include "engine/stage/stage_state.h"

/* Takes a free slot and describes the micro-batch in it. ERR_BUSY, ERR_TOO_BIG or ERR_INVALID. */
int slot_take(struct stage *stage, const struct micro_batch *batch, struct saved **out, struct err *err);
/* Find the slot of the micro-batch: the one that an earlier range's forward took, or a free one. */
int slot_of_batch(struct stage *stage, const struct micro_batch *batch, struct saved *earlier,
                  struct saved **slot, struct err *err);

/* Finds a free slot and waits until its staging memory (the host's copy of the description) may be written.
 */
int slot_find(struct stage *stage, struct saved **out, struct err *err);
/* Queues the copy of the staging memory to the device. */
int slot_write(struct saved *slot, struct err *err);
void slot_give(struct saved *slot);

#endif
