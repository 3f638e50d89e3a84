/* The statements that put a database which went back to an earlier state into use, in this order and in one
 * transaction (restore.c). The first answers no row when the clock of the database's machine is behind. */
#ifndef MOTLEY_STORE_RESTORE_H
#define MOTLEY_STORE_RESTORE_H

#include "common/pg.h"

extern const struct pg_statement store_restore_renew;     /* a new incarnation */
extern const struct pg_statement store_restore_sequences; /* the leader's epoch and timeline, too */
extern const struct pg_statement store_restore_runs;      /* $1: why, for people; answers how many jobs */
extern const struct pg_statement store_restore_forget;

#endif
