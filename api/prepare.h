/* The preparation of a cluster before its first start: `motley-api --config FILE --migrate
 * [--admin-token-file PATH]`.
 */
#ifndef MOTLEY_API_PREPARE_H
#define MOTLEY_API_PREPARE_H

#include "api/request/config.h"

/* Brings the schema to this program's version, after waiting at most start_seconds for PostgreSQL. If
 * 'admin_token_file' is not NULL, the token on its first line becomes a token of the user "admin" with all
 * scopes of people. A second call changes nothing. Blocking. */
int api_prepare(const struct api_config *config, const char *admin_token_file, struct err *err);

/* Answers what bringing the schema up to date would do (store_pending), new; {"why": text} where that cannot
 * be known or done. NULL without memory. Changes nothing; blocking. */
json_t *api_pending(const struct api_config *config);

#endif
