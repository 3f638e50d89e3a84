/* Plans that may be as fast as the answer's, for trial steps (docs/PLANNER.md). */
#include <math.h>

#include "planner/answer/answer_private.h"
#include "planner/cost/price.h"
#include "planner/emit/shared.h"
#include "program/codec.h"

/* Plans that are predicted to take longer than this multiple of the best are no rivals: forecasts that are
 * off by a third, one up and one down, differ so. */
#define RIVAL_MOST 2.0

/* Whether the job is so long that its trials' share of its time is worth a move. */
static bool is_long(const struct workload *w, double step_s)
{
    const double batches = w->batch_rows ? ((double)w->row_count + w->batch_rows - 1) / w->batch_rows : 0;
    const double steps = w->steps ? (double)w->steps : w->epochs * batches;
    return steps * step_s * ANSWER_TRIAL_SHARE >= ANSWER_TRIAL_MOVE_S;
}

/* Returns the placement whose best plan is the fastest one that is slower than `after` (in the order of
 * seconds, then of placements), or -1. */
static int next_fastest(const struct problem *p, const struct search_found *found, int after, int chosen)
{
    int next = -1;
    for (int k = 0; k < PLACE_COUNT; k++) {
        const bool behind = after < 0 || found->seconds[k] > found->seconds[after] ||
                            (found->seconds[k] == found->seconds[after] && k > after);
        if (found->tried[k] && k != chosen && behind && found->best[k].estimate_s < INFINITY &&
            kind_runnable(p, &found->best[k]) && (next < 0 || found->seconds[k] < found->seconds[next]))
            next = k;
    }
    return next;
}

int rivals_fill(const struct problem *p, const struct search_found *found, uint32_t most,
                struct plan_answer *answer, struct err *err)
{
    const struct workload *w = p->workload;
    if (!answer->plan || w->objective != OBJECTIVE_TIME || !is_long(w, answer->step_s))
        return 0;
    most = most < ANSWER_RIVALS_MAX ? most : ANSWER_RIVALS_MAX;
    const int chosen = (int)answer->plan->placement;
    for (int k = -1; answer->rival_count < most && (k = next_fastest(p, found, k, chosen)) >= 0;) {
        if (found->seconds[k] > RIVAL_MOST * answer->step_s)
            break;
        struct err why;
        struct plan *plan = kinds[k]->emit(p, &found->best[k], EMIT_PROGRAMS, &why);
        double seconds;
        if (!plan || plan_share_slots(plan, p->cluster, &why) < 0 ||
            price_plan(p, plan, found->steps, &seconds, &why) < 0 || plan_seal(plan, &why) < 0) {
            plan_destroy(plan);
            if (why.code == ERR_NOMEM)
                return err_set(err, ERR_NOMEM, "%s", why.text);
            continue; /* the answer is good without it */
        }
        answer->rivals[answer->rival_count++] = (struct plan_rival){plan, seconds};
    }
    return 0;
}
