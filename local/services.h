/* The services of this machine as data: every daemon's configuration file, and the list that the supervisor
 * starts. */
#ifndef MOTLEY_LOCAL_SERVICES_H
#define MOTLEY_LOCAL_SERVICES_H

#include <jansson.h>

#include "common/err.h"
#include "local/config.h"
#include "local/postgres.h"

/* Writes every configuration file below HOME/run and HOME/agents, and returns the list of services, new:
 * [{"role", "name", "argv": […], "uid", "gid", "address", "phase", "once", "stop_signal", "dir",
 *   "stop_ms", "join_file", "enrolled_file", "leader_file"}].
 * Phases start in order: 0 (postgres, redis, signer), 1 (the API's --migrate, once), 2 (everything else).
 * 'url' becomes the address that clients use. ERR_NOT_FOUND when redis-server or one of our own programs is
 * missing. */
json_t *services_make(const char *home, const struct local_config *config,
                      const struct postgres_place *postgres, char url[300], struct err *err);

/* Returns the longest time that one of the services may take to stop (0: none says so), from the list that
 * the supervisor of this home started. */
uint32_t services_stop_ms(const char *home);

#endif
