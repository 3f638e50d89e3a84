/* How the cards of this machine are, as their vendors' management libraries say it: what `motley-worker
 * --health` prints. NVML (libnvidia-ml.so.1) and ROCm SMI (librocm_smi64.so) are opened at run time, and
 * every function of theirs but a handful may be missing; they make no context on a card and keep none busy.
 *
 * A reading is {"libraries": [{"kind": "cuda" | "hip" | "emulated", "version", "why"}], "cards": [card]}.
 * "why" (else null) says what keeps a library from being asked. A card has "kind" and, of the following, what
 * its library could say: uuid, pci ("0000:0A:00.0"), name     which card it is, as engine/gpu/cards.h has it;
 * of an emulated one instead "device", its name in the cluster temperature_c, power_w, power_limit_w
 *     clock_khz, clock_max_khz             of its multiprocessors
 *     throttle                             why the clock is held down: of "thermal" (too warm), "power" (its
 *                                          limit), "brake" (the supply asks for less), "hardware" (unsaid)
 *     ecc_uncorrected, ecc_uncorrected_total   memory errors since the driver was loaded, and ever
 *     xid                                  number of the last critical error that the driver told since this
 *                                          reader began
 *     memory_bytes, used_bytes             used by whom ever, the driver's own reserve left out where it is
 * told processes                            [{pid, bytes}] that compute there; bytes null where that is
 * secret mig                                  {mode, slices: [{uuid, memory_bytes, used_bytes}]} where it has
 * MIG links                                [{to (its pci), level}], level "nvlink", "xgmi", or how far the
 * way over PCIe goes: "board", "switch", "switches", "bridge", "node", "system" why the card cannot be asked
 * any more (it is lost, it needs a reset)
 *
 * Thread: one. */
#ifndef MOTLEY_ENGINE_GPU_HEALTH_H
#define MOTLEY_ENGINE_GPU_HEALTH_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct gpu_health;

/* Opens what there is; a library that cannot be used is said in each reading. MOTLEY_NVML_LIBRARY and
 * MOTLEY_ROCM_SMI_LIBRARY name a file to open instead. NULL: ERR_NOMEM. */
struct gpu_health *gpu_health_open(struct err *err);
void gpu_health_close(struct gpu_health *health);

/* New. Emulated cards are those of the JSON file that MOTLEY_EMULATED_HEALTH names, {device: card}, read each
 * time. NULL: ERR_NOMEM. */
json_t *gpu_health_read(struct gpu_health *health, struct err *err);

/* Prints a reading a line every `interval_ms` until stdout is closed or the parent is gone. */
int gpu_health_watch(uint32_t interval_ms, struct err *err);

#endif
