/* For those who implement a device: what backend.h keeps opaque, and the vtables by noun. */
#ifndef MOTLEY_ENGINE_BACKEND_PRIVATE_H
#define MOTLEY_ENGINE_BACKEND_PRIVATE_H

#include "engine/backend.h"
#include "engine/op.h"

struct backend;

/* The part of a device that all implementations share; theirs embeds it first. */
struct device {
    const struct backend *backend;
    char name[128];
    const char *isa;
    uint32_t threads;
    uint64_t cache_bytes; /* of its largest cache, set by the implementation; 0: not known */
    struct mem_account account;
};

struct buffer {
    struct device *device;
    enum mem_purpose purpose;
    uint64_t bytes, accounted;
    void *memory; /* of the implementation; host-addressable here and now in cpu, guarded in checked */
    void *extra;  /* of the implementation */
};

struct event {
    struct device *device;
    uint64_t ticket; /* of the implementation */
};

struct device_ops {
    /* Returns new in *out with `backend`, `isa` set; name, threads, limit are filled in by device_open. */
    int (*open)(const struct device_options *options, struct device **out, struct err *err);
    void (*close)(struct device *device);
    int (*sync)(struct device *device, struct err *err);
};

/* Sizes and ranges were checked before; accounting is done by the caller. */
struct buffer_ops {
    int (*create)(struct buffer *buffer, struct err *err);
    void (*destroy)(struct buffer *buffer);
    int (*write)(struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes, struct err *err);
    int (*read)(struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes, struct err *err);
    int (*copy)(struct buffer *dst, uint64_t dst_at, struct buffer *src, uint64_t src_at, uint64_t bytes,
                struct err *err);
    int (*zero)(struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err);
};

struct op_ops {
    bool (*supports)(const struct device *device, const struct op *op);
    int (*submit)(struct device *device, const struct op *op, struct err *err);
};

struct event_ops {
    int (*record)(struct event *event, struct err *err);
    int (*wait)(struct event *event, uint64_t timeout_ns, struct err *err);
    bool (*done)(const struct event *event);
};

struct backend {
    const char *kind;
    const struct device_ops *device;
    const struct buffer_ops *buffer;
    const struct op_ops *op;
    const struct event_ops *event;
};

extern const struct backend backend_cpu;
extern const struct backend backend_checked;

/* Page-aligned memory, touched, in multiples of FOOTPRINT_GRANULE. NULL when the system has none. */
void *pages_alloc(uint64_t bytes);
void pages_free(void *memory, uint64_t bytes);

#endif
