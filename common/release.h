/* Which releases of Motley's programs work with one another.
 *
 * Beside its number each release has the number of its protocol: all that programs on different machines, or
 * of different releases on one, say to each other over HTTP and Redis. A release that changes any of that has
 * the next number, and reads what the one before said: programs whose numbers differ by one work together, so
 * that machines can be upgraded one after the other, in any order. Beyond that each refuses the other by
 * name. The mesh, whose two ends are workers of one run, has a number of its own (mesh/wire.h), and so has
 * the database's schema (store/store.h). */
#ifndef MOTLEY_COMMON_RELEASE_H
#define MOTLEY_COMMON_RELEASE_H

#include <stdbool.h>

#include "common/err.h"

/* The number of this release, such as "0.1.0". */
extern const char motley_version[];

/* This release's protocol. */
unsigned release_protocol(void);

/* "RELEASE/PROTOCOL" of this program, which every request to the api and every answer of it has in this
 * header. */
#define RELEASE_HEADER "X-Motley-Release"
enum { RELEASE_TEXT_BYTES = 64 };
char *release_text(char out[RELEASE_TEXT_BYTES]);

/* Whether this program works with 'who', of that release and protocol; 0 is a release from before there were
 * numbers. ERR_RELEASE names both. */
int release_check(const char *who, const char *release, unsigned protocol, struct err *err);
/* The same of a header's value; any other text than RELEASE/PROTOCOL fits. */
int release_check_text(const char *who, const char *text, struct err *err);

#endif
