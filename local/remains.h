/* Processes of a home, found by their command lines in /proc: workers, and what a killed supervisor left
 * behind. */
#ifndef MOTLEY_LOCAL_REMAINS_H
#define MOTLEY_LOCAL_REMAINS_H

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

enum { REMAINS_COMMAND_BYTES = 4096 };

struct remains_process {
    pid_t pid;
    uint64_t start;                      /* process_start_time() */
    char program[64];                    /* base name of argv[0] */
    char command[REMAINS_COMMAND_BYTES]; /* arguments, each ended by a NUL, and one further NUL */
};

typedef void remains_fn(void *arg, const struct remains_process *process);

/* Calls 'found' for each process whose program is 'program' ("": motley-*, postgres or redis-server) and one
 * of whose arguments names 'home' or a path below it; never for the calling process.
 */
void remains_each(const char *home, const char *program, remains_fn *found, void *arg);

/* Stops these processes: SIGTERM, then SIGKILL after 3 s. ERR_TIMEOUT names one that is still alive. */
int remains_stop(const char *home, const char *program, struct err *err);

#endif
