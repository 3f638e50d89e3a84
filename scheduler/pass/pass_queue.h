/* The queue of a pass, as pass_place.c lets the policies decide about it and pass_sooner.c asks about it. */
#ifndef MOTLEY_SCHEDULER_PASS_PASS_QUEUE_H
#define MOTLEY_SCHEDULER_PASS_PASS_QUEUE_H

#include "scheduler/pass/job_class.h"
#include "scheduler/policy/policy.h"

/* A queued job of the view. */
struct queue_job {
    const struct store_sched_job *job;
    uint32_t class; /* index in queue.classes */
};

struct queue {
    struct scheduler_pass *pass;
    struct job_class *classes;
    size_t class_count, class_capacity;
    struct queue_job *jobs;
    size_t job_count,
        ready_count; /* jobs of classes that can be planned stand first; ready_count is their number */
    struct policy_job *facts; /* [job_count] as the policies see them */
    struct policy_run *runs;
    struct policy_interval *intervals; /* leases */
    int64_t *away_us;                  /* [device_count] */
    uint16_t *owners;                  /* [device_count] */
    struct device_set there;           /* devices that are present and fit */
    struct device_set *avoid; /* [job_count] devices of the nodes on which a job's last attempt died */
    struct policy_snapshot snapshot;
};

/* Answers one of the open questions of what would let a job start sooner, if its plans are known. */
void pass_sooner(struct queue *queue);

#endif
