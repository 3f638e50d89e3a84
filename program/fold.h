/* Folding of instruction lists: regular stretches become repeats, which expand to exactly the same lists.
 *
 * A repeat is a body and a count; each iteration adds micro_batch_advance to every micro-batch and
 * block_advance to every block range of the body. Repeats nest. `after` is stored as distances back from
 * the instruction, counted in expanded instructions, so it is equal in all iterations.
 */
#ifndef MOTLEY_PROGRAM_FOLD_H
#define MOTLEY_PROGRAM_FOLD_H

#include <jansson.h>

#include "program/program.h"

#define FOLD_DEPTH_MAX 4   /* most levels of nested repeats */
#define FOLD_BODY_MAX 160u /* longest body that is searched for, in nodes */

/* Folds a program. Returns a new array, or NULL with ERR_NOMEM. */
json_t *program_fold(const struct program *program, struct err *err);

/* Expands `folded` into *program, which is empty before. `path` names it in errors. *budget limits the
 * instructions that may still be made and is reduced by those made. plan_check checks the ranges of fields
 * beyond those of their integer types. Returns -1 with ERR_INVALID, ERR_TOO_BIG or ERR_NOMEM; *program is
 * then empty. */
int program_expand(const json_t *folded, const char *path, uint32_t *budget, struct program *program,
                   struct err *err);

#endif
