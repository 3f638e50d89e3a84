/* The program executor: runs the instructions of one rank as docs/PROGRAM.md says and knows nothing else.
 *
 * Queues run their instructions in order, different queues at once; an instruction starts when its queue is
 * free and all of its `after` are done. Instructions on the compute and copy queues are run by exec_run's own
 * thread, one at a time (on a device that computes by itself one more is queued meanwhile, also when what it
 * needs comes while the first is under way, so that the device never waits for the host); all others are
 * begun (from that thread, or from whichever thread completed what they waited for) and completed later with
 * exec_done. What an instruction does is the business of `struct exec_ops` (ops.h): no opcode, slot,
 * placement or micro-batch is looked at here.
 *
 * Threads: exec_run by one thread at a time; exec_done, exec_post and exec_fail from any thread.
 */
#ifndef MOTLEY_WORKER_EXEC_H
#define MOTLEY_WORKER_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "program/program.h"

struct exec;

/* What the executor drives. Both are called without any lock of the executor held. */
struct exec_ops {
    /* Carry out an instruction of the compute or copy queue. Returns 0: it is complete; 1: it is queued on a
     * device that works on, and the next of its queue may be queued behind it before compute_wait; -1 ends
     * the run. */
    int (*compute)(void *host, uint32_t number, const struct instr *instr, struct err *err);
    /* Wait for one that is queued; no other is between it and this call but the next. Likewise: is it done?
     * Both may be NULL where compute never returns 1. */
    int (*compute_wait)(void *host, uint32_t number, struct err *err);
    bool (*compute_done)(void *host, uint32_t number);
    /* Begin any other; exec_done(number) when it is complete, possibly before this returns. -1 ends the run.
     */
    int (*begin)(void *host, uint32_t number, const struct instr *instr, struct err *err);
};

/* When one instruction was ready (queue free and `after` done), begun and complete: clock_mono_ns. */
struct exec_time {
    uint64_t ready_ns, begin_ns, end_ns;
};

/* What a run's own thread did: busy computing, or waiting for others. Sends and receives overlap with both;
 * where several are under way at once that time counts once. */
struct exec_totals {
    uint64_t compute_ns, wait_ns, send_ns, wall_ns;
};

/* Prepare a program of `plan` (borrowed for the executor's life). ERR_NOMEM; ERR_INVALID for an `after` or
 * queue out of range. `host` is passed to the ops. */
int exec_create(const struct plan *plan, const struct program *program, const struct exec_ops *ops,
                void *host, struct exec **out, struct err *err);
void exec_destroy(struct exec *exec);

/* Run the program once. stall_ns: with nothing complete for so long the run ends with ERR_TIMEOUT naming what
 * waits. Returns 0 when every instruction is complete; -1 with the first error. After an error, operations
 * begun may still be under way: the caller closes the transport (so that they complete) before it frees what
 * they use, and calls exec_drain. */
int exec_run(struct exec *exec, uint64_t stall_ns, struct err *err);

/* After a failed run: wait until all that was begun has been completed with exec_done. -1 with ERR_TIMEOUT.
 */
int exec_drain(struct exec *exec, uint64_t timeout_ns, struct err *err);

/* Instruction `number` is complete; or failed, if failure is given (copied). */
void exec_done(struct exec *exec, uint32_t number, const struct err *failure);

/* Have exec_run's thread call fn(arg) between two instructions. The item is embedded in the caller's own
 * object and must live until it was called or exec_drain returned. */
struct exec_item {
    int (*fn)(void *arg, struct err *err);
    void *arg;
    struct exec_item *next;
};
void exec_post(struct exec *exec, struct exec_item *item);

/* End the run from outside (a kill, a lost agent). */
void exec_fail(struct exec *exec, const struct err *failure);

/* Times of the last run, one entry an instruction; borrowed until the next run. */
const struct exec_time *exec_times(const struct exec *exec);
struct exec_totals exec_totals(const struct exec *exec);

#endif
