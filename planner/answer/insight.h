/* Why a step takes its time, and what would make it shorter.
 *
 * The critical path of one step says what its end waited for. The saving of an improvement is found by
 * changing the cluster and asking again: first for the same plan at the new costs, then by a search of its
 * own as far as the budget allows. A saving is never negative, because the old plan stays possible. Pure;
 * requested by plan_options.insight.
 */
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
    INSIGHT_DEVICE, /* one more such device on the same node */
    INSIGHT_KINDS
};
/* The sizes of improvements, which are those in which networks, cards and memory are sold. kind_words in
 * insight.c repeats the numbers. */
#define INSIGHT_LINK_TIMES 10.0
#define INSIGHT_SPEED_TIMES 2.0
#define INSIGHT_MEMORY_BYTES ((uint64_t)1000000000)
#define INSIGHT_LINES_MAX 64u /* most improvements tried, the most promising first */

struct plan_improvement {
    enum insight_kind kind;
    char *what;    /* a device, or a link: "left-right" for two nodes, "within left" */
    double step_s; /* step with the improvement */
    double saves;  /* saved share of the step, 0..1 */
    bool searched; /* found by a search of its own; else it is the same plan at the new costs, a lower bound
                      of the saving */
};

struct plan_loss { /* the plan without one of its devices */
    char *device;
    const char *like; /* as in plan_alternative */
    double step_s;    /* without the device; 0: nothing fits */
};

struct plan_path_share { /* a share of the critical path */
    char *what;  /* "compute", "link", "collective", "shared" (waiting for a card that other transfers use) */
    char *where; /* a device, or "from to" of two devices; for a collective its group in words */
    double seconds, share; /* seconds, and the share of the step */
};

struct plan_rank_time { /* seconds of one step; compute, wait and idle sum to it */
    double compute_s, wait_s, idle_s, send_s;
    int32_t waits_on; /* rank; −1: none */
    double waits_on_s;
    double memory_peak_bytes; /* simulated peak of bytes in use */
};

struct plan_insight {
    double step_s; /* of the step that was analysed */
    uint32_t path_length, share_count, rank_count, improvement_count, not_tried;
    struct plan_path_share *shares;        /* largest first */
    struct plan_rank_time *ranks;          /* [rank_count] */
    struct plan_improvement *improvements; /* most saved first */
    uint32_t loss_count;
    /* The step without each device of the plan, the least increase first; only for few devices. */
    struct plan_loss *losses;
    char *words; /* "a 10x faster link left-right saves 31 %, …" */
};

void plan_insight_destroy(struct plan_insight *insight);
/* Writes "a 10x faster link left-right" into text. */
void improvement_words(const struct plan_improvement *line, char *text, size_t size);

/* Adds "insight", "improvements" and, if plans without devices were made, "without" to the answer's
 * document. ERR_NOMEM. */
int plan_insight_json(const struct plan_insight *insight, json_t *answer, struct err *err);

#endif
