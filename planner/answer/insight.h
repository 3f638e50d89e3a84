/* Explains why a step takes as long as it does, and what would make it shorter. The critical path of one
 * simulated step shows what its end waited for. What an improvement (a faster link, more memory …) saves is
 * found by changing the cluster and planning again: first the same plan is priced at the new costs, then a
 * search of its own runs as far as the budget allows. A saving is never negative, because the old plan stays
 * possible. Pure; requested by plan_options.insight. */
#ifndef MOTLEY_PLANNER_ANSWER_INSIGHT_H
#define MOTLEY_PLANNER_ANSWER_INSIGHT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum insight_kind {
    INSIGHT_LINK,   /* a link INSIGHT_LINK_TIMES faster, in both directions */
    INSIGHT_MEMORY, /* INSIGHT_MEMORY_BYTES more memory */
    INSIGHT_SPEED,  /* a device INSIGHT_SPEED_TIMES faster */
    INSIGHT_DEVICE, /* one more device like an existing one, on the same node */
    INSIGHT_KINDS
};
/* How large the improvements are: steps in which networks, cards and memory are sold. kind_words in
 * insight_fill.c repeats the numbers. */
#define INSIGHT_LINK_TIMES 10.0
#define INSIGHT_SPEED_TIMES 2.0
#define INSIGHT_MEMORY_BYTES ((uint64_t)1000000000)
#define INSIGHT_LINES_MAX 64u /* most improvements that are tried, the most promising first */

struct plan_improvement {
    enum insight_kind kind;
    char *what;    /* a device, or a link: "left-right" for two nodes, "within left" */
    char *words;   /* "a 10x faster link left-right" */
    double step_s; /* seconds of a step with the improvement */
    double saves;  /* share of the step's time that the improvement saves, 0..1 */
    bool searched; /* step_s was found by a search of its own; false: by pricing the same plan at the new
                      costs, so more may be saved */
};

struct plan_loss { /* the best plan without one of the plan's devices */
    char *device;
    const char *like; /* name of the catalogue entry that the device's times are estimated from, borrowed;
                         NULL: they are not estimated */
    double step_s;    /* seconds of a step without the device; 0: nothing fits */
};

struct plan_path_share { /* the time of the critical path on one resource */
    char *what;  /* "compute", "link", "collective", "shared" (waiting for a card that other transfers use) */
    char *where; /* a device, or "from to" of two devices; for a collective its group in words */
    double seconds, share; /* seconds on the resource, and their share of the step */
};

struct plan_rank_time { /* a rank's seconds of one step; compute, wait and idle sum to the step */
    uint32_t rank;
    double compute_s, wait_s, idle_s, send_s;
    int32_t waits_on; /* the rank that this rank waits for longest; −1: none */
    double waits_on_s;
    uint64_t memory_peak_bytes; /* simulated peak of bytes in use */
};

struct plan_insight {
    double step_s; /* seconds of the simulated step that is analysed */
    uint32_t path_length, share_count, rank_count, improvement_count, not_tried;
    struct plan_path_share *shares;        /* shares of the critical path, largest first */
    struct plan_rank_time *ranks;          /* [rank_count] each rank's times */
    struct plan_improvement *improvements; /* improvements that were tried; those that save most come first */
    uint32_t loss_count;
    /* The step without each device of the plan, least increase first; only for clusters of few devices. */
    struct plan_loss *losses;
    char *words; /* the best improvements: "a 10x faster link left-right saves 31 %, …" */
};

void plan_insight_destroy(struct plan_insight *insight);

/* Adds "insight", "improvements" and, if plans without one of the devices were made, "without" to the
 * answer's document. ERR_NOMEM. */
int plan_insight_json(const struct plan_insight *insight, json_t *answer, struct err *err);

#endif
