/* The table of placements: what the search asks of each. The search moves devices, blocks and sizes of
 * micro-batches about and knows no placement by name; a kind fills in all else and says what it takes.
 *
 * To add a placement: a stage kind with its price, an emitter, one row here, a test. For planner/ only; pure.
 */
#ifndef MOTLEY_PLANNER_KIND_KIND_H
#define MOTLEY_PLANNER_KIND_KIND_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/cost/micro.h"
#include "planner/schedule/schedule.h"

#define NEEDS_KEPT 1024u
/* What settling and estimating need beside the problem; made once for a search. */
struct workbench {
    const struct problem *problem;
    struct schedule schedule;
    struct stage_price *prices; /* scratch */
    double *scale;              /* of micro-batches of scale_rows rows */
    uint32_t scale_rows;
    bool uneven;       /* rows differ in length */
    double *ends;      /* scratch: of each stage */
    uint32_t *windows; /* likewise */
    uint32_t price_capacity;
    /* of every device, by the micro-batches of a step; made when first asked for */
    uint32_t cost_count, cost_micro_batches[MICRO_SIZES_MAX];
    struct micro_cost *costs[MICRO_SIZES_MAX];
    struct { /* what stages need, by their blocks: the same again and again (replicas.c) */
        uint64_t key;
        struct memory_need need;
    } needs[NEEDS_KEPT];
    struct shortage shortage[PLACE_COUNT];
    struct candidate best; /* scratch */
    uint64_t spent;        /* work so far, in units of about a microsecond of a core */
    bool even;      /* blocks are cut for stages that take alike; else for fewer towards the tail (cut.c) */
    double rival_s; /* estimates of this and more need not be known: settle may say that it does not fit */
    struct err *err;
};
void workbench_init(struct workbench *bench, const struct problem *problem, struct err *err);
void workbench_fini(struct workbench *bench);
/* [micro-batches of a step] what each of a typical step's holds of the mean, for micro-batches of so many
 * rows; NULL: all are alike. Borrowed until other sizes are asked for. */
const double *workbench_scale(struct workbench *bench, uint32_t micro_batch_rows);
/* Room for so many prices, and as many ends and windows; NULL: ERR_NOMEM. */
struct stage_price *workbench_prices(struct workbench *bench, uint32_t count);
/* [device_count] mean costs of micro-batches of so many rows, borrowed until other sizes are asked for; NULL:
 * ERR_NOMEM. */
const struct micro_cost *workbench_costs(struct workbench *bench, uint32_t micro_batch_rows);

/* A stage of a pipeline, as it would be with some blocks. */
struct cut_stage {
    double period_s; /* between two of its micro-batches; INFINITY: it does not fit */
    double pass_s;   /* of one micro-batch, forward and backward */
};

struct kind {
    enum plan_placement placement;
    enum stage_kind stage_kind;
    uint32_t stages_least, stages_most;   /* of a candidate */
    uint32_t members_least, members_most; /* of a stage */
    /* May it be used for this workload at all? False with the reason: ERR_NOFIT where it takes more devices
     * than there are, ERR_UNSUPPORTED or ERR_INVALID where no cluster would do. */
    bool (*supports)(const struct problem *problem, struct err *err);
    /* What stage s, as its members stand, would be with blocks [begin, end) and so many micro-batches under
     * way. May change the members' recomputation and shares. NULL: there is one stage only. */
    struct cut_stage (*look)(struct workbench *bench, struct candidate *candidate, uint32_t s, int32_t begin,
                             int32_t end, uint32_t window);
    /* Fills in what follows from stages (blocks, members' devices, in order) and micro_batch_rows: rows,
     * windows, recomputation, shares, schedule; then estimates (candidate->estimate_s). Members may change
     * places inside their stage, and those that would have nothing to do are left out. Returns 1 when it
     * fits; 0 when it does not (estimate_s is INFINITY, the shortage is noted); −1 on ERR_NOMEM. */
    int (*settle)(struct workbench *bench, struct candidate *candidate);
    /* Estimates it as it is, all filled in. Returns as settle. */
    int (*estimate)(struct workbench *bench, struct candidate *candidate);
    /* The plan: assignment, memory, slots, groups; programs too if asked. Not sealed, not checked. Returns
     * new (plan_destroy), or NULL with ERR_NOFIT (a rank too small), ERR_NOMEM. */
    struct plan *(*emit)(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);
    /* Can a worker of this release carry it out, as far as the placement decides that? NULL: always. */
    bool (*runnable)(const struct problem *problem, const struct candidate *candidate);
    /* The candidate that emits a plan of this placement, as nearly as can be said. ERR_INVALID when there is
     * none, ERR_NOMEM. NULL: candidate_from_plan (planner/candidate/from_plan.h). */
    int (*from_plan)(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                     struct err *err);
};

/* Are `least` to `most` stages among those that the job asks for (0: any number)? ERR_INVALID where they are
 * not. */
bool kind_stages_asked(const struct problem *problem, uint32_t least, uint32_t most, struct err *err);
/* Are there so many devices to use? ERR_NOFIT where `who` ("replicas take") takes more. */
bool kind_devices_enough(const struct problem *problem, uint32_t least, const char *who, struct err *err);

/* Can workers of this release carry it out: its method and its placement? */
bool kind_runnable(const struct problem *problem, const struct candidate *candidate);

/* By enum plan_placement. */
extern const struct kind *const kinds[PLACE_COUNT];

#endif
