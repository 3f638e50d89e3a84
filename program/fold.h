/* Folding instruction lists: regular stretches become repeats, and expand to exactly what they were.
 *
 * A repeat says: this body, `count` times; each turn adds micro_batch_advance to every micro-batch and
 * block_advance to every block range of the body. Repeats nest. `after` is kept as distances back from the
 * instruction itself, counted in expanded instructions, so it does not change from turn to turn. */
#ifndef MOTLEY_PROGRAM_FOLD_H
#define MOTLEY_PROGRAM_FOLD_H

#include <jansson.h>

#include "program/program.h"

#define FOLD_DEPTH_MAX 4   /* repeats inside repeats */
#define FOLD_BODY_MAX 160u /* longest body looked for, in nodes */

/* Returns a new array, or NULL with ERR_NOMEM. */
json_t *program_fold(const struct program *program, struct err *err);

/* Expands `folded` into *program (empty before). `path` names it in errors. *budget bounds the instructions
 * that may still be made and is reduced by what was. Field ranges beyond integer bounds are left to
 * plan_check. Returns -1 with ERR_INVALID, ERR_TOO_BIG or ERR_NOMEM; *program is then empty. */
int program_expand(const json_t *folded, const char *path, uint32_t *budget, struct program *program,
                   struct err *err);

#endif
