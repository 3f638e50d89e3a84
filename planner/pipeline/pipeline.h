/* Pipelines over many devices: what place_pipeline.c shares with its search. For this room only. */
#ifndef MOTLEY_PLANNER_PIPELINE_PIPELINE_H
#define MOTLEY_PLANNER_PIPELINE_PIPELINE_H

#include "planner/cost/micro.h"
#include "planner/search/placement.h"

#define PIPELINE_EXHAUSTIVE 6u /* devices up to which every order is tried */
#define PIPELINE_STAGES_MAX 256u

/* What blocks [begin, end) need on any device: so much, so much more for every micro-batch in the window, and
 * for every boundary buffer. */
#define PIPE_HELD 1024u
struct pipe_held {
    int32_t begin, end; /* end 0: nothing is known here */
    bool recompute;
    uint64_t fixed_bytes, window_bytes, buffer_bytes;
};

/* What every micro-batch of a few priced steps costs on every usable device, at one micro-batch size. */
#define PIPE_STEPS 2u
struct pipe_table {
    uint32_t rows, micro_batches;
    struct micro_cost *cost; /* [device][PIPE_STEPS][micro_batches]; NULL: too many, means are used */
    bool same[PIPE_STEPS];   /* that step's micro-batches cost what the first's do, everywhere */
    struct pipe_held *held;  /* [PIPE_HELD], by blocks: filled as it is asked for */
};
/* Which of the problem's steps estimates price as number t of PIPE_STEPS. */
uint32_t pipe_step(const struct problem *problem, uint32_t t);
/* Fills *table (pipe_table_fini). ERR_NOMEM. */
int pipe_table_init(struct pipe_table *table, const struct problem *problem, uint32_t micro_batch_rows,
                    struct err *err);
void pipe_table_fini(struct pipe_table *table);
/* Bytes of blocks [begin, end) with that window and so many boundary buffers. */
uint64_t pipe_table_memory(const struct pipe_table *table, const struct problem *problem, int32_t begin,
                           int32_t end, bool recompute, uint32_t window, uint32_t boundary_buffers);

/* Seconds of a step by the recurrence of 1F1B over real micro-batches: forward and backward seconds of stage
 * s and micro-batch k in f, b [stages · micro_batches], one-way link seconds [stages], windows. scratch holds
 * 2·stages·micro_batches + 3·stages doubles. Exact but for the depth of boundary rings. */
double pipe_recurrence(uint32_t stages, uint32_t micro_batches, const double *f, const double *b,
                       const double *link_s, const uint32_t *windows, double *scratch);

/* How hard to look at one order: the balanced split alone; every split that can compete (up to three stages;
 * balanced ones beyond); or moving blocks from the balanced split while the estimate falls. */
enum pipeline_effort { PIPELINE_BALANCE, PIPELINE_ENUMERATE, PIPELINE_REFINE };

/* Splits the blocks over the devices in that order at that micro-batch size and adds what fits and competes.
 */
int pipeline_try(const struct problem *problem, const struct pipe_table *table, const uint32_t *devices,
                 uint32_t count, enum pipeline_effort effort, struct choice_list *list, struct err *err);

/* Adds interleaved and split variants of the list's best pipelines that are faster by estimate. */
int pipeline_variants(const struct problem *problem, struct choice_list *list, struct err *err);

/* The choice of a pipeline's plan, ranges and delays among it. */
int pipeline_from_plan(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                       struct err *err);

/* Are all orders of the devices tried? Then kicking the best one about finds nothing more. */
bool pipeline_exhausts(const struct problem *problem);
/* More devices than that. */
int pipeline_propose_many(const struct problem *problem, struct choice_list *list, struct err *err);
/* Adds a few of the orders that promise most of all there are (planner/few/), and variants of them, where
 * programs are short. */
int pipeline_propose_few(const struct problem *problem, struct choice_list *list, struct err *err);

#endif
