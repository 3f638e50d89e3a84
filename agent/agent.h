/* The node daemon: one per machine (or per home). Joins the cluster once, tells what the machine has, starts
 * and watches one worker per device, carries their events to the scheduler.
 *
 * SIGTERM and SIGINT end the workers (asked first, killed after grace_ms) and then the agent. SIGUSR2 ends
 * the agent alone: its workers go on and the next agent of the same home adopts them.
 */
#ifndef MOTLEY_AGENT_AGENT_H
#define MOTLEY_AGENT_AGENT_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct agent_options {
    const char *api;       /* URL; NULL: as enrolled */
    const char *join;      /* token; NULL: must be enrolled */
    const char *home;      /* folder */
    const json_t *config;  /* agent/config.h; or NULL */
    const char *worker;    /* path of motley-worker; NULL: beside this program */
    uint32_t join_wait_ms; /* for an api that is not there yet; 0: 60000 */
    uint32_t grace_ms;     /* 0: 5000 */
};

/* Run until a signal ends it. Blocks; one call a process (it takes the process's signals). Returns 0 after an
 * orderly end. ERR_BUSY: another agent has this home; ERR_INVALID, ERR_PEER, ERR_AUTH, … */
int agent_run(const struct agent_options *options, struct err *err);

#endif
