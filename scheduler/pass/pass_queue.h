/* The queued jobs of a pass: pass_place.c lets the policies decide about them, and pass_sooner.c finds what
 * would let one of them start sooner. */
#ifndef MOTLEY_SCHEDULER_PASS_PASS_QUEUE_H
#define MOTLEY_SCHEDULER_PASS_PASS_QUEUE_H

#include "scheduler/pass/job_class.h"
#include "scheduler/policy/policy.h"

/* A queued job about which the pass decides. */
struct queue_job {
    const struct store_sched_job *job;
    uint32_t class; /* index in queue.classes */
};

/* A user within an account (struct store_queue_leaf). */
struct queue_leaf {
    uint16_t user, account; /* indices in the policies' snapshot */
    bool disabled;
    uint32_t shown; /* number of this leaf's jobs so far whose wait codes are kept */
};

/* Why the last job of a class waits; what differs from job to job is kept, so that the reason of the next one
 * need not be put into words again. */
struct queue_said {
    enum policy_reason reason;
    int64_t subject;
    double number;
    const struct policy_plan *plan;
    uint32_t listed; /* pass_list_reason; 0: none */
};

struct queue {
    struct scheduler_pass *pass;
    struct queue_leaf *leaves; /* indexed by store_sched_job.leaf */
    /* number of jobs of each leaf whose wait codes are kept, and whose devices are measured by themselves */
    uint32_t shown_most;
    uint32_t *class_at; /* indexed by store_sched_job.class; pass_take.c says what the values mean */
    /* the position in the queue where the next pass continues, if this one leaves devices free */
    struct queue_mark further;
    struct job_class *classes;
    size_t class_count, class_capacity;
    struct queue_said *said; /* [class_count] */
    struct queue_job *jobs;
    /* jobs of classes that can be planned now stand first in jobs[]; ready_count is their number */
    size_t job_count, ready_count;
    struct policy_job *facts; /* [job_count] the jobs in the form in which the policies see them */
    struct policy_run *runs;
    struct policy_interval *intervals; /* leases */
    int64_t *away_us;                  /* [device_count] time since which each device is absent or unfit */
    /* [device_count] index of the account that owns each device, or POLICY_NONE */
    uint16_t *owners;
    struct device_set there;     /* devices that are present and fit */
    struct device_set *avoid;    /* [job_count] devices of the nodes on which a job's last attempt died */
    struct device_set *moves_to; /* [moves of scheduler->moving] devices to which jobs move */
    struct policy_snapshot snapshot;
    /* [front_count] the first jobs in the order of the last decision, as indices; owned */
    uint32_t *front;
    size_t front_count;
};

/* pass_take.c. Fills the leaves, the classes, the jobs and their facts, after shares_begin. Returns -1
 * without memory. */
int pass_take(struct queue *queue);

/* Answers one open question of the kind "what would let this job start sooner?", if the needed plans are
 * known. */
void pass_sooner(struct queue *queue);

#endif
