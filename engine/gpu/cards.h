/* Lists the machine's GPUs as the vendors' drivers show them; `motley-worker --devices` prints the list. */
#ifndef MOTLEY_ENGINE_GPU_CARDS_H
#define MOTLEY_ENGINE_GPU_CARDS_H

#include <jansson.h>

#include <stdint.h>

#include "common/err.h"

struct gpu_cards_options {
    const char *root; /* "", or a folder with another machine's dev, sys, run and proc (tests) */
    /* A program that prints gpu_card_look(CARD) when it is run with --look CARD, so that a card that hangs or
     * ends its process harms no other one; NULL: the calling process looks itself. */
    const char *program;
    uint32_t seconds; /* the longest that the program may take */
};

/* Returns new {"drivers": [{"kind", "version", "missing", "why"}], "cards": [{"kind", "index", "name",
 * "arch", "pci", "uuid", "memory_bytes", "free_bytes", "warp", "units", "clock_khz", "integrated", "usable",
 * "why", "products", "base_bytes"}]}. NULL: ERR_NOMEM. The call is slow, because it makes a context on each
 * card.
 * - "why" (else null) is the reason why a driver cannot be opened or a card cannot be used; "missing" means
 *   that the driver is not installed.
 * - "free_bytes" is null if the card could not be asked.
 * - "products" is {"library", "why"}: the vendor's library of matrix products for this card, or why there is
 *   none (which is normal); null for a card that is not known.
 * - "base_bytes" is device_base_bytes (engine/device/backend.h) of a device on that card.
 * - If NVIDIA's cards are cut into slices (MIG) and CUDA_VISIBLE_DEVICES does not select one, "apart" is an
 *   array of UUIDs of slices and whole cards. The caller starts one process for each UUID, which shows that
 *   one alone, to get its entry. "cards" then lists only the cut cards of that kind, without "index" and with
 *   "why".
 * - "exclusive" says that its compute mode admits one process.
 * - A card on the PCI bus that its driver does not show is listed with "kind", "pci", "usable" and "why"
 *   alone, unless the environment hides cards.
 *
 * A broken library or card never hides another one. Emulated cards are listed if the environment's
 * MOTLEY_EMULATED_CARDS says how many there are. */
json_t *gpu_cards(const struct gpu_cards_options *options, struct err *err);

/* Runs a kernel on a card ("cuda:0") and returns new {"free_bytes", "why"}; why is null if the card can be
 * used. NULL: ERR_INVALID, ERR_NOMEM. */
json_t *gpu_card_look(const char *card, struct err *err);

#endif
