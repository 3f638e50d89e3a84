/* The files of migrations/ as they were when this program was built, sorted by name. */
#ifndef MOTLEY_STORE_MIGRATIONS_H
#define MOTLEY_STORE_MIGRATIONS_H

#include <stddef.h>

struct store_migration {
    unsigned number;
    const char *name; /* for example "0001_cluster" */
    const char *sql;  /* NUL-terminated */
    size_t size;      /* bytes */
};

extern const struct store_migration store_migrations[];
extern const size_t store_migration_count;

#endif
