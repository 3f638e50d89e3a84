/* Reads what the supervisor recorded of its services: HOME/run/state.json. */
#ifndef MOTLEY_LOCAL_STATE_H
#define MOTLEY_LOCAL_STATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

/* Returns the content of HOME/run/state.json, new; NULL when there is no such file, or when it is another
 * home's, of which this one is a copy. "home" differs from 'home' when the home was moved while it was up. */
json_t *state_load(const char *home);

/* Returns the supervisor's pid if that process is alive and has the recorded start time, else 0. */
pid_t state_supervisor(const json_t *state, uint64_t *start);

/* Writes the end of a log file as one line, for error messages: at most size - 1 bytes. Returns out. */
char *log_tail(const char *home, const char *name, char *out, size_t size);

#endif
