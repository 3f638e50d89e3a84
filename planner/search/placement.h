/* Placements: one generator file each, behind one table.
 *
 * A choice says which devices do what; a generator proposes choices for a problem and turns a choice into a
 * plan with step programs. Everything else (pricing, simulation, checking, search) works on the programs and
 * knows no placement. To add one: a place_x.c with a const struct placement, its line in placement.c, its
 * test.
 *
 * For this room only.
 */
#ifndef MOTLEY_PLANNER_SEARCH_PLACEMENT_H
#define MOTLEY_PLANNER_SEARCH_PLACEMENT_H

#include "planner/cost/memory.h"
#include "planner/cost/price.h"
#include "planner/cost/problem.h"
#include "planner/simulate/simulate.h"

struct place_member {     /* one rank */
    uint32_t device;      /* of the cluster */
    uint32_t micro_rows;  /* rows of each of its micro-batches; where members share a stage's rows */
    uint32_t micro_count; /* how many a step */
    double state_share;
    double expert_share; /* expert: of every layer's experts (planner/expert/expert.h) */
    uint32_t window;     /* 0: the generator's choice */
    uint32_t delay;      /* SCHEDULE_SPLIT: micro-batches by which BACKWARD_WEIGHT comes later; expert: by
                            which experts run behind attention, 0: a layer is finished first */
    bool recompute;
    struct plan_tensor tensor; /* tensor: what of each matrix it keeps */
};

struct place_stage {
    int32_t block_begin, block_end;
    uint32_t member_first, member_count;
};

struct place_choice {
    enum plan_placement placement;
    enum plan_schedule schedule; /* of a pipeline; interleaved, stage j is of member j mod member_count */
    uint32_t micro_batch_rows;   /* of a pipeline's micro-batches */
    uint32_t stage_count, member_count;
    struct place_stage *stages;
    struct place_member *members;
    uint32_t gathered_layers; /* data, server: layers whose weights a member has places for at a time, when
                                 they are kept in shards or by the holder; 0: every member keeps all */
    uint32_t share_aim; /* data: what its shards were chosen for, and 1 (sharded_moves.c); 0: nobody said */
    uint32_t together;  /* tensor: micro-batches worked on in turns, so that the sums of one travel while the
                           next computes; 0: 1 */
    uint8_t *dealt;     /* hybrid: [stage_count · micro-batches], which of its stage's members, from 0, takes
                           each; NULL: in proportion to micro_count (deal.h) */
    uint32_t dealt_count;
    uint8_t *order; /* with dealt: [2 · dealt_count], every rank's events one after the other, 1 where it is a
                       backward; NULL: as they come (deal.h) */
    bool in_turn;   /* hybrid: each works in the order of 1F1B with a window of its own (deal_turns.c) */
    double estimate_s; /* the generator's own estimate of a mean step, to rank by */
};

int choice_copy(struct place_choice *to, const struct place_choice *from, struct err *err);
void choice_fini(struct place_choice *choice);
/* Is the device of the cluster one of its members? */
bool choice_uses(const struct place_choice *choice, uint32_t device);
/* Do both put the same devices together, in the same order of stages? */
bool choice_same_groups(const struct place_choice *a, const struct place_choice *b);

/* Puts members in the order of their machines, otherwise as they come, so that their ring passes each machine
 * once; `beside` (may be NULL) has a number for each, which goes with it. */
void members_by_machine(const struct problem *problem, struct place_member *members, uint32_t *beside,
                        uint32_t count);

#define EVALUATIONS_DEFAULT 20000u /* of a search, when nobody says */
/* From so many devices on an answer must come in a fifth of a second when nobody says (docs/PLANNER.md): what
 * takes longer is done with fewer, or with more evaluations than the default. */
#define SWIFT_DEVICES 64u

/* The best choices seen, by estimate; and what was too small for memory. */
#define CHOICES_MAX 24u
#define SHORT_TOGETHER UINT32_MAX
struct choice_list {
    uint32_t count;
    struct place_choice choices[CHOICES_MAX]; /* estimates rising */
    /* the choice that came nearest to fitting, when none did: bytes missing on all its ranks together (0:
     * nothing tried); what it needs and has, of the one device that lacks something, or (SHORT_TOGETHER) of
     * all its devices */
    uint64_t shortfall_bytes, needs_bytes, has_bytes;
    uint32_t shortfall_device;
    uint64_t evaluations, evaluations_max;
    const struct problem *runnable_on; /* take only what a worker of this release can run on it; NULL: all */
    uint32_t must_use;                 /* take only choices with this device of the cluster, plus 1; 0: all */
    double rival_s; /* the fastest of other placements: what promises far less is not worth a long look; 0:
                       none */
};

/* Adds a copy if it is among the best (and can be run, where that is asked for); equal estimates keep the
 * first. */
int choice_list_add(struct choice_list *list, const struct place_choice *choice, struct err *err);
/* Notes a choice of one device, or with all that it lacks on one: it needs more than it has. */
void choice_list_short(struct choice_list *list, uint32_t device, uint64_t needs, uint64_t has);
/* Notes a choice over several devices, which have so much together and lack so much, each of its own. */
void choice_list_lacks(struct choice_list *list, uint64_t has, uint64_t lacks);
void choice_list_fini(struct choice_list *list);

struct placement {
    enum plan_placement kind;
    /* May it be used for this workload at all? Returns false with a reason in err: ERR_NOFIT where it takes
     * more devices than there are to use, ERR_UNSUPPORTED or ERR_INVALID where no cluster would do. */
    bool (*supports)(const struct problem *problem, struct err *err);
    /* Proposes choices that fit memory into the list. Returns −1 only on ERR_NOMEM. Pure; stops at
     * evaluations_max. */
    int (*propose)(const struct problem *problem, struct choice_list *list, struct err *err);
    /* The plan of a choice: assignment, memory, slots; programs too if asked. Not sealed. NULL with ERR_NOFIT
     * (a rank too small), ERR_NOMEM. */
    struct plan *(*emit)(const struct problem *problem, const struct place_choice *choice, bool programs,
                         struct err *err);
    /* Can a worker of this release carry the choice out? NULL: always. */
    bool (*runnable)(const struct problem *problem, const struct place_choice *choice);
    /* The choice that emits a plan of this placement, as nearly as can be said (choice_fini). NULL:
     * choice_from_plan. ERR_INVALID when there is none, ERR_NOMEM. */
    int (*from_plan)(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                     struct err *err);
    /* Looks among few devices through all there is of it, or of a part that its README names, for what takes
     * less than beat_s at the mean of `steps_max` priced steps, within a budget of its own. Returns 1 with
     * the best in *choice (choice_fini) and its simulated seconds; 0 when there is none, or too much to look
     * at; −1 ERR_NOMEM. NULL: nothing is searched to the end. */
    int (*exact)(const struct problem *problem, double beat_s, uint32_t steps_max,
                 struct place_choice *choice, double *seconds, struct err *err);
};

/* Asks the choice's placement. */
bool choice_runnable(const struct problem *problem, const struct place_choice *choice);
/* Reads stages, members, windows and shares off a plan whose ranks stand in the order of their stages
 * (from_plan.c). ERR_INVALID when a device is gone or the plan has another shape; ERR_NOMEM. */
int choice_from_plan(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                     struct err *err);

extern const struct placement place_single, place_pipeline, place_data, place_hybrid, place_server,
    place_expert, place_tensor;
/* The table, NULL-terminated. */
extern const struct placement *const placements[];
const struct placement *placement_find(enum plan_placement kind);

/* --- shared by generators --- */

/* May there be `least` to `most` stages (0: any number)? ERR_INVALID where others are asked for. */
bool placement_stages(const struct problem *problem, uint32_t least, uint32_t most, struct err *err);
/* Are there so many devices to use? ERR_NOFIT where `who` ("replicas take") takes more. */
bool placement_devices(const struct problem *problem, uint32_t least, const char *who, struct err *err);

/* Of rates[count] by machine the next greatest, which becomes 0; UINT32_MAX: all are. */
uint32_t machine_take(double *rates, uint32_t count);

/* Fills what every plan holds beside ranks and programs: bounds, counts. */
void plan_frame_fill(struct plan *plan, const struct problem *problem, const struct place_choice *choice);
/* Device, node, limits and memory of one rank. ERR_NOFIT when need exceeds the limit; ERR_NOMEM. */
int plan_rank_fill(struct plan_rank *rank, const struct problem *problem, const struct place_member *member,
                   const struct memory_need *need, struct err *err);
/* Appends a slot; returns its number, or −1 out of memory. */
int32_t plan_rank_slot(struct plan_rank *rank, const struct plan_slot *slot);
/* The same for a slot of one place of `bytes` that knows the rank's blocks and nothing of rows. */
int32_t plan_rank_fixed_slot(struct plan_rank *rank, int kind, int lifetime, int place, int purpose,
                             uint64_t bytes);

#endif
