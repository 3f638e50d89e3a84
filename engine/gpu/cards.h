/* The cards of this machine, as the vendors' drivers show them: what `motley-worker --devices` prints. */
#ifndef MOTLEY_ENGINE_GPU_CARDS_H
#define MOTLEY_ENGINE_GPU_CARDS_H

#include <jansson.h>

#include "common/err.h"

/* New {"drivers": [{"kind", "version", "missing", "why"}], "cards": [{"kind", "index", "name", "arch", "pci",
 * "uuid", "memory_bytes", "free_bytes", "warp", "units", "clock_khz", "usable", "why", "products",
 * "base_bytes"}]}. "why" (else null) says what keeps a driver from being opened (missing: there is none) or a
 * card from being used; free_bytes is null where a card could not be asked. "products": {"library", "why"},
 * the vendor's library of matrix products for this card or why there is none (normal); null of a card that is
 * not known. base_bytes: device_base_bytes (engine/device/backend.h) of a device on that card. Where NVIDIA's
 * cards are cut into slices (MIG), and CUDA_VISIBLE_DEVICES shows none alone: "apart", an array of UUIDs of
 * slices and whole cards to show, each by itself, to a process that asks again; "cards" then has of that kind
 * the cut ones alone (without index), with why. A broken library or card never hides another. Emulated ones
 * are shown where the environment's MOTLEY_EMULATED_CARDS says how many there are. NULL: ERR_NOMEM. Slow: it
 * makes a context on each card. */
json_t *gpu_cards(struct err *err);

#endif
