/* What the supervisor wrote down about its services, read back: HOME/run/state.json. */
#ifndef MOTLEY_LOCAL_STATE_H
#define MOTLEY_LOCAL_STATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

/* The document, new, or NULL when there is none. */
json_t *state_load(const char *home);

/* The supervisor's pid when it lives (its start time agrees), else 0. */
pid_t state_supervisor(const json_t *state, uint64_t *start);

/* The last part of a log file as one line, for error messages: at most size - 1 bytes. Returns out. */
char *log_tail(const char *home, const char *name, char *out, size_t size);

#endif
