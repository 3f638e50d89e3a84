/* A plan with what it was chosen over, and what is asked of a search. Pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ANSWER_H
#define MOTLEY_PLANNER_ANSWER_ANSWER_H

#include <jansson.h>

#include "planner/given/cluster.h"
#include "planner/given/workload.h"
#include "program/program.h"
#include "program/trace.h"

#define ANSWER_SHARE_TOLD 0.005 /* of a step: less is not told, since rounded to a per cent it is none */

struct plan_options {
    uint64_t evaluations; /* 0: the default, 20,000 */
    uint64_t seed;        /* of the search's perturbations; 0 is a seed like any other */
    bool programs;        /* emit step programs into answer->plan (what a worker needs); without, only the
                             assignment is filled and the answer is cheaper for thousands of devices */
    bool runnable_only;   /* leave out what a worker of this release cannot run */
    /* A plan to start from (one that runs now, with its programs), or NULL. What is answered is never slower
     * than it, as long as it can be kept: same model and batch, its devices there and large enough, the
     * placement allowed. answer->from_words says what became of it. */
    const struct plan *from;
    bool brief;   /* no alternatives and nothing of devices left out */
    bool insight; /* fill answer->insight (insight.h): the critical path, and what each improvement would save
                   */
    uint64_t insight_evaluations; /* for all of it; 0: the default */
};

struct plan_insight; /* insight.h */

enum plan_verdict { VERDICT_FITS, VERDICT_DOES_NOT_FIT };

struct plan_alternative { /* another choice and what it gives */
    enum plan_placement placement;
    char *device;     /* of a single placement, else NULL */
    const char *like; /* its catalogue entry, borrowed from the catalogue; NULL: none */
    enum plan_verdict verdict;
    double step_s;                   /* when it fits */
    uint64_t needs_bytes, has_bytes; /* of the rank that is worst off; when it does not fit and is over
                                        several devices, of all of them together */
    uint32_t stages, micro_batch_rows;
    const char *schedule; /* of several stages, else NULL; borrowed from plan_schedule_name */
    bool runnable;        /* of one that fits: can workers of this release run it? */
};

struct plan_left_out {
    char *device;
    const char *like;   /* as in plan_alternative */
    char *why;          /* "slower with it", "excluded", "not asked for", "too small", … */
    double step_s_with; /* 0: not known */
};

struct plan_answer {
    enum plan_verdict verdict;
    char *words;              /* the verdict in a sentence or two, with numbers */
    struct plan *plan;        /* sealed; NULL when nothing fits; owned, may be taken by setting it to NULL */
    const char **rank_like;   /* [plan's ranks], as in plan_alternative; NULL where there is no plan */
    uint32_t rank_like_count; /* of them */
    uint64_t parameters, trained; /* of the model; of those or of its adapters, the ones that are trained */
    char method[160];             /* "lora of rank 16, base nf4, adamw8bit, computed in fp32" */
    double step_s, tokens_per_s, lower_bound_s;
    double plan_s; /* 0: the library has no clock; the caller sets it before printing */
    uint64_t
        shortfall_bytes; /* when nothing fits: bytes missing on all ranks together, where that is least */
    uint32_t alternative_count;
    struct plan_alternative *alternatives;
    uint32_t left_out_count;
    struct plan_left_out *left_out;
    uint64_t evaluations; /* spent */
    bool runnable;        /* can workers of this release run the plan? true when there is none */
    double from_step_s; /* of plan_options.from under these costs; 0: it cannot be kept, or none was given */
    char *from_words;   /* what became of it, in a sentence; NULL: none was given */
    double uncertainty; /* relative, of step_s, where estimates dominate; 0 when all is measured */
    uint32_t warning_count;
    char **warnings; /* what looks wrong in the tables it rests on, a sentence each (doubts.h) */
    double
        cost_per_million_tokens; /* in the currency of the devices' prices; 0: one of the plan's is missing */
    double kwh_per_million_tokens; /* 0: the power of a device of the plan is not known */
    struct plan_insight *insight;  /* NULL: not asked for, or nothing fits */
};

void plan_answer_destroy(struct plan_answer *answer);

/* INTERFACES.md, "What `motley plan --json` answers". Returns new or NULL with ERR_NOMEM. */
json_t *answer_to_json(const struct plan_answer *answer, struct err *err);

/* Simulated timeline of one mean step of a plan on a cluster, for drawing beside a measured one: events with
 * the instruction numbers of the train programs. `trace` is initialised by the caller. *step_s: predicted
 * seconds. */
int plan_simulate(const struct plan *plan, const struct workload *workload, const struct cluster *cluster,
                  struct trace *trace, double *step_s, struct err *err);

#endif
