/* Experts of a rank, for people and as JSON. */
#include "planner/answer/expert_words.h"

#include <stdio.h>

static bool same_as_first(const struct plan_rank *rank, uint32_t first, uint32_t count, uint32_t at)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_experts *a = &rank->experts[first + i], *b = &rank->experts[at + i];
        if (at + i >= rank->expert_count || a->begin != b->begin || a->end != b->end ||
            b->block != rank->experts[at].block)
            return false;
    }
    return at + count == rank->expert_count || rank->experts[at + count].block != rank->experts[at].block;
}

/* "experts 0..12 of every layer", "experts 0..4 and 7..9 of every layer", or, where layers differ, "11 to 13
 * experts a layer, uneven by layer". */
void expert_words(const struct plan_rank *rank, char *text, size_t size)
{
    uint32_t runs = 0, least = UINT32_MAX, most = 0;
    bool even = true;
    text[0] = '\0';
    while (runs < rank->expert_count && rank->experts[runs].block == rank->experts[0].block)
        runs++;
    for (uint32_t i = 0; i < rank->expert_count;) {
        int32_t block = rank->experts[i].block;
        uint32_t count = 0;
        even = even && same_as_first(rank, 0, runs, i);
        for (; i < rank->expert_count && rank->experts[i].block == block; i++)
            count += (uint32_t)(rank->experts[i].end - rank->experts[i].begin);
        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    if (rank->expert_count == 0)
        return;
    if (!even || runs > 4) {
        const char *by = even ? "of every layer" : "a layer, uneven by layer";
        if (least == most)
            snprintf(text, size, "%u experts %s", least, by);
        else
            snprintf(text, size, "%u to %u experts %s", least, most, by);
        return;
    }
    int used = snprintf(text, size, "experts");
    for (uint32_t i = 0; i < runs && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s %d..%d",
                         i == 0          ? ""
                         : i + 1 == runs ? " and"
                                         : ",",
                         rank->experts[i].begin, rank->experts[i].end);
    if (used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, " of every layer");
}

/* [[block, begin, end], …]; new, or NULL. */
json_t *expert_ranges_json(const struct plan_rank *rank)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < rank->expert_count; i++) {
        const struct plan_experts *e = &rank->experts[i];
        if (json_array_append_new(list, json_pack("[i,i,i]", e->block, e->begin, e->end)) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}
