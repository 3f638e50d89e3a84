/* Finds a rank's role in sharding weights and optimiser state over ranks (docs/PROGRAM.md, weights that are
 * not kept). Pure. */
#ifndef MOTLEY_PROGRAM_SHARING_H
#define MOTLEY_PROGRAM_SHARING_H

#include "program/program.h"

/* Roles of a rank whose state is sharded. MEMBER: keeps a shard, all-gathers blocks and reduce-scatters their
 * gradients within its group. HOLDER: the parameter server; it keeps all state and pushes whole blocks.
 * WORKER: keeps none and PULLs blocks from the HOLDER. */
enum plan_sharing { SHARES_NONE, SHARES_MEMBER, SHARES_HOLDER, SHARES_WORKER };

/* Returns the rank's role, found in its training program. *group is the group of a MEMBER, else PLAN_NONE.
 * The tied embedding that ranks of a pipeline's last stage gather does not make them a MEMBER, because they
 * keep no shard of it. */
enum plan_sharing plan_rank_sharing(const struct plan_rank *rank, int32_t *group);
/* Whether a rank runs any block. */
bool plan_rank_computes(const struct plan_rank *rank);
/* Whether an instruction moves sharded state, for a rank of that role and group: ALL_GATHER and
 * REDUCE_SCATTER of the group's blocks, or of a tied embedding of which the rank keeps a shard; PULL, PUSH.
 */
bool plan_moves_shared(const struct plan_rank *rank, enum plan_sharing role, int32_t group,
                       const struct instr *x);

#endif
