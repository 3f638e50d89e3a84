/* Devices as the engine sees them: device, queue, buffer, event; ops stand in op.h.
 *
 * Made for GPUs from the first day. A buffer is a handle: its bytes belong to the device, and the host
 * reaches them only by copies that it queues. A device has a few queues: each runs what was queued on it
 * (ops, copies, fills) in that order, different queues run at once, and events are the only tie between them.
 * Nothing is done for certain before the event recorded after it has been waited for. A device counts every
 * byte by purpose and keeps a hard limit.
 *
 * Implementations: `cpu` (runs each op at once, on its own small thread pool), `checked` (cpu, but what is
 * queued waits until somebody waits for an event, buffers are inaccessible to the host in between, and each
 * op's operands are checked for size, overlap and initialisation), and `cuda`, `hip` and `emulated`
 * (engine/gpu). Implementers include backend_private.h.
 *
 * Threads: each queue of a device belongs to one thread at a time; different queues may belong to different
 * threads, and buffers, host memory and events may be made and destroyed by any of them. What was made stays
 * with its device. Different devices are independent.
 *
 * Errors: functions that can fail return -1 and fill *err. Of the device itself: ERR_NOMEM (it, or the host,
 * has no memory for this now), ERR_DEVICE_LOST (it is gone; may be tried again), ERR_DEVICE_FAULT (it
 * computes wrongly: a failing launch, an uncorrectable memory error; it should not be used again unseen).
 * After the last two everything on that device fails with the same error.
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

/* Functions that name no queue use the first. The others are for a thread that moves tensors: beside copies
 * every device runs OP_ADD, OP_CAST and OP_COPY on them. */
enum device_queue { DEVICE_COMPUTE, DEVICE_IN, DEVICE_OUT, DEVICE_QUEUES };

struct device;
struct buffer;
struct event;

struct device_options {
    const char *kind; /* "cpu", "checked", "cuda", "hip", "emulated" */
    const char *name; /* for messages, such as "left/cpu0"; copied */
    uint32_t threads; /* 1..64; 0 means 1 */
    const char *isa;  /* "native", "avx512", "avx2", "sse42"; NULL: MOTLEY_ISA, else native. Of an emulated
                         GPU:  "warp32" or "warp64" and more (engine/gpu/emulated/driver.c) */
    uint64_t memory_limit_bytes; /* 0: no limit */
    uint32_t index;              /* of a GPU, as its driver counts those that it shows */
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
    uint64_t limit;                /* 0: none */
    uint64_t host_held, host_peak; /* of host_memory_create: beside the limit */
};
void device_memory(const struct device *device, struct mem_account *out);
/* Bytes of the device's memory that it took for itself when it was opened, beside the account and its limit:
 * a GPU's scratch memory and the areas of its vendor's library of products. 0: none. */
uint64_t device_base_bytes(const struct device *device);
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
/* A number, not 0, that no other buffer of the device has or had. */
uint64_t buffer_serial(const struct buffer *buffer);

/* A buffer that another process of this node may use too, through the handle that buffer_export gives: plain
 * bytes, to be sent to a process of the same user. On CUDA and HIP it is counted in whole pieces of 2 MiB.
 * Whoever imports it counts nothing, and must destroy it
 * before the exporter does; what orders their accesses is up to them. ERR_UNSUPPORTED: the device cannot;
 * ERR_INVALID: the handle is of another kind of device. */
struct buffer_handle {
    char kind[16];
    uint64_t bytes;
    uint8_t of_device[64];
};
int buffer_create_shared(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                         struct buffer **out, struct err *err);
int buffer_export(struct buffer *buffer, struct buffer_handle *out, struct err *err);
int buffer_import(struct device *device, const struct buffer_handle *handle, struct buffer **out,
                  struct err *err);

/* Host memory that copies from and to this device take the short way: page-locked where it reads by itself.
 * bytes > 0. ERR_NOMEM names what was asked. */
int host_memory_create(struct device *device, uint64_t bytes, const char *what, void **out, struct err *err);
void host_memory_destroy(struct device *device, void *memory, uint64_t bytes); /* NULL is a no-op */

/* Queued copies. `src`/`dst` must stay valid and untouched until an event recorded later has been waited for.
 * ERR_INVALID when the range leaves the buffer. Copy between buffers: same device. */
int buffer_write(struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes, struct err *err);
int buffer_read(struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes, struct err *err);
int buffer_copy(struct buffer *dst, uint64_t dst_at, struct buffer *src, uint64_t src_at, uint64_t bytes,
                struct err *err);
int buffer_zero(struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err);
int buffer_write_on(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                    uint64_t bytes, struct err *err);
int buffer_read_on(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                   struct err *err);
int buffer_copy_on(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                   uint64_t src_at, uint64_t bytes, struct err *err);

/* An event is done when all that was queued on its queue before event_record() is done; one that was never
 * recorded is done. Recorded by one thread, it may be waited for by another that was told of it since. */
int event_create(struct device *device, struct event **out, struct err *err);
/* The same, of which event_elapsed may be asked; ERR_UNSUPPORTED of a device that computes on the host's own
 * threads: its clock is the host's. */
int event_create_timed(struct device *device, struct event **out, struct err *err);
bool device_has_clock(const struct device *device); /* does it make timed events? */
/* Seconds by the device's clock between two timed events, both done. */
int event_elapsed(const struct event *from, const struct event *to, double *seconds, struct err *err);
void event_destroy(struct event *event);
int event_record(struct event *event, struct err *err);
int event_record_on(enum device_queue queue, struct event *event, struct err *err);
int event_wait(struct event *event, uint64_t timeout_ns,
               struct err *err); /* ERR_TIMEOUT; also errors of ops */
bool event_done(const struct event *event);
/* What is queued on `queue` from now on begins after the event, without the host waiting. */
int queue_wait(enum device_queue queue, struct event *event, struct err *err);

/* A pass: what is queued on DEVICE_COMPUTE until its end, which a device may record and run again as a whole.
 * For equal keys (not 0; 0: nothing is kept) everything between must be equal: ops, operands, host addresses.
 * *replayed: the device has queued it again as it was; then nothing is to be queued, and there is no end.
 * The end is told whether all of it was queued. *again: none of it has run, since the device could not record
 * it; it records nothing more, and the pass must be queued anew, without begin and end. */
int device_pass_begin(struct device *device, uint64_t key, bool *replayed, struct err *err);
int device_pass_end(struct device *device, bool queued, bool *again, struct err *err);
/* Passes so far that were recorded, and run again instead of being queued op by op; and calls of kernels that
 * were queued one by one (0 where a device has no such thing). For tests and measurements. */
struct pass_counts {
    uint64_t recorded, replayed, launches;
};
void device_pass_counts(const struct device *device, struct pass_counts *out);

/* Wait for everything queued so far on any queue; reports the first error of a queued op. */
int device_sync(struct device *device, struct err *err);

#endif
