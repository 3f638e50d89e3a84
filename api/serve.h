/* The life of motley-api: from a configuration to SIGTERM. */
#ifndef MOTLEY_API_SERVE_H
#define MOTLEY_API_SERVE_H

#include "api/request/config.h"

/* Serve until SIGTERM or SIGINT, then answer what is under way (at most 5 s) and return 0. -1: it could not
 * begin (the database did not answer within start_seconds, a port or folder or file that cannot be used).
 * Logs its start and its end. */
int api_serve(const struct api_config *config, struct err *err);

#endif
