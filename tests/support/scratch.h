/* A folder for one test, removed at the end. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

struct scratch {
    char dir[256];
};

static inline int scratch_make(struct scratch *scratch)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch->dir, sizeof(scratch->dir), "%s/motley-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch->dir) ? 0 : -1;
}

static inline void scratch_remove(struct scratch *scratch)
{
    struct err ignored;
    file_remove_tree(scratch->dir, &ignored);
}

/* Writes "DIR/name" to one of four rotating buffers and returns it. */
static inline const char *scratch_path(const struct scratch *scratch, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", scratch->dir, name);
    return path;
}
