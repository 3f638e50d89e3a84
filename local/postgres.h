/* The private PostgreSQL of a home: its programs, its data, and the user it runs as. */
#ifndef MOTLEY_LOCAL_POSTGRES_H
#define MOTLEY_LOCAL_POSTGRES_H

#include <sys/types.h>

#include "common/err.h"

struct postgres_place {
    char bin[256]; /* folder of initdb and postgres */
    /* holds data/ and the socket: HOME/pg, or a folder of /var/lib/motley, named after the home's identity,
     * if the user that PostgreSQL runs as cannot reach the home (a home under /root) */
    char dir[256];
    uid_t uid; /* 0: our own user */
    gid_t gid;
    char conninfo[384]; /* for libpq */
};

/* Finds the programs and the user, and chooses the folder; may make the home's identity (home_secret).
 * ERR_NOT_FOUND when PostgreSQL is not installed. */
int postgres_find(const char *home, struct postgres_place *place, struct err *err);

/* Makes the database cluster of 'home' if there is none (initdb, default durability), completely or not at
 * all; its log goes to 'log'. ERR_CONFLICT for a copy of a home whose cluster is outside it. */
int postgres_init(const struct postgres_place *place, const char *home, const char *identity, const char *log,
                  struct err *err);

/* Removes a postmaster.pid whose process is no PostgreSQL. Call it before each start. */
void postgres_clear_stale(const char *dir);

#endif
