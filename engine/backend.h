/* Devices as the engine sees them: device, buffer, event; ops stand in op.h.
 *
 * Made for GPUs from the first day. A buffer is a handle: its bytes belong to the device, and the host
 * reaches them only by copies that it queues. Everything queued on a device (ops, copies, fills) runs in the
 * order in which it was queued; nothing is done for certain before the event recorded after it has been
 * waited for. A device counts every byte by purpose and keeps a hard limit.
 *
 * Implementations: `cpu` (runs each op at once, on its own small thread pool) and `checked` (cpu, but ops
 * wait in the queue until somebody waits for an event, buffers are inaccessible to the host in between, and
 * each op's operands are checked for size, overlap and initialisation). Implementers include
 * backend_private.h.
 *
 * Threads: a device and all that was made from it belong to one thread at a time. Different devices are
 * independent. Errors: functions that can fail return -1 and fill *err.
 */
#ifndef MOTLEY_ENGINE_BACKEND_H
#define MOTLEY_ENGINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64, DTYPE_I32, DTYPE_U32, DTYPE_U8 };

/* What memory is for. The device accounts by these, plans and reports use the same names. */
enum mem_purpose {
    MEM_WEIGHTS,     /* frozen parameters, rotary tables */
    MEM_ADAPTERS,    /* trained parameters and their gradients */
    MEM_OPTIMIZER,   /* first and second moments */
    MEM_ACTIVATIONS, /* what forward saves for backward, per micro-batch in flight */
    MEM_BUFFERS,     /* workspace, boundary tensors, KV caches, token ids */
    MEM_PURPOSES
};

struct device;
struct buffer;
struct event;

struct device_options {
    const char *kind;            /* "cpu" or "checked" */
    const char *name;            /* for messages, such as "left/cpu0"; copied */
    uint32_t threads;            /* 1..64; 0 means 1 */
    const char *isa;             /* "native", "avx512", "avx2", "sse42"; NULL: MOTLEY_ISA, else native */
    uint64_t memory_limit_bytes; /* 0: no limit */
};

/* Open a device. ERR_INVALID: an unknown kind, isa or thread count. ERR_UNSUPPORTED: the machine lacks that
 * isa, or another device of this process already uses another one (the matrix library is loaded once per
 * process; it is told its instruction set here, so OPENBLAS_CORETYPE need not be set by anyone). */
int device_open(const struct device_options *options, struct device **out, struct err *err);

/* Waits for what is queued. All buffers and events must have been destroyed. NULL is a no-op. */
void device_close(struct device *device);

/* What device_open was told; the instruction set is the resolved one, never "native". Borrowed until close.
 */
const char *device_name(const struct device *device);
const char *device_kind(const struct device *device);
const char *device_isa(const struct device *device);
uint32_t device_threads(const struct device *device);

/* Its largest cache, which others may share; 0 where the system does not say. */
uint64_t device_cache_bytes(const struct device *device);

/* Bytes held now and at most ever (since the last reset), by purpose and together. The peak of the total is
 * not the sum of the peaks. Sizes are counted as allocated: rounded up to FOOTPRINT_GRANULE
 * (model/footprint.h). */
struct mem_account {
    uint64_t held[MEM_PURPOSES], peak[MEM_PURPOSES];
    uint64_t held_total, peak_total;
    uint64_t limit; /* 0: none */
};
void device_memory(const struct device *device, struct mem_account *out);
void device_memory_reset_peak(struct device *device);
const char *mem_purpose_name(enum mem_purpose purpose); /* "weights", "adapters", "optimizer", … */

/* A new buffer of `bytes` (0 is allowed and holds nothing), contents undefined, resident at once.
 * ERR_NOFIT (beyond the limit) or ERR_NOMEM (the system has no more now) names what was asked, for what, what
 * is held and the limit; nothing is allocated then. */
int buffer_create(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                  struct buffer **out, struct err *err);
void buffer_destroy(struct buffer *buffer);         /* waits for what is queued; NULL is a no-op */
uint64_t buffer_bytes(const struct buffer *buffer); /* as asked */
struct device *buffer_device(const struct buffer *buffer);

/* Queued copies. `src`/`dst` must stay valid and untouched until an event recorded later has been waited for.
 * ERR_INVALID when the range leaves the buffer. Copy between buffers: same device. */
int buffer_write(struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes, struct err *err);
int buffer_read(struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes, struct err *err);
int buffer_copy(struct buffer *dst, uint64_t dst_at, struct buffer *src, uint64_t src_at, uint64_t bytes,
                struct err *err);
int buffer_zero(struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err);

/* An event is done when all that was queued before event_record() is done. */
int event_create(struct device *device, struct event **out, struct err *err);
void event_destroy(struct event *event);
int event_record(struct event *event, struct err *err);
int event_wait(struct event *event, uint64_t timeout_ns,
               struct err *err); /* ERR_TIMEOUT; also errors of ops */
bool event_done(const struct event *event);

/* Wait for everything queued so far; reports the first error of a queued op. */
int device_sync(struct device *device, struct err *err);

#endif
