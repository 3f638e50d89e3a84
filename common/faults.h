/* A list of sentences for a person: what is wrong, and what to do. */
#ifndef MOTLEY_COMMON_FAULTS_H
#define MOTLEY_COMMON_FAULTS_H

#include <jansson.h>

enum { FAULT_BYTES = 480 }; /* of a sentence; a longer one is cut between two characters */

/* Adds a sentence. What is no UTF-8 in it becomes "?". */
void fault_add(json_t *faults, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
