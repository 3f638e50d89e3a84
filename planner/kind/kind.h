/* The table of placements. The search changes which devices form which stage, which blocks a stage has, and
 * the micro-batch size; it knows no placement by name. A row of the table says whether a placement is
 * possible, fills in everything else of a candidate, estimates its step and makes its plan. To add a
 * placement: a stage kind with its price, an emitter, one row here, a test. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_KIND_H
#define MOTLEY_PLANNER_KIND_KIND_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/schedule/schedule.h"

#define NEEDS_KEPT 4096u
#define VAIN_KEPT 4096u
#define ROW_COSTS_KEPT 2048u
struct need_kept { /* the bytes that a member needs, by a hash of what they depend on (need_slot) */
    uint64_t key;
    uint64_t total; /* of replicas: with one micro-batch in flight; of tensor groups: without any */
    uint64_t live_bytes, boundary_bytes; /* of one micro-batch in flight, and of a boundary tensor */
    uint64_t shared_gradients;           /* struct tensor_need */
};
struct row_cost { /* of a micro-batch of so many mean rows on a device */
    uint32_t device, rows;
    struct micro_cost cost;
    double through_s[2]; /* seconds of forward and backward through all blocks; [1]: with recomputation */
};

/* Working memory of one search, for filling in and estimating candidates of a problem. */
struct workbench {
    const struct problem *problem;
    struct schedule schedule;
    struct stage_price *prices; /* scratch memory: prices of a candidate's members */
    double *scale;              /* the result of workbench_scale for micro-batches of scale_rows rows */
    uint32_t scale_rows;
    bool uneven;       /* rows differ in length */
    double *ends;      /* scratch memory: [stage] times at which the stages end */
    uint32_t *windows; /* scratch memory: [stage] micro-batches in flight */
    uint32_t price_capacity;
    /* Costs of a mean micro-batch on every device, a table for each number of micro-batches in a step; made
     * on first use. */
    uint32_t cost_count, cost_micro_batches[MICRO_SIZES_MAX];
    struct micro_cost *costs[MICRO_SIZES_MAX];
    struct need_kept needs[NEEDS_KEPT]; /* a cache of what members of stages need */
    struct row_cost *row_costs;         /* [ROW_COSTS_KEPT] a cache (shards.c) */
    struct { /* a cache of estimates that did not beat rival_s, by a hash of what was asked (local.c) */
        uint64_t key, spent;
    } vain[VAIN_KEPT];
    struct shortage shortage[PLACE_COUNT];
    struct candidate best; /* scratch memory for the best candidate of a settle() */
    uint64_t spent;        /* work of this search so far, in units of half to one microsecond of one core */
    bool even; /* true: all stages may take the same time for a micro-batch; false: earlier stages may take
                  longer (seconds_allowed in cut.c) */
    bool whole_layers; /* settle() lets no stage run a part of the next one's first layer, because the plan's
                          cuts were given */
    double rival_s;    /* seconds of a step to beat; settle() may report a candidate that is not faster as
                          one that does not fit */
    struct err *err;
};
void workbench_init(struct workbench *bench, const struct problem *problem, struct err *err);
void workbench_fini(struct workbench *bench);
/* Returns where bench->needs has that key, or would have it. */
static inline struct need_kept *need_slot(struct workbench *bench, uint64_t key)
{
    return &bench->needs[(key ^ key >> 20 ^ key >> 37) * 2654435761u >> 8 & (NEEDS_KEPT - 1)];
}
/* Returns [micro-batches of a step]: the tokens of each micro-batch of a typical step relative to their mean,
 * for micro-batches of micro_batch_rows rows. NULL: all are equal. Borrowed until the next call with other
 * rows. */
const double *workbench_scale(struct workbench *bench, uint32_t micro_batch_rows);
/* Makes room for `count` of bench->prices, ends and windows and returns the prices; NULL: ERR_NOMEM. */
struct stage_price *workbench_prices(struct workbench *bench, uint32_t count);
/* Returns [device_count]: every device's costs of a mean micro-batch of that many rows, borrowed until the
 * next call with other rows; NULL: ERR_NOMEM. */
const struct micro_cost *workbench_costs(struct workbench *bench, uint32_t micro_batch_rows);

/* How long a pipeline stage takes with some range of blocks. */
struct cut_stage {
    double period_s; /* seconds between two micro-batches that the stage completes; INFINITY: the stage
                        does not fit in memory */
    double pass_s;   /* seconds of one micro-batch's forward and backward */
};

struct placement_kind {
    enum plan_placement placement;
    enum stage_kind stage_kind;
    uint32_t stages_least, stages_most;   /* least and most stages of a candidate */
    uint32_t members_least, members_most; /* least and most members of a stage */
    uint32_t devices_least;               /* fewest devices that make the placement */
    const char *takes;                    /* "replicas take": begins the message if there are fewer */
    /* Can the placement be used for this workload on any cluster? False with ERR_UNSUPPORTED. NULL: always.
     */
    bool (*supports)(const struct problem *problem, struct err *err);
    /* Says how long stage s takes with its members, blocks [begin, end) and `window` micro-batches in flight.
     * May change the members' recomputation and shares. A stage whose period is above limit_s may be said not
     * to fit. NULL: the placement has one stage only. */
    struct cut_stage (*look)(struct workbench *bench, struct candidate *candidate, uint32_t s, int32_t begin,
                             int32_t end, uint32_t window, double limit_s);
    /* Fills in what follows from a candidate's stages (their blocks and devices, in order) and
     * micro_batch_rows: rows, micro-batches in flight, recomputation, shares, schedule. Then estimates the
     * step (candidate->estimate_s). Members may be reordered inside their stage, and members without work are
     * removed. Returns 1 if the candidate fits in memory; 0 if not (estimate_s is INFINITY, and
     * bench->shortage says what is missing); −1 on ERR_NOMEM. */
    int (*settle)(struct workbench *bench, struct candidate *candidate);
    /* Estimates the step of a complete candidate without changing the candidate. Returns what settle returns.
     */
    int (*estimate)(struct workbench *bench, struct candidate *candidate);
    /* Makes the plan: assignment, memory, slots, groups, and programs if asked. It is not sealed and not
     * checked. Returns new (plan_destroy), or NULL with ERR_NOFIT (a rank is too small), ERR_NOMEM. */
    struct plan *(*emit)(const struct problem *problem, const struct candidate *candidate,
                         enum emit_programs programs, struct err *err);
    /* Can a worker of this release run the candidate, as far as that depends on the placement? NULL: always.
     */
    bool (*runnable)(const struct problem *problem, const struct candidate *candidate);
    /* Rebuilds the candidate of a plan of this placement, as closely as a plan tells. ERR_INVALID if there is
     * no such candidate, ERR_NOMEM. NULL: candidate_from_plan (planner/candidate/from_plan.h). */
    int (*from_plan)(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                     struct err *err);
};

/* Can the placement be used for this problem at all? False with the reason: ERR_NOFIT if it needs more
 * devices than there are, ERR_UNSUPPORTED or ERR_INVALID (the stages that the job asks for) if no cluster
 * would do. */
bool kind_supports(const struct placement_kind *kind, const struct problem *problem, struct err *err);

/* Can workers of this release run the candidate's method and placement, on the devices that it uses? */
bool kind_runnable(const struct problem *problem, const struct candidate *candidate);

/* The table of placements, indexed by enum plan_placement. */
extern const struct placement_kind *const kinds[PLACE_COUNT];

#endif
