#include "program/where.h"

#include <stdio.h>

const char *plan_where(const struct plan *plan, uint32_t rank, int kind, uint32_t number, char text[200])
{
    char what[128];
    instr_describe(&plan->ranks[rank].programs[kind].instrs[number], what, sizeof(what));
    snprintf(text, 200, "rank %u %s instruction %u (%s)", rank, program_kind_name(kind), number, what);
    return text;
}

const char *plan_where_end(const struct plan *plan, uint32_t rank, int kind, bool first, char text[200])
{
    uint32_t count = plan->ranks[rank].programs[kind].instr_count;
    if (count > 0)
        return plan_where(plan, rank, kind, first ? 0 : count - 1, text);
    snprintf(text, 200, "rank %u %s", rank, program_kind_name(kind));
    return text;
}
