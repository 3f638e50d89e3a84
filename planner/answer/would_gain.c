/* Searches shortly on jobs with one choice changed. */
#include <stdio.h>

#include "planner/answer/answer_private.h"

#define LEAST 1.1 /* a gain below this is not told: forecasts are not that good. Rule of thumb */

/* Adds a gain where it belongs among the best. */
static void would_gain_keep(struct plan_answer *answer, const struct plan_gain *gain)
{
    uint32_t at = answer->gain_count;
    while (at > 0 && answer->gains[at - 1].tokens_per_s < gain->tokens_per_s)
        at--;
    if (at == ANSWER_GAINS_MAX)
        return;
    answer->gain_count += answer->gain_count < ANSWER_GAINS_MAX;
    for (uint32_t i = answer->gain_count - 1; i > at; i--)
        answer->gains[i] = answer->gains[i - 1];
    answer->gains[at] = *gain;
}

/* Plans a changed job, which must be workable as it is: a change that is not is passed over. */
static int try(struct workload *changed, const char *what, const struct cluster *cluster,
               const struct plan_options *options, struct plan_answer *answer, struct err *err)
{
    struct plan_answer *other = NULL;
    if (precision_short(changed, cluster, options, &other, err) < 0)
        return -1;
    if (other && other->plan && other->tokens_per_s >= LEAST * answer->tokens_per_s) {
        struct plan_gain gain = {.step_s = other->step_s, .tokens_per_s = other->tokens_per_s};
        snprintf(gain.what, sizeof(gain.what), "%s", what);
        would_gain_keep(answer, &gain);
    }
    plan_answer_destroy(other);
    return 0;
}

int would_gain_find(const struct workload *w, bool computed_open, const struct cluster *cluster,
                    const struct plan_options *options, struct plan_answer *answer, struct err *err)
{
    char rows[ANSWER_GAIN_TEXT];
    if (!answer->plan)
        return 0;
    struct workload packed = *w, twice = *w, open = *w, placed = *w;
    packed.base = BASE_NF4;
    twice.batch_rows *= 2;
    snprintf(rows, sizeof(rows), "train.batch_rows: %u", twice.batch_rows);
    open.compute_open = true;
    placed.place = -1;
    placed.stages = placed.order = placed.micro_batch_rows = 0;
    const bool packs = w->method == METHOD_LORA && !workload_packs(w);
    const bool doubles = w->row_count == 0 || twice.batch_rows <= w->row_count;
    if ((packs && try(&packed, "method.base: nf4", cluster, options, answer, err) < 0) ||
        (doubles && try(&twice, rows, cluster, options, answer, err) < 0) ||
        (w->compute == COMPUTE_FP32 && !computed_open &&
         try(&open, "train.compute: auto", cluster, options, answer, err) < 0) ||
        (w->place >= 0 && try(&placed, "placement.kind: auto", cluster, options, answer, err) < 0))
        return -1;
    return 0;
}
