/* Which devices in which ordered groups take least, by a bound: every set of few devices in every ordered
 * grouping, at every size of micro-batches worth trying. Pure. */
#ifndef MOTLEY_PLANNER_FEW_FEW_BOUND_H
#define MOTLEY_PLANNER_FEW_FEW_BOUND_H

#include "planner/cost/micro.h"
#include "planner/few/few_sets.h"

#define FEW_BLOCKS 130
#define FEW_KEPT 768u /* groupings kept at most */

struct few_alone {     /* blocks on a device, [plain, recomputing] */
    double seconds[2]; /* of a micro-batch there and back */
    uint32_t room[2];  /* micro-batches under way that it has memory for; 0: too small */
};

struct few_bound;
/* What else than members who take micro-batches in turns makes a group. */
struct few_prices {
    void *with;
    bool led; /* boundary tensors go from one member of a group to one of the next, whoever they are */
    void (*size)(void *with, const struct few_bound *f); /* a size was taken in hand */
    /* Seconds of all micro-batches on a group (a set of devices) in those blocks, and of one of them, there
     * and back, no less for more blocks; INFINITY: it does not fit. `behind`: devices in stages behind it. */
    void (*group)(void *with, const struct few_bound *f, uint16_t set, int32_t block_begin, int32_t block_end,
                  uint32_t behind, double *all, double *one);
};

struct few_node { /* one ordered grouping at one size */
    double bound;
    uint32_t number; /* of creation: ties keep the first */
    uint32_t rows, stages;
    uint16_t group[FEW_DEVICES], end[FEW_DEVICES]; /* sets of devices, and their blocks, from the head */
};

struct few_bound {
    const struct problem *p;
    struct few_sets sets;
    uint32_t rows, micro_batches;        /* in hand */
    struct micro_cost cost[FEW_DEVICES]; /* likewise */
    struct few_node *nodes;              /* the best of what was walked, bounds rising */
    uint32_t node_count;

    /* few_bound.c's own */
    int32_t places, place[FEW_BLOCKS + 1]; /* blocks where stages may begin and end; place[places]: all */
    double hop[FEW_DEVICES][FEW_DEVICES];  /* there and back, seconds */
    double wire[FEW_DEVICES][FEW_DEVICES]; /* all micro-batches on the slower of the two ways */
    struct few_alone *alone;               /* [devices][places + 1][places + 1] */
    double *makespan, *passage;            /* [rows][places + 1][places + 1] */
    uint32_t *row, rows_all; /* [sets]: rows of these tables, with none behind, then with one, …; all */
    double *least; /* [sets][any, with a stage of several][places + 1]: of all from there, by all of these */
    double *whole; /* [sets]: the same from the head, in several stages, one of them of several */
    double rest[FEW_DEVICES + 1][FEW_BLOCKS + 1];   /* by depth, from the tail: R */
    int32_t cut[FEW_DEVICES + 1][FEW_BLOCKS + 1];   /* likewise: where the stage ends */
    double arrive[FEW_DEVICES + 1][FEW_BLOCKS + 1]; /* by depth, from the head: of a first micro-batch */
    const struct few_pair *chosen[FEW_DEVICES];     /* by depth, from the head */
    double above, within;                           /* bounds looked for: (above, within] */
    double worst;                                   /* bound above which nothing is kept any more */
    uint32_t created;
    uint64_t looks, looks_most;
    const struct few_prices *prices;
    struct err *err;
};

/* Fills nodes: pipelines of groups, at least one of them of several devices, or, `single`, of single devices.
 * prices: what groups take (must outlive the walk); NULL: members take micro-batches in turns. Returns 1; 0
 * where there are too many or too few devices or blocks, and for groups in full fine-tuning without prices;
 * −1 ERR_NOMEM. few_bound_fini in any case. */
int few_bound_walk(struct few_bound *f, const struct problem *problem, bool single,
                   const struct few_prices *prices, struct err *err);
void few_bound_fini(struct few_bound *f);

/* Takes a size in hand. */
void few_size_set(struct few_bound *f, uint32_t rows);
/* Blocks on the d-th device at the size in hand, with a share of their state (1 in LoRA). */
void few_alone_fill(const struct few_bound *f, uint32_t d, int32_t block_begin, int32_t block_end,
                    double share, struct few_alone *alone);
/* Seconds until all micro-batches are done on members that take each[members] seconds for one, each given to
 * who is done first. */
double few_makespan(const struct few_bound *f, const double *each, uint32_t members);
/* Seconds of a micro-batch there with `window` of them under way at the mean, *recompute if need be; longer
 * where there is room for fewer; *held: as many as there is room for, of those. INFINITY: too small. */
double few_alone_seconds(const struct few_alone *alone, double window, bool *recompute, uint32_t *held);
/* Micro-batches that a member which takes a share of its stage's is to have under way at the mean, with so
 * many devices behind its stage: the one that it works on, and its share of what those work on, links not
 * counted (Little 1961). */
double few_window(const struct few_bound *f, double share, uint32_t behind);

#endif
