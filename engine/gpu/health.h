/* Health of the machine's GPUs, as reported by their vendors' management libraries; `motley-worker --health`
 * prints it. NVML (libnvidia-ml.so.1) and ROCm SMI (librocm_smi64.so) are opened at run time, and nearly all
 * of their functions are optional. They make no context on a card and keep none busy.
 *
 * A reading is {"libraries": [{"kind": "cuda" | "hip" | "emulated", "version", "why"}], "cards": [card]}.
 * "why" (else null) is the reason why a library cannot be asked. A card has "kind" and those of the following
 * fields that its library can tell:
 * - uuid, pci ("0000:0A:00.0"), name: which card it is, as in engine/gpu/cards.h. An emulated card has
 *   "device" instead, its name in the cluster.
 * - temperature_c, power_w, power_limit_w
 * - clock_khz, clock_max_khz: of its multiprocessors
 * - throttle: why the clock is reduced: "thermal" (too warm), "power" (at its power limit), "brake" (the
 *   power supply asks for less) or "hardware" (no reason given)
 * - ecc_uncorrected, ecc_uncorrected_total: memory errors since the driver was loaded, and in total
 * - xid: number of the last critical error that the driver reported since this reader started
 * - xid_means: whose fault that is, a program's or the card's, and what the card needs, where that is known
 * - memory_bytes, used_bytes: memory in use by anybody, without the driver's own reserve where it is known
 * - processes: [{pid, bytes}] that compute on the card; bytes is null where it is hidden
 * - mig: {mode, slices: [{uuid, memory_bytes, used_bytes}]} if the card supports MIG
 * - links: [{to (the other card's pci), level}], with level "nvlink", "xgmi", or how far the path over PCIe
 *   goes: "board", "switch", "switches", "bridge", "node" or "system"
 * - why: the reason why the card can no longer be asked (it is lost, or needs a reset)
 *
 * Thread: one. */
#ifndef MOTLEY_ENGINE_GPU_HEALTH_H
#define MOTLEY_ENGINE_GPU_HEALTH_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct gpu_health;

/* Opens the libraries that there are; each reading reports a library that cannot be used. MOTLEY_NVML_LIBRARY
 * and MOTLEY_ROCM_SMI_LIBRARY name a file to open instead. NULL: ERR_NOMEM. */
struct gpu_health *gpu_health_open(struct err *err);
void gpu_health_close(struct gpu_health *health);

/* Returns a new reading. Emulated cards come from the JSON file named by MOTLEY_EMULATED_HEALTH, {device:
 * card}, which is read each time. NULL: ERR_NOMEM. */
json_t *gpu_health_read(struct gpu_health *health, struct err *err);

/* Prints one reading per line every `interval_ms`, until stdout is closed or the parent process is gone. */
int gpu_health_watch(uint32_t interval_ms, struct err *err);

#endif
