/* The table of placements, by which the search asks each placement. The search moves devices, blocks and
 * micro-batch sizes and knows no placement by name; a kind fills in everything else and estimates the
 * step.
 *
 * To add a placement: a stage kind with its price, an emitter, one row here, a test. For planner/ only;
 * pure.
 */
#ifndef MOTLEY_PLANNER_KIND_KIND_H
#define MOTLEY_PLANNER_KIND_KIND_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/schedule/schedule.h"

#define NEEDS_KEPT 1024u
/* State of settling and estimating beside the problem; made once for a search. */
struct workbench {
    const struct problem *problem;
    struct schedule schedule;
    struct stage_price *prices; /* scratch */
    double *scale;              /* factors of micro-batches of scale_rows rows */
    uint32_t scale_rows;
    bool uneven;       /* rows differ in length */
    double *ends;      /* scratch: [stage] */
    uint32_t *windows; /* scratch: [stage] */
    uint32_t price_capacity;
    /* Costs of every device for a number of micro-batches in a step; made on first use. */
    uint32_t cost_count, cost_micro_batches[MICRO_SIZES_MAX];
    struct micro_cost *costs[MICRO_SIZES_MAX];
    struct { /* a cache of stages' memory needs, by their blocks (replicas.c) */
        uint64_t key;
        struct memory_need need;
    } needs[NEEDS_KEPT];
    struct shortage shortage[PLACE_COUNT];
    struct candidate best; /* scratch */
    uint64_t spent;        /* work so far, in units of about a microsecond of one core */
    bool even;      /* blocks are cut for equal periods; else for fewer blocks towards the tail (cut.c) */
    double rival_s; /* an estimate that is not below this need not be exact: settle may return that the
                       candidate does not fit */
    struct err *err;
};
void workbench_init(struct workbench *bench, const struct problem *problem, struct err *err);
void workbench_fini(struct workbench *bench);
/* [micro-batches of a step] the size of each micro-batch of a typical step relative to the mean, for
 * micro-batches of micro_batch_rows rows; NULL: all are equal. Borrowed until it is called with other
 * rows. */
const double *workbench_scale(struct workbench *bench, uint32_t micro_batch_rows);
/* Reserves `count` prices, and as many ends and windows; NULL: ERR_NOMEM. */
struct stage_price *workbench_prices(struct workbench *bench, uint32_t count);
/* [device_count] mean costs of micro-batches of that many rows, borrowed until it is called with other
 * rows; NULL: ERR_NOMEM. */
const struct micro_cost *workbench_costs(struct workbench *bench, uint32_t micro_batch_rows);

/* A stage of a pipeline for some range of blocks. */
struct cut_stage {
    double period_s; /* seconds between two of its micro-batches; INFINITY: it does not fit */
    double pass_s;   /* seconds of one micro-batch's forward and backward */
};

struct placement_kind {
    enum plan_placement placement;
    enum stage_kind stage_kind;
    uint32_t stages_least, stages_most;   /* stages of a candidate */
    uint32_t members_least, members_most; /* members of a stage */
    /* Can the placement be used for this workload at all? False with the reason: ERR_NOFIT if it needs
     * more devices than there are, ERR_UNSUPPORTED or ERR_INVALID if no cluster would do. */
    bool (*supports)(const struct problem *problem, struct err *err);
    /* Evaluates stage s with its members, blocks [begin, end) and `window` micro-batches in flight. May
     * change the members' recomputation and shares. NULL: the placement has one stage only. */
    struct cut_stage (*look)(struct workbench *bench, struct candidate *candidate, uint32_t s, int32_t begin,
                             int32_t end, uint32_t window);
    /* Fills in everything that follows from stages (blocks, members' devices, in order) and
     * micro_batch_rows: rows, windows, recomputation, shares, schedule. Then estimates
     * (candidate->estimate_s). Members may be reordered inside their stage, and members without work are
     * removed. Returns 1 if it fits; 0 if it does not (estimate_s is INFINITY, and the shortage is
     * recorded); −1 on ERR_NOMEM. */
    int (*settle)(struct workbench *bench, struct candidate *candidate);
    /* Estimates a complete candidate without changing it. Returns as settle does. */
    int (*estimate)(struct workbench *bench, struct candidate *candidate);
    /* Makes the plan: assignment, memory, slots, groups, and programs if asked. It is not sealed and not
     * checked. Returns new (plan_destroy), or NULL with ERR_NOFIT (a rank is too small), ERR_NOMEM. */
    struct plan *(*emit)(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);
    /* Can a worker of this release run the candidate, as far as the placement decides that? NULL: always. */
    bool (*runnable)(const struct problem *problem, const struct candidate *candidate);
    /* Rebuilds the candidate of a plan of this placement, as closely as a plan tells. ERR_INVALID if there
     * is none, ERR_NOMEM. NULL: candidate_from_plan (planner/candidate/from_plan.h). */
    int (*from_plan)(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                     struct err *err);
};

/* True if the job asks for `least` to `most` stages or for no number (0). ERR_INVALID otherwise. */
bool kind_stages_asked(const struct problem *problem, uint32_t least, uint32_t most, struct err *err);
/* True if at least `least` devices may be used. Otherwise ERR_NOFIT; `who` ("replicas take") begins the
 * message. */
bool kind_devices_enough(const struct problem *problem, uint32_t least, const char *who, struct err *err);

/* Can workers of this release run the candidate's method and placement? */
bool kind_runnable(const struct problem *problem, const struct candidate *candidate);

/* Indexed by enum plan_placement. */
extern const struct placement_kind *const kinds[PLACE_COUNT];

#endif
