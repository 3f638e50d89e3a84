/* The file that tells people on this machine who leads: "EPOCH PID\n" while this process does
 * (docs/CONTRACTS.md). */
#ifndef MOTLEY_SCHEDULER_LEADER_NOTE_H
#define MOTLEY_SCHEDULER_LEADER_NOTE_H

#include <stdint.h>
#include "common/err.h"

/* Write it when leadership was gained; remove it when it was lost and at the end. 'path' NULL: nothing is
 * done. */
int leader_note_write(const char *path, int64_t epoch, struct err *err);
void leader_note_remove(const char *path);

#endif
