/* This machine, read from /proc and /sys: stable while it runs (no free memory, no load). Thread: any. */
#ifndef MOTLEY_AGENT_MACHINE_H
#define MOTLEY_AGENT_MACHINE_H

#include <jansson.h>
#include <stdint.h>

uint32_t cpu_count(void);          /* that this process may use; at least 1 */
uint64_t memory_total_bytes(void); /* of the machine, or of our control group if that is less */

/* "avx512", "avx2", "sse42" or "generic": the best this CPU has. */
const char *isa_native(void);
/* Order of instruction sets: a higher one includes the lower. -1: unknown name. */
int isa_rank(const char *isa);

/* /etc/machine-id, else the boot id: tells two agents of one machine from two machines. Returns out. */
char *machine_id(char out[64]);

/* The processor's name, "" where it is not told. Returns out. */
char *machine_cpu(char out[256]);

/* Display controllers and accelerators of /sys/bus/pci, usable or not: new array of {pci, vendor, device,
 * driver, memory_bytes, usable}. NULL: no memory. */
json_t *machine_gpus(void);

#endif
