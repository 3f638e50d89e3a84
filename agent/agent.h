/* The node daemon: one for each machine (or each home). It joins the cluster once, describes the machine,
 * starts and watches one worker for each device, and forwards their events to the scheduler.
 *
 * SIGTERM and SIGINT make the node leave: it says so in a hello, its workers stop after the step under way
 * with a checkpoint, those that have not stopped after `grace` of the configuration are killed, and the agent
 * ends. It does the same by itself in time for `until`. A second signal kills at once. SIGUSR2 ends the agent
 * alone: its workers go on, and the next agent of the same home adopts them.
 */
#ifndef MOTLEY_AGENT_AGENT_H
#define MOTLEY_AGENT_AGENT_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct agent_options {
    const char *api;          /* URL of the api; NULL: the URL that an earlier enrolment stored */
    const char *join;         /* join token; NULL: the home must be enrolled */
    const char *join_missing; /* name of a file with a join token that is not there; NULL: none */
    const char *home;         /* folder with the agent's state */
    const json_t *config;     /* configuration as in agent/config.h; NULL: all defaults */
    const char *worker;       /* path of motley-worker; NULL: in the folder of this program */
    uint32_t join_wait_ms;    /* how long to wait for an api that does not answer yet; 0 means 60000 */
    int64_t until_us;         /* wall clock: when this machine is taken away, where the configuration has no
                                 `until`; 0: never */
};

/* Runs until a signal ends it. Blocks; one call for each process, because it handles the process's signals.
 * Returns 0 after an orderly end. ERR_BUSY: another agent uses this home; ERR_INVALID, ERR_PEER, ERR_AUTH,
 * ERR_DENIED: `until` has passed, or the node was removed; …
 */
int agent_run(const struct agent_options *options, struct err *err);

#endif
