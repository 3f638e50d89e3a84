/* The home folder: paths, secrets, the cluster's CA and certificates. local/README.md describes its layout.
 */
#ifndef MOTLEY_LOCAL_HOME_H
#define MOTLEY_LOCAL_HOME_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum {
    HOME_PATH_BYTES = 1024,
    HOME_SECRET_BYTES = 65, /* 64 hex digits and a NUL */
    HOME_PLACE_BYTES = 96,  /* bytes of a home's usable path, with its NUL */
    HOME_SOCKET_BYTES = 104 /* bytes of a unix socket's path */
};

/* Finds the path by which all processes name the home. It is the home itself if its path has at most 80 bytes
 * of letters, digits and "/._-+@,~". Any other home is reached through a link, /tmp/motley-UID/DIGEST, so
 * that socket paths fit and the files of PostgreSQL and Redis need no quoting. 'home' is absolute. With
 * 'make' the home must exist and the link is made; otherwise a missing home or link is ERR_NOT_FOUND. */
int home_place(const char *home, bool make, char place[HOME_PLACE_BYTES], struct err *err);

/* Makes the missing folders. Other users may pass through the home (mode 0711) only for root, because
 * PostgreSQL then runs as another user. */
int home_make(const char *home, struct err *err);

/* Reads a secret of the home, and makes it if it is missing: run/admin.token, run/redis.password. */
int home_secret(const char *home, const char *name, char secret[HOME_SECRET_BYTES], struct err *err);

/* Makes the CA (ca/ca.crt, ca/ca.key) if it is missing, and the server certificate for 'host' (ca/server.crt,
 * ca/server.key) if it is missing or the host has changed. */
int home_certificates(const char *home, const char *host, struct err *err);

/* Chooses and records a port: 'wanted' if it is not 0 (ERR_CONFLICT when it is taken), else the port recorded
 * in run/NAME.port if it is free at 'host', else a free port outside the range of outgoing connections. */
int home_port(const char *home, const char *name, const char *host, uint16_t wanted, uint16_t *port,
              struct err *err);

/* Raises the limit of open files to 8,192 if this process may, and refuses limits (ulimit) under which
 * PostgreSQL or our own processes cannot work: ERR_IO with the limit, its value and what is needed. */
int home_limits(struct err *err);

/* Fails on a disk with less than FILE_SPACE_MIN free: ERR_IO with the free and the required bytes. */
int home_space(const char *home, struct err *err);

#endif
