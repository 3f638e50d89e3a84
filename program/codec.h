/* Plan ↔ json_t, folded: regular stretches become `repeat` (a body, a count, what advances per turn), so a
 * plan's size does not grow with its micro-batches. common/frame.h turns the json_t into msgpack for the
 * wire.
 *
 * Pure. Folding and expanding are exact inverses: plan_from_json(plan_to_json(p)) equals p. */
#ifndef MOTLEY_PROGRAM_CODEC_H
#define MOTLEY_PROGRAM_CODEC_H

#include <jansson.h>

#include "program/program.h"

/* Computes plan->digest: SHA-256 over the sorted compact JSON of the codec form without "digest" and
 * programs, and then all programs expanded, as numbers (codec.c: program_numbers). A generator calls it last;
 * any later change makes plan_from_json refuse. Returns -1 with ERR_NOMEM. */
int plan_seal(struct plan *plan, struct err *err);

/* Returns new (caller decrefs), or NULL with ERR_NOMEM. Seal first. */
json_t *plan_to_json(const struct plan *plan, struct err *err);

/* Expands on load. Refuses, naming the path: unknown version, wrong types, numbers out of range, expansion
 * beyond the bounds of program.h (ERR_TOO_BIG), a digest that does not match (ERR_CORRUPT). It does not check
 * that the program makes sense: that is plan_check. Returns new, or NULL. */
struct plan *plan_from_json(const json_t *json, struct err *err);
/* The same for a plan that somebody else's program made: of at most instructions_most instructions, expanded;
 * the digest may be missing, since who does not have this code cannot compute it, and is filled in; one that
 * is there must match. */
struct plan *plan_from_json_given(const json_t *json, uint32_t instructions_most, struct err *err);

#endif
