/* State of one decision, which the files of scheduler/policy share. */
#ifndef MOTLEY_SCHEDULER_POLICY_POLICY_PRIVATE_H
#define MOTLEY_SCHEDULER_POLICY_POLICY_PRIVATE_H

#include "scheduler/policy/policy.h"

/* ---- share.c: the tree of accounts ---- */

/* The tree of accounts while jobs are taken from it in the order of the shares. Every node keeps a heap of
 * its children that have jobs left; the child that is furthest below its share is on top. */
struct share_tree {
    size_t count;
    const struct policy_account *accounts;
    double *ratio;     /* charged device-seconds of each account with its children, over its weight */
    int64_t *front_us; /* eligible_us of the account's next job */
    /* [account] where the account's children begin in `heap`; one further entry for the end */
    uint32_t *heap_begin;
    uint32_t *heap_count; /* [account] number of the account's children that have jobs left */
    uint16_t *heap;
    void *memory;
};

/* Builds the tree with the accounts' own use. Returns 0, or -1 with ERR_NOMEM, or ERR_INVALID for a parent
 * that does not stand before its child or a weight that is not above 0. */
int share_tree_init(struct share_tree *tree, const struct policy_account *accounts, size_t count,
                    struct err *err);
void share_tree_fini(struct share_tree *tree);
/* Adds charged device-seconds to an account and to those above it. Call it before the heaps are filled. */
void share_tree_charge(struct share_tree *tree, uint16_t account, double seconds);
/* Fills the heaps with the leaves i for which has_jobs[i]; their front_us are set. */
void share_tree_fill(struct share_tree *tree, const bool *has_jobs);
/* Returns the leaf whose job is next, or POLICY_NONE when no leaf has jobs left. */
uint16_t share_tree_top(const struct share_tree *tree);
/* Takes the next job of the leaf on top and charges the leaf with `seconds`. `more` says whether the leaf has
 * further jobs; front_us is then the next one's eligible_us. */
void share_tree_take(struct share_tree *tree, double seconds, bool more, int64_t front_us);

/* ---- limits.c: what users and accounts may still take ---- */

struct limits_state {
    bool on;
    /* use of each account with that of its children; month_seconds includes the predicted use of running
     * jobs */
    struct policy_use *accounts;
    struct policy_use *users;
};

/* Returns 0, or -1 with ERR_NOMEM. */
int limits_init(struct limits_state *limits, const struct policy_snapshot *snapshot,
                const struct policy_settings *settings, int64_t now_us, struct err *err);
void limits_fini(struct limits_state *limits);
/* Whether the limits allow the job to start. If so, *most is how many devices it may take (0: any number);
 * otherwise the action's reason, subject and number are filled in. */
bool limits_allow(const struct limits_state *limits, const struct policy_snapshot *snapshot,
                  const struct policy_job *job, uint16_t *most, struct policy_action *action);
/* Adds the use of a job that starts. */
void limits_take(struct limits_state *limits, const struct policy_snapshot *snapshot,
                 const struct policy_job *job, size_t devices, double seconds);

/* ---- width.c: the planner's answers of one decision ---- */

/* A question to the planner: the plan of a shape on a set of devices, which is given by the number of
 * width_set. */
struct width_question {
    uint32_t shape, set;
    uint16_t least, most; /* number of devices that the job may take; most 0: any number */
    /* The job's equal part of the devices while other jobs wait, as a power of two: the number of present
     * devices, divided by the number of waiting and running jobs (equipartition: Tucker and Gupta 1989). 0:
     * no other job waits, and the job may take all devices. */
    uint16_t fair;
};

struct width_answers {
    const struct policy_planner *planner;
    const struct policy_settings *settings;
    struct device_set *sets;
    size_t set_count, set_capacity;
    uint32_t *set_slots;
    size_t set_slot_count; /* a power of two */
    struct width_entry *entries;
    size_t entry_count, entry_slots; /* a power of two */
    struct policy_plan *plans;
    size_t plan_count, plan_capacity;
};

int width_answers_init(struct width_answers *answers, const struct policy_planner *planner,
                       const struct policy_settings *settings, struct err *err);
void width_answers_fini(struct width_answers *answers);
/* Returns the number of a set of devices, or -1 with ERR_NOMEM. Equal sets have equal numbers. */
int64_t width_set(struct width_answers *answers, const struct device_set *set, struct err *err);
/* Finds the plan that the job may take on the devices of the set: the fastest plan whose throughput per
 * charged device-second is high enough (settings->width_least). Returns an enum policy_fit, with *plan an
 * index in answers->plans when it is FIT_YES; or -1 with ERR_NOMEM. The planner is asked once for each
 * question. */
int width_choose(struct width_answers *answers, const struct width_question *question, uint32_t *plan,
                 struct err *err);

/* ---- reserve.c: when devices are free, and for which job they are reserved ---- */

/* RESERVE_KEPT_MAX: a decision makes at most 2 POLICY_RESERVATIONS_MAX reservations, and one for each search
 * of preempt_find. */
enum { RESERVE_WINDOWS_MAX = 16, RESERVE_KEPT_MAX = 96 };

enum holder_kind { HOLDER_NONE, HOLDER_JOB, HOLDER_INTERVAL, HOLDER_AWAY };

struct device_claim {
    /* begin of the device's next booking, and end of its last one; INT64_MAX and 0: there is none */
    int64_t booked_us, back_us;
    int64_t leaves_us; /* when the device's node is taken away; INT64_MAX: never, or a booking comes before */
    /* the job or interval that holds the device now, or the device's own index while it is away */
    int64_t holder;
    /* the job or interval for which the device is reserved from until_us[device] on */
    int64_t reserved_for;
    enum holder_kind held_by, kept_by;
};

/* A reservation of this decision. dated: its begin does not depend on a device that is away. */
struct reserve_kept {
    int64_t job, starts_us, ends_us;
    bool dated;
    struct device_set devices;
};

/* Devices that are free now and may be taken by a job that ends by `until_us`. */
struct reserve_window {
    int64_t until_us;
    uint32_t set; /* free devices that are not reserved before until_us */
};

struct reserve_state {
    const struct policy_snapshot *snapshot;
    int64_t now_us;
    struct device_set all, there;        /* known devices, and those that are neither absent nor unfit */
    struct device_set free;              /* devices neither held by a run nor taken in this decision */
    int64_t free_us[POLICY_DEVICES_MAX]; /* [device] when the device's holder is expected to leave it */
    /* [device] when a job that starts now on the device must have ended */
    int64_t until_us[POLICY_DEVICES_MAX];
    struct device_claim devices[POLICY_DEVICES_MAX];
    bool booked;     /* a device has a booking in the future */
    bool leaving;    /* the node of a device will leave */
    int64_t move_us; /* settings.move_s */
    struct reserve_kept kept[RESERVE_KEPT_MAX];
    size_t kept_count;
    /* times: at which a start of a job is tried, in rising order. time_count is their number. At some of them
     * no device becomes free any more. */
    size_t time_count;
    int64_t times[4 * POLICY_DEVICES_MAX];
    size_t window_count;
    struct reserve_window windows[RESERVE_WINDOWS_MAX];
    bool changed; /* the windows must be found again */
};

/* A possible start of a job, now or later. */
struct reserve_start {
    uint32_t plan;
    int64_t starts_us, ends_us;
};

void reserve_init(struct reserve_state *reserve, const struct policy_snapshot *snapshot,
                  const struct policy_settings *settings, int64_t now_us);
/* Finds the windows again if anything has changed. Returns 0, or -1 with ERR_NOMEM. */
int reserve_windows(struct reserve_state *reserve, struct width_answers *answers, struct err *err);
/* Finds, on devices of `among` as they become free, the start of a job with the least predicted end before
 * start->ends_us. Returns an enum policy_fit, or -1 with ERR_NOMEM. */
int reserve_find(struct reserve_state *reserve, struct width_answers *answers, const struct policy_job *job,
                 struct width_question question, const struct device_set *among, struct reserve_start *start,
                 struct err *err);
/* reserve_take gives the devices of a plan to a job from now on. reserve_keep reserves them for the job from
 * start->starts_us on. */
void reserve_take(struct reserve_state *reserve, const struct policy_plan *plan, int64_t job,
                  int64_t ends_us);
void reserve_keep(struct reserve_state *reserve, const struct policy_plan *plan, int64_t job,
                  const struct reserve_start *start);
/* Returns the first device of the plan that is reserved or booked, or leaves, before the job that starts so
 * needs it no more; POLICY_DEVICES_MAX: none. */
size_t reserve_kept_before(const struct reserve_state *reserve, const struct policy_plan *plan,
                           const struct reserve_start *start);
/* Returns when a job that starts under the plan has been brought there and has done a step: the earliest
 * moment at which it may leave with a checkpoint. */
int64_t reserve_reach(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t starts_us);
/* Whether the start can be promised: it waits neither for a device that is away nor for a reservation that
 * cannot be promised. The time for which an absence is expected to last grows while it lasts. */
bool reserve_is_dated(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t starts_us);
/* Returns, of the reservations of the plan's devices that end by starts_us, the one that ends last; NULL when
 * there is none. */
const struct reserve_kept *reserve_before(const struct reserve_state *reserve, const struct policy_plan *plan,
                                          int64_t starts_us);
/* Returns the device of a set whose holder leaves it last. */
size_t reserve_last(const struct reserve_state *reserve, const struct device_set *devices);
/* Returns begins_us plus the predicted time of the job's steps under the plan, or plus its time limit if that
 * is less. The sum saturates. */
int64_t reserve_end(int64_t begins_us, const struct policy_job *job, const struct policy_plan *plan);

/* ---- preempt.c: runs that yield, and devices with owners ---- */

struct preempt_state {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    struct device_set owned; /* devices that have an owner */
    bool yielding;           /* at least one run can be asked for a checkpoint */
    /* [account_count] devices that each account or an account above it owns */
    struct device_set *own;
    /* [account_count] number of jobs that have not started, of each account and of those below it */
    uint32_t *waiting;
    /* [run_count] indices of the runs that may yield to the job that is considered */
    size_t *order;
    bool *asked;                    /* [run_count] the run is already asked to yield in this decision */
    struct policy_preemption *list; /* [run_count] the preemptions decided so far */
    size_t count, searches;
};

/* A job to which runs may yield. */
struct preempt_job {
    size_t index; /* index in snapshot.jobs */
    struct width_question question;
    const struct device_set *among; /* devices that the job may use */
    int64_t ends_us;                /* the job's predicted end if no run yields; INT64_MAX: unknown */
};

/* Returns 0, or -1 with ERR_NOMEM. */
int preempt_init(struct preempt_state *preempt, const struct policy_snapshot *snapshot,
                 const struct policy_settings *settings, struct err *err);
void preempt_fini(struct preempt_state *preempt);
/* Notes that a job has started, so it no longer keeps jobs of other accounts off the devices of its
 * account. */
void preempt_started(struct preempt_state *preempt, const struct policy_job *job);
/* Removes from `set` the devices whose owners have waiting jobs, unless the job belongs to the owner or is
 * urgent. */
void preempt_leave(const struct preempt_state *preempt, const struct policy_job *job, struct device_set *set);
/* Finds the outermost account above the job that owns devices, and returns whether some of the `waiting` jobs
 * are charged to accounts outside of it. Returns false when no account above the job owns devices. */
bool preempt_has_rivals(const struct preempt_state *preempt, const struct policy_job *job, size_t waiting);
/* Looks for the fewest runs that can yield to the job and whose loss is less than the job's gain. Returns
 * FIT_YES, with *start the job's start after these runs have yielded and with the runs added to
 * preempt->list; another enum policy_fit; or -1 with ERR_NOMEM. */
int preempt_find(struct preempt_state *preempt, const struct reserve_state *reserve,
                 struct width_answers *answers, const struct preempt_job *job, struct reserve_start *start,
                 struct err *err);

#endif
