/* Draws a cluster and the jobs of its users, which tests and benchmarks run in the simulator. Equal seeds
 * draw equal worlds. */
#ifndef MOTLEY_SCHEDULER_SIMULATE_GENERATE_H
#define MOTLEY_SCHEDULER_SIMULATE_GENERATE_H

#include "scheduler/simulate/simulate.h"
#include "scheduler/simulate/speeds.h"

struct generate_request {
    uint64_t seed;
    size_t devices, users, groups, shapes;
    double days;
    /* work of all jobs, as a fraction of the work that the devices can do in `days` days */
    double load;
    double job_hours;    /* median of a job's hours on the reference card */
    double spread;       /* sigma of the lognormal distribution of the hours */
    double error;        /* sigma of the lognormal ratio of a run's seconds to the predicted ones */
    double failures;     /* failures of one device per 30 days; the median absence is an hour */
    double burst;        /* mean number of jobs that a user submits at once */
    double wide;         /* fraction of the jobs that ask for at least half of the devices */
    bool from_the_start; /* all jobs arrive at the beginning */
};

struct generated_world {
    struct policy_account *accounts; /* the root, groups of weights 1, 2, 3 …, and users of weight 1 or 2 */
    struct policy_user *users;
    struct simulated_job *jobs;
    struct simulated_change *changes;
    struct speed_device *devices; /* of three types: speed 1, 1/2 and 1/4 */
    struct speed_shape *shapes;
    double *affinity;
    size_t job_capacity, change_capacity;
    struct speed_model model;
    struct policy_planner planner;
    struct simulation
        /* borrows the arrays above; its settings are the defaults, and its policy is policy_decide */
        simulation;
};

/* Fills *world, which the caller ends with generated_world_fini and does not move. Returns 0, or -1 with
 * ERR_NOMEM. */
int generate_world(const struct generate_request *request, struct generated_world *world, struct err *err);
void generated_world_fini(struct generated_world *world);

#endif
