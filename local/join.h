/* How the agents of a home become nodes of its cluster: each gets a join token in run/join/NAME, with which
 * the supervisor starts it. The supervisor runs `motley-supervisor HOME --join` while an agent waits for one,
 * so that a start is finished whatever became of the `motley up` that began it. */
#ifndef MOTLEY_LOCAL_JOIN_H
#define MOTLEY_LOCAL_JOIN_H

#include <stdbool.h>

#include "common/err.h"
#include "common/http.h"
#include "local/home.h"

/* What the clients of a home need to ask its api. */
struct home_access {
    char url[300];
    char ca[HOME_PATH_BYTES]; /* "" without TLS */
    char token[HOME_SECRET_BYTES];
};

/* Reads client.json and the administrator's token of a home. */
int home_access_read(const char *home, struct home_access *access, struct err *err);

/* Returns new, or NULL. */
struct http *home_http(const struct home_access *access, struct err *err);

/* Whether the api answers at /readyz; else err says why it does not. */
bool api_is_ready(struct http *http, struct err *err);

/* Whether the agent was removed from the cluster. Then it stays out until its folder is removed. */
bool agent_is_removed(const char *home, const char *name);

/* Whether the agent, which does not run, has neither joined nor been removed and has no token. */
bool agent_needs_token(const char *home, const char *name);

/* Waits until the api is ready and gives each agent that needs one a token. ERR_TIMEOUT after a minute. */
int local_join(const char *home, struct err *err);

#endif
