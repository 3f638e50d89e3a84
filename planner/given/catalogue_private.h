/* The catalogue's own two tables (catalogue_entries.c); all others ask by name (cluster_private.h). */
#ifndef MOTLEY_PLANNER_GIVEN_CATALOGUE_PRIVATE_H
#define MOTLEY_PLANNER_GIVEN_CATALOGUE_PRIVATE_H

#include "planner/given/cluster_private.h"

/* All entries, older before newer within a maker. */
const struct catalogue_entry *catalogue_entries(size_t *count);
/* The entry's name that drivers or people mean by this one: lower-case letters and digits without makers and
 * makes. NULL: none. */
const char *catalogue_alias(const char *plain);

#endif
