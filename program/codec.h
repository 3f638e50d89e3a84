/* Conversion between a plan and json_t. Instruction lists are folded: regular stretches become `repeat` (a
 * body, a count, and the advance per iteration), so a plan's size does not grow with the number of its
 * micro-batches. common/frame.h turns the json_t into msgpack for the wire.
 *
 * Pure. Folding and expanding are exact inverses: plan_from_json(plan_to_json(p)) equals p.
 */
#ifndef MOTLEY_PROGRAM_CODEC_H
#define MOTLEY_PROGRAM_CODEC_H

#include <jansson.h>

#include "program/program.h"

/* Computes the digests of the ranks' programs, and plan->digest. The former are SHA-256 over a rank's
 * programs, expanded, as numbers (codec.c: program_numbers). The latter is SHA-256 over the sorted compact
 * JSON of the codec form without "digest", "slice" and programs, but with the programs' digests, so that a
 * slice proves to which plan it belongs. In version 1 all programs follow that JSON instead. A generator
 * calls it last; after a later change plan_from_json refuses the plan. Returns -1 with ERR_NOMEM. */
int plan_seal(struct plan *plan, struct err *err);

/* Returns new (the caller decrefs), or NULL with ERR_NOMEM. Call plan_seal first. */
json_t *plan_to_json(const struct plan *plan, struct err *err);

/* Reads and expands a plan. Refuses, naming the path: an unknown version, wrong types, numbers out of
 * range, expansion beyond the bounds of program.h (ERR_TOO_BIG), a digest that does not match
 * (ERR_CORRUPT). plan_check checks that the programs make sense; this does not. Returns new, or NULL. */
struct plan *plan_from_json(const json_t *json, struct err *err);
/* Does what plan_from_json does, for a plan that another program made, of at most instructions_most expanded
 * instructions. The plan's digest may be missing, because only this code can compute it, and is then filled
 * in; a digest that is there must match. */
struct plan *plan_from_json_given(const json_t *json, uint32_t instructions_most, struct err *err);

/* Slices. The slice of a rank is the plan's document without the programs of the other ranks, of which it
 * has the digests, and with "slice": the rank. It has the plan's digest. */

/* Makes the slices of all ranks from a whole plan as plan_to_json writes it: an array whose
 * elements share the JSON values that are equal. Instruction lists stay folded. Returns new, or NULL:
 * ERR_INVALID, ERR_NOMEM. */
json_t *plan_slices(const json_t *plan, struct err *err);
/* Reads a slice or a whole plan as plan_from_json does. plan->slice_rank says which of the two it is. */
struct plan *plan_slice_from_json(const json_t *json, struct err *err);

#endif
