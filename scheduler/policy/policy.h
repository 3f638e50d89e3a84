/* The policies of a shared cluster: which queued jobs start now, on which devices, and why the others wait.
 *
 * Pure functions of a snapshot, a time and the answers of a planner: no clock, no database, no randomness.
 * The scheduler, the simulator and the tests call the same object files. Times are microseconds of one clock
 * (the database's, or the simulator's). Usage is in device-seconds normalised by speed: a second of a device
 * that computes a job's shape at half of the reference card's speed counts as half a second.
 *
 * Sources: the ranking of accounts is Slurm's Fair Tree (Cox and Kim); reservations and backfill are EASY
 * (Lifka 1995) with several reservations.
 */
#ifndef MOTLEY_SCHEDULER_POLICY_POLICY_H
#define MOTLEY_SCHEDULER_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/doc.h"
#include "common/err.h"
#include "scheduler/policy/device_set.h"

enum {
    POLICY_RESERVATIONS_MAX = 8, /* dated reservations of one decision */
    POLICY_NONE = UINT16_MAX,    /* an account without a parent, or a device without an owner */
    /* microseconds that a search for the plan of a run that moves is expected to last at most */
    POLICY_MOVE_PLAN_US = 10000000,
};

/* How much of the cluster a user or an account may use. 0: unlimited. */
struct policy_limits {
    uint32_t devices_max;     /* devices held at once */
    uint32_t running_max;     /* running jobs */
    double month_seconds_max; /* normalised device-seconds in the last 30 days */
};

/* What a user or an account holds now and has used. */
struct policy_use {
    uint32_t devices, running;
    double month_seconds; /* normalised device-seconds in the last 30 days */
};

/* A node of the tree of accounts. The root is account 0. A leaf is one user within one group; jobs are
 * charged to leaves. Parents stand before their children. */
struct policy_account {
    uint16_t parent; /* POLICY_NONE for the root */
    double weight;   /* share among its siblings, above 0 */
    /* charged use of the account itself, without that of its children; it halves every half-life */
    double decayed;
    struct policy_limits limits;
    /* use of the account itself, without that of its children */
    struct policy_use use;
};

/* A user across all accounts. */
struct policy_user {
    struct policy_limits limits;
    struct policy_use use;
};

/* How a job competes: urgent jobs (granted by an administrator) go before normal ones, and scavengers after
 * all, at a lower charge, and yield to everybody. */
enum policy_service { SERVICE_URGENT, SERVICE_NORMAL, SERVICE_SCAVENGER };

/* A queued job that may start now. */
struct policy_job {
    int64_t id;
    int64_t eligible_us; /* since when the job waits: its submission, or the end of its hold or pause */
    int64_t steps_left;
    int64_t limit_us; /* microseconds left of the job's time limit; 0: none */
    int32_t priority; /* orders the jobs of one account */
    uint32_t shape;   /* jobs of one shape have the same plans on the same devices */
    uint16_t user, account;
    /* placement.count: number of devices that the job may take; devices_most 0: any number */
    uint16_t devices_least, devices_most;
    enum policy_service service;
    /* devices that the job uses only when it fits on no others, because its last attempt died there; NULL:
     * none */
    const struct device_set *avoid;
    /* devices for which its run has just ended in order to move, and which nobody takes while the job's plan
     * is searched for; NULL: none */
    const struct device_set *moves_to;
};

/* A job that runs. */
struct policy_run {
    int64_t job;
    int64_t started_us, ends_us; /* ends_us: predicted end, INT64_MAX when unknown */
    double rate;                 /* normalised device-seconds charged per second */
    /* predicted seconds until a checkpoint of the run is stored; 0: the run cannot be asked for one now, so
     * it yields to nobody */
    double save_s;
    uint16_t user, account;
    enum policy_service service;
    struct device_set devices;
};

/* Devices that are kept from jobs for a time: a person's lease, a booking, maintenance. leaves: the devices'
 * node is taken away then. A job that is not over by then may start on them all the same if it can store a
 * checkpoint before, and moves when the interval begins. */
struct policy_interval {
    int64_t id, begins_us, ends_us; /* ends_us INT64_MAX: until it is ended */
    struct device_set devices;
    bool leaves;
};

struct policy_snapshot {
    size_t account_count, user_count, job_count, run_count, interval_count;
    size_t device_count; /* number of known devices, present or not: at most POLICY_DEVICES_MAX */
    const struct policy_account *accounts;
    const struct policy_user *users;
    const struct policy_job *jobs; /* in any order */
    const struct policy_run *runs;
    const struct policy_interval *intervals;
    struct device_set present; /* devices that are reachable, named by their agent and not drained */
    struct device_set unfit;   /* present devices that no job may take now: being measured, held by others */
    /* [device_count] since when each device is absent or unfit; NULL: since now. A device that has been away
     * for some time is expected to stay away for as long again. Other devices that are reserved together with
     * it may be used by jobs that end before then, so after a short absence hardly any job may use them. */
    const int64_t *away_since_us;
    /* [device_count] the account that owns each device, or POLICY_NONE; NULL: no device has an owner. Jobs of
     * the owner and of accounts below it go first on the device, and runs of other accounts yield the device
     * to them. */
    const uint16_t *owners;
};

/* The configuration. */
struct policy_settings {
    /* Which policies apply. Without backfill the devices of a reservation are idle until its job starts. */
    bool share, limits, width, wait, reserve, backfill, preempt;
    double half_life_s, width_least, scavenger_charge, move_s; /* described in settings.c */
};
extern const struct policy_settings policy_defaults;
extern const struct doc policy_settings_doc; /* the section `sharing` of a configuration */

/* A plan of a shape on some devices. */
struct policy_plan {
    struct device_set devices;
    double step_s; /* predicted seconds per step */
    double rate;   /* normalised device-seconds charged per second */
};

enum policy_fit { FIT_NO, FIT_YES, FIT_PENDING /* the search is under way: ask again later */ };

/* The planner as the policies see it: it finds the fastest plan of a shape on at most `most` (0: any number)
 * of the devices `among`. Within one decision, equal questions have equal answers. */
struct policy_planner {
    enum policy_fit (*best)(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                            struct policy_plan *plan);
    void *arg;
};

enum policy_verdict { VERDICT_START, VERDICT_WAIT };

/* Why a job starts or waits, as a code with numbers. The program that shows the reason puts it into words. */
enum policy_reason {
    REASON_FITS,     /* starts: it is the first that fits */
    REASON_BACKFILL, /* starts: it ends before the reservations in front of it */
    /* waits until the runs that hold its devices end; subject: of these runs, the job that ends last */
    REASON_DEVICES,
    REASON_YIELDS, /* waits until a run that yields to it has stored its checkpoint; subject: that run's job;
                      number: the rule */
    REASON_RESERVED, /* waits: starting would delay the reservation of a job in front; subject: that job */
    REASON_INTERVAL, /* waits: a lease or booking holds its devices, or their node leaves; subject: the
                        interval */
    /* waits: the job could run on the free devices, but they are fewer than placement.count.least; subject:
     * the job that ends last on its devices; number: placement.count.least */
    REASON_WIDTH,
    REASON_SLOW, /* waits: it will end earlier on better devices; subject: the job that holds them */
    /* waits: its devices are absent, drained or short of memory; subject: one of these devices */
    REASON_ABSENT,
    REASON_NOFIT,    /* waits: there is no plan, not even on all known devices */
    REASON_PLANNING, /* waits: the planner is searching for its plan */
    /* from here on: waits for a limit of its user or of an account; subject: index of the user or account;
     * number: the limit */
    REASON_USER_DEVICES,
    REASON_USER_RUNNING,
    REASON_USER_MONTH,
    REASON_ACCOUNT_DEVICES,
    REASON_ACCOUNT_RUNNING,
    REASON_ACCOUNT_MONTH,
};

struct policy_action {
    size_t job;     /* index in snapshot.jobs */
    uint32_t place; /* place in the order of the queue, from 1 */
    enum policy_verdict verdict;
    enum policy_reason reason;
    /* the job, interval, device, user or account that the reason names; -1: none */
    int64_t subject;
    double number; /* the number that the reason names */
    /* predicted start: now for VERDICT_START; INT64_MAX when there is none, as for all that waits for devices
     * that are away */
    int64_t starts_us;
    /* the plan of VERDICT_START or of a reservation, else NULL */
    const struct policy_plan *plan;
};

/* Why a run yields to a job that is not a scavenger. RULE_SCAVENGER: the run is a scavenger. RULE_URGENT: the
 * job is urgent and the run is not. RULE_OWNER: the run holds a device that belongs to the job's account or
 * to one above it, but not to the run's. */
enum policy_rule { RULE_NONE, RULE_SCAVENGER, RULE_OWNER, RULE_URGENT };

/* A run that is asked for a checkpoint, and stops once that is stored. It is not asked when the
 * device-seconds that it and other preempted runs lose (until the checkpoint, and settings.move_s each)
 * exceed the device-seconds that the job gains by ending earlier. */
struct policy_preemption {
    size_t run, job; /* indices in snapshot.runs and snapshot.jobs */
    enum policy_rule rule;
    /* device-seconds; the gain is INFINITY when the job has no predicted end unless a run yields */
    double gain_s, loss_s;
};

/* A decision. The caller owns it and releases it with policy_decision_fini. */
struct policy_decision {
    size_t count;                  /* number of actions: one for each job of the snapshot */
    struct policy_action *actions; /* in the order of the queue */
    size_t plan_count;
    struct policy_plan *plans; /* the plans that the actions point to, and other plans */
    size_t preemption_count;
    struct policy_preemption *preemptions; /* in the order of the queue */
};

/* Ranks the accounts by their level fair shares (Fair Tree): rank[i] of leaf i is its place, 0 first. An
 * account whose use is below its share is ranked before its siblings. Pure. */
int policy_rank(const struct policy_account *accounts, size_t count, uint32_t *rank, struct err *err);

/* Writes to order[0..job_count) the jobs in the order in which they are considered: by service, by their
 * account's rank, by priority within the account, by eligible_us, by id. For the order alone, an account is
 * charged with the predicted use of its running jobs and of its jobs that stand before in the order, so
 * accounts alternate. step_charge[shape] is the charged device-seconds of a step (0 where unknown);
 * shape_count is the number of shapes. Without settings->share the order is by service, priority, eligible_us
 * and id. Returns 0, or -1 with ERR_NOMEM, or ERR_INVALID when a job's account is not a leaf. */
int policy_order(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                 const double *step_charge, size_t shape_count, int64_t now_us, uint32_t *order,
                 struct err *err);

/* Decides about all jobs of the snapshot. Fills *decision. Returns 0, or -1 with ERR_NOMEM, or ERR_INVALID
 * when the snapshot contradicts itself. */
int policy_decide(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                  const struct policy_planner *planner, int64_t now_us, struct policy_decision *decision,
                  struct err *err);

void policy_decision_fini(struct policy_decision *decision);

#endif
