/* What this machine has: read from /proc and /sys, stable while it runs (no free memory, no load). Thread:
 * any. */
#ifndef MOTLEY_AGENT_INVENTORY_H
#define MOTLEY_AGENT_INVENTORY_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct agent_config;

uint32_t cpu_count(void);          /* that this process may use; at least 1 */
uint64_t memory_total_bytes(void); /* of the machine, or of our control group if that is less */

/* "avx512", "avx2", "sse42" or "generic": the best this CPU has. */
const char *isa_native(void);
/* Order of instruction sets: a higher one includes the lower. -1: unknown name. */
int isa_rank(const char *isa);

/* /etc/machine-id, else the boot id: tells two agents of one machine from two machines. Returns out. */
char *machine_id(char out[64]);

/* The part of node_hello that describes the machine: new object with machine_id, cores, memory_bytes, isa,
 * cpu, gpus (of /sys/bus/pci, usable or not: pci, vendor, device, driver, memory_bytes) and devices (name,
 * kind, threads, isa, isa_effective, memory_limit_bytes, …). NULL: ERR_NOMEM. */
json_t *inventory_make(const struct agent_config *config, struct err *err);

#endif
