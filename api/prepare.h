/* What has to be done once before a cluster's first start: `motley-api --config FILE --migrate
 * [--admin-token-file PATH]`.
 */
#ifndef MOTLEY_API_PREPARE_H
#define MOTLEY_API_PREPARE_H

#include "api/request/config.h"

/* Bring the schema to this program's version (waiting start_seconds for PostgreSQL), and, if
 * 'admin_token_file' is not NULL, let the token in that file (its first line) be one of the user "admin",
 * with every scope people can have. Doing it again changes nothing. Blocking. */
int api_prepare(const struct api_config *config, const char *admin_token_file, struct err *err);

#endif
