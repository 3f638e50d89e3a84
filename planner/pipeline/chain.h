/* Programs of a chain of stages, one rank each (single is a chain of one, pipeline one of several), or of
 * ranks that hold several ranges of blocks each. For this room only. */
#ifndef MOTLEY_PLANNER_PIPELINE_CHAIN_H
#define MOTLEY_PLANNER_PIPELINE_CHAIN_H

#include "planner/search/placement.h"

/* Depth of the rings between stage s and s + 1 when their windows are w and v: what is in flight between
 * them, and one being worked on; at least 2, at most the micro-batches there are. */
uint32_t chain_ring(uint32_t w, uint32_t v, uint32_t micro_batches);

/* Boundary tensors that a stage's slots hold in all; windows[stage_count]. */
uint32_t chain_boundary_buffers(uint32_t stage, uint32_t stage_count, const uint32_t *windows,
                                uint32_t micro_batches);

/* Bytes of the gradients that a split backward of blocks [begin, end) keeps for its other half, one
 * micro-batch: those of every matrix's output. A rule: the engine does not split yet. */
uint64_t chain_held_gradients(const struct problem *problem, uint32_t tokens, int32_t begin, int32_t end);

/* Latency and occupancy (s) of a mean boundary tensor between stage j and j + 1; [stage_count − 1]. */
void chain_links(const struct problem *problem, const struct place_choice *choice, double *latency_s,
                 double *occupied_s);

/* Full fine-tuning of a tied embedding: seconds to reduce its copy's gradients to the owner and to send the
 * new values back, between the first and the last device; 0 otherwise. */
double chain_tied_seconds(const struct problem *problem, uint32_t first, uint32_t last);

/* Adds a range of blocks to what its rank needs: all adds up but workspace and tables, which a rank's ranges
 * share. *shared: the most of them so far, bytes, 0 at first; *saved: what the range keeps of a micro-batch
 * for its backward, bytes. */
void chain_range_need(const struct problem *problem, const struct memory_stage *range, uint64_t *shared,
                      struct memory_need *need, uint64_t *saved);

/* Emits a whole plan from a choice whose stages have one member each with window set. Interleaved, stage j is
 * of member j mod member_count. NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *chain_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                        struct err *err);

#endif
