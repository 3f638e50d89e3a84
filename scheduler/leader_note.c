#include "scheduler/leader_note.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "common/file.h"

int leader_note_write(const char *path, int64_t epoch, struct err *err)
{
    char text[64];
    if (!path)
        return 0;
    int length = snprintf(text, sizeof(text), "%" PRId64 " %d\n", epoch, (int)getpid());
    return file_write_atomic(path, text, (size_t)length, 0600, err);
}

void leader_note_remove(const char *path)
{
    if (path)
        unlink(path);
}
