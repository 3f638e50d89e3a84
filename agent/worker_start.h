/* What a worker is given when it is started on a device: environment, message, host memory. */
#ifndef MOTLEY_AGENT_WORKER_START_H
#define MOTLEY_AGENT_WORKER_START_H

#include <jansson.h>

#include "agent/child.h"
#include "agent/config.h"
#include "agent/enrol.h"

/* Reads whom an `assign` or any other message to a worker (`profile`, `prove`) is for. ERR_INVALID. */
int worker_work_read(const json_t *message, struct child_work *work, struct err *err);

struct worker_place {
    const struct agent_device *device;
    const struct agent_config *config;
    const struct agent_identity *identity;
    const char *home;
    uint64_t read_ns; /* when the agent read the message, on the monotonic clock */
};

enum { WORKER_ENV_MAX = 6, WORKER_ENV_SIZE = 800 };

/* Changes to the inherited environment (process_options.env), NULL-terminated. `list` points into `text`. */
struct worker_env {
    char text[WORKER_ENV_MAX][WORKER_ENV_SIZE];
    const char *list[WORKER_ENV_MAX + 1];
};

void worker_env_make(struct worker_env *env, const struct worker_place *place);

/* Returns the message (new) with `local`, the part that only this node knows; NULL without memory. */
json_t *worker_document(const struct worker_place *place, const json_t *message);

/* Returns the host memory that a worker may use. The worker of a card may hold staging buffers and the parts
 * of a checkpoint in host memory, and the optimiser moments that the plan, if the message has one, places
 * there. */
uint64_t worker_host_bytes(const struct agent_device *device, const json_t *message);

/* Returns the class of a loss: `kind` is the device's, `why` how its worker ended. AMD's runtime ends the
 * process (SIGABRT) when a kernel faults, so that is the card's fault and not the worker's. */
enum err_code worker_loss_code(const char *kind, const char *why);

#endif
