/* Where another planner's answer comes in, and what is believed of it: nothing.
 *
 * A planner is whatever turns a problem document (planner/given/inputs.h) into a plan document: a whole plan
 * (program/codec.h) or an assignment (document.h). Whoever runs it hands its answer in here; the built-in
 * planner's answer is there already. Pure; running programs is for others (common/child_json.h). */
#ifndef MOTLEY_PLUG_PLUG_H
#define MOTLEY_PLUG_PLUG_H

#include <jansson.h>

#include "planner/given/cluster.h"
#include "planner/given/workload.h"
#include "planner/answer/answer.h"

#define PLUG_SLOWER_AT_MOST 1.5          /* where nobody says more */
#define PLUG_INSTRUCTIONS_MAX (1u << 21) /* of a whole plan: what is simulated in some seconds */

/* A document as a plan that may run: decoded, allowed by the specification, its memory worked out anew,
 * passed by the checker, one that workers of this release run, and priced by its own programs. *plan becomes
 * new, sealed, with the cluster's memory limits; *step_s: seconds of a mean step. −1 with the reason:
 * ERR_INVALID, ERR_NOFIT, ERR_UNSUPPORTED, ERR_CORRUPT, ERR_TOO_BIG; ERR_NOMEM.
 *
 * Of a whole plan, memory is what our generator says of the same assignment. The plan must say as much for
 * every rank and purpose, its buffers must be as large as ours, and what it has more of them must be in its
 * sums. */
int plug_accept(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                struct plan **plan, double *step_s, struct err *err);

/* Puts an accepted plan (taken, also on failure) into an answer, with all that the answer says of its plan,
 * in the place of the one that is there, if any. An answer of zeros does. −1 ERR_NOMEM. */
int plug_replace(const struct workload *workload, const struct cluster *cluster, const char *planner,
                 struct plan *plan, double step_s, struct plan_answer *answer, struct err *err);

struct plug_answer {        /* what a planner came up with */
    const char *name;       /* of the planner, for people; borrowed */
    const json_t *document; /* NULL: none; borrowed */
    const struct err *why;  /* there is none because of this; borrowed */
    double plan_s;          /* that it took */
    double slower_at_most;  /* its plan is taken up to so many times the built-in one's time (or price, or
                               energy,  where the specification asks for those); 0: PLUG_SLOWER_AT_MOST */
};

/* Takes the planner's plan into plan_search's answer (which was searched with programs) if it is acceptable
 * and not slower than agreed; otherwise leaves the answer's plan, and adds why to its words. *told becomes,
 * new,
 *     {"name", "verdict": "used" | "refused" | "slower", "why": null | words, "plan_s",
 *      "step_s": null | s, "built_in_step_s": null | s, "ratio": null | theirs to ours, of what was compared}
 * −1 ERR_NOMEM. */
int plug_choose(const struct plug_answer *theirs, const struct workload *workload,
                const struct cluster *cluster, struct plan_answer *answer, json_t **told, struct err *err);

#endif
