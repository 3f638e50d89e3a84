/* Keeps bytes that wait to be stored: in memory while they are few, otherwise in a file of the node's cache
 * folder that has no name and ends with the process. So a checkpoint is copied at the speed of the disk and
 * stored while the next steps run. One thread uses a spool at a time. */
#ifndef MOTLEY_WORKER_CHECKPOINT_SPOOL_H
#define MOTLEY_WORKER_CHECKPOINT_SPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct spool;

/* Makes an empty spool. It keeps up to memory_bytes in memory and the rest in a file in the folder `dir`,
 * which is made when it is needed; without a folder (NULL) all bytes stay in memory. */
int spool_create(const char *dir, uint64_t memory_bytes, struct spool **out, struct err *err);
void spool_destroy(struct spool *spool);

/* Appends bytes and sets *at to their offset. ERR_IO when they do not fit into memory and the disk is full or
 * there is no folder; then nothing was appended. */
int spool_append(struct spool *spool, const void *data, size_t size, uint64_t *at, struct err *err);
int spool_read(struct spool *spool, uint64_t at, void *dst, size_t size, struct err *err);
/* Removes all bytes and frees memory and disk space. */
void spool_clear(struct spool *spool);

#endif
