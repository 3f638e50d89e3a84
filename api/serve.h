/* Runs motley-api from its configuration until SIGTERM. */
#ifndef MOTLEY_API_SERVE_H
#define MOTLEY_API_SERVE_H

#include "api/request/config.h"

/* Serves until SIGTERM or SIGINT, then answers the requests under way (for at most 5 s) and returns 0. `path`
 * is the configuration file, which is read again at SIGHUP (api_config_reload). Returns -1 when the server
 * cannot start: the database did not answer within start_seconds, or a port, folder or file cannot be used.
 * Logs its start and its end. */
int api_serve(struct api_config *config, const char *path, struct err *err);

#endif
