/* Makes adapter_model.safetensors on rank 0 from the files of all ranks' values, as peft writes it. */
#ifndef MOTLEY_WORKER_CHECKPOINT_ADAPTER_FILE_H
#define MOTLEY_WORKER_CHECKPOINT_ADAPTER_FILE_H

#include "worker/checkpoint/read.h"
#include "worker/checkpoint/waiting.h"

/* The adapters' values that all ranks have sent to rank 0, as files in a spool. */
struct adapter_log;

/* Makes an empty log. The spool is borrowed until adapter_log_destroy. */
int adapter_log_create(struct spool *spool, struct adapter_log **out, struct err *err);
void adapter_log_destroy(struct adapter_log *log);
/* Adds a file of adapters' values, with its index lines; its bytes begin at `at` of the spool. */
int adapter_log_add(struct adapter_log *log, const char *lines, size_t lines_size, uint64_t at,
                    struct err *err);
/* Assembles and stores adapter_model.safetensors and adds its index lines to the snapshot's index. A small
 * file is assembled in memory, a larger one in a file of the worker's own folder. */
int adapter_file_store(struct session *session, struct snapshot *snapshot, struct adapter_log *log,
                       struct err *err);

#endif
