/* Slurm's published algorithms as a policy of the simulator, to compare Motley's policy with: multifactor
 * priority, and EASY backfill with one reservation on the first type of device that fits.
 *
 * Priority is the sum of 10000 times the Fair Tree factor, 1000 times the age over seven days, and 1000 times
 * the fraction of all devices that a job asks for (the weights of the example in Slurm's "Multifactor
 * Priority Plugin"). A job asks for devices of one type: as many as the planner's widest plan on that type
 * whose throughput per charged device-second reaches settings->width_least, or the fewest that hold the job.
 * Types are tried in the order of their speeds, the fastest first. Time limits are Motley's predictions. The
 * planner is speeds_best.
 */
#ifndef MOTLEY_SCHEDULER_SIMULATE_SLURM_H
#define MOTLEY_SCHEDULER_SIMULATE_SLURM_H

#include "scheduler/policy/policy.h"

/* Decides as Slurm's backfill scheduler would, with the arguments of policy_decide. Each job asks for as many
 * devices as settings->width_least allows. */
int slurm_decide(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                 const struct policy_planner *planner, int64_t now_us, struct policy_decision *decision,
                 struct err *err);

/* Does the same as slurm_decide for jobs that ask for the fewest devices that hold them. */
int slurm_decide_fewest(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                        const struct policy_planner *planner, int64_t now_us,
                        struct policy_decision *decision, struct err *err);

#endif
