/* Tensor groups: the members of a stage share every matrix of its blocks.
 *
 * Attention is cut by key and value heads (each with the query heads it serves), the FFN by columns, the
 * embedding and the head by rows of the vocabulary (Shoeybi et al. 2019, section 3). Each half of a layer
 * ends with a sum over the group. A member's seconds are its share of the block's, an overhead that does not
 * shrink aside. For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_TENSOR_TENSOR_H
#define MOTLEY_PLANNER_TENSOR_TENSOR_H

#include "planner/search/placement.h"

#define TENSOR_GROUP_MAX 64u

/* Deals heads, columns and vocabulary to devices: whole heads so that the slowest is done first, or by
 * memory, or alike. False when there are more devices than heads, columns or words, or TENSOR_GROUP_MAX. */
enum tensor_by { TENSOR_BY_SPEED, TENSOR_BY_MEMORY, TENSOR_EVENLY, TENSOR_WAYS };
bool tensor_deal(const struct problem *problem, const uint32_t *devices, uint32_t count,
                 uint32_t micro_batch_rows, enum tensor_by by, struct plan_tensor *parts);

/* The FFN's columns of a stage's group so that a layer's slowest half is soonest done, or (whole) all that a
 * member does for a micro-batch; heads and vocabulary stay. `anyhow`: whatever memory there is. False when
 * memory has no room: nothing has changed. True of a single device. */
bool tensor_level(const struct problem *problem, struct place_choice *choice, uint32_t stage, bool whole,
                  bool anyhow);

/* Heads, columns and vocabulary of a stage's group by what its members can hold, as the choice says how they
 * work: any way that fits. False when none of those looked at does, or the stage is a single device: nothing
 * has changed. */
bool tensor_fit(const struct problem *problem, struct place_choice *choice, uint32_t stage);

enum tensor_half { TENSOR_WHOLE, TENSOR_FIRST, TENSOR_SECOND };
/* Seconds of a half of a block on a device that keeps `part` of it. */
double tensor_seconds(const struct problem *problem, uint32_t device, const struct plan_tensor *part,
                      int32_t block, enum tensor_half half, enum cost_way way, const struct cost_load *load);
/* What that comes to: the part of every matrix that is kept, the part of a layer's time that attention is (by
 * FLOPs), and seconds of such a part. */
struct tensor_shares {
    double heads, columns, vocabulary;
};
struct tensor_shares tensor_shares(const struct problem *problem, const struct plan_tensor *part);
double tensor_attention(const struct problem *problem, int32_t block, const struct cost_load *load);
double tensor_shrink(double seconds, double share);
/* Of an instruction of a tensor plan's rank. */
double tensor_instr_seconds(const struct problem *problem, uint32_t device, const struct plan_rank *rank,
                            const struct instr *instr, const struct cost_load *load);

/* Seconds to sum `bytes` over a group: a ring, or up and down a tree where that is faster
 * (docs/PLANNER.md, Time). */
double tensor_sum_seconds(uint32_t members, double bytes, double latency_s, double bytes_per_s);

/* The worst latency and rate of the links that a ring of those devices, in that order, goes over, links and
 * cards that several use at once divided (cost/ring.h); 0 and INFINITY of a single device. */
void tensor_ring_links(const struct problem *problem, const uint32_t *devices, uint32_t count,
                       double *latency_s, double *bytes_per_s);

/* Puts a group's devices in the order in which a boundary tensor of so many bytes is soonest summed (links
 * differ by direction); of up to TENSOR_RING devices, more stay as they are, and so do orders that are no
 * slower. */
#define TENSOR_RING 5u
void tensor_ring_best(const struct problem *problem, uint32_t *devices, uint32_t count, double bytes);

/* What a member keeps and needs, bytes. */
struct tensor_need {
    uint64_t saved_first, saved_second, saved_head; /* of a layer's halves, of the head; one micro-batch */
    uint64_t shared_gradients;                      /* of parameters that every member keeps alike */
    struct memory_need need;
};
/* Bytes of the gradients of parameters that every member keeps alike, of so many layers. */
uint64_t tensor_shared_bytes(const struct problem *problem, uint64_t layers);
/* live: micro-batches saved at once; partials: buffers of a boundary tensor's size. */
void tensor_stage_need(const struct problem *problem, const struct place_stage *stage,
                       const struct plan_tensor *part, uint32_t rows, bool recompute, uint32_t live,
                       uint32_t partials, struct tensor_need *out);

/* Depth in micro-batches of the rings between stage s and s + 1, and buffers of a boundary tensor's size that
 * a rank of a stage has; windows in units of `together` micro-batches. */
uint32_t tensor_ring(const struct place_choice *choice, uint32_t s, uint32_t micro_batches);
uint32_t tensor_partials(const struct place_choice *choice, uint32_t s, uint32_t micro_batches);
/* Micro-batches worked on in turns. */
uint32_t tensor_together(const struct place_choice *choice, uint32_t micro_batches);

/* How many times as long as a pipeline's a rank's list is, per micro-batch; 1 for other placements. */
uint32_t tensor_program_length(const struct problem *problem, const struct place_choice *choice);

/* placement.from_plan and placement.emit of tensor groups. ERR_INVALID, ERR_NOFIT, ERR_NOMEM. */
int tensor_from_plan(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                     struct err *err);
/* Returns new (plan_destroy), or NULL. */
struct plan *tensor_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                         struct err *err);

#endif
