/* A stage that recomputes is slower but holds more micro-batches, so that it may wait less. */
#include "planner/hybrid/group_fit.h"

#include "planner/cost/micro.h"

#define SETS_STAGES 4u /* up to which all sets of stages that recompute are tried; beyond, the first ones */

void group_windows(const struct problem *p, struct place_choice *c, uint32_t way)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t window = way >= WINDOW_WAYS ? count : way * (c->stage_count - s);
        for (uint32_t m = 0; m < c->stages[s].member_count; m++)
            c->members[c->stages[s].member_first + m].window = window < count ? window : count;
    }
}

/* Stages in `set` recompute; windows of the given way. */
static void variant_fill(const struct problem *p, struct place_choice *c, uint32_t set, uint32_t way)
{
    group_windows(p, c, way);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = 0; m < c->stages[s].member_count; m++)
            c->members[c->stages[s].member_first + m].recompute = set >> s & 1;
    }
}

bool group_fit(struct polish *polish, const struct problem *p, struct place_choice *c, double *quick,
               struct err *err)
{
    bool wide = c->stage_count <= SETS_STAGES, found = false;
    uint32_t sets = wide ? 1u << c->stage_count : c->stage_count + 1;
    struct place_choice best = {0};
    *quick = polish_quick(polish, c);
    if (polish_fits(polish, c))
        return true;
    for (uint32_t n = 0; n < sets; n++) {
        uint32_t set = wide ? n : (1u << n) - 1, way = WINDOW_WAYS;
        bool some = micro_recompute_allowed(p, false), all = micro_recompute_allowed(p, true);
        if ((set != sets - 1 && wide && !some) || (set && !all))
            continue;
        for (; way > 0; way--) {
            variant_fill(p, c, set, way);
            double now = polish_quick(polish, c);
            if ((found && !(now > 0 && now < *quick)) || !polish_fits(polish, c))
                continue;
            choice_fini(&best);
            if (choice_copy(&best, c, err) < 0)
                return false;
            *quick = now;
            found = true;
        }
    }
    if (found) {
        choice_fini(c);
        *c = best;
    }
    return found;
}
