/* The stages of a rank in an expert plan: one with attention, routers and all dense blocks, for the rank's
 * rows of every micro-batch, and one for each layer's experts on this rank. Stages of experts have room for
 * every token of a micro-batch, because the router may send all tokens to one rank. */
#ifndef MOTLEY_WORKER_PROGRAM_EXPERTS_H
#define MOTLEY_WORKER_PROGRAM_EXPERTS_H

#include "engine/stage/stage.h"
#include "program/program.h"

/* Sets the rows of each micro-batch whose attention the rank computes in a program. Returns false when it
 * computes no attention there. In a micro-batch that is too short to have these rows, the rank has no rows.
 */
bool experts_rows(const struct plan_rank *rank, int kind, uint32_t *begin, uint32_t *end);

/* Returns the number of the rank's stages. */
uint32_t experts_stage_count(const struct plan_rank *rank);
/* Fills the options of all stages of the rank; the stage with attention is the first. `options` holds the
 * settings of model and method, and the plan's bounds. ERR_UNSUPPORTED if the rank's experts of a layer are
 * not consecutive. */
int experts_options(const struct plan *plan, uint32_t rank, const struct stage_options *options,
                    struct stage_options *all, struct err *err);

#endif
