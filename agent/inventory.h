/* Describes the machine's hardware for node_hello. Thread: any. */
#ifndef MOTLEY_AGENT_INVENTORY_H
#define MOTLEY_AGENT_INVENTORY_H

#include <jansson.h>

#include "common/err.h"

struct agent_config;

/* Makes the part of node_hello that describes the machine: a new object with machine_id, cores, memory_bytes,
 * isa, cpu, gpus (of /sys/bus/pci, usable or not: pci, vendor, device, driver, memory_bytes) and devices
 * (name, kind, threads, isa, isa_effective, memory_limit_bytes, …; of a card also index and like); cards and
 * drivers (engine/gpu/cards.h) if the drivers were asked. NULL: ERR_NOMEM. */
json_t *inventory_make(const struct agent_config *config, struct err *err);

#endif
