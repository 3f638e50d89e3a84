#include "planner/kind/kind.h"

extern const struct placement_kind kind_single, kind_pipeline, kind_data, kind_hybrid, kind_expert,
    kind_tensor, kind_server;

const struct placement_kind *const kinds[PLACE_COUNT] = {
    [PLACE_SINGLE] = &kind_single, [PLACE_PIPELINE] = &kind_pipeline, [PLACE_DATA] = &kind_data,
    [PLACE_HYBRID] = &kind_hybrid, [PLACE_EXPERT] = &kind_expert,     [PLACE_TENSOR] = &kind_tensor,
    [PLACE_SERVER] = &kind_server,
};

bool kind_supports(const struct placement_kind *kind, const struct problem *p, struct err *err)
{
    uint32_t asked = p->workload->stages, usable = problem_usable_count(p);
    if (kind->supports && !kind->supports(p, err))
        return false;
    if (asked != 0 && (asked < kind->stages_least || asked > kind->stages_most)) {
        err_set(err, ERR_INVALID, "placement.stages is %u, and this has %s", asked,
                kind->stages_most == 1 ? "one stage" : "two stages at least");
        return false;
    }
    if (usable < kind->devices_least)
        err_set(err, ERR_NOFIT, "%s %u devices at least; %u can be used", kind->takes, kind->devices_least,
                usable);
    return usable >= kind->devices_least;
}

bool kind_runnable(const struct problem *p, const struct candidate *c)
{
    const struct placement_kind *kind = kinds[c->placement];
    if (kind->runnable && !kind->runnable(p, c))
        return false;
    for (uint32_t d = 0; d < p->device_count; d++)
        if (p->planned_only[d] && candidate_uses(c, d))
            return false;
    return true;
}
