/* Decides which rank stores a piece of state of which several ranks have equal copies. The function is pure.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_KEEPER_H
#define MOTLEY_WORKER_CHECKPOINT_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/stage/shard.h"
#include "program/program.h"

/* Whether `rank`, which keeps this piece, stores it: it does unless a lower rank keeps the same piece.
 * Replicas keep equal state, because plan_check requires that every rank that keeps a gradient steps with the
 * gradient's sum. If the plan does not say that a lower rank has exactly this piece, the rank stores it,
 * because a piece that was stored twice is read once (read.h), and a piece that nobody stored would be lost.
 */
bool piece_is_stored_by(const struct plan *plan, uint32_t rank, const struct shard_piece *piece);

#endif
