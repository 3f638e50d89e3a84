/* Opens a session from an assignment, and closes it. */
#ifndef MOTLEY_WORKER_START_START_H
#define MOTLEY_WORKER_START_START_H

#include "worker/session/session.h"

/* What a session gets from its worker; borrowed until session_close. */
struct session_place {
    struct worker_link *link;
    struct stop_request *stop;
    const char *dir; /* folder for files of this run */
    bool confined;   /* the process reads nothing but what the assignment needs (reach.h) */
};
/* Does everything up to the event `worker_ready`. On error the session is closed. Takes the
 * assignment. */
int session_open(const struct session_place *place, struct assignment *assignment, struct session **out,
                 struct err *err);
/* Opens the model's files that the assignment names: sets session->model and session->config. */
int session_model_open(struct session *session, struct err *err);
/* Connects to the peers that the programs name. `peers` is the message; NULL when the run has one rank. */
int session_connect(struct session *session, const json_t *peers, struct err *err);
/* Closes the session. `clean` closes the connections to the peers in an orderly way first. */
void session_close(struct session *session, bool clean);
/* Ends the program under way, from the link's thread. */
void session_kill(struct session *session);

#endif
