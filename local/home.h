/* The home folder: paths in it, secrets, the cluster's CA and certificates. Layout in local/README.md. */
#ifndef MOTLEY_LOCAL_HOME_H
#define MOTLEY_LOCAL_HOME_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum {
    HOME_PATH_BYTES = 1024,
    HOME_SECRET_BYTES = 65, /* 64 hex digits and a NUL */
    HOME_PLACE_BYTES = 96,  /* of a home's place, with its NUL */
    HOME_SOCKET_BYTES = 104 /* of a unix socket's path */
};

/* The path by which every process of a home names it. It is the home itself where its path is at most 80
 * bytes of letters, digits and "/._-+@,~"; any other home is reached by a link, /tmp/motley-UID/DIGEST, so
 * that sockets fit and no file of PostgreSQL or Redis has to quote it. 'home' is absolute; with 'make' the
 * home exists and the link is made, otherwise a home or a link that is missing is ERR_NOT_FOUND. */
int home_place(const char *home, bool make, char place[HOME_PLACE_BYTES], struct err *err);

/* Make the folders that are missing. Others may pass through the home (mode 0711) only when PostgreSQL has to
 * run as another user, that is, for root. */
int home_make(const char *home, struct err *err);

/* Make missing secrets and read them: run/admin.token, run/redis.password. */
int home_secret(const char *home, const char *name, char secret[HOME_SECRET_BYTES], struct err *err);

/* Make the CA if it is missing (ca/ca.crt, ca/ca.key), and a server certificate for 'host' (ca/server.crt,
 * ca/server.key), again whenever the host changed. */
int home_certificates(const char *home, const char *host, struct err *err);

/* The port noted under run/NAME.port if it can still be listened on at 'host', else 'wanted' (not 0), else a
 * free one that no outgoing connection is given; noted. ERR_CONFLICT when 'wanted' is taken. */
int home_port(const char *home, const char *name, const char *host, uint16_t wanted, uint16_t *port,
              struct err *err);

/* Raise the limit of open files to 8,192 where this process may, and refuse limits (ulimit) under which
 * PostgreSQL or our own processes cannot work: ERR_IO with the limit, its value and what is needed. */
int home_limits(struct err *err);

/* Refuse to start on a nearly full disk: ERR_IO with both numbers. */
int home_space(const char *home, uint64_t bytes_min, struct err *err);

#endif
