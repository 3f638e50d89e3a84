/* Answers of external planners are taken here, and everything in them is verified.
 *
 * A planner is any program that turns a problem document (planner/given/inputs.h) into a whole plan
 * (program/codec.h) or an assignment (document.h). Its caller passes the answer in here, together with the
 * built-in planner's. Pure; common/child_json.h runs programs.
 */
#ifndef MOTLEY_PLUG_PLUG_H
#define MOTLEY_PLUG_PLUG_H

#include <jansson.h>

#include "planner/given/cluster.h"
#include "planner/given/workload.h"
#include "planner/answer/answer.h"

#define PLUG_SLOWER_AT_MOST 1.5 /* default of slower_at_most */
/* Most instructions of a whole plan, which are simulated in some seconds. */
#define PLUG_INSTRUCTIONS_MAX (1u << 21)

/* Turns a document into a plan that may run: decoded, allowed by the specification, with memory computed
 * anew, passed by the checker, runnable by workers of this release, and priced by its own programs. *plan
 * becomes new, sealed, with the cluster's memory limits; *step_s: seconds of a mean step. −1 with the
 * reason: ERR_INVALID, ERR_NOFIT, ERR_UNSUPPORTED, ERR_CORRUPT, ERR_TOO_BIG; ERR_NOMEM.
 *
 * A whole plan's memory is compared with that of our own plan for the same assignment. For every rank and
 * purpose it must state at least as much, its buffers must be as large as ours, and its sums must include
 * what its buffers have beyond ours.
 */
int plug_accept(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                struct plan **plan, double *step_s, struct err *err);

/* Puts an accepted plan (taken, also on failure) into an answer in the place of the previous plan, if any,
 * with everything that the answer says about its plan. The answer may be all zeros. −1 ERR_NOMEM. */
int plug_replace(const struct workload *workload, const struct cluster *cluster, const char *planner,
                 struct plan *plan, double step_s, struct plan_answer *answer, struct err *err);

/* Answers with a given plan (a whole plan, or the file that `motley get` wrote) instead of a search, to
 * repeat a run on its own plan. *answer becomes new (plan_answer_destroy). −1 with the errors of plug_accept,
 * but ERR_NOFIT instead of ERR_INVALID, because the plan may be valid on another cluster; ERR_NOMEM. */
int plug_repeat(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                struct plan_answer **answer, struct err *err);

struct plug_answer {        /* the answer of an external planner */
    const char *name;       /* name of the planner, for people; borrowed */
    const json_t *document; /* NULL: none; borrowed */
    const struct err *why;  /* the reason if there is no document; borrowed */
    double plan_s;          /* seconds that the planner took */
    double slower_at_most; /* its plan is used if its time (or price, or energy, if the specification asks for
                              that) is at most this multiple of the built-in plan's; 0: PLUG_SLOWER_AT_MOST */
};

/* Replaces the plan in plan_search's answer (which was searched with programs) by the external planner's,
 * if that is acceptable and not too slow; otherwise the answer's plan stays, and the reason is added to
 * its words. *told becomes, new,
 *
 *     {"name", "verdict": "used" | "refused" | "slower", "why": null | words, "plan_s",
 *      "step_s": null | s, "built_in_step_s": null | s, "ratio": null | the external plan's time (price,
 *      energy) divided by the built-in plan's}
 *
 * −1 ERR_NOMEM.
 */
int plug_choose(const struct plug_answer *theirs, const struct workload *workload,
                const struct cluster *cluster, struct plan_answer *answer, json_t **told, struct err *err);

#endif
