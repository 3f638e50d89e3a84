/* Control groups for workers: one for each device, with a memory limit, so that a worker that grows too large
 * is killed instead of the agent or its neighbours. Limits of the address space would break GPU drivers and
 * JITs.
 *
 * The agent uses them only where it may divide a cgroup v2: it is the only process in its group (or the
 * others are workers that an earlier agent left, each in a group of its own), it may write there, and the
 * group has the memory controller. systemd's Delegate=yes provides this (deploy/motley-agent.service). The
 * agent then moves into the leaf "agent", because a group with limits below it must hold no process itself.
 * Thread: one.
 */
#ifndef MOTLEY_AGENT_GROUPS_H
#define MOTLEY_AGENT_GROUPS_H

#include <stdint.h>

#include "common/err.h"

struct groups;

/* Divides the group that this process is in. NULL with ERR_UNSUPPORTED and the reason when that is not
 * possible; the caller logs it once. */
struct groups *groups_open(struct err *err);
/* As groups_open, for the group at this folder. */
struct groups *groups_open_at(const char *folder, struct err *err);
/* Frees the object. The groups stay for the workers that are in them. */
void groups_close(struct groups *groups);

/* Makes or finds the group of device 'index', limits it to what a worker with this memory limit may need, and
 * writes the path that a process joins it by to procs[4096]; "" without groups. ERR_IO. */
int groups_worker(struct groups *groups, uint32_t index, uint64_t device_bytes, char procs[4096],
                  struct err *err);

#endif
