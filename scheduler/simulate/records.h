/* Makes a simulation from recorded data (store/records.h): the jobs that arrived in a span of time, on the
 * present devices, with the planner's recorded forecasts.
 *
 * A class that was planned on a set of devices takes the recorded seconds per step there. On other sets its
 * speed is estimated with the model of speeds.h, whose constants are fitted to the class's recorded plans: a
 * step's seconds on one device, the loss by each further device, and the memory that a plan needs. A
 * simulated job takes longer than its forecast by the factor by which the real job did. When the span begins,
 * no job runs and no use is charged to anybody; no device goes away.
 */
#ifndef MOTLEY_SCHEDULER_SIMULATE_RECORDS_H
#define MOTLEY_SCHEDULER_SIMULATE_RECORDS_H

#include <jansson.h>

#include "scheduler/simulate/simulate.h"
#include "scheduler/simulate/speeds.h"

/* What became of a real or simulated job; INT64_MAX: not before the span ended. */
struct recorded_outcome {
    int64_t starts_us, ends_us;
    double device_s; /* device-seconds that the job held */
};

/* A recorded answer of the planner about a class on exactly these devices; step_s 0: no plan fits there. */
struct recorded_plan {
    struct device_set devices;
    double step_s;
};

struct recorded_planner {
    struct speed_model model;
    struct recorded_plan *plans; /* the plans of class i are plans[begin[i]] to plans[begin[i + 1] - 1] */
    size_t *begin;
};

struct recorded_world {
    struct policy_settings settings; /* the settings that were recorded with the jobs */
    struct recorded_planner planner;
    struct policy_planner asked; /* the planner that `simulation` asks */
    struct simulation simulation;
    struct recorded_outcome *happened; /* [job] what became of the real jobs */
    /* [user], [account] (the root's is ""), [device]: names; borrowed */
    const char **users, **groups, **devices;
    /* number of jobs that were cancelled before they started, which are not simulated */
    size_t left;

    struct policy_account *accounts;
    struct policy_user *people;
    struct simulated_job *jobs;
    struct policy_interval *intervals;
    struct speed_device *cards;
    struct speed_shape *shapes;
    double *affinity;
};

/* Makes the world of the span [from_us, to_us) from the documents of store_records_get and the arrays
 * "arrivals" of store_arrivals_page. `add` names devices that the simulation has one more of. Borrows the
 * documents. Returns 0 with *world, which the caller releases with recorded_world_fini and must not move; or
 * -1 with ERR_INVALID when the documents contradict themselves or a device of `add` is unknown. */
int recorded_world_make(const json_t *records, const json_t *arrivals, const char *const *add,
                        size_t add_count, int64_t from_us, int64_t to_us, struct recorded_world *world,
                        struct err *err);
void recorded_world_fini(struct recorded_world *world);

/* Runs the simulation with the settings and writes the outcomes to outcomes[job_count]. */
int recorded_world_run(struct recorded_world *world, const struct policy_settings *settings,
                       struct recorded_outcome *outcomes, struct err *err);

/* Sums up outcomes, new: {"jobs","left": jobs that are not counted, as they were cancelled before they
 * started, "started","ended","wait_mean_s","wait_median_s","wait_longest_s": of all jobs, to the end of the
 * span for those that never started, "use": the part of the devices' time that was held, "users" and
 * "groups": [{"name"|null,"jobs","wait_mean_s","device_s","share": of all device-seconds}]}. */
json_t *recorded_summary(const struct recorded_world *world, const struct recorded_outcome *outcomes,
                         size_t device_count);

#endif
