/* Asking the same question about clusters changed in one thing. */
#include "planner/insight.h"

#include <stdlib.h>

int plan_insight_fill(const struct workload *workload, const struct cluster *cluster,
                      const struct plan_options *options, struct plan_answer *answer, struct err *err)
{
    (void)workload;
    (void)cluster;
    (void)options;
    (void)answer;
    (void)err;
    return 0;
}

void plan_insight_destroy(struct plan_insight *insight)
{
    free(insight);
}
