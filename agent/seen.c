#include "agent/seen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"

/* The file is a ring of SEEN_MAX 8-byte slots in this machine's byte order. 0 is an empty slot, because ids
 * start at 1. */
struct seen {
    int fd;
    uint32_t at;
    char path[600];
    int64_t ids[SEEN_MAX];
};

struct seen *seen_open(const char *path, struct err *err)
{
    struct seen *seen = calloc(1, sizeof(*seen));
    if (!seen || file_path(seen->path, sizeof(seen->path), err, "%s", path) < 0) {
        free(seen);
        err_set(err, ERR_NOMEM, "no memory for the list of messages seen");
        return NULL;
    }
    seen->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat status;
    if (seen->fd < 0 || fstat(seen->fd, &status) < 0) {
        err_errno(err, ERR_IO, errno, "could not open file \"%s\"", path);
        seen_close(seen);
        return NULL;
    }
    size_t size = status.st_size < (off_t)sizeof(seen->ids) ? (size_t)status.st_size : sizeof(seen->ids);
    if (file_pread_all(seen->fd, seen->ids, size / 8 * 8, 0, path, err) < 0) {
        seen_close(seen);
        return NULL;
    }
    /* Ids grow, so the slot behind the greatest id is the oldest. */
    for (uint32_t i = 0; i < SEEN_MAX; i++)
        if (seen->ids[i] > 0 && seen->ids[i] >= seen->ids[seen->at])
            seen->at = i;
    if (seen->ids[seen->at] != 0)
        seen->at = (seen->at + 1) % SEEN_MAX;
    return seen;
}

void seen_close(struct seen *seen)
{
    if (seen) {
        if (seen->fd >= 0)
            close(seen->fd);
        free(seen);
    }
}

bool seen_has(const struct seen *seen, int64_t id)
{
    for (uint32_t i = 0; i < SEEN_MAX; i++)
        if (seen->ids[i] == id)
            return true;
    return false;
}

int seen_add(struct seen *seen, int64_t id, struct err *err)
{
    uint32_t at = seen->at;
    seen->ids[at] = id;
    seen->at = (at + 1) % SEEN_MAX;
    return file_pwrite_all(seen->fd, &id, sizeof(id), (uint64_t)at * sizeof(id), seen->path, err);
}
