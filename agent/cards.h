/* Lists the cards that this machine's drivers report. A process of the worker's program asks the drivers, so
 * that a driver that crashes or hangs harms nothing else. Thread: any. */
#ifndef MOTLEY_AGENT_CARDS_H
#define MOTLEY_AGENT_CARDS_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

/* Returns what `worker --devices` prints (engine/gpu/cards.h): a new {"drivers", "cards"}. Blocks for at most
 * 40 s for the drivers and for each card. If the program fails, hangs or prints something else, the
 * result is {"drivers": [{"kind":
 * "", "why"}], "cards": []} and the machine's CPU is still usable. With MIG, each slice and each undivided
 * card is queried by a process of its own, 80 s each, because CUDA shows a process only one slice.
 * Such an entry has "visible", the CUDA_VISIBLE_DEVICES that its worker needs; the worker sees the card as
 * number 0. NULL: ERR_NOMEM. */
json_t *cards_ask(const char *worker, struct err *err);

/* Returns the card of this kind and number, or NULL. */
const json_t *cards_find(const json_t *cards, const char *kind, uint32_t index);

/* Returns the bytes of a card that plans may use by default, of the `available` ones: 92 % less 0.5 GB
 * (docs/PLANNER.md), in steps of 64 MiB. */
uint64_t card_memory_share(uint64_t available);

/* Locks a card, so that no two agents of one machine use it: ERR_CONFLICT when another agent has it. *file is
 * an open file that holds the lock until it is closed; -1 when the card needs none. */
int card_lock(const json_t *card, int *file, struct err *err);

#endif
