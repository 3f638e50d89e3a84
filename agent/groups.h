/* Control groups for workers: one a device, with a limit of memory, so that a worker that grows ends itself
 * and neither the agent nor its neighbours. Limits of address space would break GPU drivers and JITs.
 *
 * Only where a cgroup v2 is the agent's own to divide: it is alone in its group (or with workers that an
 * earlier agent left there, each in its own), may write there, and the group has the memory controller. That
 * is what systemd's Delegate=yes gives (deploy/motley-agent.service). The agent then moves into the leaf
 * "agent", since a group with limits below it holds no process itself. Thread: one.
 */
#ifndef MOTLEY_AGENT_GROUPS_H
#define MOTLEY_AGENT_GROUPS_H

#include <stdint.h>

#include "common/err.h"

struct groups;

/* Of the group that this process is in. NULL: there is no such group, and why (ERR_UNSUPPORTED), to be said
 * once. */
struct groups *groups_open(struct err *err);
/* The same of the group at this folder. */
struct groups *groups_open_at(const char *folder, struct err *err);
/* The groups stay for the workers that are in them. */
void groups_close(struct groups *groups);

/* Make or find device 'index''s group, limit it to what a worker with this limit of its own may need, and
 * write the path that a process joins it by to procs[4096]: "" without groups. ERR_IO. */
int groups_worker(struct groups *groups, uint32_t index, uint64_t device_bytes, char procs[4096],
                  struct err *err);
/* That many: the device's limit, a quarter, and 1 GiB for the process itself, libraries and the page cache.
 */
uint64_t groups_worker_bytes(uint64_t device_bytes);

#endif
