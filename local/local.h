/* Runs all of Motley on one machine: a private PostgreSQL and Redis, API, schedulers and agents under one
 * folder, kept alive by a supervisor process (motley-supervisor) until local_down().
 *
 * It works as root (PostgreSQL then runs as the user postgres) and as another user. Everything
 * is under the home folder; local/README.md describes its layout. Blocking calls for the client program; one
 * thread.
 */
#ifndef MOTLEY_LOCAL_LOCAL_H
#define MOTLEY_LOCAL_LOCAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { LOCAL_HOME_BYTES = 4096 }; /* PATH_MAX */

/* The home folder, absolute: 'given' if not NULL, else MOTLEY_HOME, else .motley in the user's home folder
 * (HOME, or the system's list of users if HOME is unset). ERR_TOO_BIG when it is longer than the system
 * allows. */
int local_home(const char *given, char out[LOCAL_HOME_BYTES], struct err *err);

/* Called while local_up works, with one short sentence for a person ("PostgreSQL is up"). */
typedef void local_progress_fn(void *arg, const char *what);

struct local_up_options {
    const char *home; /* absolute, from local_home */
    /* YAML or JSON of docs/INTERFACES.md; NULL: the home's last configuration, else one agent with all of
     * this machine */
    const char *config_path;
    local_progress_fn *progress; /* or NULL */
    void *progress_arg;
    unsigned timeout_s; /* time limit until everything is ready; 0: 60 */
};

/* Starts what is not running and waits until everything is ready: the API answers, one scheduler leads, and
 * every agent of the configuration is enrolled and alive. Writes HOME/client.json (mode 0600: address, token,
 * ca). It succeeds at once when the same configuration is already running. On error everything is stopped
 * again, and the text names the process and the end of its log. ERR_INVALID (configuration), ERR_CONFLICT
 * (running with another configuration; client.json of another server; a copy of another home), ERR_NOT_FOUND
 * (PostgreSQL or Redis is not installed), ERR_IO (disk), ERR_TIMEOUT. */
int local_up(const struct local_up_options *options, struct err *err);

/* Whether client.json of the home names a server that was not started there. */
bool local_is_elsewhere(const char *home);

/* True when a supervisor of this home runs. */
bool local_is_up(const char *home);

/* Stops everything of this home, including workers and what a killed supervisor left behind, and waits until
 * it is gone. It succeeds when nothing runs. */
int local_down(const char *home, struct err *err);

/* What runs now: {"home", "up": bool, "processes": [{"role", "name", "pid", "address", "leader",
 * "restarts"}]}. role is supervisor, postgres, redis, api, signer, scheduler, agent or worker; address is a
 * text or null; leader is true or false for schedulers and null for others. Returns new, or NULL. */
json_t *local_status(const char *home, struct err *err);

/* Fails with ERR_IO and the free bytes when the disk of a home that is up is nearly full: then not even the
 * database can record why a job does not go on. A home that does not exist is no error. */
int local_disk(const char *home, struct err *err);

/* What is wrong with this home's server, an array of sentences that say what to do; new, or NULL. It asks
 * neither the api nor a device. */
json_t *local_doctor(const char *home, struct err *err);

/* The main function of motley-supervisor. Returns when it was told to stop and everything is stopped. */
int local_supervise(const char *home, struct err *err);

#endif
