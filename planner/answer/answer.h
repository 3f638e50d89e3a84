/* The answer to a planning request (a plan and its alternatives), and the options of a request. Pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ANSWER_H
#define MOTLEY_PLANNER_ANSWER_ANSWER_H

#include <jansson.h>

#include "planner/given/cluster.h"
#include "planner/given/workload.h"
#include "program/program.h"
#include "program/trace.h"

/* Shares of a step's time below this are not reported, because they round to 0 %. */
#define ANSWER_SHARE_TOLD 0.005

struct plan_options {
    uint64_t evaluations; /* budget of the search in evaluations (search.h); 0: the default, 20,000 */
    uint64_t seed;        /* seed of the search's random numbers; 0 is a seed like any other */
    /* emit step programs, which a worker needs, into answer->plan. Without them the plan has only the
     * assignment, which is cheaper to make with thousands of devices. */
    bool programs;
    bool runnable_only; /* exclude plans that a worker of this release cannot run */
    /* A plan to start from (one that runs now, with its programs), or NULL. The answer is never slower
     * than it, if it can be kept: same model and batch, its devices present and large enough, the
     * placement allowed. answer->from_words says what became of it. */
    const struct plan *from;
    bool brief;      /* leave out alternatives and left-out devices */
    bool advise;     /* where nothing fits, say what would (would_fit.c) */
    bool gains;      /* fill answer->gains (would_gain.c) */
    uint32_t rivals; /* how many answer->rivals to fill at most (rivals.c) */
    bool insight; /* fill answer->insight (insight.h): the critical path, and the savings of improvements */
    uint64_t insight_evaluations; /* budget of all searches for `insight`, in evaluations; 0: the default */
};

struct plan_insight; /* see insight.h */

enum plan_verdict { VERDICT_FITS, VERDICT_DOES_NOT_FIT };

struct plan_alternative { /* a plan, or a failed attempt to find one, that was not chosen */
    enum plan_placement placement;
    char *device;     /* device of a single placement, else NULL */
    const char *like; /* name of the catalogue entry that the device's times are estimated from, borrowed;
                         NULL: they are not estimated */
    enum plan_verdict verdict;
    double step_s; /* seconds of a step; valid if the plan fits */
    /* Bytes that the fullest rank needs and has; if the plan does not fit and has several devices, those of
     * all devices together. */
    uint64_t needs_bytes, has_bytes;
    uint32_t stages, micro_batch_rows;
    const char *schedule; /* name of the schedule if there are several stages, else NULL; borrowed from
                             plan_schedule_name */
    bool runnable;        /* valid if the plan fits: can workers of this release run it? */
};

struct plan_left_out {
    char *device;
    const char *like;   /* as `like` in struct plan_alternative */
    char *why;          /* why the plan leaves the device out: "slower with it", "excluded", "not asked
                           for", "too small", … */
    double step_s_with; /* seconds of a step of the best plan with the device; 0: unknown */
};

/* Trial steps of a job take at most this share of its predicted time, and a move takes no less than these
 * seconds: measured, a worker of a tiny model is ready 0.6 s after it was asked for. */
#define ANSWER_TRIAL_SHARE 0.02
#define ANSWER_TRIAL_MOVE_S 0.5
#define ANSWER_RIVALS_MAX 3u

struct plan_rival {    /* the best plan of another placement, which may be as fast as the answer's */
    struct plan *plan; /* with its programs, sealed; owned */
    double step_s;     /* predicted seconds of a step */
};

#define ANSWER_GAINS_MAX 2u
#define ANSWER_GAIN_TEXT 48u

struct plan_gain {               /* another choice of the job's, with which it would train faster */
    char what[ANSWER_GAIN_TEXT]; /* as the job says it: "method.base: nf4" */
    double step_s, tokens_per_s; /* of a short search's plan with it */
};

struct plan_answer {
    enum plan_verdict verdict;
    char *words;              /* the verdict in one or two sentences, with numbers */
    struct plan *plan;        /* sealed; NULL if nothing fits; owned; who takes the plan sets this to NULL */
    const char **rank_like;   /* [rank_like_count], each as `like` in struct plan_alternative; NULL if
                                 there is no plan */
    uint32_t rank_like_count; /* number of the plan's ranks */
    /* Parameters of the model, and how many are trained (with LoRA: of the adapters). */
    uint64_t parameters, trained;
    char method[160]; /* the training method: "lora of rank 16, base nf4, adamw8bit, computed in fp32" */
    double step_s, tokens_per_s, lower_bound_s;
    double used_bound_s; /* the lower bound of the devices that the plan uses; 0: there is no plan */
    uint64_t steps;      /* of the job; 0: not known, as its rows are not */
    double plan_s;       /* seconds that planning took; the library has no clock, so the caller sets it before
                            printing */
    uint64_t shortfall_bytes; /* if nothing fits: bytes that are missing on all ranks together, in the
                                 placement that lacks the fewest */
    uint32_t alternative_count;
    struct plan_alternative *alternatives;
    uint32_t left_out_count;
    struct plan_left_out *left_out;
    uint64_t evaluations;  /* evaluations that the search spent */
    bool runnable;         /* can workers of this release run the plan? true if there is no plan */
    double from_corrected; /* the factor in from_step_s that earlier runs taught; 0: there is none */
    double from_step_s;    /* seconds of a step of plan_options.from at the present costs; 0: that plan cannot
                              be kept, or none was given */
    char *from_words;      /* what became of plan_options.from, in a sentence; NULL: none was given */
    double uncertainty;    /* relative error of step_s; 0 if all times were measured, on quiet machines */
    uint32_t warning_count;
    char **warnings;                /* suspicious values in the tables, one sentence each (doubts.c) */
    double cost_per_million_tokens; /* in the currency of the devices' prices; 0: the price of a device in the
                                       plan is unknown */
    double kwh_per_million_tokens;  /* 0: the power of a device in the plan is unknown */
    uint32_t rival_count;
    struct plan_rival rivals[ANSWER_RIVALS_MAX]; /* fastest first */
    uint32_t gain_count;
    struct plan_gain gains[ANSWER_GAINS_MAX]; /* most tokens per second first */
    struct plan_insight *insight;             /* NULL: not asked for, or nothing fits */
};

void plan_answer_destroy(struct plan_answer *answer);

/* Returns the document of INTERFACES.md, "What `motley plan --json` answers", new; NULL with ERR_NOMEM. */
json_t *answer_to_json(const struct plan_answer *answer, struct err *err);

/* Simulates one mean step of a plan on a cluster, for drawing it beside a measured step. Adds to *trace,
 * which the caller has initialised, events with the instruction numbers of the training programs. *step_s:
 * predicted seconds. */
int plan_simulate(const struct plan *plan, const struct workload *workload, const struct cluster *cluster,
                  struct trace *trace, double *step_s, struct err *err);

#endif
