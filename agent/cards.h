/* The cards that this machine's drivers show. They are asked for by a process of the worker's program, so
 * that a driver that crashes or hangs harms nobody else. Thread: any. */
#ifndef MOTLEY_AGENT_CARDS_H
#define MOTLEY_AGENT_CARDS_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

/* What `worker --devices` prints (engine/gpu/cards.h): new {"drivers", "cards"}. Blocking, at most half a
 * minute. A program that fails, hangs or prints something else leaves {"drivers": [{"kind": "", "why"}],
 * "cards": []}: the machine's CPU works on. Cards that a process sees only alone (MIG slices, and what is
 * beside them) are asked for one by one, half a minute each, and have "visible": what a worker's
 * CUDA_VISIBLE_DEVICES must be, and its device's number then is 0. NULL: ERR_NOMEM. */
json_t *cards_ask(const char *worker, struct err *err);

/* The card of this kind and number, or NULL. */
const json_t *cards_find(const json_t *cards, const char *kind, uint32_t index);

/* Bytes of a card that plans may use when nobody says how many, of those `available`: 92 %, less 0.5 GB
 * (docs/PLANNER.md), in steps of 64 MiB. */
uint64_t card_memory_share(uint64_t available);

/* Take a card, so that no two agents of one machine use one: ERR_CONFLICT when another has it. *file holds it
 * until it is closed; -1: there is nothing to hold. */
int card_lock(const json_t *card, int *file, struct err *err);

#endif
