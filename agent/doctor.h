/* What is wrong with this machine, each fault a sentence that says what to do. One list of checks, for two
 * readers: the agent tells the scheduler what the quick ones find, when it joins and whenever that changes
 * (`faults` of node_hello, `motley doctor NODE`); `motley-agent --doctor` and `motley doctor` do all of them.
 * What a device lacks in order to run a worker is tried by a worker (proof.h), and how far other nodes are is
 * measured (links.h): neither is repeated here. */
#ifndef MOTLEY_AGENT_DOCTOR_H
#define MOTLEY_AGENT_DOCTOR_H

#include "agent/config.h"
#include "agent/enrol.h"

struct doctor {
    const char *home;
    const struct agent_config *config;
    const struct agent_identity *identity; /* NULL: this machine has joined no cluster */
};

/* Returns the sentences of the checks that wait for nothing, new; with 'all', those that ask the api and
 * Redis as well, which takes at most 10 s. NULL only when memory is short. Any thread. */
json_t *doctor_look(const struct doctor *doctor, bool all);

/* Adds to a hello how large the disk of an agent's home is, and how much of it is free, which *told becomes.
 */
void doctor_disk_say(const char *home, json_t *hello, uint64_t *told);
/* Whether a hundredth of that disk has become free, or is taken, since `told`. */
bool doctor_disk_changed(const char *home, uint64_t told);

/* Where a machine's agent is; the members are those of struct agent_options (agent/agent.h). */
struct doctor_place {
    const char *home, *api, *worker;
    const json_t *config;
};

/* Reads the configuration and the home as agent_run does, asks the drivers for their cards, and does all
 * checks. Changes nothing, and may run beside an agent, which then tells of its cards itself. Returns the
 * sentences, new; NULL with an error. */
json_t *doctor_machine(const struct doctor_place *place, struct err *err);

#endif
