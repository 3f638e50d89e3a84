/* Releases a planner's answers. */
#include "scheduler/placer/placer.h"

#include <stdlib.h>

void placer_answer_fini(struct placer_answer *answer)
{
    json_decref(answer->plan);
    json_decref(answer->answer);
    json_decref(answer->timeline);
    json_decref(answer->rivals);
    for (size_t i = 0; i < answer->rank_count; i++)
        free(answer->ranks[i].device);
    free(answer->ranks);
    *answer = (struct placer_answer){0};
}
