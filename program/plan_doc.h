/* The descriptions of a plan's parts (common/doc.h), for this folder's codec and the planner's answer. What
 * depends on other parts of the plan (programs, groups, micro-batches) the codec reads and writes itself.
 */
#ifndef MOTLEY_PROGRAM_PLAN_DOC_H
#define MOTLEY_PROGRAM_PLAN_DOC_H

#include "common/doc.h"
#include "program/program.h"

#define PLAN_BYTES_MAX ((int64_t)1 << 61)

extern const struct doc plan_rank_doc;  /* without programs and what seals them */
extern const struct doc plan_costs_doc; /* the plan's costs */
extern const struct doc plan_frame_doc; /* the plan's own numbers, without version, batch, ranks and groups */
extern const struct doc plan_instr_doc; /* an instruction, without its queue and `after` */

/* Reads and writes lists of tuples of whole numbers, such as [[block, begin, end], …]: structs made of
 * `numbers` int32_t each. *count of them are at *items, which becomes new. A tuple that `good` refuses "is
 * not " what `refusal` says. */
struct tuple_list {
    const char *key, *refusal;
    size_t numbers; /* in a tuple */
    uint32_t least, most;
    bool (*good)(const int64_t *numbers, int64_t limit);
    int64_t limit; /* passed to good */
};
int tuples_read(struct json_reader *reader, const struct tuple_list *list, void *items, uint32_t *count);
json_t *tuples_json(const void *items, uint32_t count, size_t numbers);

#endif
