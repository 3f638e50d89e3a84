/* Chooses between precisions by a short search in each, and by the whole search in two that are close. */
#include <math.h>
#include <string.h>

#include "planner/answer/answer_private.h"
#include "planner/given/cluster_private.h"

#define PRECISIONS 3u
#define TRIAL_SHARE 128u /* a trial has this part of the whole search's budget. Rule of thumb */
#define SHORT_SHARE 320u /* precision_short has this part of the default budget. Rule of thumb */
#define CLOSE 1.05 /* short searches whose plans differ by less than this do not decide. Rule of thumb */
#define GAIN 1.02  /* what fewer bits, or fp16's narrow range, must gain to be chosen */

struct trial {    /* a short search in one precision */
    double value; /* INFINITY: nothing fits, or the placement asked for is impossible so */
    bool possible;
};

static bool may_use(const struct workload *w, const struct planner_device *device)
{
    return (w->device_count == 0 || workload_names(w->devices, w->device_count, device->name)) &&
           !workload_names(w->exclude, w->exclude_count, device->name);
}

/* Sets tried[] for fp32 and for each 16-bit precision that some device computes fastest. Returns whether
 * there is any of these. */
static bool precisions_of(const struct workload *w, const struct cluster *cluster, bool tried[PRECISIONS])
{
    memset(tried, 0, PRECISIONS * sizeof(*tried));
    for (uint32_t d = 0; d < cluster->device_count; d++) {
        const struct planner_device *device = &cluster->devices[d];
        const bool measured = device->profile.present && device->profile.compute > 0;
        if (may_use(w, device))
            tried[device->like ? catalogue_fastest(device->like)
                  : measured   ? (enum workload_compute)device->profile.compute
                               : COMPUTE_FP32] = true;
    }
    tried[COMPUTE_FP32] = true;
    return tried[COMPUTE_BF16] || tried[COMPUTE_FP16];
}

/* Returns what the objective asks to be least; INFINITY if nothing fits. */
static double precision_value_of(const struct workload *w, const struct plan_answer *answer)
{
    if (!answer->plan)
        return INFINITY;
    return w->objective == OBJECTIVE_COST     ? answer->cost_per_million_tokens
           : w->objective == OBJECTIVE_ENERGY ? answer->kwh_per_million_tokens
                                              : answer->step_s;
}

static int trial_run(const struct workload *w, enum workload_compute compute, const struct cluster *cluster,
                     const struct plan_options *options, struct trial *trial, struct err *err)
{
    struct workload in = *w;
    struct plan_options brief = *options;
    struct plan_answer *answer = NULL;
    struct err why = {0};
    workload_compute_set(&in, compute);
    brief.evaluations = (options->evaluations ? options->evaluations : EVALUATIONS_DEFAULT) / TRIAL_SHARE + 1;
    brief.brief = true;
    brief.programs = brief.insight = false;
    brief.rivals = 0;
    if (plan_best(&in, cluster, &brief, &answer, &why) < 0)
        return why.code == ERR_UNSUPPORTED ? 0 : err_set(err, why.code, "%s", why.text);
    trial->possible = true;
    trial->value = precision_value_of(&in, answer);
    plan_answer_destroy(answer);
    return 0;
}

/* Plans in one precision. The answer replaces *answer if it is clearly better. */
static int whole_run(struct workload *w, enum workload_compute compute, const struct trial trials[PRECISIONS],
                     const struct cluster *cluster, const struct plan_options *options,
                     struct plan_answer **answer, struct err *err)
{
    struct workload in = *w;
    struct plan_answer *other = NULL;
    workload_compute_set(&in, compute);
    if (compute != COMPUTE_FP32) /* both short, since a whole search finds better plans than a short one */
        in.fp32_times =
            isinf(trials[COMPUTE_FP32].value) ? INFINITY : trials[COMPUTE_FP32].value / trials[compute].value;
    if (plan_best(&in, cluster, options, &other, err) < 0)
        return -1;
    if (*answer && !(precision_value_of(&in, other) * GAIN < precision_value_of(w, *answer))) {
        plan_answer_destroy(other);
        return 0;
    }
    plan_answer_destroy(*answer);
    *answer = other;
    *w = in;
    return 0;
}

/* Searches shortly in each precision that is tried, and leaves in tried[] those that may be best. Where
 * nothing fits, that is a precision in which the least memory is missing. */
static int precision_narrow(const struct workload *w, const struct cluster *cluster,
                            const struct plan_options *options, struct trial trials[PRECISIONS],
                            bool tried[PRECISIONS], struct err *err)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < PRECISIONS; i++) {
        trials[i] = (struct trial){INFINITY, false};
        if (tried[i] && trial_run(w, (enum workload_compute)i, cluster, options, &trials[i], err) < 0)
            return -1;
        least = fmin(least, trials[i].value);
    }
    for (uint32_t i = 0; i < PRECISIONS; i++)
        tried[i] =
            trials[i].possible && (isinf(least) ? i != COMPUTE_FP32 : trials[i].value <= least * CLOSE);
    tried[COMPUTE_FP32] |= !tried[COMPUTE_BF16] && !tried[COMPUTE_FP16];
    return 0;
}

int precision_best(struct workload *w, const struct cluster *cluster, const struct plan_options *options,
                   struct plan_answer **answer, struct err *err)
{
    struct trial trials[PRECISIONS];
    bool tried[PRECISIONS];
    *answer = NULL;
    if (!w->compute_open)
        return plan_best(w, cluster, options, answer, err);
    if (options->from || !precisions_of(w, cluster, tried)) {
        workload_compute_set(w, options->from ? (enum workload_compute)options->from->compute : COMPUTE_FP32);
        return plan_best(w, cluster, options, answer, err);
    }
    int result = precision_narrow(w, cluster, options, trials, tried, err);
    for (uint32_t i = 0; i < PRECISIONS && result == 0; i++)
        if (tried[i])
            result = whole_run(w, (enum workload_compute)i, trials, cluster, options, answer, err);
    if (result == 0)
        return 0;
    plan_answer_destroy(*answer);
    *answer = NULL;
    return -1;
}

int precision_short(struct workload *workload, const struct cluster *cluster,
                    const struct plan_options *options, struct plan_answer **answer, struct err *err)
{
    const struct plan_options brief = {.evaluations = EVALUATIONS_DEFAULT / SHORT_SHARE,
                                       .seed = options->seed,
                                       .runnable_only = options->runnable_only,
                                       .brief = true};
    struct err why = {0};
    const int result = precision_best(workload, cluster, &brief, answer, &why);
    return result < 0 && why.code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", why.text) : 0;
}
