/* The program executor: runs the instructions of one rank in the order that docs/PROGRAM.md defines.
 *
 * The instructions of a queue run in order; different queues run at the same time. An instruction starts when
 * its queue is free and every instruction in its `after` list is complete. exec_run's own thread runs the
 * instructions of the compute queue, one at a time. On a device that computes asynchronously the
 * executor submits one further instruction behind the one under way, also when that instruction's
 * dependencies complete late, so that the device never waits for the host. Instructions of all other queues
 * are begun on that thread, or on the thread that completed their last dependency, and are completed later
 * with exec_done. `struct exec_ops` (see ops.h) decides what an instruction does: the executor looks at no
 * opcode, slot, placement or micro-batch.
 *
 * Threads: one thread at a time calls exec_run; any thread may call exec_done, exec_post and exec_fail.
 */
#ifndef MOTLEY_WORKER_PROGRAM_EXEC_H
#define MOTLEY_WORKER_PROGRAM_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "program/program.h"

struct exec;

/* The operations that the executor drives. It calls them without holding its lock. */
struct exec_ops {
    /* Runs an instruction of the compute queue. Returns 0 when it is complete; 1 when it was
     * submitted to a device that works asynchronously, so that the next instruction of its queue may be
     * submitted before compute_wait; -1 to end the run. */
    int (*compute)(void *host, uint32_t number, const struct instr *instr, struct err *err);
    /* compute_wait waits for a submitted instruction; at most one further instruction is submitted before
     * that call. compute_done tells whether the instruction is complete. Both may be NULL where compute never
     * returns 1. */
    int (*compute_wait)(void *host, uint32_t number, struct err *err);
    bool (*compute_done)(void *host, uint32_t number);
    /* Begins an instruction of another queue. exec_done(number) follows when it is complete, possibly before
     * `begin` returns. -1 ends the run. */
    int (*begin)(void *host, uint32_t number, const struct instr *instr, struct err *err);
    /* Called on exec_run's thread with what the run waits for, once nothing was complete for a few seconds,
     * and with NULL when the run goes on. May be NULL. */
    void (*waits)(void *host, const char *what);
    uint64_t quiet_ns; /* how long nothing is complete before that; 0 means 5 s */
};

/* When one instruction became ready (its queue free and its `after` list done), began and was complete:
 * clock_mono_ns. */
struct exec_time {
    uint64_t ready_ns, begin_ns, end_ns;
};

/* How the thread of exec_run spent the run: computing or waiting for other ranks. send_ns overlaps with both;
 * a moment with several sends under way counts once. */
struct exec_totals {
    uint64_t compute_ns, wait_ns, send_ns, wall_ns;
};

/* Prepares a program of `plan`, which is borrowed until exec_destroy. `host` is passed to the ops. ERR_NOMEM;
 * ERR_INVALID for an `after` number or a queue that is out of range. */
int exec_create(const struct plan *plan, const struct program *program, const struct exec_ops *ops,
                void *host, struct exec **out, struct err *err);
void exec_destroy(struct exec *exec);

/* Runs the program once. When no instruction completes for stall_ns, the run ends with ERR_TIMEOUT and names
 * an instruction that waits. Returns 0 when every instruction is complete, -1 with the first error, which
 * every later run returns too. After an error transfers may still be under way: the caller ends the
 * transport's threads (mesh_destroy) before it frees the executor and the memory that they use. */
int exec_run(struct exec *exec, uint64_t stall_ns, struct err *err);

/* Tells that instruction `number` is complete or, when `failure` (copied) is not NULL, has failed. */
void exec_done(struct exec *exec, uint32_t number, const struct err *failure);

/* Has exec_run's thread call fn(arg) between two instructions. The item is embedded in an object of the
 * caller and must live until fn was called or the executor is destroyed. */
struct exec_item {
    int (*fn)(void *arg, struct err *err);
    void *arg;
    struct exec_item *next;
};
void exec_post(struct exec *exec, struct exec_item *item);

/* Ends the run under way, or the next one as it begins, for example on a kill or when the agent is lost. */
void exec_fail(struct exec *exec, const struct err *failure);

/* Times of the last run, one entry for each instruction; borrowed until the next run. */
const struct exec_time *exec_times(const struct exec *exec);
struct exec_totals exec_totals(const struct exec *exec);

#endif
