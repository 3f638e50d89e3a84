/* The file that tells people on this machine which process leads. While this process leads, the file holds
 * "EPOCH PID\n" (docs/CONTRACTS.md). */
#ifndef MOTLEY_SCHEDULER_LEADER_NOTE_H
#define MOTLEY_SCHEDULER_LEADER_NOTE_H

#include <stdint.h>
#include "common/err.h"

/* Call leader_note_write when leadership was gained, and leader_note_remove when it was lost and at the end
 * of the program. With a NULL 'path' both do nothing. */
int leader_note_write(const char *path, int64_t epoch, struct err *err);
void leader_note_remove(const char *path);

#endif
