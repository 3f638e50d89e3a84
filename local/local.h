/* One machine running all of Motley: a private PostgreSQL and Redis, api, schedulers and agents under one
 * folder, kept alive by a supervisor process (motley-supervisor) until local_down().
 *
 * Works as root (PostgreSQL then runs as the user postgres, else nobody) and as a plain user. Everything lies
 * under the home folder; its layout stands in local/README.md. Blocking calls for the client program; one
 * thread.
 */
#ifndef MOTLEY_LOCAL_LOCAL_H
#define MOTLEY_LOCAL_LOCAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { LOCAL_HOME_BYTES = 4096 }; /* PATH_MAX */

/* The home folder: 'given' if not NULL, else MOTLEY_HOME, else .motley in the user's home folder (HOME, or
 * the system's list of users where HOME is unset); made absolute. ERR_TOO_BIG when it is longer than the
 * system allows. */
int local_home(const char *given, char out[LOCAL_HOME_BYTES], struct err *err);

/* Told while local_up works: one short sentence for a person ("PostgreSQL is up"). */
typedef void local_progress_fn(void *arg, const char *what);

struct local_up_options {
    const char *home;        /* absolute, as local_home gives it */
    const char *config_path; /* YAML or JSON of docs/INTERFACES.md; NULL: the home's last one, else one agent
                                with all of this machine */
    local_progress_fn *progress; /* or NULL */
    void *progress_arg;
    unsigned timeout_s; /* until all is ready; 0: 60 */
};

/* Start what is not running and wait until all of it is ready: api answers, one scheduler leads, every agent
 * of the configuration is enrolled and alive. Writes HOME/client.json (mode 0600: address, token, ca).
 * Running already with the same configuration is success. On error everything is stopped again and the text
 * names the process and what its log says. ERR_INVALID (configuration), ERR_CONFLICT (running with another
 * configuration), ERR_NOT_FOUND (PostgreSQL or Redis not installed), ERR_IO (disk), ERR_TIMEOUT. */
int local_up(const struct local_up_options *options, struct err *err);

/* True when a supervisor of this home runs. */
bool local_is_up(const char *home);

/* Stop everything of this home, workers included, and wait until it is gone. Not running is success; what a
 * killed supervisor left behind is stopped too. */
int local_down(const char *home, struct err *err);

/* {"home", "up": bool, "processes": [{"role", "name", "pid", "address", "leader", "restarts"}]}: what runs
 * now. role is supervisor, postgres, redis, api, scheduler, agent or worker; address is a text or null;
 * leader is true or false for schedulers and null for others. Returns new, or NULL. */
json_t *local_status(const char *home, struct err *err);

/* ERR_IO, with what is free, when the disk of a home that is up is nearly full: then not even the database
 * can note why a job does not go on. A home that is not there is no error. */
int local_disk(const char *home, struct err *err);

/* The supervisor's life: motley-supervisor's main calls it. Returns when it was told to stop and all is
 * stopped. */
int local_supervise(const char *home, struct err *err);

#endif
