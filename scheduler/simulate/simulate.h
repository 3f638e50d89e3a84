/* Lets jobs arrive, run and end on a simulated clock, with the decisions of a policy. Pure: equal inputs give
 * equal results, byte for byte.
 *
 * A run's end is predicted with the planner's seconds per step until the run has run for `measure_us`, and
 * with its true seconds per step from then on. A device that goes away ends its run; the job goes on from its
 * last checkpoint and keeps its place. Decisions are made when jobs arrive or end and when devices come or
 * go, and every `again_us` while jobs wait for a run that is overdue or a device that is away.
 */
#ifndef MOTLEY_SCHEDULER_SIMULATE_SIMULATE_H
#define MOTLEY_SCHEDULER_SIMULATE_SIMULATE_H

#include "scheduler/policy/policy.h"
#include "scheduler/policy/range.h"

struct simulated_job {
    int64_t arrives_us; /* when the job arrives; jobs are sorted by this time */
    int64_t steps;
    double error; /* true seconds per step, divided by the predicted ones */
    uint32_t shape;
    int32_t priority;
    uint16_t user, account, devices_least, devices_most;
    enum policy_service service;
};

/* A device goes away or comes back. */
struct simulated_change {
    int64_t at_us; /* when the change happens; changes are sorted by this time */
    uint32_t device;
    bool there;
};

/* A policy: policy_decide, or another one to compare it with. */
typedef int simulated_policy(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                             const struct policy_planner *planner, int64_t now_us,
                             struct policy_decision *decision, struct err *err);

struct simulation {
    size_t account_count, user_count, job_count, change_count, interval_count, device_count;
    const struct policy_account *accounts; /* `decayed` and `use` have the values of the beginning */
    const struct policy_user *users;
    const struct simulated_job *jobs;
    const struct simulated_change *changes;
    const struct policy_interval *intervals; /* bookings, all known from the beginning */
    const struct policy_settings *settings;
    const struct policy_planner *planner;
    simulated_policy *policy;
    int64_t begins_us, ends_us; /* jobs that have not ended by ends_us are left as they are */
    int64_t checkpoint_us, measure_us, again_us;
};

/* The outcome of a job. */
struct simulated_outcome {
    int64_t starts_us, ends_us;      /* first start and end; INT64_MAX: not before the simulation ended */
    int64_t dated_us, dated_ends_us; /* start and end in its first dated reservation; INT64_MAX: none */
    /* One prediction of the job's start, chosen at random among all: when it was made, the place in the
     * queue, the start, and the start's range (INT64_MAX: none was known yet). said_count: number of
     * predictions; 0: no start was predicted. */
    uint32_t said_count, said_place;
    int64_t said_us, said_starts_us, said_from_us, said_to_us;
    double device_s, charged_s; /* device-seconds held, and device-seconds charged */
    uint32_t losses;
    /* the last reason for which the job waited; REASON_FITS: it never waited */
    enum policy_reason waited_for;
};

struct simulation_result {
    struct simulated_outcome *outcomes; /* [job] */
    /* [account] charged device-seconds, without those of the account's children */
    double *charged_s;
    double held_s, there_s;     /* device-seconds that jobs held, and that devices were present */
    double busy_s;              /* charged device-seconds of all jobs */
    uint64_t decisions, digest; /* number of decisions, and a digest of all decisions */
    size_t queue_max;
};

/* Returns 0 with *result, which the caller ends with simulation_result_fini; or -1 with err. */
int simulation_run(const struct simulation *simulation, struct simulation_result *result, struct err *err);
void simulation_result_fini(struct simulation_result *result);

#endif
