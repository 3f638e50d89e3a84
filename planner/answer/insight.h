/* Why a step takes as long as it does, and what would make it shorter.
 *
 * The critical path of one step says what its end waited for; the time that each single improvement would
 * save is found by changing the cluster and asking again: first for the same plan under the new costs, then
 * by a search of its own as far as the budget goes. A saving is never negative: the old plan stays possible.
 * Pure; asked for with plan_options.insight.
 */
#ifndef MOTLEY_PLANNER_ANSWER_INSIGHT_H
#define MOTLEY_PLANNER_ANSWER_INSIGHT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum insight_kind {
    INSIGHT_LINK,   /* INSIGHT_LINK_TIMES faster, both directions */
    INSIGHT_MEMORY, /* INSIGHT_MEMORY_BYTES more */
    INSIGHT_SPEED,  /* INSIGHT_SPEED_TIMES faster */
    INSIGHT_DEVICE, /* one more like it, on the same node */
    INSIGHT_KINDS
};
/* What is asked about: steps that shops sell networks, cards and memory in. Its words say them too. */
#define INSIGHT_LINK_TIMES 10.0
#define INSIGHT_SPEED_TIMES 2.0
#define INSIGHT_MEMORY_BYTES ((uint64_t)1000000000)
#define INSIGHT_LINES_MAX 64u /* improvements tried, the likeliest first */

struct plan_improvement {
    enum insight_kind kind;
    char *what;    /* device, or the link's two nodes: "left-right", "within left" */
    double step_s; /* with it */
    double saves;  /* share of the step, 0..1 */
    bool searched; /* by a search of its own; else the same plan under the new costs: at least this */
};

struct plan_loss { /* a device of the plan taken away, planned again */
    char *device;
    const char *like; /* as in plan_alternative */
    double step_s;    /* without it; 0: nothing fits */
};

struct plan_path_share {   /* of the critical path */
    char *what;            /* "compute", "link", "collective", "shared": waiting for a card others use */
    char *where;           /* device, or "from to" of two devices; of a collective its placement in words */
    double seconds, share; /* of the step */
};

struct plan_rank_time { /* of one step, seconds; compute, wait and idle are all of it */
    double compute_s, wait_s, idle_s, send_s;
    int32_t waits_on; /* rank; −1: none */
    double waits_on_s;
    double memory_peak_bytes; /* simulated: what is held and what is in use at once */
};

struct plan_insight {
    double step_s; /* of the step looked at */
    uint32_t path_length, share_count, rank_count, improvement_count, not_tried;
    struct plan_path_share *shares;        /* largest first */
    struct plan_rank_time *ranks;          /* [rank_count] */
    struct plan_improvement *improvements; /* most saved first */
    uint32_t loss_count;
    struct plan_loss *losses; /* what each device of the plan brings, the least first; of few devices */
    char *words;              /* "a 10x faster link left-right saves 31 %, …" */
};

void plan_insight_destroy(struct plan_insight *insight);
/* "a 10x faster link left-right" into text. */
void improvement_words(const struct plan_improvement *line, char *text, size_t size);

/* Adds "insight", "improvements" and, where devices were taken away, "without" to the answer's document.
 * ERR_NOMEM. */
int plan_insight_json(const struct plan_insight *insight, json_t *answer, struct err *err);

#endif
