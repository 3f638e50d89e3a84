#include "planner/search/exact.h"

#include "planner/pipeline/pipe_exact.h"
#include "planner/sharded/replica_exact.h"

#define STAGES_BUDGET 2000000u /* micro-batches through stages that pipe_exact may follow */
#define MEMBERS_BUDGET 200000u /* members that replica_exact may give rows to */

int exact_look(const struct problem *p, enum plan_placement kind, double beat_s, uint32_t steps_max,
               struct place_choice *choice, double *seconds, struct err *err)
{
    if (kind == PLACE_PIPELINE)
        return pipe_exact(p, beat_s, steps_max, STAGES_BUDGET, choice, seconds, NULL, err);
    if (kind == PLACE_DATA)
        return replica_exact(p, beat_s, steps_max, MEMBERS_BUDGET, choice, seconds, err);
    return 0;
}
