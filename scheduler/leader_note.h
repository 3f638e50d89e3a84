/* The file that tells people on this machine which process leads. It holds "EPOCH PID\n" while this process
 * does (docs/CONTRACTS.md). */
#ifndef MOTLEY_SCHEDULER_LEADER_NOTE_H
#define MOTLEY_SCHEDULER_LEADER_NOTE_H

#include <stdint.h>
#include "common/err.h"

/* leader_note_write is called when leadership was gained, leader_note_remove when it was lost and at the end.
 * With a NULL 'path' both do nothing. */
int leader_note_write(const char *path, int64_t epoch, struct err *err);
void leader_note_remove(const char *path);

#endif
