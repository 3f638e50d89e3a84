/* A rank's experts, for people and as JSON. */
#ifndef MOTLEY_PLANNER_ANSWER_EXPERT_WORDS_H
#define MOTLEY_PLANNER_ANSWER_EXPERT_WORDS_H

#include <jansson.h>

#include "program/program.h"

/* "experts 0..12 of every layer"; "" for none. */
void expert_words(const struct plan_rank *rank, char *text, size_t size);
/* [[block, begin, end], …]; new, or NULL out of memory. */
json_t *expert_ranges_json(const struct plan_rank *rank);

#endif
