/* Finds changes that would let a waiting job start sooner. For each change, policy_decide is asked about the
 * same snapshot with that one change. Pure. */
#ifndef MOTLEY_SCHEDULER_POLICY_SOONER_H
#define MOTLEY_SCHEDULER_POLICY_SOONER_H

#include "scheduler/policy/policy.h"

enum { SOONER_MAX = 5 };

/* Changes with which the job would start sooner. */
enum sooner_kind {
    SOONER_RUN,    /* the run of this job ended now; subject: the job */
    SOONER_LEASE,  /* this lease or booking were given back; subject: the interval */
    SOONER_DEVICE, /* this device came back; subject: the device */
    /* the limit for which the job waits were gone; reason: which limit; subject: the user or account */
    SOONER_LIMIT,
    SOONER_STEPS, /* the job had only this number of steps left; number: the steps */
    SOONER_SHAPE, /* the job asked for another shape (policy.h); subject: the shape */
};

struct sooner_change {
    enum sooner_kind kind;
    enum policy_reason reason; /* which limit; only of SOONER_LIMIT */
    int64_t subject;
    double number;
    int64_t starts_us; /* predicted start with the change; the present time if it would start at once */
};

struct sooner_question {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    const struct policy_planner *planner;
    int64_t now_us;
    size_t job;             /* index in snapshot.jobs */
    const uint32_t *shapes; /* shapes that the job's owner could ask for instead */
    size_t shape_count;
};

/* Finds at most SOONER_MAX changes with which the job would start sooner by at least a tenth of its wait, the
 * soonest first, and writes its predicted start without them to *starts_us (INT64_MAX: unknown). Returns
 * their number, or -1 with an error of policy_decide. */
int policy_sooner(const struct sooner_question *question, struct sooner_change found[SOONER_MAX],
                  int64_t *starts_us, struct err *err);

#endif
