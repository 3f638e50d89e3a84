/* `motley slurm`: what is decided about allocations of a Slurm, apart from how Slurm and the server are
 * asked.
 *
 * An allocation is a batch job of Slurm's that runs an agent. Its name, NAME-SLOT, is the name of the agent's
 * node. Slurm's own queue says which allocations there are; beside it a few facts are kept from one look to
 * the next, in a file (struct slurm_memory). Pure.
 */
#ifndef MOTLEY_CLI_SLURM_H
#define MOTLEY_CLI_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/doc.h"
#include "common/err.h"

#define SLURM_COMMENT "motley slurm" /* the comment of the batch jobs that `motley slurm` submits */
enum {
    SLURM_SLOTS_MAX = 256,
    SLURM_ALLOCATIONS_MAX = 1024,
    SLURM_SETTLE_S = 60, /* a node that has been idle for so long is not what the waiting jobs need */
    SLURM_PAUSE_S = 60,  /* after an allocation whose agent did not join; doubles up to SLURM_PAUSE_MAX_S */
    SLURM_PAUSE_MAX_S = 1800,
    SLURM_PASSED_S = 3600,
};

enum slurm_state { SLURM_PENDING, SLURM_RUNNING, SLURM_OTHER };

struct slurm_allocation {
    int64_t id;    /* of Slurm's */
    uint32_t slot; /* from 1 */
    enum slurm_state state;
    bool ours; /* has SLURM_COMMENT; others only take the name */
};

/* What the command prints for squeue: id, state, name and comment of each of one's batch jobs. */
#define SLURM_FORMAT "%i|%T|%j|%k"
/* Reads what squeue printed with that format: those named NAME-SLOT; other lines are passed over. Returns how
 * many it wrote to out[SLURM_ALLOCATIONS_MAX]. ERR_TOO_BIG for more. */
int slurm_queue_read(const char *text, const char *name, struct slurm_allocation *out, size_t *count,
                     struct err *err);
/* Reads what `sbatch --parsable` printed: "17" or "17;cluster". Returns 0, or -1 with ERR_PEER. */
int slurm_submitted_read(const char *text, int64_t *id, struct err *err);
/* Whether a queued job that waits for this (the codes of docs/SHARING.md) could use another machine. */
bool slurm_wait_counts(const char *code);

/* What is kept of an allocation of ours. */
struct slurm_kept {
    uint32_t slot;
    int64_t id;
    bool joined;     /* its node has been alive */
    bool given_back; /* its agent has been told to end: a second signal would kill the workers */
    int64_t since_s; /* since when nothing has run there: wall clock */
};

struct slurm_memory {
    struct slurm_kept *kept;
    uint32_t kept_count;
    uint32_t failures;    /* allocations in a row that ended before their agents joined */
    int64_t not_before_s; /* wall clock: none is asked for until then */
    /* Jobs up to this one waited when idle nodes were given back: these nodes were not what they need. They
     * do not count until then. */
    int64_t passed_to, passed_until_s;
};
extern const struct doc slurm_memory_doc;

enum slurm_use { SLURM_AWAY, SLURM_IDLE, SLURM_BUSY, SLURM_LEAVING };

struct slurm_situation {
    const struct slurm_allocation *allocations;
    size_t allocation_count;
    const enum slurm_use *nodes;        /* [SLURM_SLOTS_MAX + 1], by slot */
    const int64_t *waiting;             /* ids of the jobs that wait and that slurm_wait_counts counts */
    size_t waiting_count, queued_count; /* queued_count: of all jobs that wait, whatever for */
    int64_t now_s, idle_s;
    uint32_t limit; /* of allocations, at most SLURM_SLOTS_MAX */
};

enum slurm_deed {
    SLURM_ASK,       /* submit an allocation for this slot */
    SLURM_GIVE_BACK, /* tell its agent to end */
    SLURM_CANCEL,    /* cancel an allocation that has not begun */
    SLURM_FAILED     /* nothing to do: the allocation ended before its agent joined */
};
struct slurm_action {
    enum slurm_deed deed;
    uint32_t slot;
    int64_t id; /* 0 of SLURM_ASK */
    char why[160];
};
enum { SLURM_ACTIONS_MAX = 2 * SLURM_ALLOCATIONS_MAX + SLURM_SLOTS_MAX };

/* Decides what to do now, and brings `memory` up to date but for what is asked for: slurm_keep() adds that.
 * Writes to actions[SLURM_ACTIONS_MAX] and *count. ERR_NOMEM. */
int slurm_decide(const struct slurm_situation *now, struct slurm_memory *memory, struct slurm_action *actions,
                 size_t *count, struct err *err);
int slurm_keep(struct slurm_memory *memory, uint32_t slot, int64_t id, int64_t now_s, struct err *err);
/* Takes back what slurm_decide() remembered of an action that could not be done. */
void slurm_not_done(struct slurm_memory *memory, const struct slurm_action *action);
/* Counts a failure and pauses: none is asked for until memory->not_before_s. */
void slurm_pause(struct slurm_memory *memory, int64_t now_s);

#endif
