/* This machine, as /proc and /sys describe it: properties that do not change while it runs, and the CPU time
 * that was used. Thread: any. */
#ifndef MOTLEY_AGENT_MACHINE_H
#define MOTLEY_AGENT_MACHINE_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

uint32_t
cpu_count(void); /* CPUs that this process, or the Slurm allocation that it is in, may use; at least 1 */
/* Returns the memory of the machine, or the limit of our control group or Slurm allocation if that is less.
 */
uint64_t memory_total_bytes(void);

/* Returns "amx", "avx512-bf16", "avx512", "avx2", "sse42" or "generic": the best that this CPU has. */
const char *isa_native(void);
/* Returns the rank of an instruction set; one with a higher rank includes the lower ones. -1: unknown name.
 */
int isa_rank(const char *isa);

/* Writes to out what /etc/machine-id contains, else the kernel's boot id: two agents with the same id run on
 * the same machine. Returns out. */
char *machine_id(char out[64]);

/* Writes the processor's name; "" when it is unknown. Returns out. */
char *machine_cpu(char out[256]);

/* Returns the seconds for which the machine's cores have computed since it started; 0 when that is unknown.
 */
double machine_cpu_seconds(void);
/* Returns the seconds for which a process and the children it has waited for have computed; 0: there is none.
 */
double process_cpu_seconds(pid_t pid);

/* Returns the display controllers and accelerators of /sys/bus/pci, usable or not: a new array of {pci,
 * vendor, device, driver, memory_bytes, usable}. NULL when memory is short. */
json_t *machine_gpus(void);

#endif
