/* Limits what a worker's process reaches to what its work needs (common/confine.h), before it opens a file of
 * a model or of data: strangers made them.
 *
 * It reads programs, libraries and drivers of the system, the model's folder or files if the assignment names
 * them (no link is followed), and the CA's certificate. It reads and writes the node's chunk cache, whose
 * chunks are verified, and its own folder; for cards the devices, shared memory and the driver's cache of
 * kernels. The agent's home, where key, token and other jobs' folders are, or the folder around it that the
 * agent's configuration calls private, is left out even where it lies below a folder that may be read. */
#ifndef MOTLEY_WORKER_START_REACH_H
#define MOTLEY_WORKER_START_REACH_H

#include "worker/session/assign.h"
#include "worker/session/link.h"

struct reach {
    const struct local_part *local;
    const struct model_part *model; /* NULL: none */
    const char *dir;                /* the worker's own folder, made here, or NULL */
};

/* Confines the calling thread and the link's, which are the only ones of the process, and all that they
 * start. Without Landlock (an old kernel) files stay open to it, unless local->sandbox requires it: ERR_NODE.
 */
int reach_limit(const struct reach *reach, struct worker_link *link, struct err *err);

#endif
