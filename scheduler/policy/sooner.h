/* What would let a waiting job start sooner. Each change is asked of policy_decide: the same snapshot with
 * that one thing changed. Pure. */
#ifndef MOTLEY_SCHEDULER_POLICY_SOONER_H
#define MOTLEY_SCHEDULER_POLICY_SOONER_H

#include "scheduler/policy/policy.h"

enum { SOONER_MAX = 5 };

/* Changes with which the job would start sooner. */
enum sooner_kind {
    SOONER_RUN,    /* that job ended now; subject: the job */
    SOONER_LEASE,  /* that lease or booking were given back; subject: the interval */
    SOONER_DEVICE, /* that device came back; subject: the device */
    SOONER_LIMIT,  /* the limit for which it waits were gone; reason: which; subject: the user or account */
    SOONER_STEPS,  /* the job had so many steps left; number: steps */
    SOONER_SHAPE,  /* the job asked for another shape (policy.h); subject: the shape */
};

struct sooner_change {
    enum sooner_kind kind;
    enum policy_reason reason; /* of SOONER_LIMIT */
    int64_t subject;
    double number;
    int64_t starts_us; /* predicted start with the change: now when it would start at once */
};

struct sooner_question {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    const struct policy_planner *planner;
    int64_t now_us;
    size_t job;             /* index in the snapshot */
    const uint32_t *shapes; /* shapes that its owner could ask for instead */
    size_t shape_count;
};

/* Finds at most SOONER_MAX changes with which the job would start sooner by at least a tenth of its wait, the
 * soonest first, and writes its predicted start without them to *starts_us (INT64_MAX: unknown). Returns
 * their number, or -1 with an error of policy_decide. */
int policy_sooner(const struct sooner_question *question, struct sooner_change found[SOONER_MAX],
                  int64_t *starts_us, struct err *err);

#endif
