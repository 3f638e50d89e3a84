/* For implementers of a device: the structs that backend.h keeps opaque, and one vtable each for device,
 * buffer, op and event. */
#ifndef MOTLEY_ENGINE_DEVICE_BACKEND_PRIVATE_H
#define MOTLEY_ENGINE_DEVICE_BACKEND_PRIVATE_H

#include <pthread.h>

#include "engine/device/backend.h"
#include "engine/device/lend.h"
#include "engine/device/op.h"

struct backend;

/* The part of a device that all implementations share. An implementation's own struct begins with it. */
struct device {
    const struct backend *backend;
    char name[128];
    const char *isa;
    uint32_t threads;
    uint64_t base_bytes;  /* device memory that the implementation took for itself, beside the account; set by
                             the implementation */
    uint64_t cache_bytes; /* bytes of the largest cache, 0 if unknown; set by the implementation */
    pthread_mutex_t lock; /* guards `account` */
    _Atomic uint64_t buffers_made;
    struct mem_account account;
    struct lender *lender; /* lends shared pages to other processes; NULL before the first ones */
};

struct buffer {
    struct device *device;
    enum mem_purpose purpose;
    uint64_t bytes, accounted, serial;
    bool shared, imported;
    void *memory; /* set by the implementation: the address in host memory (cpu) or on the GPU */
    void *extra;  /* for the implementation's own use */
};

struct event {
    struct device *device;
    enum device_queue queue; /* the queue it was last recorded on */
    bool timed;
    uint64_t ticket; /* for the implementation's own use */
    void *extra;     /* for the implementation's own use */
};

struct device_ops {
    /* Returns a new device in *out with `isa` set. device_open fills in backend, name, threads and limit. */
    int (*open)(const struct device_options *options, struct device **out, struct err *err);
    void (*close)(struct device *device);
    int (*sync)(struct device *device, struct err *err);
    /* NULL: the device records nothing, and passes are queued op by op. */
    int (*pass_begin)(struct device *device, uint64_t key, bool *replayed, struct err *err);
    int (*pass_end)(struct device *device, bool queued, bool *again, struct err *err);
    void (*pass_counts)(const struct device *device, struct pass_counts *out); /* NULL: all counts are 0 */
    /* Allocates host memory for fast copies (host_memory_create). NULL: the device uses malloc. */
    int (*host_create)(struct device *device, uint64_t bytes, void **out, struct err *err);
    void (*host_destroy)(struct device *device, void *memory);
};

/* Callers have checked sizes and ranges and do the accounting. */
struct buffer_ops {
    int (*create)(struct buffer *buffer,
                  struct err *err); /* creates a shareable buffer if buffer->shared is set */
    void (*destroy)(struct buffer *buffer);
    int (*write)(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes,
                 struct err *err);
    int (*read)(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                struct err *err);
    int (*copy)(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                uint64_t src_at, uint64_t bytes, struct err *err);
    int (*zero)(enum device_queue queue, struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err);
    /* Both NULL: the device cannot share buffers. import_handle sets `memory` of a buffer of handle->bytes.
     */
    int (*export_handle)(struct buffer *buffer, uint8_t handle[64], struct err *err);
    int (*import_handle)(struct buffer *buffer, const uint8_t handle[64], struct err *err);
};

struct op_ops {
    bool (*supports)(const struct device *device, const struct op *op);
    int (*submit)(enum device_queue queue, struct device *device, const struct op *op, struct err *err);
};

struct event_ops {
    /* Creates the implementation's part of an event, a timed one if event->timed is set; NULL: it has none.
     */
    int (*create)(struct event *event, struct err *err);
    void (*destroy)(struct event *event); /* NULL: there is nothing to free */
    int (*record)(enum device_queue queue, struct event *event, struct err *err);
    int (*wait)(struct event *event, uint64_t timeout_ns, struct err *err);
    bool (*done)(const struct event *event);
    int (*queue_wait)(enum device_queue queue, struct event *event, struct err *err);
    /* NULL: the device has no clock of its own */
    int (*elapsed)(const struct event *from, const struct event *to, double *seconds, struct err *err);
};

struct backend {
    const char *kind;
    uint64_t shared_piece; /* shared buffers are counted in whole pieces of this many bytes; 0:
                              FOOTPRINT_GRANULE */
    const struct device_ops *device;
    const struct buffer_ops *buffer;
    const struct op_ops *op;
    const struct event_ops *event;
};

extern const struct backend backend_cpu;
extern const struct backend backend_checked;
extern const struct backend backend_paced;
extern const struct backend backend_emulated;
extern const struct backend backend_cuda;
extern const struct backend backend_hip;

/* Page-aligned memory, already touched, in multiples of FOOTPRINT_GRANULE. NULL when the system has none. */
void *pages_alloc(uint64_t bytes);
void pages_free(void *memory, uint64_t bytes);

/* Like pages_alloc, but the memory is a memory file that `device` lends: another process of this machine can
 * map it through `handle` (pages_import). */
void *pages_alloc_shared(struct device *device, uint64_t bytes, uint8_t handle[64]);
void *pages_import(const uint8_t handle[64], uint64_t bytes);
/* called by the exporter: afterwards nobody can import the pages any more */
void pages_release_shared(const uint8_t handle[64]);

#endif
