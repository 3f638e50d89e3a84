/* The interface between the engine and its devices: device, queue, buffer and event. The ops stand in op.h.
 *
 * The interface is shaped for GPUs. A buffer is a handle: its bytes belong to the device, and the host
 * reaches them only through copies that it queues. A device has a few queues. One queue runs its ops, copies
 * and fills in the order in which they were queued; different queues run at the same time, and only events
 * order them against each other. Queued work is certain to be done only after an event recorded behind it has
 * been waited for. A device counts every allocated byte by purpose and enforces a hard limit.
 *
 * Implementations: `cpu` runs each op at once on its own small thread pool. `checked` is the CPU device with
 * delayed work: it runs queued work when somebody waits for an event, makes buffers inaccessible to the host
 * meanwhile, and checks each op's operands for size, overlap and initialisation. `paced` computes as `cpu`
 * does and takes the time of given rates. `cuda`, `hip` and `emulated` are in engine/gpu. Implementers
 * include backend_private.h.
 *
 * Threads: each queue of a device belongs to one thread at a time. Different queues may belong to different
 * threads. Any of these threads may create and destroy buffers, host memory and events. All of them stay with
 * the device that made them. Different devices are independent.
 *
 * Errors: functions that can fail return -1 and fill *err. The device's own errors are ERR_NOMEM (the device
 * or the host has no memory for this now), ERR_DEVICE_LOST (the device is gone; opening it may be tried
 * again) and ERR_DEVICE_FAULT (the device computes wrongly: a launch failed or memory has an uncorrectable
 * error; a person should look before it is used again). After the last two, every call on that device fails
 * with the same error.
 */
#ifndef MOTLEY_ENGINE_DEVICE_BACKEND_H
#define MOTLEY_ENGINE_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64, DTYPE_I32, DTYPE_U32, DTYPE_U8 };

/* What memory is used for. The device accounts by purpose; plans and reports use the same names. */
enum mem_purpose {
    MEM_WEIGHTS,     /* frozen parameters, rotary tables */
    MEM_ADAPTERS,    /* trained parameters and their gradients */
    MEM_OPTIMIZER,   /* first and second moments */
    MEM_ACTIVATIONS, /* what forward saves for backward, for each micro-batch in flight */
    MEM_BUFFERS,     /* workspace, boundary tensors, KV caches, token ids */
    MEM_PURPOSES
};

/* Functions without a queue argument use DEVICE_COMPUTE. The other queues serve a thread that moves tensors:
 * on them every device runs copies, OP_ADD, OP_CAST and OP_COPY. */
enum device_queue { DEVICE_COMPUTE, DEVICE_IN, DEVICE_OUT, DEVICE_GROUP, DEVICE_QUEUES };

struct device;
struct buffer;
struct event;

/* The rates of a `paced` device: FLOP/s of products in fp32 and in 16 bits, bytes per second of its memory
 * and between it and its host, and seconds of a launch. All but the last are above 0. */
struct device_pace {
    double flops, flops_16, bytes_per_s, bus_bytes_per_s, launch_s;
};

struct device_options {
    const char *kind; /* "cpu", "checked", "paced", "cuda", "hip", "emulated" */
    const char *name; /* appears in messages, such as "left/cpu0"; copied */
    uint32_t threads; /* 1..64; 0 means 1 */
    /* "native", "amx", "avx512-bf16", "avx512", "avx2" or "sse42"; NULL takes MOTLEY_ISA from the
     * environment, else "native". For an emulated GPU: "warp32" or "warp64" and more
     * (engine/gpu/emulated/driver.c) */
    const char *isa;
    uint64_t memory_limit_bytes;    /* 0 means no limit */
    uint32_t index;                 /* number of the GPU among those that its driver shows */
    const struct device_pace *pace; /* of a paced device; copied */
};

/* Open a device. ERR_INVALID: an unknown kind, isa or thread count. ERR_UNSUPPORTED: the machine lacks that
 * instruction set, or another device of this process uses a different one. (The matrix library is loaded once
 * per process and gets its instruction set from the first device; nobody has to set OPENBLAS_CORETYPE.) */
int device_open(const struct device_options *options, struct device **out, struct err *err);

/* Waits for queued work. All buffers and events must have been destroyed before. NULL is a no-op. */
void device_close(struct device *device);

/* The values given to device_open, borrowed until device_close. device_isa is the resolved instruction set,
 * never "native". */
const char *device_name(const struct device *device);
const char *device_kind(const struct device *device);
const char *device_isa(const struct device *device);
uint32_t device_threads(const struct device *device);

/* Bytes of the device's largest cache, which other cores may share; 0 where the system does not say. */
uint64_t device_cache_bytes(const struct device *device);

/* Bytes allocated now (`held`) and the most since the last reset (`peak`), by purpose and in total. The
 * total's peak is not the sum of the purposes' peaks. Sizes are counted as allocated: rounded up to
 * FOOTPRINT_GRANULE (model/shape/footprint.h). */
struct mem_account {
    uint64_t held[MEM_PURPOSES], peak[MEM_PURPOSES];
    uint64_t held_total, peak_total;
    uint64_t limit;                /* 0 means no limit */
    uint64_t host_held, host_peak; /* bytes from host_memory_create, which do not count towards the limit */
};
void device_memory(const struct device *device, struct mem_account *out);
/* Bytes of device memory that the device took for itself at opening: a GPU's scratch memory and the workspace
 * of its vendor's matrix library. They count neither in the account nor towards the limit. May be 0. */
uint64_t device_base_bytes(const struct device *device);
void device_memory_reset_peak(struct device *device);
const char *mem_purpose_name(enum mem_purpose purpose); /* for example "weights", "adapters", "optimizer" */

/* Create a buffer of `bytes` with undefined contents, resident at once. 0 bytes are allowed. ERR_NOFIT
 * (beyond the limit) or ERR_NOMEM (the system has no more now) names the bytes asked for, their purpose, the
 * bytes held and the limit; nothing is allocated then. */
int buffer_create(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                  struct buffer **out, struct err *err);
void buffer_destroy(struct buffer *buffer);         /* waits for queued work; NULL is a no-op */
uint64_t buffer_bytes(const struct buffer *buffer); /* the size given to buffer_create, not rounded up */
struct device *buffer_device(const struct buffer *buffer);
/* A number above 0 that no other buffer of this device has or had. */
uint64_t buffer_serial(const struct buffer *buffer);

/* A buffer that another process on this node can import through the handle that buffer_export fills. The
 * handle is plain bytes, to be sent to a process of the same user. CUDA and HIP count shared buffers in whole
 * pieces of 2 MiB. The importing process counts nothing, must destroy its buffer before the exporter destroys
 * the original, and has to order accesses with the exporter by its own means. ERR_UNSUPPORTED: the device
 * cannot share buffers. ERR_INVALID: the handle is from another kind of device. */
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

/* Host memory for fast copies to and from this device: page-locked where the device reads host memory itself.
 * bytes > 0. ERR_NOMEM names the bytes asked for. */
int host_memory_create(struct device *device, uint64_t bytes, const char *what, void **out, struct err *err);
void host_memory_destroy(struct device *device, void *memory, uint64_t bytes); /* NULL is a no-op */

/* Queued copies. `src` and `dst` must stay valid and untouched until an event recorded later has been waited
 * for. ERR_INVALID when the range leaves the buffer. buffer_copy needs both buffers on the same device. */
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

/* An event is done when all work queued on its queue before event_record() is done. An event that was never
 * recorded is done. One thread may record an event and another may wait for it, once it was told of the
 * recording. */
int event_create(struct device *device, struct event **out, struct err *err);
/* Like event_create, but event_elapsed accepts the event. ERR_UNSUPPORTED for a device that computes on the
 * host's threads: its clock is the host's. */
int event_create_timed(struct device *device, struct event **out, struct err *err);
bool device_has_clock(const struct device *device); /* does the device make timed events? */
/* Seconds on the device's clock between two timed events, both of which must be done. */
int event_elapsed(const struct event *from, const struct event *to, double *seconds, struct err *err);
void event_destroy(struct event *event);
int event_record(struct event *event, struct err *err);
int event_record_on(enum device_queue queue, struct event *event, struct err *err);
int event_wait(struct event *event, uint64_t timeout_ns,
               struct err *err); /* ERR_TIMEOUT, or the error of a queued op */
bool event_done(const struct event *event);
/* Work queued on `queue` from now on begins after the event. The host does not wait. */
int queue_wait(enum device_queue queue, struct event *event, struct err *err);

/* A pass is the work queued on DEVICE_COMPUTE between begin and end. A device may record a pass and replay it
 * as a whole when the same key comes again. Equal keys must stand for equal ops, operands and host addresses;
 * key 0 records nothing. *replayed is true when the device has queued its recording: the caller then queues
 * nothing and does not call end. `queued` tells the end whether all ops of the pass were queued. *again is
 * true when the device could not record the pass: none of it has run, the device gives up recording, and the
 * caller queues the pass once more without begin and end. */
int device_pass_begin(struct device *device, uint64_t key, bool *replayed, struct err *err);
int device_pass_end(struct device *device, bool queued, bool *again, struct err *err);
bool device_records_passes(const struct device *device); /* does this kind of device record any? Pure */
/* The number of tokens, or of labelled ones, to which a pass over `count` of them is padded where passes are
 * recorded. There are few such sizes, so micro-batches of unlike lengths replay each other's passes:
 * multiples of an eighth of the largest power of two that is not above the count, but of 128 at most, the
 * rows of the tiles that products compute whole anyway. Devices that record passes cut their sums by this
 * size, so that padding with zeros changes no bit. Pure. */
uint32_t device_pass_size(uint32_t count);
/* Counters for tests and measurements: passes recorded, passes replayed from a recording, and kernel launches
 * queued one by one (0 on devices without launches). */
struct pass_counts {
    uint64_t recorded, replayed, launches;
};
void device_pass_counts(const struct device *device, struct pass_counts *out);

/* Wait for everything queued so far on any queue. Reports the first error of a queued op. */
int device_sync(struct device *device, struct err *err);

#endif
